"""Ranking answers of two sides → AUC, GAUC, NDCG@k, calibration, top-k agreement, in pairs.

A sample is one request: `prediction` the scores of its candidates, `reference` their labels where
they are known, `cluster` the user. Users are what is counted: candidates and requests of one user
hang together. GAUC weighs users by their candidates (Zhou et al., 2018, arXiv 1706.06978, eq. 7).
The AUC over all candidates is judged by its structural components summed over users (DeLong et al.,
1988; clustered as in Obuchowski, 1997): one value for each user, whose mean is the AUC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.language import Text
from joymigrate.verify.model import Outcome
from joymigrate.verify.task import judge as judging
from joymigrate.verify.task.compare import TaskComparison, TaskQuestion, with_doubts
from joymigrate.verify.task.figures import TaskView
from joymigrate.verify.task.judge import AcceptanceRule, Judgement
from joymigrate.verify.task.samples import ABSENT, Join, Sample

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float64]]

AUC, GAUC, NDCG, BRIER, TOP = "auc", "gauc", "ndcg", "brier", "top-k"
METRICS = (AUC, GAUC, NDCG, BRIER, TOP)
LOWER_IS_BETTER = (BRIER,)
BINS = 10  # of the calibration error, each with as many candidates


@dataclass(slots=True)
class RankedPairs:
    """All paired requests: [n] users, and of each the scores of both sides and the labels."""

    users: list[str]
    base: list[Floats]
    target: list[Floats]
    labels: list[Floats | None]

    @property
    def labelled(self) -> list[int]:
        """Requests whose labels are known."""
        return [place for place, one in enumerate(self.labels) if one is not None]


def compare_ranking(
    baseline: Path, target: Path, question: TaskQuestion, k: int = 10, *, logits: bool = False
) -> TaskComparison:
    """Read two files of ranked requests and judge them. Raises `JoyError`."""
    if question.metric is not None and question.metric not in METRICS:
        raise JoyError(
            f"there is no ranking metric '{question.metric}'."
            f"{did_you_mean(question.metric, METRICS)}",
            help=f"--metric takes {', '.join(METRICS)}",
        )
    if k < 1:
        raise JoyError(f"-k is at least 1, got {k}")
    wanted, question = question.metric, replace(question, metric=None).checked()
    join = Join([baseline, target], question.duplicates)
    pairs, differing = read_pairs(join, baseline)
    found, left_out = figures_of(pairs, k, logits)
    if wanted is not None and wanted not in found:
        raise JoyError(f"{wanted} cannot be computed: {left_out.get(wanted, 'no requests')}",
                       where=str(baseline))  # fmt: skip
    main = wanted or next((name for name in (GAUC, AUC, TOP) if name in found), TOP)
    judged = {name: judgement(name, one, question) for name, one in found.items()}
    own = judged.get(main) or Judgement(Outcome.INCONCLUSIVE, ("there is nothing to compare",), 0)
    task = TaskComparison(
        replace(question, metric=wanted), main if main in (AUC, GAUC, NDCG, BRIER) else "agreement",
        own.outcome, own.reasons, own, None,
        {name: (one, None) for name, one in judged.items() if name != main}, {},
        tuple(join.counts), len(pairs.users), tuple(tuple(join.missing(side)) for side in (0, 1)),
        tuple(join.repeated), (0, 0), differing, True, (),
    )  # fmt: skip
    task.ranking, task.main = summary(pairs, k, logits, left_out), main
    task.outcome, task.reasons = with_doubts(task)
    failed = [name for name, one in judged.items() if one.outcome is Outcome.FAIL and name != main]
    if failed:
        task.outcome = Outcome.FAIL
        reasons = (Text("{name}: {reason}", name=name, reason=Text.join("; ", judged[name].reasons))
                   for name in failed)  # fmt: skip
        task.reasons = (*reasons, *task.reasons)
    return task


def read_pairs(join: Join, where: Path) -> tuple[RankedPairs, int]:
    """Every pair checked, and how many requests have other labels on the target."""
    pairs, differing = RankedPairs([], [], [], []), 0
    for base, target in join:
        scores = [numbers(side, side.prediction, "prediction") for side in (base, target)]
        if len(scores[0]) != len(scores[1]):
            raise JoyError(f"request '{base.id}' has {len(scores[0])} scores in one file and "
                           f"{len(scores[1])} in the other", where=str(where))  # fmt: skip
        given = base if base.reference is not ABSENT else target
        labels = None
        if given.reference is not ABSENT:
            labels = numbers(given, given.reference, "reference")
            if len(labels) != len(scores[0]) or (len(labels) and labels.min() < 0):
                raise JoyError(f"request '{base.id}': the reference has a label of at least 0 for "
                               f"each of {len(scores[0])} scores", where=str(where))  # fmt: skip
            if ABSENT not in (base.reference, target.reference):
                differing += base.reference != target.reference
        pairs.users.append(base.cluster)
        pairs.base.append(scores[0])
        pairs.target.append(scores[1])
        pairs.labels.append(labels)
    return pairs, differing


def numbers(sample: Sample, values: Any, key: str) -> Floats:
    """A list of finite numbers."""
    import numpy as np

    fine = isinstance(values, list) and all(
        isinstance(one, int | float) and not isinstance(one, bool) for one in values
    )
    found = np.array(values if fine else [np.nan], dtype=np.float64)
    if not np.isfinite(found).all():
        raise JoyError(
            f"the {key} of '{sample.id}' (line {sample.line}) is no list of finite numbers",
            help='{"id": "7", "prediction": [0.1, 0.7], "reference": [0, 1], "cluster": "user 3"}',
        )
    return found


def figures_of(
    pairs: RankedPairs, k: int, logits: bool
) -> tuple[dict[str, TaskView], dict[str, str]]:
    """The paired figures of every metric that can be computed; why the others cannot."""
    found, left_out = {TOP: top_figures(pairs, k)}, {}
    there = pairs.labelled
    if not there:
        return found, dict.fromkeys((AUC, GAUC, NDCG, BRIER), "no request has labels")
    makers = {AUC: auc_values(pairs), GAUC: gauc_values(pairs), NDCG: ndcg_values(pairs, k)}
    for name, made in makers.items():
        rows = list(made)
        if rows:
            found[name] = fill_pairs(rows)
        else:
            left_out[name] = "no user has candidates of both kinds" if name != NDCG else (
                "no request has a candidate that counts")  # fmt: skip
    trouble = "" if logits else not_shares(pairs)
    if trouble:
        left_out[BRIER] = trouble
    else:
        found[BRIER] = fill_pairs(list(brier_values(pairs, logits)))
    return found, left_out


def fill_pairs(rows: Sequence[tuple[float, float, str]]) -> TaskView:
    """Pairs (baseline, target, cluster) counted."""
    figures = TaskView()
    for base, target, cluster in rows:
        figures.paired.add(base, target, cluster)
        figures.worst.add(base, target, cluster)
    return figures


def judgement(name: str, figures: TaskView, question: TaskQuestion) -> Judgement:
    """The verdict of one metric; margins are percentage points of it."""
    demanded = None if question.agreement is None or name != TOP else question.agreement / 100
    rule = AcceptanceRule(question.margin / 100, question.alpha, question.power, demanded,
                          name not in LOWER_IS_BETTER)  # fmt: skip
    return judging.judge(figures, rule, "agreement" if name == TOP else "score")


def top_figures(pairs: RankedPairs, k: int) -> TaskView:
    """Of each request the share of the target's first k that are among the baseline's first k.

    Equal scores are one place: who is as good as the baseline's k-th is among its first k.
    """
    import numpy as np

    figures = TaskView()
    for user, base, target in zip(pairs.users, pairs.base, pairs.target, strict=True):
        if not len(base):
            continue
        many = min(k, len(base))
        least = np.sort(base)[-many]
        first = np.argsort(-target, kind="stable")[:many]
        # Where the target's k-th has equals, those that the baseline prefers may stand for it.
        edge = target[first[-1]]
        sure = target > edge
        equal = np.flatnonzero(target == edge)
        hits = int((base[sure] >= least).sum())
        hits += min(many - int(sure.sum()), int((base[equal] >= least).sum()))
        figures.agreement.add(hits / many, user)
    return figures


def auc_values(pairs: RankedPairs) -> Iterator[tuple[float, float, str]]:
    """One pseudo-value of the whole AUC for each user and side; their means are the AUCs."""
    import numpy as np

    there = pairs.labelled
    labels = np.concatenate([pairs.labels[at] for at in there]) > 0
    names, users = np.unique(
        np.repeat([pairs.users[at] for at in there], [len(pairs.base[at]) for at in there]),
        return_inverse=True,
    )
    if labels.all() or not labels.any():
        return
    sides = []
    for values in (pairs.base, pairs.target):
        auc, parts = components(np.concatenate([values[at] for at in there]), labels)
        centred = np.where(labels, (parts - auc) / labels.sum(), (parts - auc) / (~labels).sum())
        sides.append(auc + len(names) * np.bincount(users, centred, len(names)))
    for place, name in enumerate(names.tolist()):
        yield float(sides[0][place]), float(sides[1][place]), name


def components(scores: Floats, labels: Any) -> tuple[float, Floats]:
    """The AUC and the structural component of each candidate (Sun and Xu, 2014: by mid-ranks)."""
    import numpy as np

    whole, good, bad = mid_ranks(scores), mid_ranks(scores[labels]), mid_ranks(scores[~labels])
    parts = np.empty(len(scores))
    parts[labels] = (whole[labels] - good) / (~labels).sum()
    parts[~labels] = 1 - (whole[~labels] - bad) / labels.sum()
    return float(parts[labels].mean()), parts


def mid_ranks(values: Floats) -> Floats:
    """Ranks from 1; equal values share their mean rank."""
    import numpy as np

    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Floats = ((ends - counts + 1 + ends) / 2)[inverse]
    return ranks


def gauc_values(pairs: RankedPairs) -> Iterator[tuple[float, float, str]]:
    """Each user's AUC on both sides, times its weight (mean weight 1)."""
    import numpy as np

    by_user: dict[str, list[int]] = {}
    for place in pairs.labelled:
        by_user.setdefault(pairs.users[place], []).append(place)
    rows = []
    for user, places in by_user.items():
        labels = np.concatenate([pairs.labels[at] for at in places]) > 0
        if labels.all() or not labels.any():
            continue
        sides = [components(np.concatenate([values[at] for at in places]), labels)[0]
                 for values in (pairs.base, pairs.target)]  # fmt: skip
        rows.append((len(labels), sides, user))
    mean = sum(size for size, _, _ in rows) / max(1, len(rows))
    for size, sides, user in rows:
        yield size / mean * sides[0], size / mean * sides[1], user


def ndcg_values(pairs: RankedPairs, k: int) -> Iterator[tuple[float, float, str]]:
    """NDCG@k of each request with a label above 0."""
    for place in pairs.labelled:
        labels = pairs.labels[place]
        if labels is not None and labels.any():
            yield (ndcg(pairs.base[place], labels, k), ndcg(pairs.target[place], labels, k),
                   pairs.users[place])  # fmt: skip


def ndcg(scores: Floats, labels: Floats, k: int) -> float:
    """Gain 2^label - 1, discount log2(1 + place) (Burges et al., 2005); ties share their gain."""
    import numpy as np

    many = min(k, len(scores))
    discount = np.zeros(len(scores))
    discount[:many] = 1 / np.log2(np.arange(2, many + 2))
    gain = 2.0**labels - 1
    order = np.argsort(-scores, kind="stable")
    _, groups = np.unique(-scores[order], return_inverse=True)
    sizes = np.bincount(groups)
    shared = np.bincount(groups, gain[order]) / sizes
    best = float((np.sort(gain)[::-1] * discount).sum())
    return float((shared * np.bincount(groups, discount)).sum()) / best


def shares(scores: Floats, logits: bool) -> Floats:
    """Scores as probabilities."""
    import numpy as np

    found: Floats = 1 / (1 + np.exp(-np.clip(scores, -700, 700))) if logits else scores
    return found


def not_shares(pairs: RankedPairs) -> str:
    """Why scores are no probabilities, or an empty text."""
    low = min((float(one.min()) for side in (pairs.base, pairs.target) for one in side if len(one)),
              default=0.0)  # fmt: skip
    high = max((float(one.max()) for side in (pairs.base, pairs.target) for one in side
                if len(one)), default=0.0)  # fmt: skip
    if low < 0 or high > 1:
        return f"scores from {low:.3g} to {high:.3g} are no probabilities (see --logits)"
    return ""


def brier_values(pairs: RankedPairs, logits: bool) -> Iterator[tuple[float, float, str]]:
    """Each request's mean squared error of the probability (Brier, 1950)."""
    for place in pairs.labelled:
        labels = pairs.labels[place]
        if labels is not None and len(labels):
            click = labels > 0
            base, target = (shares(side[place], logits) for side in (pairs.base, pairs.target))
            yield (float(((base - click) ** 2).mean()), float(((target - click) ** 2).mean()),
                   pairs.users[place])  # fmt: skip


def summary(
    pairs: RankedPairs, k: int, logits: bool, left_out: Mapping[str, str]
) -> dict[str, Any]:
    """Figures without a verdict: differences of scores, and the calibration of both sides."""
    import numpy as np

    base, target = (np.concatenate([*side, np.zeros(0)]) for side in (pairs.base, pairs.target))
    gap = np.abs(base - target)
    found: dict[str, Any] = {
        "k": k,
        "requests": len(pairs.users),
        "users": len(set(pairs.users)),
        "candidates": len(base),
        "labelled_requests": len(pairs.labelled),
        "largest_difference": float(gap.max(initial=0.0)),
        "mean_difference": float(gap.mean()) if len(gap) else 0.0,
        "left_out": dict(left_out),
        "calibration": None,
    }
    if BRIER not in left_out and pairs.labelled:
        clicks = np.concatenate([pairs.labels[at] for at in pairs.labelled]) > 0
        found["calibration"] = {
            name: calibration(
                shares(np.concatenate([side[at] for at in pairs.labelled]), logits), clicks
            )
            for name, side in (("baseline", pairs.base), ("target", pairs.target))
        }
    return found


def calibration(predicted: Floats, clicks: Any) -> dict[str, float | None]:
    """Predicted over observed clicks, and the expected calibration error over equal bins."""
    import numpy as np

    order = np.argsort(predicted, kind="stable")
    error = 0.0
    for part in np.array_split(order, min(BINS, max(1, len(order)))):
        if len(part):
            error += abs(float(predicted[part].mean() - clicks[part].mean())) * len(part)
    observed = float(clicks.sum())
    return {
        "predicted_over_observed": float(predicted.sum()) / observed if observed else None,
        "expected_error": error / max(1, len(order)),
    }
