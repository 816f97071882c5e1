"""Runs the target of a replay with the recorder in it, and hands both bundles to the judge."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from joymigrate.cli._output import talk
from joymigrate.errors import JoyError

if TYPE_CHECKING:
    from joymigrate.cli._verdicts import VerdictOptions
    from joymigrate.verify.bundle import Bundle


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What `verify replay` was asked for."""

    baseline: Path
    command: Sequence[str]
    mapping: Path | None = None
    rehearse: bool = False
    migrate: bool = False
    noise: float = 0.0
    keep: Path | None = None
    precision: str = "fp32"
    inject: tuple[str, ...] = ()
    devices: int = 8  # of the simulated machine
    strict: bool = False
    evidence: Path | None = None  # a folder for the case of the first wrong place
    batches: bool = False  # the target gets the baseline's
    aside: bool = False  # stdout is for the verdict


@contextmanager
def target(
    replay: ReplayRequest, baseline: Bundle, chip: str | None
) -> Iterator[tuple[Bundle, int]]:
    """The target's bundle and its program's exit code. Raises JoyError when it recorded nothing."""
    from joymigrate import launching
    from joymigrate.verify import crash, session
    from joymigrate.verify.bundle import NothingRecorded, open_bundle
    from joymigrate.verify.settings import RecordingSettings

    resolved = launching.resolve(replay.command)
    with ExitStack() as stack:
        if replay.keep is not None:
            session.make_room(replay.keep, force=False)
            folder = replay.keep
        else:
            room = tempfile.mkdtemp(prefix="joymigrate-replay-")
            stack.callback(shutil.rmtree, room, ignore_errors=True)
            folder = Path(room) / "target.jmb"
        first, last = baseline.manifest.get("steps", [0, 2])
        settings = RecordingSettings(
            bundle=str(folder.resolve()),
            level=str(baseline.manifest.get("level", "modules")),
            first=int(first),
            last=int(last),
            tensor_steps=taught_steps(baseline),
            baseline=str(replay.baseline.resolve()),
            alignment=str(replay.mapping.resolve()) if replay.mapping else None,
            noise=replay.noise,
            give_batches=replay.batches,
            window=tuple(str(p) for p in baseline.manifest.get("window", ())),
        )
        base = replay_draws(baseline, launching.environment())
        environment = stack.enter_context(around(replay, chip, base))
        outputs = baseline.outputs.get("patterns", ())
        recording = session.recording(settings, resolved, environment, outputs)
        with recording as running, aside(replay.aside):
            code = launching.run_with_hooks(resolved, running.environment)
            running.code = code
        try:
            made = open_bundle(folder)
        except NothingRecorded as error:
            raise JoyError(
                f"the program recorded nothing ({crash.exit_words(code)}){error.why}",
                where=" ".join(replay.command),
                help=error.help
                if error.why
                else "it ended before its first step, or calls no torch "
                "module; what it said itself stands above",
            ) from None
        yield made, code


def replay_draws(baseline: Bundle, environment: dict[str, str]) -> dict[str, str]:
    """The environment with the random numbers of the recording, whoever asks for others."""
    from joymigrate.verify.environment import DRAWN

    recorded = baseline.ranks[0].program.get("environment", {}).get("variables", {})
    kept = {name: value for name, value in environment.items() if name not in DRAWN}
    return kept | {name: recorded[name] for name in DRAWN if name in recorded}


@contextmanager
def aside(wanted: bool) -> Iterator[None]:
    """Send what the program prints to stderr while stdout is for the verdict."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def taught_steps(baseline: Bundle) -> tuple[int, ...]:
    """The steps whose modules the baseline kept."""
    table = baseline.ranks[0].json("forced.json")
    return tuple(
        sorted({int(e["step"]) for e in table.get("lessons", []) if isinstance(e["number"], int)})
    )


@contextmanager
def around(
    replay: ReplayRequest, chip: str | None, base: dict[str, str]
) -> Iterator[dict[str, str]]:
    """The environment of the rehearsal and of the switch, where they are asked for."""
    from joymigrate import chips, launching
    from joymigrate.cli import _switch
    from joymigrate.cli.rehearse import NOT_REHEARSED

    with ExitStack() as stack:
        made = base
        if replay.rehearse:
            from joymigrate.run.rehearse import session
            from joymigrate.run.rehearse.options import read_options

            settings = stack.enter_context(
                session.open_session(
                    read_options(
                        to=chip,
                        soc=None,
                        devices=replay.devices,
                        memory=None,
                        mode="run",
                        precision=replay.precision,
                        policy="count",
                        inject=replay.inject,
                    )
                )
            )
            made = session.environment(settings, made)
        if replay.migrate:
            made = stack.enter_context(
                _switch.switch_to(
                    launching.resolve(replay.command),
                    made,
                    chip=chips.target(chip),
                    leave=NOT_REHEARSED if replay.rehearse else (),
                )
            )
        yield made


def run(replay: ReplayRequest, asked: VerdictOptions, checkpoint: str | None) -> int:
    """Replay, judge, render, record."""
    from dataclasses import replace

    from joymigrate.cli import _verdicts
    from joymigrate.cli._judging import judge, where
    from joymigrate.extras import need
    from joymigrate.verify.bundle import open_bundle

    view = asked.view()
    need("torch", "torch", "safetensors", what="replaying")
    baseline = open_bundle(replay.baseline)
    if replay.batches and not baseline.ranks[0].has("loaders.json"):
        raise JoyError(
            "the baseline kept no batches of data loaders",
            where=str(replay.baseline),
            help="record it again with --batches 512MiB",
        )
    replay = replace(replay, aside=asked.output is None)
    with target(replay, baseline, asked.to) as (made, code):
        name = stem(replay.command)
        place = where(asked.to, asked.subject or name, checkpoint, made, replay.rehearse)
        document, verdict = judge(baseline, made, place, replay.mapping, code, strict=replay.strict)
        if replay.rehearse and asked.to != "cpu" and place.chip == "cpu":
            text = "the program computed nothing on the chip: this compares two runs on a CPU"
            document["uncovered"] = [{"what": "chip", "count": 1, "reason": text},
                                     *document.get("uncovered", ())]  # fmt: skip
        if replay.evidence is not None:
            from joymigrate.verify.evidence_pack import write_pack

            try:
                said = write_pack(made.ranks[0], verdict, replay.evidence, baseline.ranks[0])
            except JoyError as error:  # the verdict is there all the same
                said = f"no evidence: {error.what}"
            talk([f"verify: {said}"])
        place = replace(place, subject=asked.subject)
        inputs = [replay.baseline]
        return _verdicts.finish(document, verdict, place, view, inputs, default=name)


def stem(command: Sequence[str]) -> str | None:
    """What a program is called in the ledger: its file's stem."""
    for part in command:
        if part.endswith(".py"):
            return Path(part).stem
    return Path(command[0]).name if command else None
