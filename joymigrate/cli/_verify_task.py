"""`joymigrate verify task`: predictions of both sides → non-inferiority and agreement."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli import _verdicts
from joymigrate.cli._options import spread
from joymigrate.cli._verdicts import VerdictOptions
from joymigrate.errors import JoyError


@spread
def command(
    *,
    asked: VerdictOptions,
    baseline: Path = typer.Argument(..., metavar="BASELINE", help="The baseline's samples, JSONL."),
    target: Path = typer.Argument(..., metavar="TARGET", help="The target's samples, JSONL."),
    margin: float = typer.Option(0.5, "--margin", help="Allowed loss, in percentage points."),
    metric: str | None = typer.Option(
        None, "--metric", help="exact, accuracy, f1, macro-f1, token, score or agreement."
    ),
    kind: str = typer.Option(
        "samples", "--kind", help="samples, or ranking (metrics: auc, gauc, ndcg, brier, top-k)."
    ),
    first: int = typer.Option(10, "-k", min=1, help="Ranking: of NDCG and of the first places."),
    logits: bool = typer.Option(False, "--logits", help="Ranking: scores are no probabilities."),
    field: list[str] = typer.Option([], "--field", help="A field of JSON answers. Repeatable."),
    normalise: list[str] = typer.Option(
        [], "--normalise", help="whitespace, unicode, punctuation, case, fence, json."
    ),
    agreement: float | None = typer.Option(
        None, "--agreement", help="The share that must agree at least, in percent."
    ),
    envelope: Path | None = typer.Option(
        None, "--envelope", help="A second run of the baseline: how far it agrees with itself."
    ),
    alpha: float | None = typer.Option(None, "--alpha", help="One-sided error of the test (0.05)."),
    power: float | None = typer.Option(None, "--power", help="For the number of pairs (0.8)."),
    lower_is_better: bool = typer.Option(False, "--lower-is-better", help="Of scores."),
    duplicates: str = typer.Option("error", "--duplicates", help="error, first or number."),
    examples: int = typer.Option(10, "--examples", min=0, help="Differing pairs to show."),
    grade: str = _verdicts.GRADE,
    checkpoint: str | None = _verdicts.CHECKPOINT,
    strict: bool = _verdicts.STRICT,
) -> int:
    """Compare two files of predictions, paired by id.

    One JSON object per line: id, prediction, and where they are known reference, score, tokens,
    task. Exit code 0: the target is not worse by the margin; 1: it is; 3: this cannot be told.
    """
    from joymigrate.cli._output import one_of, split
    from joymigrate.verify import scope
    from joymigrate.verify.task import TaskQuestion, compare
    from joymigrate.verify.task.document import document, verdict
    from joymigrate.verify.task.ranking import compare_ranking
    from joymigrate.verify.tolerance import Tolerance

    one_of(kind, ("samples", "ranking"), "--kind")
    if kind == "ranking" and (field or normalise or envelope):
        raise JoyError(
            "--field, --normalise and --envelope are for samples, not for --kind ranking"
        )
    limits = Tolerance.of(None)
    question = TaskQuestion(
        margin,
        metric,
        tuple(split(field)),
        tuple(split(normalise)),
        limits.limit("S8", "alpha") if alpha is None else alpha,
        limits.limit("S8", "power") if power is None else power,
        agreement,
        lower_is_better,
        duplicates,
        examples,
        limits.module_coverage,
    )
    view = asked.view()
    place = _verdicts.place(asked.to, asked.subject, grade, checkpoint)
    if kind == "ranking":
        task = compare_ranking(baseline, target, question, first, logits=logits)
    else:
        task = compare(baseline, target, question, envelope)
    found = verdict(task, rehearsal=place.rehearsal)
    found = scope.strict(found) if strict else found
    return _verdicts.finish(document(task, found), found, place, view, [baseline, target])
