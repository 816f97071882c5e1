"""Write what runs a project elsewhere: a container's files, or a lock of what is installed."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from joymigrate.cli import _render_serving
from joymigrate.cli._common_options import OUTPUT, TO
from joymigrate.cli._groups import group
from joymigrate.cli._output import emit, talk
from joymigrate.cli._render_serving import write
from joymigrate.errors import Exit, JoyError

if TYPE_CHECKING:
    from joymigrate.run.render import PackageLine

app = group("Write what runs a project elsewhere: a container's files, a lock file, a service.")
app.command("unit")(_render_serving.unit)
app.command("chart")(_render_serving.chart)

PORT = 8000


@app.command("image")
def image(
    path: Path = typer.Argument(Path("."), metavar="PATH", help="The project."),
    to: str | None = TO,
    lock: Path | None = typer.Option(
        None, "--lock", help="The lock file (default: the one that PATH has)."
    ),
    entry: str = typer.Option("", "--entry", help="What the container runs: 'python train.py'."),
    serve: Path | None = typer.Option(
        None, "--serve", metavar="DIR", help="Serve this folder of weights instead."
    ),
    port: int = typer.Option(PORT, "--port", min=1, max=65535, help="With --serve."),
    sku: str | None = typer.Option(None, "--sku", help="The model of the chip, e.g. its SKU."),
    python: str | None = typer.Option(None, "--python", help="Python's minor version: 3.11."),
    base: str | None = typer.Option(None, "--base", help="A base image of your own."),
    cards: int = typer.Option(1, "--cards", min=1, max=64, help="How many cards it gets."),
    vendor_runtime: bool = typer.Option(
        False, "--vendor-runtime", help="Use the vendor's container runtime, not device paths."
    ),
    output: Path | None = typer.Option(
        None, "-o", "--output", metavar="DIR", help="Where (default: PATH/containers/CHIP)."
    ),
    force: bool = typer.Option(False, "--force", help="Overwrite files of others, too."),
) -> int:
    """Write a Dockerfile and a compose file from the project's lock file. Builds nothing."""
    from joymigrate import chips, config
    from joymigrate.run import render as made
    from joymigrate.run.render.render import MARK

    if not path.is_dir():
        raise JoyError("the project is a folder", where=str(path), help="render image FOLDER")
    chip = chips.get(to) if to else chips.target(config.load(path)["to"])
    project = path.resolve()
    found = made.read(lock or made.find(project))
    folder = (output or project / "containers" / chip.name).resolve()
    if not folder.is_relative_to(project) or folder == project:
        raise JoyError(
            "the files lie in a folder inside the project, which is the build's context",
            where=str(folder),
            help=f"-o {path / 'containers' / chip.name}",
        )
    lines = made.translate(found, chip)
    start = made.custom_base(chip, base, python or found.python) if base else made.choose(
        chip, made.torch_of(found), python or found.python, sku
    )  # fmt: skip
    wanted = made.ContainerSpec(
        name=f"{made.image_name(project.name)}:{chip.name}",
        folder=folder.relative_to(project).as_posix(),
        command=command_of(project, entry, serve, port),
        port=port if serve else None,
        model=str(serve.resolve()) if serve else None,
        cards=cards,
        vendor_runtime=vendor_runtime,
    )
    if serve:
        lines = made.with_server(lines, found)
    files = made.render(found, lines, chip, start, wanted)
    write(folder, files, force, MARK)
    talk([summarise(folder, start.image, lines)])
    return Exit.OK


@app.command("lock")
def lock(
    python: str = typer.Option(sys.executable, "--python", help="The environment's interpreter."),
    output: Path | None = OUTPUT,
) -> int:
    """Write what is installed in an environment as a lock file."""
    from joymigrate.run.render.environment import lock_installed

    emit(lock_installed(python), output)
    return Exit.OK


def command_of(project: Path, entry: str, serve: Path | None, port: int) -> tuple[str, ...]:
    """What the container runs: the server, the entry named, or that of the project's journey."""
    if serve is not None:
        if not (serve / "config.json").is_file():
            raise JoyError("no folder with a model", where=str(serve), help="--serve DIR")
        words = ("joymigrate", "serve", "/model", "--host", "0.0.0.0", "--port", str(port))
        return words
    if entry:
        return tuple(shlex.split(entry))
    try:
        text = (project / ".joymigrate" / "journey" / "journey.json").read_text(encoding="utf-8")
        return tuple(str(word) for word in json.loads(text)["entry"])
    except (OSError, ValueError, KeyError):
        return ()


def summarise(folder: Path, start: str, lines: Sequence[PackageLine]) -> str:
    """What was written, in one line."""
    kinds = [one.kind for one in lines]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    shown = os.path.relpath(folder)
    return f"wrote {shown}: FROM {start}; packages: {counts}. Not built."
