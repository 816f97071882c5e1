"""Two backends say different things: which of them has changed?

Another text by itself accuses nobody. So old questions are asked again: a backend that answers
them otherwise than it did, where the other one answers as before, is the one to blame. Where
neither has changed, or both have, nobody can tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from joymigrate.run.serve.evidence.bounds import chance_of_more
from joymigrate.run.serve.evidence.events import PRIMARY, SECOND, RequestTally

WORSE = 0.02  # chance explains a difference between the two less often than this
LEAST = 3  # changed answers, before a backend is said to have changed
ENOUGH = 48  # questions asked again of each, after which the doubt stays one
STEADY = 16  # and so many, where neither has changed a single answer


@dataclass(slots=True)
class Doubt:
    """What began it, when, and how the answers to old questions have come out since."""

    since: float  # seconds on the events' clock
    why: str
    again: dict[str, RequestTally] = field(
        default_factory=lambda: {PRIMARY: RequestTally(), SECOND: RequestTally()}
    )

    def add(self, changed: Mapping[str, bool]) -> None:
        """Take one question that was asked again."""
        for role, other in changed.items():
            self.again[role].requests += 1
            self.again[role].failures += other

    def culprit(self, tolerable: float) -> str | None:
        """The side that has changed; None while, or where, that cannot be told. `tolerable` is the
        share of answers that may change by themselves."""
        for role, other in ((SECOND, PRIMARY), (PRIMARY, SECOND)):
            one, two = self.again[role], self.again[other]
            if (
                one.failures >= LEAST
                and one.failures > tolerable * one.requests
                and chance_of_more(one.failures, one.requests, two.failures, two.requests) < WORSE
            ):
                return role
        return None

    @property
    def exhausted(self) -> bool:
        """Whether more questions would not help."""
        asked = min(tally.requests for tally in self.again.values())
        steady = not any(tally.failures for tally in self.again.values())
        return asked >= (STEADY if steady else ENOUGH)

    def describe(self) -> str:
        """What asking again has shown, in words."""
        if not any(tally.requests for tally in self.again.values()):
            return "no earlier question could be asked again"
        told = (
            f"the {role} changed {tally.failures} of {tally.requests} answers"
            for role, tally in self.again.items()
        )
        return f"asked earlier questions again, {', '.join(told)}"

    def state(self) -> list[object]:
        """What must survive a restart."""
        counts = [[tally.requests, tally.failures] for tally in self.again.values()]
        return [self.since, self.why, *counts]

    @classmethod
    def restored(cls, saved: list[object] | None) -> Doubt | None:
        """Take up a saved `state`."""
        if saved is None:
            return None
        since, why, *counts = saved
        again = {
            role: RequestTally(*count)  # type: ignore[misc]
            for role, count in zip((PRIMARY, SECOND), counts, strict=True)
        }
        return cls(float(since), str(why), again)  # type: ignore[arg-type]
