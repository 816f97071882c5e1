"""`train models`: which families can be built and trained here, verified."""

from __future__ import annotations

import typer

from joymigrate.cli._answers import Answer, answers

MARKS = {"pass": "yes", "fail": "no", "skipped": "-"}

PACKING = {True: "yes", False: "no", None: "-"}


def register(app: typer.Typer) -> None:
    """Add the command to `train`."""
    app.command("models")(models)


@answers("models")
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
) -> Answer:
    """List model families with what was verified: built on meta, one step, layouts."""
    from joymigrate.cli._output import Progress, one_of, talk
    from joymigrate.cli._train_extra import need_extra
    from joymigrate.run.train import families, family_kinds, family_layouts

    need_extra()
    for wish in kind:
        one_of(wish, family_kinds.ALL_KINDS, "--kind")
    if names:
        found = families.list_families()
        lines = [f"{one.task}\t{one.family}\n" for one in found]
        document = families.document(found)
        document["summary"] = {"families": len(found)}
        for one in document["models"]:
            one["meta"] = None  # nothing was tried
        return Answer(document, "".join(lines))
    with Progress("verifying") as bar:

        def tell(line: str) -> None:
            done, _, total = line.split(" ")[0].partition("/")
            bar(int(done), int(total))

        found = families.survey(family, kind, tell)
    if layouts:
        found = family_layouts.survey(found, lambda line: talk([line]))
    lines = [f"{'family':<28} {'task':<14} meta step packing layouts            reason"]
    for one in found:
        built = "yes" if one.meta else "no"
        shown = ", ".join(one.layouts) or "-"
        lines.append(
            f"{one.family:<28} {one.task:<14} {built:<4} {MARKS[one.step]:<4} "
            f"{PACKING[one.packing]:<7} {shown:<18} "
            f"{one.reason or ''}".rstrip()
        )
    document = families.document(found)
    count = document["summary"]
    lines.append(
        f"{count['families']} families, {count['meta']} built, {count['step']} stepped on the CPU"
    )
    return Answer(document, "\n".join(lines) + "\n")
