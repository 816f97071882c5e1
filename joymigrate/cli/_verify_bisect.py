"""`verify bisect`: teach only the modules around the place where a free run departs."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from joymigrate.cli import _verdicts
from joymigrate.cli._options import spread
from joymigrate.cli._output import talk
from joymigrate.cli._verdicts import VerdictOptions

if TYPE_CHECKING:
    from joymigrate.verify.model import Verdict

NEEDS = ("extra:torch",)


@spread
def command(
    *,
    asked: VerdictOptions,
    baseline: Path = typer.Argument(..., metavar="BASELINE", help="A bundle, of statistics too."),
    program: list[str] | None = typer.Argument(None, metavar="-- COMMAND"),
    again: str | None = typer.Option(
        None, "--baseline", metavar="COMMAND", help="The baseline's program (default: as recorded)."
    ),
    budget: str = typer.Option("2GiB", "--budget", help="Most bytes of kept tensors."),
    window: list[str] = typer.Option(
        [], "--window", metavar="PATTERN", help="These modules, instead of looking for them."
    ),
) -> int:
    """Find the window of modules where COMMAND departs from the baseline, and judge it there.

    For models whose tensors don't fit --budget: the free run tells where to look, the baseline's
    program is run once more and keeps the tensors of that window, and COMMAND is replayed.
    """
    from joymigrate import launching
    from joymigrate.cli import _replaying
    from joymigrate.cli._judging import judge, where
    from joymigrate.cli._verifying import byte_size
    from joymigrate.extras import need
    from joymigrate.verify import session
    from joymigrate.verify.bundle import open_bundle
    from joymigrate.verify.settings import RecordingSettings

    need("torch", "torch", "safetensors", what="replaying")

    view = asked.view()
    first = open_bundle(baseline)
    replay = _replaying.ReplayRequest(
        baseline=baseline, command=program or [], aside=asked.output is None
    )
    with ExitStack() as stack:
        if not window:
            with _replaying.target(replay, first, asked.to) as (made, code):
                place = where(asked.to, asked.subject, None, made, False)
                document, verdict = judge(first, made, place, None, code)
            window = suspects(verdict)
            if not window:
                return _verdicts.finish(document, verdict, place, view, [baseline])
        talk([f"bisect: looking into {', '.join(window)}"])
        room = Path(tempfile.mkdtemp(prefix="joymigrate-bisect-"))
        stack.callback(shutil.rmtree, room, ignore_errors=True)
        steps = first.manifest.get("steps", [0, 2])
        settings = RecordingSettings(
            bundle=str(room / "window.jmb"),
            first=int(steps[0]),
            last=int(steps[1]),
            tensor_steps=(int(steps[0]),),
            budget_bytes=byte_size(budget),
            window=tuple(window),
        )
        command_line = shlex.split(again) if again else list(first.manifest["command"])
        resolved = launching.resolve(command_line)
        recording = session.recording(settings, resolved, launching.environment())
        with recording as running, _replaying.aside(asked.output is None):
            running.code = launching.run_with_hooks(resolved, running.environment)
        second = _replaying.ReplayRequest(
            baseline=room / "window.jmb", command=program or [], aside=asked.output is None
        )
        narrow = open_bundle(room / "window.jmb")
        with _replaying.target(second, narrow, asked.to) as (made, code):
            place = where(asked.to, asked.subject, None, made, False)
            document, verdict = judge(narrow, made, place, None, code)
            return _verdicts.finish(document, verdict, place, view, [baseline])


def suspects(verdict: Verdict) -> list[str]:
    """The block that holds the first module whose output departs; nothing when none does."""
    first = verdict.first_divergence
    depart = [
        record
        for record in verdict.records
        if record.stage == "S5"
        and (record.op or "").startswith("out")
        and record.value is not None
        and record.limit is not None
        and record.value > record.limit
    ]
    name = first.module if first is not None and first.stage == "S5" else None
    name = name or (depart[0].module if depart else None)
    if name is None:
        return []
    block = name.rpartition(".")[0]
    # Up to the numbered block of a stack of layers: what it hands down is looked at as well.
    while block and not block.rpartition(".")[2].isdigit() and "." in block:
        block = block.rpartition(".")[0]
    return [block if block and block.rpartition(".")[2].isdigit() else name]
