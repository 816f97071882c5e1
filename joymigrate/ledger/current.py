"""What the ledger knows about a subject on a chip: the question that `train` and `serve` ask."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from joymigrate.ledger.step import Step, Subject

MEASURED = "measured"  # the one grade that opens the gate of a real chip (joymigrate.evidence)


@dataclass(frozen=True, slots=True)
class CurrentVerdicts:
    """The verdicts that hold for `subject` on `chip`: the latest of every stage and grade."""

    subject: Subject
    chip: str
    steps: tuple[Step, ...]
    other_versions: tuple[Step, ...] = ()

    @property
    def verdict(self) -> str:
        """The worst of them: fail, inconclusive, pass; `none` where there is none."""
        return worst(self.steps)

    @property
    def grade(self) -> str | None:
        """`measured` when a verdict comes from the chip itself, else the latest one's grade."""
        if any(step.grade == MEASURED for step in self.steps):
            return MEASURED
        return self.steps[-1].grade if self.steps else None

    def refusal(self, *, rehearsal: bool = False) -> str | None:
        """Why the gate stays shut, or None when it opens. A rehearsed verdict opens it only for a
        rehearsal."""
        known = [s for s in self.steps if rehearsal or s.grade == MEASURED]
        if not known:
            return self.absence()
        failed = [step for step in known if step.verdict != "pass"]
        if not failed:
            return None
        stages = ", ".join(f"{s.verdict} at {s.stage or 'step ' + s.id}" for s in failed)
        return f"'{self.subject.name}' did not pass on {self.chip}: {stages}"

    def absence(self) -> str:
        """Why there is no verdict to go by."""
        name = f"'{self.subject.name}'"
        if self.steps:
            return (
                f"{name} has a {self.steps[-1].grade} verdict only (step {self.steps[-1].id}); "
                f"the gate of a real {self.chip} opens on a measured one"
            )
        if self.other_versions:
            return (
                f"{name} has changed since its last verdict on {self.chip} "
                f"(step {self.other_versions[-1].id})"
            )
        return f"{name} has no verdict on {self.chip}"


def worst(steps: Iterable[Step]) -> str:
    """The worst verdict of `steps`."""
    verdicts = {step.verdict for step in steps}
    for verdict in ("fail", "inconclusive", "pass"):
        if verdict in verdicts:
            return verdict
    return "none"


def standing(steps: Iterable[Step], subject: Subject, chip: str) -> CurrentVerdicts:
    """Judge by `steps`, oldest first and without those that were rolled back.

    A subject with a hash is only known by verdicts of that hash; one without takes every verdict
    of its name.
    """
    about = [
        step
        for step in steps
        if step.verdict is not None
        and step.chip == chip
        and step.subject is not None
        and step.subject.name == subject.name
    ]
    same = [s for s in about if subject.sha256 is None or s.subject == subject]
    latest = {(step.stage, step.grade): step for step in same}
    others = tuple(step for step in about if step not in same)
    return CurrentVerdicts(
        subject, chip, tuple(sorted(latest.values(), key=lambda s: s.id)), others
    )
