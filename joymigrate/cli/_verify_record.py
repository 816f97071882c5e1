"""`verify record`: run a program and keep what its modules computed."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from joymigrate.errors import JoyError

if TYPE_CHECKING:
    from joymigrate.verify.bundle import Bundle
    from joymigrate.verify.settings import RecordingSettings

CONTEXT_SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}

NEEDS = ("extra:torch",)


def command(
    program: list[str] | None = typer.Argument(None, metavar="-- COMMAND"),
    output: Path = typer.Option(..., "-o", "--output", help="The bundle, NAME.jmb."),
    level: str = typer.Option("modules", "--level", help="modules, or ops (each operator too)."),
    steps: str = typer.Option("0-2", "--steps", help="Which steps: 0-2, or one number."),
    tensor_steps: str = typer.Option(
        "", "--tensor-steps", help="Steps whose modules are kept for teacher forcing: 0,2."
    ),
    budget: str = typer.Option("2GiB", "--budget", help="Most bytes of kept tensors."),
    stats_only: bool = typer.Option(
        False, "--stats-only", help="Statistics and sketches only: no tensor leaves the machine."
    ),
    inputs: bool = typer.Option(True, "--inputs/--no-inputs", help="Record modules' inputs."),
    gradients: bool = typer.Option(True, "--gradients/--no-gradients", help="Record gradients."),
    window: list[str] = typer.Option(
        [], "--window", metavar="PATTERN", help="Keep tensors of these modules only."
    ),
    outputs: list[str] = typer.Option(
        [], "--outputs", metavar="PATTERN", help="Files it writes, to compare as well: 'out/*.npy'."
    ),
    arguments: list[str] = typer.Option(
        [],
        "--arguments",
        metavar="PATTERN",
        help="Keep arguments of these operators, or of modules: 'aten::mm', 'layers.3*'.",
    ),
    arguments_budget: str = typer.Option(
        "256MiB", "--arguments-budget", help="Most bytes of kept arguments."
    ),
    batches: str | None = typer.Option(
        None, "--batches", metavar="SIZE", help="Keep loaders' batches in up to SIZE: 512MiB."
    ),
    once: bool = typer.Option(
        False, "--once", help="No other runs: how far rounding moves the program is not known."
    ),
    seed: str = typer.Option(
        "",
        "--seed",
        metavar="N|none",
        help="Seed random, numpy and torch as the program starts (default: 0); none leaves them.",
    ),
    draws: str = typer.Option(
        "",
        "--draws",
        metavar="own|same",
        help="same: random numbers that are the same on every device; own (default): the device's.",
    ),
    module: str | None = typer.Option(None, "-m", help="Run a module, like python -m."),
    force: bool = typer.Option(False, "--force", help="Replace a bundle of that name."),
    quiet: bool = typer.Option(False, "-q", "--quiet"),
) -> int:
    """Run COMMAND and record a baseline. Its output and exit code are its own."""
    from joymigrate import launching
    from joymigrate.cli._verifying import byte_size, number_range, numbers
    from joymigrate.extras import need
    from joymigrate.ledger.stash import restore_stashed
    from joymigrate.verify import made_files, session
    from joymigrate.verify.bundle import open_bundle
    from joymigrate.verify.settings import OPS, RecordingSettings

    first, last = number_range(steps)
    settings = RecordingSettings(
        bundle=str(output.resolve()),
        level=OPS if arguments else level_of(level),
        first=first,
        last=last,
        tensor_steps=numbers(tensor_steps) or (first,),
        budget_bytes=byte_size(budget),
        stats_only=stats_only,
        inputs=inputs,
        gradients=gradients,
        window=tuple(window),
        quiet=quiet,
        arguments=tuple(arguments),
        arguments_bytes=byte_size(arguments_budget, "--arguments-budget"),
        batches_bytes=byte_size(batches, "--batches") if batches else 0,
    )
    words = [*(["-m", module] if module else []), *(program or [])]
    need("torch", "torch", "safetensors", what="recording")
    resolved = launching.resolve(words)
    session.make_room(output, force)
    restore_stashed(Path.cwd())
    before = None if once else made_files.list_files(Path.cwd(), output.resolve())
    environment = random_numbers(launching.environment(), seed, draws)
    began = time.monotonic()
    with session.recording(settings, resolved, environment, outputs) as running:
        code = launching.run_with_hooks(resolved, running.environment)
        running.code = code
    seconds = time.monotonic() - began
    try:
        bundle = open_bundle(output)
    except JoyError as error:
        if code == 0:
            raise
        print(f"error: the program ended with exit code {code}; {error}", file=sys.stderr)
        return code
    if not once and code == 0:
        here, apart = Path.cwd(), output.resolve()
        made = made_files.list_files(here, apart)
        clear = partial(made_files.begin_again, here, before, made, apart)
        bundle = run_again(bundle, settings, resolved, environment, outputs, seconds, clear)
    if not quiet:
        ranks = len(bundle.ranks)
        recorded = bundle.ranks[0]
        rows = sum(len(recorded.table(step)) for step in recorded.steps)
        print(
            f"verify: {len(recorded.steps)} steps, {rows} records"
            f"{f', {ranks} ranks' if ranks > 1 else ''} in {output} "
            f"({bundle.size_bytes / 1e6:.1f} MB)",
            file=sys.stderr,
        )
        for note in recorded.program.get("notes", []):
            print(f"verify: {note}", file=sys.stderr)
    return code


def random_numbers(environment: dict[str, str], seed: str, draws: str) -> dict[str, str]:
    """The environment with the seed and the draws that both sides will have: a replay takes the
    recording's. Without an option the user's own variables hold, and else seed 0."""
    from joymigrate.cli._output import one_of
    from joymigrate.verify.environment import DRAWN

    made, (seeding, drawing) = dict(environment), DRAWN
    if seed not in ("", "none") and not seed.isdigit():
        raise JoyError(f"--seed {seed}: not a whole number", help="give one, or none")
    if seed == "none":
        made.pop(seeding, None)
    elif seed:
        made[seeding] = seed
    else:
        made.setdefault(seeding, "0")
    if draws:
        made[drawing] = str(int(one_of(draws, ("own", "same"), "--draws") == "same"))
    return made


def run_again(
    bundle: Bundle,
    settings: RecordingSettings,
    resolved: list[str],
    environment: dict[str, str],
    outputs: list[str],
    seconds: float,
    clear: Callable[[Path], AbstractContextManager[None]],
) -> Bundle:
    """The bundle with what the program's other runs saw, every result moved by rounding. What they
    print is the first run's again, and goes nowhere. The first run took so many `seconds`; `clear`
    lets each begin without what the one before it made, by what it notes itself."""
    from joymigrate import launching
    from joymigrate.verify import made_files, repeat_runs, session
    from joymigrate.verify.bundle import open_bundle

    with tempfile.TemporaryDirectory(prefix="joymigrate-again-") as room:
        made = []
        until = repeat_runs.last_step(bundle, settings.last, seconds)
        for number in range(1, repeat_runs.RUNS + 1):
            if not settings.quiet:
                text = f"verify: further run {number} of {repeat_runs.RUNS}, to know how far "
                print(text + "rounding moves the program (--once: none)", file=sys.stderr)
            folder = Path(room) / f"again-{number}.jmb"
            other = repeat_runs.settings_of(settings, folder, number, until)
            with (
                clear(folder / made_files.NOTE),
                session.recording(other, resolved, environment, outputs) as running,
                silent(),
            ):
                code = launching.run_with_hooks(resolved, running.environment)
                running.code = code
            again = repeat_runs.open_run(folder, code, bundle, until)
            if again is None:
                text = f"verify: another run of the program ended with exit code {code}: how far "
                print(text + "rounding moves it is not known", file=sys.stderr)
                return bundle
            made.append(again)
        repeat_runs.keep(bundle, made, until)
    return open_bundle(bundle.path)


@contextmanager
def silent() -> Iterator[None]:
    """Nothing on stdout and stderr."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in (1, 2):
            os.dup2(nowhere, number)
        yield
    finally:
        for number, one in zip((1, 2), kept, strict=True):
            os.dup2(one, number)
            os.close(one)
        os.close(nowhere)


def level_of(name: str) -> str:
    """The level, or an error that names them."""
    from joymigrate.cli._output import one_of
    from joymigrate.verify.settings import LEVELS

    return one_of(name, LEVELS, "--level")
