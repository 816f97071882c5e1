"""Detectors on profiles of several ranks of one job: who is slow, and what nobody computes in."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from joymigrate.language import Text
from joymigrate.profile.advice.advise import AdviceSubject, Hit
from joymigrate.profile.advice.ascend_profile import BUBBLE, EXPOSED, HIDDEN, Profile
from joymigrate.profile.advice.rules import AdviceRule


def list_timed(subject: AdviceSubject) -> list[Profile]:
    """Ranks whose steps were timed."""
    return [one for one in subject.profile.ranks if one.step_us]


def detect_rank_gap(subject: AdviceSubject, rule: AdviceRule, *, part: str) -> Iterator[Hit]:
    """One rank spends `limits.share` of a step more in a part of it than another does."""
    ranks = list_timed(subject)
    if len(ranks) < 2:
        return
    most, least = (pick(ranks, key=lambda one: one.parts[part]) for pick in (max, min))
    gap = most.parts[part] - least.parts[part]
    if gap > rule.limit("share") * mean(one.step_us for one in ranks):
        what = Text(
            "rank {most}: {us} µs of a step; rank {least}: {other} µs", most=most.rank,
            us=f"{most.parts[part]:,.0f}", least=least.rank, other=f"{least.parts[part]:,.0f}",
        )  # fmt: skip
        yield Hit(what, None, None, 1, gap)


def detect_link_gap(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """Links over which one rank is slower than another, by `limits.share` of the mean."""
    for link in sorted({link for one in subject.profile.ranks for link in one.speeds}):
        ranks = [one for one in subject.profile.ranks if link in one.speeds]
        ordered = sorted((one.speeds[link], one.rank) for one in ranks)
        (low, least), (high, most) = ordered[0], ordered[-1]
        if high - low > rule.limit("share") * mean(speed for speed, _ in ordered):
            yield Hit(Text(
                "{link}: rank {least} reaches {low} GB/s, rank {most} {high} GB/s", link=link,
                least=least, most=most, low=f"{low:.1f}", high=f"{high:.1f}",
            ))  # fmt: skip


def detect_rank_waits(subject: AdviceSubject, rule: AdviceRule, *, bubble: bool) -> Iterator[Hit]:
    """Ranks that wait for `limits.share` of a step: for another stage, or for a transfer."""
    for one in list_timed(subject):
        idle = one.parts.get(BUBBLE, 0.0)
        us = idle if bubble else one.parts[EXPOSED] - idle
        hidden = one.parts.get(HIDDEN, 0.0)
        if us <= rule.limit("share") * one.step_us:
            continue
        said = "rank {rank}: {share} of a step"
        words = {"rank": one.rank, "share": f"{us / one.step_us:.0%}"}
        if not bubble:
            said += ", while {hidden} of its communication is behind computing"
            words["hidden"] = f"{hidden / (hidden + us):.0%}"
        yield Hit(Text(said, **words), None, None, 1, us)
