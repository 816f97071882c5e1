"""`verify record`: run a program and keep what its modules computed."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from joymigrate.errors import JoyError

if TYPE_CHECKING:
    from joymigrate.verify.bundle import Bundle
    from joymigrate.verify.settings import Settings

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
    twice: bool = typer.Option(
        False, "--twice", help="Run it again, and keep which values it does not repeat (times)."
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
    from joymigrate.cli import _program, _switch
    from joymigrate.cli._verifying import byte_size, number_range, numbers
    from joymigrate.extras import need
    from joymigrate.verify import session
    from joymigrate.verify.bundle import open_bundle
    from joymigrate.verify.settings import OPS, Settings

    first, last = number_range(steps)
    settings = Settings(
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
    resolved = _program.resolve(words)
    session.make_room(output, force)
    environment = random_numbers(_program.environment(), seed, draws)
    with session.recording(settings, resolved, environment, outputs) as running:
        code = _program.run(resolved, _switch.with_start(running.environment))
        running.code = code
    try:
        bundle = open_bundle(output)
    except JoyError as error:
        if code == 0:
            raise
        print(f"error: the program ended with exit code {code}; {error}", file=sys.stderr)
        return code
    if twice and code == 0:
        bundle = run_again(bundle, settings, resolved, environment, quiet)
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
    settings: Settings,
    resolved: list[str],
    environment: dict[str, str],
    quiet: bool,
) -> Bundle:
    """The bundle with what a second run of the program makes otherwise."""
    from joymigrate.cli import _program, _switch
    from joymigrate.verify import repeats, session
    from joymigrate.verify.bundle import open_bundle

    with tempfile.TemporaryDirectory(prefix="joymigrate-again-") as room:
        folder = Path(room) / "again.jmb"
        again = replace(settings, bundle=str(folder), batches_bytes=0, arguments=())
        with session.recording(again, resolved, environment) as running:
            code = _program.run(resolved, _switch.with_start(running.environment))
            running.code = code
        if code != 0:
            raise JoyError(
                f"the second run of the program ended with exit code {code}",
                where=" ".join(resolved),
                help="the bundle of the first run is complete; record without --twice",
            )
        count = repeats.keep(bundle, open_bundle(folder))
    if not quiet:
        print(f"verify: {count} values are others in a second run", file=sys.stderr)
    return open_bundle(bundle.path)


def level_of(name: str) -> str:
    """The level, or an error that names them."""
    from joymigrate.cli._output import one_of
    from joymigrate.verify.settings import LEVELS

    return one_of(name, LEVELS, "--level")
