"""The steps of a journey in their order, what each depends on, and why one is left out."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from joymigrate import __version__
from joymigrate.journey import steps
from joymigrate.journey.context import StepContext, numbers
from joymigrate.journey.model import JourneyRequest, StepOutcome
from joymigrate.journey.sites import LEFT


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step to come. `skip` says why it will be left out; None: it will run.

    Its result holds as long as the request's `fields` and the results of the steps `after` which
    it comes do.
    """

    name: str
    title: str
    run: Callable[[StepContext], StepOutcome]
    fields: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    skip: str | None = None

    def request_document(self, request: JourneyRequest) -> dict[str, Any]:
        """What the step is asked for, as JSON keeps it."""
        values = {name: plain(getattr(request, name)) for name in self.fields}
        return {"joymigrate": __version__, **values}


def plain(value: Any) -> Any:
    """A value of a request as JSON keeps it."""
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, bool | int | str | None) else str(value)


def plan(request: JourneyRequest) -> list[PlannedStep]:
    """All steps, in order."""
    none = None if request.entry else "no program was named with --entry"
    ported = "pair changes no file" if request.pair else None
    code = ("chip", "style", "unsafe")
    here = ("entry", "chip", "devices")
    planned = [
        PlannedStep(
            "scan", "find what depends on the current accelerator", steps.scan.run, code, (),
            ported,
        ),
        PlannedStep(
            "baseline", "run it here as it is", steps.baseline.run,
            ("entry", "steps", "once", "baseline", "baseline_entry", "origin"), (), none,
        ),
        PlannedStep("rewrite", "rewrite what is certain", steps.rewrite.run, code, (), ported),
        PlannedStep("rehearse", "run it on the chip", steps.rehearse.run, here, ("rewrite",), none),
        PlannedStep(
            "coverage", "which operators the chip has", steps.coverage.run,
            here, ("rewrite", "rehearse"), none or ported,
        ),
        PlannedStep(
            "advice", "what would make it fast", steps.advice.run,
            ("chip",), ("coverage",), none or ported,
        ),
        PlannedStep(
            "verify", "compare with the baseline", steps.verify.run,
            (*here, "steps", "map"), ("baseline", "rewrite"), none,
        ),
        PlannedStep(
            "train", "its losses beside the baseline's", steps.train.run,
            (*here, "train", "baseline_entry"), ("baseline", "rewrite", "rehearse"), none,
        ),
        PlannedStep(
            "serve", "serve the model and ask it", steps.serve.run,
            ("serve",), ("rewrite",), ported,
        ),
    ]  # fmt: skip
    return planned


NAMES = (
    "scan", "baseline", "rewrite", "rehearse", "coverage", "advice", "verify", "train", "serve",
)  # fmt: skip


def commands(request: JourneyRequest, name: str, *, chip_here: bool) -> list[str]:
    """The command lines that a step would run, in the project."""
    made = words(request, chip_here)[name]
    return [" ".join([*prefix_variables(one), shlex.join(one)]) for one in made]


def prefix_variables(command: Sequence[str]) -> list[str]:
    """The variables that go before a command."""
    found = numbers(command[1:]) if command[0] == "joymigrate" else {}
    return [f"{name}={shlex.quote(value)}" for name, value in found.items()]


def words(request: JourneyRequest, chip_here: bool) -> dict[str, list[list[str]]]:
    """The commands of every step; paths are those from the project's folder."""
    base = request.baseline_entry or request.entry
    bundle = str(request.baseline or at(steps.baseline.BUNDLE))
    record = steps.baseline.words(request, bundle, base, not request.baseline_entry)
    both = request if request.pair else steps.rehearse.recording(request, at(steps.coverage.TRACE))
    curves = [at("train/baseline.jsonl"), at("train/chip.jsonl")]
    ours: dict[str, list[list[str]]] = {
        "scan": [steps.scan.words(request, *map(at, steps.scan.FILES))],
        "baseline": [] if request.baseline else [record],
        "rewrite": [steps.rewrite.words(request), steps.rewrite.looking(request, at(LEFT))],
        "rehearse": [steps.rehearse.words(both, chip_here, at("rehearse/rehearse.json"))],
        "coverage": [
            steps.coverage.asking(
                request, at(steps.coverage.TRACE), "json", at("coverage/coverage.json")
            ),
        ],
        "advice": [steps.advice.words(request, "json", at("advice/advice.json"))],
        "verify": [steps.verify.words(request, chip_here, bundle, at(steps.verify.RESULT))],
        "train": [steps.train.judging(curves, at("train/loss.json"))],
        "serve": [["serve", str(request.serve or "MODEL_DIR")]],
    }
    all_ = {name: [["joymigrate", *one] for one in made] for name, made in ours.items()}
    again = chip_here or request.train
    runs = [["joymigrate", *steps.train.words(request, chip_here)]] if again else []
    all_["train"] = [list(request.train or base), *runs, *all_["train"]]
    return all_


def at(name: str) -> str:
    """A file of the journey as the project sees it."""
    return f".joymigrate/journey/{name}"
