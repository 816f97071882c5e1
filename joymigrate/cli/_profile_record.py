"""`profile record`: run a program, and write which operators its steps call and how long."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from joymigrate.errors import Exit, JoyError

if TYPE_CHECKING:
    from joymigrate.profile.record import RecordFile
    from joymigrate.profile.recorder.settings import RecorderSettings

NEEDS = ("extra:torch",)
WANTS = {"rehearsal": "--capture rehearse"}

CONTEXT_SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
CAPTURES = ("run", "rehearse")


def command(
    program: list[str] | None = typer.Argument(None, metavar="-- COMMAND"),
    output: Path = typer.Option(
        Path("trace.jsonl"), "-o", "--output", help="NAME.jsonl or NAME.jsonl.gz."
    ),
    steps: int = typer.Option(3, "--steps", min=0, help="Steps whose time is taken."),
    warmup: int = typer.Option(1, "--warmup", min=0, help="Steps before the timed ones."),
    capture: str = typer.Option(
        "run", "--capture", help="run: here; rehearse: what the simulated chip would see."
    ),
    to: str | None = typer.Option(None, "--to", help="With --capture rehearse: the chip."),
    soc: str | None = typer.Option(None, "--soc", help="With --capture rehearse: its model."),
    migrate: bool = typer.Option(
        False, "--migrate", help="With --capture rehearse: rewrite the program in memory."
    ),
    module: str | None = typer.Option(
        None, "--module", metavar="FILE.py:STEP", help="Record a function instead of a program."
    ),
    stack: bool = typer.Option(
        False, "--stack/--no-stack", help="Python stacks in the Chrome trace as well."
    ),
    quiet: bool = typer.Option(False, "-q", "--quiet"),
) -> int:
    """Run COMMAND and record its operators. Its output and exit code are its own."""
    from joymigrate import launching
    from joymigrate.cli._output import one_of
    from joymigrate.extras import need
    from joymigrate.profile.recorder.settings import RecorderSettings

    one_of(capture, CAPTURES, "--capture")
    if module and program:
        raise JoyError("--module and a program were given", help="give one of them")
    command = ["python", "-m", "joymigrate.profile.recorder.call", module] if module else program
    need("torch", "torch", what="recording")
    resolved = launching.resolve(command or [])
    settings = RecorderSettings(
        session=Path(), out=output, steps=steps, warmup=warmup, stack=stack, variables=variables(to)
    )
    run = record_here if capture == "run" else record_rehearsed
    code, written = run(resolved, settings, to=to, soc=soc, migrate=migrate)
    if not quiet:
        for line in summarise(written):
            print(line, file=sys.stderr)
    if not written and code == 0:
        raise JoyError(
            "the program ended and no operator of torch was seen",
            help="every Python that the command starts is looked at; programs that leave by "
            "os._exit, and threads beside the main one, are not",
        )
    return code or Exit.OK


def variables(to: str | None) -> tuple[str, ...]:
    """Environment variables that advice looks at: torch's, the origin's and the chip's."""
    from joymigrate import chips, config
    from joymigrate.profile.record import VARIABLES

    chip = chips.target(to or config.load(Path.cwd())["to"])
    known = [advice.to or name for name, advice in chip.variables().items() if "*" not in name]
    raw = chip.data("advice.yaml") or {}
    return tuple(dict.fromkeys([*VARIABLES, *known, *raw.get("variables", ())]))


def record_here(
    resolved: list[str],
    settings: RecorderSettings,
    *,
    to: str | None,
    soc: str | None,
    migrate: bool,
) -> tuple[int, list[RecordFile]]:
    """Record the program where it runs."""
    from dataclasses import replace

    from joymigrate import launching
    from joymigrate.chips import hide_driverless
    from joymigrate.profile import record

    if migrate or soc:
        raise JoyError("--migrate and --soc belong to --capture rehearse", help="add it")
    hidden = hide_driverless()
    base = launching.environment(**({launching.AUTOLOAD: "0"} if hidden else {}))
    with record.open_recording(replace(settings, hidden=hidden)) as ready:
        code = launching.run_with_hooks(resolved, record.environment(ready, base))
    return code, record.read_written(settings.out)


def record_rehearsed(
    resolved: list[str],
    settings: RecorderSettings,
    *,
    to: str | None,
    soc: str | None,
    migrate: bool,
) -> tuple[int, list[RecordFile]]:
    """Record the program on the simulated chip: its operators, its own decompositions."""
    from contextlib import nullcontext
    from dataclasses import replace

    from joymigrate import launching
    from joymigrate.chips import target
    from joymigrate.cli import _switch
    from joymigrate.profile import record
    from joymigrate.run.rehearse import session
    from joymigrate.run.rehearse.options import read_options
    from joymigrate.run.rehearse.settings import OWN_VARIABLES

    options = read_options(
        to=to,
        soc=soc,
        devices=8,
        memory=None,
        mode="run",
        precision="fp32",
        policy="count",
        inject=[],
    )
    chip = target(options.chip)
    own = {name for name, value in OWN_VARIABLES.items() if os.environ.get(name) != value}
    users = tuple(name for name in settings.variables if name not in own)
    wanted = replace(
        settings, timing=False, rehearsal=True, chip=chip.name, device=chip.device, variables=users
    )
    with session.open_session(options) as rehearsal, record.open_recording(wanted) as ready:
        base = session.environment(rehearsal, launching.environment())
        around = _switch.switch_to(resolved, base, chip=chip) if migrate else nullcontext(base)
        with around as switched:
            code = launching.run_with_hooks(resolved, record.environment(ready, switched))
    return code, record.read_written(settings.out)


def summarise(written: list[RecordFile]) -> list[str]:
    """What was written, in a line per file."""
    lines = []
    for each in written:
        timed = f", {each.steps} timed steps in {each.chrome.name}" if each.chrome else ""
        span = "one step" if each.steps_seen else "the whole program"
        seen = f"{each.operators} distinct calls, {each.calls} in {span}"
        lines.append(f"record: {seen}{timed} → {each.path}")
        if not each.steps_seen:
            lines.append(
                "record: no step ended (an optimiser's, a module's call); all calls are added up"
            )
        elif not each.complete:
            lines.append(
                "record: the program ended before every step was recorded; this is what was seen"
            )
    return lines
