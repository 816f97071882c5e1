"""Quantise a model to W8A8 or W4A16, with a verdict on what was written."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from joymigrate.cli import _verdicts
from joymigrate.cli._answers import write_answer
from joymigrate.cli._output import Progress, split, talk

if TYPE_CHECKING:
    from joymigrate.verify.model import Verdict

NEEDS = ("package:transformers",)


def command(
    model: Path = typer.Argument(..., metavar="MODEL", help="A model folder."),
    scheme: str = typer.Option("w8a8", "--scheme", help="w8a8 (SmoothQuant) or w4a16 (AWQ)."),
    data: Path = typer.Option(
        ..., "--data", metavar="FILE", help="Calibration JSONL: text, messages or tokens."
    ),
    out: Path = typer.Option(..., "-o", "--output", metavar="OUT", help="The folder to write."),
    layout: str = typer.Option(
        "compressed-tensors", "--format", help="compressed-tensors or msmodelslim."
    ),
    static: bool = typer.Option(
        False, "--static", help="w8a8: one input scale per layer instead of one per token."
    ),
    group: str = typer.Option(
        "auto", "--group", help="w4a16: inputs that share a scale, or auto (128 where it fits)."
    ),
    alpha: str = typer.Option(
        "auto", "--alpha", help="w8a8: 0 to 1, or auto: searched for every block."
    ),
    ignore: list[str] = typer.Option(
        [], "--ignore", metavar="PATTERN", help="Linears that stay plain (*.down_proj). Repeatable."
    ),
    nearest: bool = typer.Option(
        False, "--nearest", help="Plain rounding to nearest, no search: to compare with."
    ),
    samples: int = typer.Option(128, "--samples", min=1, help="At most so many samples."),
    length: int = typer.Option(512, "--length", min=2, help="At most so many tokens of each."),
    evaluation: Path | None = typer.Option(
        None, "--eval", metavar="FILE", help="JSONL to judge by (default: a quarter of --data)."
    ),
    most_perplexity: float | None = typer.Option(
        None, "--max-perplexity-ratio", min=0, help="Fail above (default: 1.05; w4a16 1.15)."
    ),
    least_top1: float | None = typer.Option(
        None, "--min-top1", min=0, max=1, help="Fail below (default: 0.9; w4a16 0.6)."
    ),
    device: str = typer.Option("cpu", "--device", help="Where to compute: cpu or a torch device."),
    force: bool = typer.Option(False, "--force", help="Replace a model folder at OUT."),
    lang: str | None = _verdicts.LANG,
    report: str = typer.Option("text", "--report", help="As --format of verify, to stdout."),
    report_file: Path | None = typer.Option(
        None, "--report-file", metavar="FILE", help="Write the report to a file."
    ),
    verbose: bool = _verdicts.VERBOSE,
) -> int:
    """Quantise a model, write it, and judge what was written against the plain model.

    Exit 0 when the verdict is pass, 1 when it is fail, 3 when too few tokens were judged.
    """
    from joymigrate.extras import need

    need("train", "torch", "transformers", what="quantising")
    from joymigrate.run.train.quantise.data import read_samples
    from joymigrate.run.train.quantise.options import QuantiseOptions
    from joymigrate.run.train.quantise.verdict import judge
    from joymigrate.run.train.quantise.work import quantise

    view = _verdicts.check_view(report, lang)
    options = QuantiseOptions(
        scheme=scheme,
        format=layout,
        static=static,
        group=number(group, "--group", int),
        alpha=number(alpha, "--alpha", float),
        ignore=tuple(split(ignore)),
        search=not nearest,
    )
    whole = read_samples(data, model, most=samples, length=length)
    if evaluation is not None:
        used, held, apart = (
            whole,
            read_samples(evaluation, model, most=samples, length=length),
            True,
        )
    else:
        used, held, apart = whole.split()
    with Progress("quantising layer") as progress:
        made = quantise(
            model, out, used, options, device=device, replace_out=force, progress=progress
        )
    about: dict[str, Any] = {"device": device, "least_top1": least_top1}
    with Progress("judging layer") as progress:
        about["progress"] = progress
        verdict, document = judge(model, out, held, most_perplexity=most_perplexity, **about)
    notes = [] if apart else ["fewer than 4 samples: judged by those it was calibrated with"]
    if whole.dropped:
        notes.append(f"{whole.dropped} samples have fewer than 2 tokens and were left out")
    document["quantise"] |= {**made.as_json(), "held_out": apart, "notes": notes}
    document["subject"] = {"name": out.resolve().name}
    record(verdict, document, out, [data, *([evaluation] if evaluation else [])], device)
    shown = _verdicts.answer_of(document, replace(view, verbose=verbose))
    write_answer(shown, view.form, report_file)
    talk([f"wrote {out} ({made.scheme}, {made.format}): joymigrate serve {out}"])
    return _verdicts.exit_code(str(document["verdict"]))


def number(text: str, option: str, kind: Any) -> Any:
    """`auto` as None, or a number."""
    from joymigrate.errors import JoyError

    if text == "auto":
        return None
    try:
        return kind(text)
    except ValueError:
        raise JoyError(f"{option} is '{text}'", help=f"{option} auto, or a number") from None


def record(
    verdict: Verdict, document: Mapping[str, Any], out: Path, inputs: list[Path], device: str
) -> None:
    """The verdict into the ledger, about these very files, as computed on this machine."""
    from joymigrate.evidence import Grade
    from joymigrate.ledger.subject import of_folder
    from joymigrate.verify import gate

    steps = gate.record(
        verdict,
        of_folder(out),
        chip=device.partition(":")[0],
        grade=Grade.MEASURED,
        command=shlex.join(["joymigrate", *sys.argv[1:]]),
        origin=gate.TargetOrigin(inputs=tuple(inputs)),
        document=document,
    )
    numbers = ", ".join(f"{step.id} ({step.verdict})" for step in steps)
    talk([f"recorded as step {numbers}: {out.resolve().name} on {device}"])
