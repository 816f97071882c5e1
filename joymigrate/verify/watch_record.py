"""What judging a watched run leaves out, its rows, and what its parts ask of the two runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from joymigrate.verify.display import Display
from joymigrate.verify.model import Difference, Phase


@dataclass(slots=True)
class Watched:
    """What was judged of the whole run, and what was not."""

    rows: list[Difference] = field(default_factory=list)
    uncovered: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0  # judged
    of: int = 0
    printed: tuple[int, int] = (0, 0)  # numbers that were compared, and printed
    files: tuple[int, int] = (0, 0)  # that were compared, and written
    chooses: bool = False  # a program reads whole numbers of its models
    same_choices: bool = False  # all of these were seen, and are the baseline's
    takes: bool = False  # it takes tensors of its models out of torch
    short: bool = False  # anything computes in 16 bits or fewer
    fed_back: bool = False  # its own results come back as data, which rounding has moved apart
    noisy: bool = False  # a weight that rounding alone moves decides over a result
    parted: float = math.inf  # step from which the sides train at other rates
    alike: bool = (
        False  # results of all calls without gradients agree, and no choice fell otherwise
    )

    def leave_out(self, what: str, count: int, reason: Any) -> None:
        """Something that changes and was not compared."""
        self.uncovered.append({"what": what, "count": count, "reason": reason})


class TwoRuns(Protocol):
    """The series of both sides, as `watch_stage.RunJudge` has them."""

    ours: Mapping[str, Any]
    theirs: Mapping[str, Any]
    own: set[str]  # inputs that no model made, on both sides
    choosing: set[str]  # models that choose by values
    drawing: set[str]  # models that draw random numbers
    noise: set[str]  # weights whose gradients are rounding
    short: bool  # anything computes in 16 bits or fewer
    devices: bool  # both sides have the same devices
    view: Display
    found: Watched

    def named(self, kind: str) -> Iterator[tuple[str, list[Any], list[Any] | None]]:
        """(name, ours, theirs) of the series of one kind."""

    def chosen_at(self, place: str) -> int | None:
        """The first step in which a model is given other whole numbers; None for none."""

    def grows(self, name: str, step: int) -> bool:
        """Whether data depart by rounding first, and an input no farther than that can grow."""

    def loss_error(self, until: int) -> float:
        """The largest error of losses up to a step; infinite where fewer than two are known."""

    def end_of_same_data(self) -> float:
        """The first step in which rounding that came back is more than rounding."""

    def judged(
        self,
        module: str,
        op: str,
        errors: Sequence[tuple[int, float]],
        least: float,
        phase: Phase,
        order: int,
    ) -> Difference:
        """One series of errors: FAIL where it jumps."""

    def row(
        self,
        module: str,
        op: str,
        phase: Phase,
        step: int | None,
        reason: Any,
        order: int,
        value: float | None = None,
        limit: float | None = None,
    ) -> Difference:
        """A series: PASS, or FAIL from a step on."""
