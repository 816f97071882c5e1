"""`train models`: which families can be built and trained here, verified."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from joymigrate.errors import Exit

MARKS = {"pass": "yes", "fail": "no", "skipped": "-"}

PACKING = {True: "yes", False: "no", None: "-"}


def register(app: typer.Typer) -> None:
    """Add the command to `train`."""
    app.command("models")(models)


def models(
    family: list[str] = typer.Option([], "--family", help="Only this family (repeatable)."),
    kind: list[str] = typer.Option(
        [],
        "--kind",
        help="llm, multimodal, encoder, seq2seq, image, text-to-image, recommendation.",
    ),
    layouts: bool = typer.Option(
        False, "--layouts", help="Also step on two processes: ddp, fsdp, tp, pp (slow)."
    ),
    names: bool = typer.Option(False, "--list", help="Only names, nothing is verified."),
    form: str = typer.Option("text", "--format", help="text or json."),
    output: Path | None = typer.Option(None, "-o", "--output", help="Write to a file."),
) -> int:
    """List model families with what was verified: built on meta, one step, layouts."""
    from joymigrate.cli._output import Progress, emit, one_of, talk
    from joymigrate.cli._train_extra import need_extra
    from joymigrate.run.train import families, family_kinds, family_layouts

    need_extra()
    chosen = one_of(form, ("text", "json"), "--format")
    for wish in kind:
        one_of(wish, family_kinds.ALL_KINDS, "--kind")
    if names:
        emit("".join(f"{one.task}\t{one.family}\n" for one in families.list_families()), output)
        return Exit.OK
    with Progress("verifying") as bar:

        def tell(line: str) -> None:
            done, _, total = line.split(" ")[0].partition("/")
            bar(int(done), int(total))

        found = families.survey(family, kind, tell)
    if layouts:
        found = family_layouts.survey(found, lambda line: talk([line]))
    if chosen == "json":
        emit(json.dumps(families.document(found), indent=1) + "\n", output)
        return Exit.OK
    lines = [f"{'family':<28} {'task':<14} meta step packing layouts            reason"]
    for one in found:
        built = "yes" if one.meta else "no"
        shown = ", ".join(one.layouts) or "-"
        lines.append(
            f"{one.family:<28} {one.task:<14} {built:<4} {MARKS[one.step]:<4} "
            f"{PACKING[one.packing]:<7} {shown:<18} "
            f"{one.reason or ''}".rstrip()
        )
    count = families.document(found)["summary"]
    lines.append(
        f"{count['families']} families, {count['meta']} built, {count['step']} stepped on the CPU"
    )
    emit("\n".join(lines) + "\n", output)
    return Exit.OK
