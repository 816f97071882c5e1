"""Which families of models this installation can build and train, found out by doing it.

Per family of the libraries' registries: a tiny configuration is built on the meta device, and one
that is small enough takes one step on the CPU: forward, loss, backward, update. Results are kept
in the user's cache folder, under a name made of the libraries' versions and of this code.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.train import recommendation
from joymigrate.run.train.digests import of_text, write_json
from joymigrate.run.train.family_kinds import KINDS, RECOMMENDATION, TEXT_TO_IMAGE

SCHEMA = "joymigrate.models/1"
LIBRARIES = ("torch", "transformers", "diffusers")
LARGE = 60_000_000  # parameters of a "tiny" model that is not stepped
SECONDS = 30  # per family
SAVE_EVERY = 20
FEATURE_TASKS = {
    "sasrec": "sequence", "hstu": "generative", "onerec": "generative",
    "mmoe": "multitask", "ple": "multitask",
}  # others: ctr  # fmt: skip
Tell = Callable[[str], None]


@dataclass(slots=True)
class ModelFamily:
    """One family and what was verified; `reason` says why something was not."""

    family: str
    task: str
    meta: bool = False
    step: str = "skipped"  # pass, fail, skipped
    layouts: list[str] = field(default_factory=list)
    reason: str | None = None
    parameters: int | None = None  # of the tiny configuration
    inputs: str | None = None  # what the step was fed with
    packing: bool | None = None  # documents may share rows; None: not tried
    trained_by: str | None = None  # the task here; None: an engine


class FamilyTimeout(Exception):
    """A family took longer than it may."""


def list_families() -> list[ModelFamily]:
    """All families of the registries, nothing verified yet."""
    from joymigrate.chips import hide_driverless

    hide_driverless()
    from transformers.models.auto import modeling_auto

    found = []
    for kind, (mapping, _, task) in KINDS.items():
        for name in sorted(getattr(modeling_auto, mapping, {})):
            found.append(ModelFamily(name, kind, trained_by=own_task(kind, name, task)))
    for name in diffusers_classes():
        by = TEXT_TO_IMAGE if name == "UNet2DConditionModel" else None
        found.append(ModelFamily(name, TEXT_TO_IMAGE, trained_by=by))
    for name in recommendation.names():
        found.append(ModelFamily(name, RECOMMENDATION, trained_by=FEATURE_TASKS.get(name, "ctr")))
    return found


def own_task(kind: str, name: str, task: str | None) -> str | None:
    """The task here that feeds a family; image-text makes patches as Qwen2-VL takes them."""
    if kind == "multimodal" and name not in ("qwen2_vl", "qwen2_5_vl"):
        return None
    return task


def diffusers_classes() -> list[str]:
    """Denoisers of two-dimensional images, where diffusers is installed."""
    try:
        import diffusers
    except ImportError:
        return []
    names = [n for n in dir(diffusers) if n.endswith("Transformer2DModel") and n[0].isupper()]
    return sorted({*names, "UNet2DConditionModel", "UNet2DModel"} - {"Transformer2DModel"})


def survey(
    wanted: Sequence[str] = (), kinds: Sequence[str] = (), tell: Tell = lambda line: None
) -> list[ModelFamily]:
    """Families with what is verified, from the cache or by doing it now."""
    everything = list_families()
    names = {one.family for one in everything}
    for name in wanted:
        if name not in names:
            raise JoyError(
                f"unknown family '{name}'.{did_you_mean(name, names)}",
                help="train models --list names them",
            )
    chosen = [
        one
        for one in everything
        if (not wanted or one.family in wanted) and (not kinds or one.task in kinds)
    ]
    known = recall_verified()
    made = 0
    for number, one in enumerate(chosen):
        key = f"{one.task}/{one.family}"
        if key not in known:
            tell(f"{number + 1}/{len(chosen)} {key}")
            verify(one)
            known[key] = asdict(one)
            made += 1
            if made % SAVE_EVERY == 0:
                remember(known)
    if made:
        remember(known)
    return [ModelFamily(**known[f"{one.task}/{one.family}"]) for one in chosen]


def verify(one: ModelFamily) -> ModelFamily:
    """Build on the meta device, then take a step on the CPU; fills `one`."""
    from joymigrate.run.train import family_step

    stage = "meta"
    with quiet():
        try:
            with limit_time(SECONDS):
                one.parameters = family_step.meta(one.task, one.family)
                one.meta = True
                if one.parameters > LARGE:
                    one.reason = f"even tiny it has {one.parameters / 1e6:.0f} M parameters"
                    return one
                stage = "step"
                one.inputs = family_step.step(one.task, one.family)
                one.step = "pass"
                if one.task == "llm":
                    stage = "packing"
                    one.packing = family_step.packs(one.family)
        except family_step.UnknownInputs as error:
            one.reason = str(error)
        except FamilyTimeout:
            one.reason = f"{stage}: longer than {SECONDS} s"
        except Exception as error:  # third-party code of any kind: its words are the reason
            one.step = "fail" if one.meta else "skipped"
            text = " ".join(str(error).split())[:200]
            one.reason = f"{stage}: {type(error).__name__}: {text}"
    return one


@contextlib.contextmanager
def limit_time(seconds: int) -> Iterator[None]:
    """Raise `Slow` when it takes longer; without effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(number: int, frame: Any) -> None:
        raise FamilyTimeout

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Tiny configurations make libraries warn a lot."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    silence: Any = logging.set_verbosity_error
    silence()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.set_verbosity(level)


# -- the cache ------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    """Of the libraries that decide the outcome."""
    found = {}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def place() -> Path:
    """The cache's file for these versions and this code."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    here = Path(__file__).parent
    code = [
        (here / name).read_text()
        for name in ("families.py", "family_kinds.py", "family_step.py", "probes.py", "shrink.py")
    ]
    key = of_text(json.dumps(versions(), sort_keys=True), *code)[:16]
    return Path(base) / "joymigrate" / f"models-{key}.json"


def recall_verified() -> dict[str, Any]:
    """What was verified before."""
    try:
        found = json.loads(place().read_text())
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def remember(known: dict[str, Any]) -> None:
    """Keep it; a folder that cannot be written costs the next call its time, no more."""
    with contextlib.suppress(OSError):
        write_json(place(), known)


def document(found: Sequence[ModelFamily]) -> dict[str, Any]:
    """As JSON."""
    count = {
        "families": len(found),
        "meta": sum(one.meta for one in found),
        "step": sum(one.step == "pass" for one in found),
    }
    return {
        "schema": SCHEMA,
        "versions": versions(),
        "summary": count,
        "models": [asdict(one) for one in found],
    }
