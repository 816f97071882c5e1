"""Figures and limits → pass, fail or inconclusive, with the reason in words. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from joymigrate import stats
from joymigrate.language import Text
from joymigrate.stats import Interval
from joymigrate.verify.model import Outcome
from joymigrate.verify.task.clusters import needed_clusters, sign_flip, worse_p
from joymigrate.verify.task.figures import Agreement, Paired, TaskView

WORST_FIRST = (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS)


@dataclass(frozen=True, slots=True)
class AcceptanceRule:
    """What is allowed. `margin` is a share (0.005 for 0.5 percentage points) or, where scores are
    no shares, in their own unit. `agreement` is the least share that must agree, None for none."""

    margin: float = 0.005
    alpha: float = 0.05
    power: float = 0.8
    agreement: float | None = None
    higher_is_better: bool = True


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one set of pairs and the numbers behind it; shares, not percent.

    `difference` is target minus baseline, its interval two-sided at 1 - 2 alpha (90 %).
    `p_worse` belongs to the hypothesis that the target is worse by the margin or more,
    `p_different` to the one that both are equal. `required_n` pairs would show non-inferiority of
    equally good sides with the power asked for.
    """

    outcome: Outcome
    reasons: tuple[str, ...]
    n: int
    baseline: float | None = None
    target: float | None = None
    difference: Interval | None = None
    p_worse: float | None = None
    p_different: float | None = None
    lost: int = 0
    gained: int = 0
    agreement: Interval | None = None
    noise: Interval | None = None
    required_n: int | None = None
    test: str = ""
    clusters: int | None = None  # where samples hang together: how many count by themselves
    required_clusters: int | None = None


def worst(*outcomes: Outcome) -> Outcome:
    """The worst of several verdicts."""
    return next(outcome for outcome in WORST_FIRST if outcome in outcomes)


def judge(figures: TaskView, rule: AcceptanceRule, metric: str) -> Judgement:
    """The verdict of one view. With `metric` agreement or token there is no right answer."""
    if metric in ("agreement", "token"):
        return judge_agreement(figures, rule)
    if metric == "macro-f1":
        return judge_labels(figures, rule)
    return judge_paired(figures, rule)


def judge_paired(figures: TaskView, rule: AcceptanceRule) -> Judgement:
    """Non-inferiority of the target: score test for right and wrong, t test for scores."""
    paired = figures.paired
    difference, p_worse, p_different, needed, test = test_difference(paired, rule)
    outcome, reason = decide_outcome(difference, p_worse, p_different, rule, paired.n, needed)
    reasons = [reason]
    clustered = paired.clusters.count if paired.clusters.clustered else None
    prompts = None
    if clustered == 1:
        reasons.append(
            Text(
                "all {n} samples are of one prompt: they tell nothing of others", n=f"{paired.n:,}"
            )
        )
    if clustered is not None and needed is not None:
        prompts = max(2, math.ceil(needed * clustered / paired.n))
        if outcome is Outcome.INCONCLUSIVE:
            reasons.append(
                Text(
                    "{n} samples of {clusters} prompts: samples of one prompt hang together; about "
                    "{prompts} prompts are needed, more samples of the same ones do not help",
                    n=f"{paired.n:,}",
                    clusters=f"{clustered:,}",
                    prompts=f"{prompts:,}",
                )
            )
    if outcome is Outcome.PASS and not paired.baseline.mean and not paired.target.mean:
        outcome = Outcome.INCONCLUSIVE
        reasons = ["neither side has a single right answer: do predictions and references match?"]
    absent = figures.worst.n - paired.n
    if outcome is Outcome.PASS and absent and test_difference(figures.worst, rule)[1] >= rule.alpha:
        outcome = Outcome.INCONCLUSIVE
        reasons.append(
            Text(
                "{absent} samples have no answer of the target; counted as wrong, "
                "non-inferiority is not shown",
                absent=absent,
            )
        )
    agreement = agreement_of(figures)
    outcome, reasons = with_agreement(outcome, reasons, agreement, rule)
    return Judgement(
        outcome,
        tuple(reasons),
        paired.n,
        paired.baseline.mean,
        paired.target.mean,
        difference,
        p_worse,
        p_different,
        paired.lost if rule.higher_is_better else paired.gained,
        paired.gained if rule.higher_is_better else paired.lost,
        agreement,
        noise_of(figures),
        needed,
        test,
        clustered,
        prompts,
    )


def test_difference(
    paired: Paired, rule: AcceptanceRule
) -> tuple[Interval, float, float, int | None, str]:
    """Difference, p of being worse by the margin, p of being equal, pairs needed, the test."""
    sign = 1 if rule.higher_is_better else -1
    n, moments = paired.n, paired.difference
    confidence = 1 - 2 * rule.alpha
    if paired.clusters.clustered:
        return tested_by_cluster(paired, rule, sign)
    if paired.binary:
        gained, lost = (paired.gained, paired.lost)[::sign]
        z = stats.tango_z(gained, lost, n, -min(rule.margin, 1 - 1e-12))
        needed = stats.paired_n((lost + gained) / max(n, 1), rule.margin, rule.alpha, rule.power)
        interval = stats.tango_interval(paired.gained, paired.lost, n, confidence)
        return (
            interval,
            1 - stats.NORMAL.cdf(z),
            stats.mcnemar_exact(lost, gained),
            needed,
            "Tango's score test; exact McNemar test",
        )
    interval = stats.mean_interval(n, moments.mean, moments.variance, confidence)
    needed = stats.mean_n(math.sqrt(moments.variance), rule.margin, rule.alpha, rule.power)
    if moments.squares == 0 and moments.mean == 0 and n:
        # Not one difference in n pairs: at most this share differs, and by the whole scale.
        unseen = (1 - rule.alpha ** (1 / n)) * paired.spread
        interval = Interval(0.0, -unseen, unseen)
        spread = paired.spread
        needed = stats.paired_n(0.0, rule.margin / spread, rule.alpha, rule.power) if spread else n
        return interval, rule.alpha / 2 if unseen < rule.margin else 1.0, 1.0, needed, "exact bound"
    worse = stats.t_tail_of(n, sign * moments.mean + rule.margin, moments.variance)
    if not paired.clusters.full:  # rare losses that happen to be missing: the worst value counts
        spread = paired.spread
        worse = max(worse, worse_p(paired.clusters, rule.margin, sign, spread))
        more = needed_clusters(paired.clusters, rule.margin, spread, rule.alpha, rule.power)
        needed = needed if needed is None or more is None else max(needed, more)
    return (
        interval,
        worse,
        stats.t_p_value(n, moments.mean, moments.variance),
        needed,
        "paired t test, and score test with the worst score",
    )


def tested_by_cluster(
    paired: Paired, rule: AcceptanceRule, sign: int
) -> tuple[Interval, float, float, int | None, str]:
    """As `test_difference`, where samples of one prompt hang together: clusters are counted."""
    clusters, moments = paired.clusters, paired.difference
    spread = paired.spread
    variance = clusters.variance(moments.mean)
    interval = stats.mean_interval(clusters.count, moments.mean, variance, 1 - 2 * rule.alpha)
    worse = worse_p(clusters, rule.margin, sign, spread)
    if variance == 0 and moments.mean == 0:
        unseen = (1 - rule.alpha ** (1 / clusters.count)) * spread
        interval = Interval(0.0, -unseen, unseen)
    size = clusters.samples / clusters.count
    needed = needed_clusters(clusters, rule.margin, spread, rule.alpha, rule.power)
    different = sign_flip([total for _, total in clusters.sums.values()])
    test = "score test and sign-flip test over clusters"
    pairs = None if needed is None else math.ceil(needed * size)
    return interval, worse, different, pairs, test


def decide_outcome(
    difference: Interval,
    p_worse: float,
    p_different: float,
    rule: AcceptanceRule,
    n: int,
    needed: int | None,
) -> tuple[Outcome, str]:
    """Pass: worse by the margin is ruled out. Fail: worse beyond doubt, and by more than it."""
    sign = 1 if rule.higher_is_better else -1
    worse_by = -sign * difference.value
    if n and p_worse < rule.alpha:
        note = ""
        if worse_by > 0 and p_different < rule.alpha:
            note = ", though it is worse beyond doubt"
        return Outcome.PASS, Text(
            "the target is not worse by the margin (p = {p_worse}){note}",
            p_worse=f"{p_worse:.2g}",
            note=note,
        )
    if n and worse_by > rule.margin and p_different < rule.alpha:
        return (
            Outcome.FAIL,
            Text(
                "the target is worse, and by more than the margin (p of no difference = "
                "{p_different})",
                p_different=f"{p_different:.2g}",
            ),
        )
    enough = (
        ""
        if needed is None
        else Text("; two equally good sides need about {needed} pairs", needed=f"{needed:,}")
    )
    return (
        Outcome.INCONCLUSIVE,
        Text(
            "{n} pairs do not show that the target is not worse by the margin (p = "
            "{p_worse}){enough}",
            n=f"{n:,}",
            p_worse=f"{p_worse:.2g}",
            enough=enough,
        ),
    )


def with_agreement(
    outcome: Outcome, reasons: list[str], agreement: Interval | None, rule: AcceptanceRule
) -> tuple[Outcome, list[str]]:
    """The verdict with the demanded agreement, where one was."""
    if rule.agreement is None or agreement is None:
        return outcome, reasons
    found, reason = decide_agreement(agreement, rule.agreement)
    return worst(outcome, found), [*reasons, reason]


def decide_agreement(agreement: Interval, least: float) -> tuple[Outcome, str]:
    """Whether the interval of the agreement lies on one side of what is demanded."""
    shown = f"[{100 * agreement.low:.2f}, {100 * agreement.high:.2f}] %"
    if agreement.low >= least:
        return Outcome.PASS, Text(
            "agreement {shown} is at least {least} %", shown=shown, least=f"{100 * least:g}"
        )
    if agreement.high < least:
        return Outcome.FAIL, Text(
            "agreement {shown} is below {least} %", shown=shown, least=f"{100 * least:g}"
        )
    return (
        Outcome.INCONCLUSIVE,
        Text(
            "agreement {shown} may lie on either side of {least} %",
            shown=shown,
            least=f"{100 * least:g}",
        ),
    )


def agreement_of(figures: TaskView) -> Interval | None:
    """Agreement with its interval: Wilson's for yes and no, Student's for shares."""
    return share_of(figures.agreement)


def noise_of(figures: TaskView) -> Interval | None:
    """Agreement of the baseline with its own second run; None without one."""
    return share_of(figures.noise)


def effect_of(agreement: Agreement) -> float:
    """How many samples count as one where they hang together; else 1."""
    moments = agreement.moments
    if not agreement.clusters.clustered:
        return 1.0
    return agreement.clusters.design_effect(moments.mean, moments.variance)


def share_of(agreement: Agreement) -> Interval | None:
    """The share of equal answers, with the interval that fits its values."""
    moments, effect = agreement.moments, effect_of(agreement)
    if not moments.n:
        return None
    if math.isclose(moments.mean * moments.n, agreement.equal, abs_tol=1e-9):
        return stats.wilson(agreement.equal / effect, moments.n / effect)
    n = max(1, round(moments.n / effect))
    found = stats.mean_interval(n, moments.mean, moments.variance, 0.95)
    return Interval(found.value, max(0.0, found.low), min(1.0, found.high))


def judge_agreement(figures: TaskView, rule: AcceptanceRule) -> Judgement:
    """No reference: agreement against what is demanded, against noise, or as the worst case."""
    found = agreement_of(figures)
    n = figures.agreement.n
    differing = n - figures.agreement.equal
    if found is None:
        return Judgement(Outcome.INCONCLUSIVE, ("there is nothing to compare",), 0)
    noise = noise_of(figures)
    needed = stats.paired_n(differing / n, rule.margin, rule.alpha, rule.power)
    p_worse: float | None = None
    test = "Wilson's interval"
    if rule.agreement is not None:
        outcome, reason = decide_agreement(found, rule.agreement)
    elif noise is not None:
        difference, p_worse, p_different, needed, test = test_difference(
            figures.against_noise, rule
        )
        outcome, reason = decide_outcome(difference, p_worse, p_different, rule, n, needed)
        reason = Text(
            "beside the baseline's own agreement of {value} %: {reason}",
            value=f"{100 * noise.value:.2f}",
            reason=reason,
        )
    else:
        # However references may look: no more answers than these can have become wrong.
        effect = effect_of(figures.agreement)
        equal = figures.agreement.equal / effect
        most = 1 - stats.wilson(equal, n / effect, 1 - 2 * rule.alpha).low
        needed = stats.paired_n(rule.margin, rule.margin, rule.alpha, rule.power)
        outcome, reason = (
            (
                Outcome.PASS,
                Text(
                    "at most {most} % of the answers differ, less than the margin",
                    most=f"{100 * most:.2f}",
                ),
            )
            if most <= rule.margin
            else (
                Outcome.INCONCLUSIVE,
                Text(
                    "{differing} of {n} answers differ, and without references nobody knows "
                    "which are right: give references, --agreement PERCENT, or --envelope with a "
                    "second run of the baseline",
                    differing=f"{differing:,}",
                    n=f"{n:,}",
                ),
            )
        )
    return Judgement(
        outcome,
        (reason,),
        n,
        p_worse=p_worse,
        agreement=found,
        noise=noise,
        required_n=needed,
        test=test,
    )


def judge_labels(figures: TaskView, rule: AcceptanceRule) -> Judgement:
    """Macro-F1 of labels, by a paired bootstrap."""
    n = figures.paired.n
    if not n:
        return Judgement(Outcome.INCONCLUSIVE, ("there is nothing to compare",), 0)
    base, target, difference = figures.labels.macro_f1()
    plain = judge_paired(figures, rule)
    # A bootstrap of samples without any discordance has no width: the score test's bound holds.
    low = min(
        difference.low,
        plain.difference.low if plain.difference and not (plain.lost + plain.gained) else 1.0,
    )
    difference = Interval(difference.value, low, difference.high)
    if low > -rule.margin:
        outcome, reason = Outcome.PASS, "the target is not worse by the margin"
    elif difference.high < 0 and difference.value < -rule.margin:
        outcome, reason = Outcome.FAIL, "the target is worse, and by more than the margin"
    else:
        outcome = Outcome.INCONCLUSIVE
        reason = Text(
            "{n} pairs do not show that the target is not worse by the margin", n=f"{n:,}"
        )
    outcome, reasons = with_agreement(outcome, [reason], plain.agreement, rule)
    return Judgement(
        outcome,
        tuple(reasons),
        n,
        base,
        target,
        difference,
        None,
        plain.p_different,
        plain.lost,
        plain.gained,
        plain.agreement,
        plain.noise,
        plain.required_n,
        "paired bootstrap of macro-F1, 2,000 resamples",
    )
