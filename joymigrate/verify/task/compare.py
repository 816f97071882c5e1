"""Streams two (or three) files of samples past each other and judges what was counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.language import Text
from joymigrate.verify.model import Outcome
from joymigrate.verify.task import judge as judging
from joymigrate.verify.task import normalise, score
from joymigrate.verify.task.figures import TaskView
from joymigrate.verify.task.judge import AcceptanceRule, Judgement
from joymigrate.verify.task.samples import ABSENT, DUPLICATES, Join, Sample, read

MOST_FIELDS = 64
MOST_GROUPS = 200
MOST_EXAMPLES = 1000
LONGEST_TEXT = 400


@dataclass(frozen=True, slots=True)
class TaskQuestion:
    """What is asked. `margin` and `agreement` in percentage points (of a share) or, where scores
    are no shares, `margin` in their own unit. `metric` None: chosen by what the samples carry."""

    margin: float = 0.5
    metric: str | None = None
    fields: tuple[str, ...] = ()
    normalisers: tuple[str, ...] = ()
    alpha: float = 0.05
    power: float = 0.8
    agreement: float | None = None
    lower_is_better: bool = False
    duplicates: str = "error"
    examples: int = 10
    coverage: float = 0.98

    def checked(self) -> TaskQuestion:
        """The same question; `JoyError` for what cannot be asked."""
        if self.metric is not None and self.metric not in score.METRICS:
            near = did_you_mean(self.metric, score.METRICS)
            raise JoyError(
                f"there is no metric '{self.metric}'.{near}",
                help=f"--metric takes {', '.join(score.METRICS)}",
            )
        if self.duplicates not in DUPLICATES:
            raise JoyError(
                f"--duplicates does not know '{self.duplicates}'", help=", ".join(DUPLICATES)
            )
        for name, value, high in (
            ("--margin", self.margin, float("inf")),
            ("--agreement", self.agreement or 0.0, 100.0),
        ):
            if not 0 <= value <= high:
                raise JoyError(f"{name} is a number of percentage points, got {value:g}")
        for name, value in (("--alpha", self.alpha), ("--power", self.power)):
            if not 0 < value < 1:
                raise JoyError(f"{name} lies between 0 and 1, got {value:g}")
        normalise.select(self.normalisers)
        return self


@dataclass(slots=True)
class FieldAgreement:
    """Agreement on one field of JSON answers, and how right both sides are where it is known."""

    raw: TaskView = field(default_factory=TaskView)
    normalised: TaskView = field(default_factory=TaskView)


@dataclass(slots=True)
class Example:
    """One pair that differs, cut to a readable length."""

    id: str
    change: str  # lost, gained, different
    baseline: str
    target: str
    reference: str | None


@dataclass(slots=True)
class TaskComparison:
    """The whole outcome. `judgement` is the one that counts; `raw` is without normalisers."""

    question: TaskQuestion
    metric: str
    outcome: Outcome
    reasons: tuple[str, ...]
    raw: Judgement
    normalised: Judgement | None
    fields: Mapping[str, tuple[Judgement, Judgement | None]]
    groups: Mapping[str, Judgement]
    counts: tuple[int, ...]
    paired: int
    unmatched: tuple[tuple[str, ...], ...]  # ids that the first, the second, … file lacks
    repeated: tuple[int, ...]
    malformed: tuple[int, int]
    differing_references: int
    share_scale: bool
    examples: tuple[Example, ...]
    prefix: float | None = None  # mean common prefix of tokens
    ranking: dict[str, Any] = field(default_factory=dict)  # figures of ranked requests
    main: str = ""  # the ranking metric that the verdict is about

    @property
    def judgement(self) -> Judgement:
        """The figures that the verdict is about."""
        return self.normalised or self.raw

    @property
    def coverage(self) -> float:
        """Share of ids that both sides answered."""
        total = self.paired + sum(len(ids) for ids in self.unmatched[:2])
        return self.paired / total if total else 0.0


@dataclass(slots=True)
class Counting:
    """All counters, while the rows stream past."""

    question: TaskQuestion
    metric: str
    raw: TaskView = field(default_factory=TaskView)
    normalised: TaskView = field(default_factory=TaskView)
    fields: dict[str, FieldAgreement] = field(default_factory=dict)
    groups: dict[str, TaskView] = field(default_factory=dict)
    malformed: list[int] = field(default_factory=lambda: [0, 0])
    differing_references: int = 0
    examples: list[Example] = field(default_factory=list)

    def views(self) -> list[tuple[TaskView, tuple[str, ...]]]:
        """The figures to fill and the normalisers of each."""
        names = normalise.select(self.question.normalisers)
        return [(self.raw, ()), *([(self.normalised, names)] if names else [])]

    def add(self, row: Sequence[Sample]) -> None:
        """Count one row: baseline, target and perhaps the baseline's second run."""
        base, target = row[0], row[1]
        reference = base.reference if base.reference is not ABSENT else target.reference
        if ABSENT not in (base.reference, target.reference):
            same = normalise.same(base.reference, target.reference)
            self.differing_references += not same
        before = (self.raw.paired.lost, self.raw.paired.gained, self.raw.agreement.equal)
        for figures, names in self.views():
            count(figures, self.metric, self.question.fields, names, row, reference)
        if base.task is not None and len(self.groups) < MOST_GROUPS:
            group = self.groups.setdefault(base.task, TaskView())
            names = self.views()[-1][1]
            count(group, self.metric, self.question.fields, names, row, reference)
        self.add_fields(row, reference)
        self.add_example(base, target, reference, before)

    def add_missing(self, base: Sample) -> None:
        """Count a sample that the target did not answer as wrong, in the worst case only."""
        if self.metric in ("agreement", "token"):
            return
        for figures, names in self.views():
            value = right(base, self.metric, self.question.fields, names, base.reference)
            figures.worst.add(value, 0.0, base.cluster)

    def add_fields(self, row: Sequence[Sample], reference: Any) -> None:
        """Per-field agreement of JSON answers: of the named fields, else of all at the top."""
        answers = [normalise.open_json(sample.prediction) for sample in row[:2]]
        broken = [isinstance(answer, normalise.Malformed) for answer in answers]
        named = self.question.fields
        if named:
            broken = [
                isinstance(normalise.field(sample.prediction, named[0]), normalise.Malformed)
                for sample in row[:2]
            ]
        for side in (0, 1):
            self.malformed[side] += broken[side]
        keys = named or tuple(
            dict.fromkeys(key for a in answers if isinstance(a, dict) for key in a)
        )
        known = normalise.open_json(reference)
        views = (("raw", ()), ("normalised", self.views()[-1][1]))
        for key in keys:
            if key not in self.fields and len(self.fields) >= MOST_FIELDS:
                continue
            one = self.fields.setdefault(key, FieldAgreement())
            for view, names in views:
                figures = getattr(one, view)
                if named:
                    metric = "agreement" if reference is ABSENT else "exact"
                    count(figures, metric, (key,), names, row[:2], reference)
                else:
                    count_key(figures, key, names, answers, known, row[0].cluster)

    def add_example(
        self, base: Sample, target: Sample, reference: Any, before: tuple[int, int, int]
    ) -> None:
        """Keep a differing pair to show, losses before others."""
        if not self.question.examples or len(self.examples) >= MOST_EXAMPLES:
            return
        after = (self.raw.paired.lost, self.raw.paired.gained, self.raw.agreement.equal)
        if after[0] > before[0]:
            change = "lost"
        elif after[1] > before[1]:
            change = "gained"
        elif self.raw.agreement.n and after[2] == before[2]:
            change = "different"
        else:
            return
        self.examples.append(
            Example(
                base.id,
                change,
                describe(base),
                describe(target),
                None if reference is ABSENT else cut(reference),
            )
        )


def compare(
    baseline: Path, target: Path, question: TaskQuestion, envelope: Path | None = None
) -> TaskComparison:
    """Read and judge. `envelope` is a second run of the baseline: its own noise."""
    question = question.checked()
    metric = question.metric or guess(baseline, question)
    counting = Counting(question, metric)
    join = Join([baseline, target, *([envelope] if envelope else [])], question.duplicates)
    paired = 0
    for row in join:
        counting.add(row)
        paired += 1
    for waiting in join.unmatched.values():
        if waiting[0] is not None and waiting[1] is not None:
            counting.add([waiting[0], waiting[1]])  # only the second baseline run lacks it
            paired += 1
        elif waiting[0] is not None:
            counting.add_missing(waiting[0])
    return judge_task(counting, join, paired)


def guess(path: Path, question: TaskQuestion) -> str:
    """The metric by what the first sample carries."""
    first = next(read(path), None)
    if first is None:
        return "agreement"  # the join says that the file is empty
    if first.prediction is ABSENT:
        return "score" if first.score is not ABSENT else "token"
    if first.reference is not ABSENT:
        return "exact"
    return "score" if first.score is not ABSENT and not question.fields else "agreement"


def count(
    figures: TaskView,
    metric: str,
    fields: tuple[str, ...],
    names: tuple[str, ...],
    row: Sequence[Sample],
    reference: Any,
) -> None:
    """Add one row to one view's figures."""
    values = [answer(sample, metric, fields, names) for sample in row]
    cluster = row[0].cluster
    if ABSENT not in values:
        figures.agreement.add(agreeing(metric, values[0], values[1]), cluster)
        if metric == "token" and isinstance(values[0], list) and isinstance(values[1], list):
            figures.agreement.prefix.add(score.prefix(values[0], values[1]))
        if len(row) > 2:
            noise = agreeing(metric, values[0], values[2])
            figures.noise.add(noise, cluster)
            figures.against_noise.add(noise, agreeing(metric, values[0], values[1]), cluster)
    if metric in ("agreement", "token"):
        if ABSENT in values:
            raise lacking(row, values, "tokens" if metric == "token" else "prediction")
        return
    if metric != "score" and reference is ABSENT:
        raise JoyError(
            f"the sample '{row[0].id}' has no reference, which --metric {metric} needs",
            help="add references, or use --metric agreement",
        )
    pair = [right(sample, metric, fields, names, reference) for sample in row[:2]]
    figures.paired.add(pair[0], pair[1], cluster)
    figures.worst.add(pair[0], pair[1], cluster)
    if metric == "macro-f1":
        figures.labels.add(values[0], values[1], reduce_value(reference, fields, names), cluster)


def count_key(
    figures: TaskView,
    key: str,
    names: tuple[str, ...],
    answers: Sequence[Any],
    reference: Any,
    cluster: str,
) -> None:
    """Add one pair to the figures of a top-level key of opened answers."""
    values = [
        normalise.normalise_value(a.get(key), names)
        if isinstance(a, dict)
        else normalise.Malformed()
        for a in answers
    ]
    figures.agreement.add(float(normalise.same(values[0], values[1])), cluster)
    if isinstance(reference, dict) and key in reference:
        wanted = normalise.normalise_value(reference[key], names)
        one, two = (float(normalise.same(value, wanted)) for value in values)
        figures.paired.add(one, two, cluster)


def answer(sample: Sample, metric: str, fields: tuple[str, ...], names: tuple[str, ...]) -> Any:
    """What one side said, as the metric sees it."""
    if metric == "token":
        return sample.tokens
    if sample.prediction is ABSENT:
        return ABSENT
    return reduce_value(sample.prediction, fields, names)


def reduce_value(value: Any, fields: tuple[str, ...], names: tuple[str, ...]) -> Any:
    """A value cut down to the named fields, and normalised."""
    if fields:
        opened = normalise.open_json(value)
        if isinstance(opened, dict | list | normalise.Malformed) or value is None:
            found = [normalise.field(value, path) for path in fields]
            value = found[0] if len(found) == 1 else found
        else:
            value = normalise.Malformed()
    return normalise.normalise_value(value, names)


def right(
    sample: Sample, metric: str, fields: tuple[str, ...], names: tuple[str, ...], reference: Any
) -> float:
    """How right one side is."""
    if metric == "score":
        if sample.score is ABSENT:
            raise lacking([sample], [ABSENT], "score")
        return float(sample.score)
    if sample.prediction is ABSENT:
        raise lacking([sample], [ABSENT], "prediction")
    wanted = reference
    if fields and isinstance(normalise.open_json(reference), dict | list):
        wanted = reduce_value(reference, fields, ())
    wanted = normalise.normalise_value(wanted, names)
    return score.RIGHTNESS[metric](reduce_value(sample.prediction, fields, names), wanted)


def agreeing(metric: str, a: Any, b: Any) -> float:
    """How far two answers are the same."""
    return score.token(a, b) if metric == "token" else float(normalise.same(a, b))


def lacking(row: Sequence[Sample], values: Sequence[Any], key: str) -> JoyError:
    """The error for a sample without what the metric needs."""
    sample = row[list(values).index(ABSENT)]
    return JoyError(
        f"the sample '{sample.id}' (line {sample.line}) has no {key}",
        help="every line needs the same keys; --metric names what is compared",
    )


def describe(sample: Sample) -> str:
    """What one side said, to be read."""
    for value in (sample.prediction, sample.tokens, sample.score):
        if value is not ABSENT:
            return cut(value)
    return ""


def cut(value: Any) -> str:
    """A value as text of a readable length."""
    import json

    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def judge_task(counting: Counting, join: Join, paired: int) -> TaskComparison:
    """Everything counted → the outcome."""
    question, metric = counting.question, counting.metric
    raw = judging.judge(counting.raw, rule_of(question, counting.raw), metric)
    normal = None
    if question.normalisers:
        normal = judging.judge(counting.normalised, rule_of(question, counting.normalised), metric)
    main = normal or raw
    task = TaskComparison(
        question,
        metric,
        main.outcome,
        main.reasons,
        raw,
        normal,
        dict(field_judgements(counting)),
        {
            name: judging.judge(figures, rule_of(question, figures), metric)
            for name, figures in sorted(counting.groups.items())
        },
        tuple(join.counts),
        paired,
        tuple(tuple(join.missing(side)) for side in range(len(join.paths))),
        tuple(join.repeated),
        (counting.malformed[0], counting.malformed[1]),
        counting.differing_references,
        counting.raw.paired.share_scale or metric in ("agreement", "token"),
        tuple(chosen_examples(counting)),
        counting.raw.agreement.prefix.mean if counting.raw.agreement.prefix.n else None,
    )
    task.outcome, task.reasons = with_doubts(task)
    return task


def rule_of(question: TaskQuestion, figures: TaskView) -> AcceptanceRule:
    """The question's limits in the unit of the figures."""
    paired = figures.paired
    unit = 100 if paired.share_scale or not paired.n else 1
    return AcceptanceRule(
        question.margin / unit,
        question.alpha,
        question.power,
        None if question.agreement is None else question.agreement / 100,
        not question.lower_is_better,
    )


def with_doubts(task: TaskComparison) -> tuple[Outcome, tuple[str, ...]]:
    """What keeps a pass from being one although the figures say so."""
    doubts = []
    if not task.paired:
        doubts.append("the two files have no id in common")
    elif task.coverage < task.question.coverage:
        doubts.append(
            Text(
                "only {coverage} % of the ids are in both files (at least {least} % are needed)",
                coverage=f"{100 * task.coverage:.1f}",
                least=f"{100 * task.question.coverage:g}",
            )
        )
    if task.differing_references:
        doubts.append(
            Text(
                "{number} samples have another reference on the target: were "
                "both sides given the same data?",
                number=task.differing_references,
            )
        )
    outcome = task.outcome
    if doubts and outcome is Outcome.PASS:
        outcome = Outcome.INCONCLUSIVE
    return outcome, (*doubts, *task.reasons)


def field_judgements(
    counting: Counting,
) -> Iterator[tuple[str, tuple[Judgement, Judgement | None]]]:
    """Agreement and rightness of every field, raw and normalised."""
    for name, one in counting.fields.items():
        views = [one.raw, *([one.normalised] if counting.question.normalisers else [])]
        found = []
        for figures in views:
            metric = "exact" if figures.paired.n else "agreement"
            found.append(judging.judge(figures, rule_of(counting.question, figures), metric))
        yield name, (found[0], found[1] if len(found) > 1 else None)


def chosen_examples(counting: Counting) -> list[Example]:
    """As many as asked for: lost ones first, then different, then gained ones."""
    order = {"lost": 0, "different": 1, "gained": 2}
    ordered = sorted(counting.examples, key=lambda example: order[example.change])
    return ordered[: counting.question.examples]
