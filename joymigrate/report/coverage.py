"""The contract `joymigrate.coverage/1`, and coverage as text."""

from __future__ import annotations

from typing import Any

from joymigrate.evidence import grade_line
from joymigrate.language import mark, pad, tell, tidy, with_texts
from joymigrate.profile.attribute import NAME, REASONS
from joymigrate.profile.coverage import LOOSE, Coverage, CoveredOperator, weight
from joymigrate.profile.support import SupportStatus
from joymigrate.report.fields import fields
from joymigrate.report.json_ import dumps

SCHEMA = "joymigrate.coverage/1"
SUPPORTED_SHOWN = 10  # supported operators under the gaps, by time


def json_text(coverage: Coverage) -> str:
    """Coverage as JSON text."""
    return dumps(with_texts(document(coverage)))


def document(coverage: Coverage) -> dict[str, Any]:
    """Coverage as plain data. Shares go from 0 to 1; times are in microseconds."""
    return {
        "schema": SCHEMA,
        **fields(coverage, "chip version torch source traces"),
        "ops": [row(op) for op in coverage.ops],
        "share": fields(coverage.share, "ops calls time")
        | {
            "by_evidence": {
                how: fields(one, "us:3 kept_us:3") for how, one in coverage.evidence.items()
            }
        },
        **fields(coverage, "basis unattributed_us:3"),
        **fields(coverage, "device_us:3 owned_us:3 by_name_us:3 loose_us:3"),
        "unattributed": [
            fields(one, "kernel=name reason calls device_us:3") | {"reason": REASONS[one.reason]}
            for one in coverage.loose[:LOOSE]
        ],
        "packages": {
            name: {"ops": count, "us": round(us, 3)}
            for name, (count, us) in coverage.packages().items()
        },
        "found_by": {how: round(us, 3) for how, us in coverage.found_by.items()},
        "phases": {
            name: fields(phase, "seen exact by_name gaps")
            for name, phase in coverage.phases.items()
        },
        "summary": {status.value: coverage.count(status) for status in SupportStatus},
        "grades": coverage.grades(),
        "notes": list(coverage.notes),
    }


def row(op: CoveredOperator) -> dict[str, Any]:
    """One operator."""
    return {
        **fields(op, "op overload status calls self_us:3 device_us:3 dtypes where note"),
        **fields(op, "alternative package source evidence"),
        "grade": op.known_grade,
        "sites": [fields(site, "where calls self_us:3") for site in op.sites],
        "phases": dict(op.phases),
    }


def text(coverage: Coverage) -> str:
    """The shares, every gap with what to do, and the heaviest supported operators."""
    kept = sum(1 for op in coverage.ops if op.status.supported)
    about = {"chip": coverage.chip, "version": coverage.version, "source": coverage.source}
    shares = tell(
        "operators {kept} ({share}), calls {calls}, {time}",
        kept=f"{kept}/{len(coverage.ops)}",
        share=percent(coverage.share.ops),
        calls=percent(coverage.share.calls),
        time=time_line(coverage),
    )
    lines = [tell("{chip} {version}, from {source}", **about), f"  {shares}", ""]
    for op in coverage.gaps():
        lines += gap_lines(op, coverage)
    if coverage.gaps():
        lines.append("")
    supported = [op for op in coverage.ops if op.status.supported]
    if supported:
        order = "the most called first" if coverage.basis == "none" else "the longest first"
        lines.append(tell("Supported, {order}:", order=order))
    for op in supported[:SUPPORTED_SHOWN]:
        lines.append(f"  {pad(tell(op.status.value), 13)} {op.name}  {figures(op, coverage)}")
    if len(supported) > SUPPORTED_SHOWN:
        number = len(supported) - SUPPORTED_SHOWN
        lines.append("  " + tell("… and {number} more", number=number))
    lines += unattributed_lines(coverage)
    lines += phase_lines(coverage)
    lines += [grade_line(coverage.grades()), closing(coverage)]
    return tidy("\n".join(lines)) + "\n"


def attribution_lines(coverage: Coverage) -> list[str]:
    """What has to be installed beside the chip's package, and how owners of kernels were found."""
    lines = [
        tell("needs {package} beside {chip}: {number} operators, {us} us", package=name,
             chip=coverage.chip, number=count, us=f"{us:,.0f}")
        for name, (count, us) in coverage.packages().items()
    ]  # fmt: skip
    if coverage.device_us:
        lines.append(sum_line(coverage))
    for how, us in coverage.found_by.items():
        words = "{us} us of device time belong to operators by {how}; {kept} us stay on the chip."
        if how == NAME:
            words = "{us} us of device time are known by kernels' names alone, which is no yes."
        kept = coverage.evidence[how].kept_us if how in coverage.evidence else 0.0
        lines.append(tell(words, us=f"{us:,.0f}", how=tell(how), kept=f"{kept:,.0f}"))
    return lines


def sum_line(coverage: Coverage) -> str:
    """What all device time is made of."""
    parts = {
        name: getattr(coverage, f"{name}_us") for name in ("device", "owned", "by_name", "loose")
    }
    words = "device time: {device} us = {owned} of operators + {by_name} by name + {loose} loose"
    return tell(words, **{name: f"{us:,.1f}" for name, us in parts.items()})


def unattributed_lines(coverage: Coverage) -> list[str]:
    """Device time that is not known to belong to an operator, and how the rest was found."""
    lines = attribution_lines(coverage)
    if coverage.unattributed_us:
        words = "unattributed: {us} us of device time, counted as not on the chip:"
        lines.append(tell(words, us=f"{coverage.unattributed_us:,.0f}"))
        lines += [
            f"  {one.device_us:,.0f} us  {one.name[:70]}  ({tell(REASONS[one.reason])})"
            for one in coverage.loose[:SUPPORTED_SHOWN]
        ]
    return lines


def phase_lines(coverage: Coverage) -> list[str]:
    """Which phases of the program were seen, and how."""
    if not coverage.phases or set(coverage.phases) == {"unknown"}:
        return []
    said = [
        tell("{phase} {seen} ({number})", phase=tell(name), seen=tell(phase.seen),
             number=phase.exact + phase.by_name)
        if phase.exact + phase.by_name
        else tell("{phase} {seen}", phase=tell(name), seen=tell(phase.seen))
        for name, phase in coverage.phases.items()
    ]  # fmt: skip
    return [tell("Phases: {said}", said=", ".join(said))]


def time_line(coverage: Coverage) -> str:
    """The share of time, with whose time it is."""
    if coverage.share.time is None:
        return tell("no times recorded")
    return tell("{basis} time {share}", basis=coverage.basis, share=percent(coverage.share.time))


def gap_lines(op: CoveredOperator, coverage: Coverage) -> list[str]:
    """One operator that does not stay on the chip."""
    dtypes = f"  {' '.join(op.dtypes)}" if op.dtypes else ""
    where = f"  {op.where}" if op.where else ""
    lines = [f"{pad(tell(op.status.value), 12)} {op.name}  {figures(op, coverage)}{dtypes}{where}"]
    if op.note:
        lines.append(f"    {tell('note')}: {tell(op.note)}")
    if op.alternative:
        lines.append(f"    {tell('instead')}: {tell(op.alternative)}")
    if op.source and op.source != f"not in {coverage.source}":
        lines.append(f"    {tell('source')}: {tell(op.source)}")
    return lines


def figures(op: CoveredOperator, coverage: Coverage) -> str:
    """Calls and time."""
    words = "{number} call" if op.calls == 1 else "{number} calls"
    calls = tell(words, number=f"{op.calls:,}")
    if coverage.basis == "none":
        return calls
    return f"{calls}  {weight(op, coverage.basis):,.1f} us"


def percent(share: float) -> str:
    """A share from 0 to 1 as text; what is not all never reads as 100 %."""
    return f"{100 * share:.1f} %" if share == 1.0 else f"{min(100 * share, 99.9):.1f} %"


def closing(coverage: Coverage) -> str:
    """The last line."""
    parts = [
        tell(words, number=coverage.count(status))
        for status, words in (
            (SupportStatus.CPU_FALLBACK, "{number} on the CPU"),
            (SupportStatus.MISSING, "{number} missing"),
            (SupportStatus.UNKNOWN, "{number} unknown"),
        )
        if coverage.count(status)
    ]
    number = len(coverage.ops)
    kept = "all stay on the chip" if number else "nothing is known to stay on the chip"
    said = mark("list").join(parts) if parts else tell(kept)
    return tell(
        "Judged {operators} for {chip} {version}: {said}.",
        operators=tell("{number} operator{number_s}", number=number),
        chip=coverage.chip,
        version=coverage.version,
        said=said,
    )
