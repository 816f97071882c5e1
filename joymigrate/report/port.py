"""The port check of Triton kernels and bound CUDA operators as text and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from joymigrate.profile.port import BoundOperator, KernelCheck, Ported
from joymigrate.report.fields import fields


def document(
    found: Sequence[KernelCheck],
    operators: Sequence[BoundOperator],
    chip: str,
    known: dict[str, Any],
    variants: Sequence[Ported] = (),
) -> dict[str, Any]:
    """`joymigrate.port/1`."""
    return {
        "schema": "joymigrate.port/1",
        "chip": chip,
        "grade": "documented",
        "source": known["source"],
        "kernels": [asdict(one) for one in found],
        "operators": [operator(one) for one in operators],
        "variants": [variant(one) for one in variants],
        "summary": dict(Counter(one.verdict for one in found)),
    }


def text(
    found: Sequence[KernelCheck],
    operators: Sequence[BoundOperator],
    chip: str,
    known: dict[str, Any],
    variants: Sequence[Ported] = (),
) -> str:
    """One line per kernel and operator, their notes below, and a summary with the source."""
    lines: list[str] = []
    for one in found:
        lines.append(f"{one.path}:{one.line}: {one.kernel}: {one.verdict}")
        for note in one.notes:
            lines.append(f"  {note.level:<8} line {note.line}: {note.message}")
            if note.help:
                lines.append(f"           {note.help}")
    for one_bound in operators:
        lines += operator_lines(one_bound)
    counted = Counter(one.verdict for one in found)
    said = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counted.items()))
    lines.append(f"{len(found)} Triton kernels on {chip}: {said or 'none found'}.")
    lines.append(f"Documented by {known['source']}; nothing was run.")
    lines += variant_lines(variants)
    if operators:
        left = sum(not (one.instead or one.host) for one in operators)
        derived = [one for one in operators if one.reference.get("derived")]
        equal = sum(one.reference.get("proof", {}).get("result") == "equal" for one in derived)
        lines.append(
            f"{len(operators)} bound C++ and CUDA operators, {left} of them without a known "
            f"replacement: {len(derived)} references derived, {equal} of them equal to the "
            "original built here, on the CPU. A reference is slow, no kernel for the chip; one "
            "that was not compared may be wrong."
        )
    return "\n".join(lines) + "\n"


def variant(one: Ported) -> dict[str, Any]:
    """One kernel's variant."""
    return {
        **fields(one, "path kernel=port.kernel line=port.line changes=port.changes"),
        "written": one.written or None,
        "refused": one.port.refused or None,
        "verdict": one.verdict.verdict if one.verdict else None,
        "proof": fields(one.proof, "result cases ran statements")
        | {
            "reason": one.proof.reason or None,
            "front_end": one.proof.front_end or None,
            "front_end_original": one.proof.front_end_original or None,
        },
    }


def variant_lines(variants: Sequence[Ported]) -> list[str]:
    """What was written, and whether it computes the same."""
    lines: list[str] = []
    for one in variants:
        head = f"{one.path}:{one.port.line}: {one.port.kernel}"
        if one.port.refused:
            lines.append(f"{head}: left as it is: {one.port.refused}")
            continue
        said = one.proof.reason
        if one.proof.result == "equal":
            said = (
                f"equal to the original in {one.proof.cases} interpreted cases, which ran "
                f"{one.proof.ran} of {one.proof.statements} statements"
            )
        lines.append(f"{head}: {', '.join(one.port.changes)} → {one.written}")
        if one.verdict is not None:
            why = "; ".join(note.message for note in one.verdict.notes[:1])
            lines.append(f"  the variant {one.verdict.verdict}{f': {why}' if why else ''}")
        lines.append(f"  {said if one.proof.result == 'equal' else f'not proved: {said}'}")
        if one.proof.front_end:
            lines.append(
                "  the front end of the chip's compiler takes it"
                if one.proof.front_end == "taken" else
                f"  REFUSED by the front end of the chip's compiler: {one.proof.front_end}"
                + ("" if one.proof.front_end_original == "taken" else " (and so is the original)")
            )  # fmt: skip
    if variants:
        done = [one for one in variants if not one.port.refused]
        equal = sum(one.proof.result == "equal" for one in done)
        lines.append(
            f"{len(done)} of {len(variants)} kernels and helpers written, {equal} of them proved "
            "in Triton's interpreter; none was compiled for the chip."
        )
        asked = [one for one in done if one.proof.front_end]
        if asked:
            taken = sum(one.proof.front_end == "taken" for one in asked)
            lines.append(f"The front end of the chip's compiler takes {taken} of {len(asked)}; "
                         "what comes behind it (its SDK) was not asked.")  # fmt: skip
    return lines


def operator(one: BoundOperator) -> dict[str, Any]:
    """One bound operator; `ported` is true where its reference equals the original built here."""
    made = asdict(one)
    for key in ("instead", "source", "skeleton", "module", "schema", "function", "reference"):
        made[key] = made[key] or None
    equal = one.reference.get("proof", {}).get("result") == "equal"
    return made | {"host": one.host, "ported": equal}


def operator_lines(one: BoundOperator) -> list[str]:
    """One bound operator, with what is known or was started."""
    inside = ", ".join(f"{a.type} {a.name}" for a in one.arguments or ())
    inside = inside if one.arguments is not None else "arguments not found"
    module = f" of {one.module}" if one.module else ""
    lines = [f"{one.path}:{one.line}: {one.name}({inside}){module}: bound operator"]
    if one.instead:
        lines.append(f"  instead: {one.instead}")
    elif one.host:
        lines.append("  takes NumPy arrays: runs on the host, compile it there as it is")
    elif one.reference.get("derived"):
        proof = one.reference.get("proof") or {"result": "not asked for", "reason": ""}
        left = one.reference["left_out"]
        lines.append(f"  reference: {one.skeleton}, derived from {one.reference['derived']} "
                     f"({one.reference['where']})")  # fmt: skip
        lines += [f"  not passed on: {', '.join(left)}"] if left else []
        cases = (
            f" in {proof['cases']} small drawn cases on the CPU"
            if proof["result"] == "equal"
            else ""
        )
        reason = f": {proof['reason']}" if proof["reason"] else ""
        lines.append(f"  beside the original: {proof['result']}{cases}{reason}")
    elif one.skeleton:
        lines.append(f"  to write: {one.skeleton}, with a test beside it")
        lines.append(f"  no reference derived: {one.reference.get('reason', '')}")
    else:
        lines.append("  no known replacement; --skeleton DIR starts one")
    return lines
