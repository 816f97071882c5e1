"""`render unit` and `render chart`: a server as a service of systemd or of a cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from joymigrate.cli._common_options import OUTPUT, TO
from joymigrate.cli._output import emit, talk
from joymigrate.errors import Exit, JoyError

WRITTEN = "Not installed and not run."


def unit(
    what: Path = typer.Argument(..., metavar="MODEL_DIR|GATEWAY.yaml", help="What it serves."),
    name: str = typer.Option("", "--name", help="The unit's name (default: what is served)."),
    user: str = typer.Option("joymigrate", "--user", help="Whose rights the server has."),
    python: str = typer.Option(sys.executable, "--python", help="The interpreter that runs it."),
    host: str = typer.Option("127.0.0.1", "--host", help="A model: the address to listen on."),
    port: int = typer.Option(8000, "--port", min=1, max=65535, help="A model: its port."),
    drain: float = typer.Option(
        30.0, "--drain", min=0, help="A model: seconds for running requests at the end."
    ),
    output: Path | None = OUTPUT,
) -> int:
    """Write a systemd unit for a model or a gateway. Installs nothing."""
    from joymigrate.run.render.serving import SystemdUnit, unit

    place = what.resolve()
    called = label(name or what.resolve().stem)
    program = Path(python).absolute()
    if not program.is_file():
        raise JoyError("there is no such interpreter", where=python, help="--python PROGRAM")
    command: tuple[str, ...]
    start = (str(program), "-m", "joymigrate", "serve")
    if place.is_dir():
        command = (*start, str(place), "--host", host, "--port", str(port), "--drain",
                   f"{drain:g}", "--log-format", "json")  # fmt: skip
        wanted = SystemdUnit(called, command, user, str(place), (), drain)
    else:
        from joymigrate.run.serve.gateway import settings

        loaded = settings.load(place)
        command = (*start, "--config", str(place), "--log-format", "json")
        folders = {str(loaded.state_file.parent), str(place.parent)}
        if loaded.log_file is not None:
            folders.add(str(loaded.log_file.parent))
        wanted = SystemdUnit(
            called, command, user, str(place.parent), tuple(sorted(folders)),
            loaded.limits.drain_seconds,
        )  # fmt: skip
    emit(unit(wanted), output)
    if output is not None:
        talk([f"wrote {output}: {called}.service. {WRITTEN}"])
    return Exit.OK


def chart(
    what: str = typer.Argument(
        ..., metavar="GATEWAY.yaml|CLAIM", help="A gateway's file, or the claim with the model."
    ),
    image: str = typer.Option(..., "--image", help="The image: see render image."),
    name: str = typer.Option("joymigrate", "--name", help="The chart's name."),
    port: int = typer.Option(8000, "--port", min=1, max=65535, help="A model: its port."),
    to: str | None = TO,
    cards: int = typer.Option(0, "--cards", min=0, max=64, help="How many cards a pod gets."),
    replicas: int = typer.Option(1, "--replicas", min=1, help="How many pods."),
    secret: str = typer.Option("", "--secret", help="A secret whose keys become variables."),
    drain: float = typer.Option(
        30.0, "--drain", min=0, help="A model: seconds for running requests at the end."
    ),
    output: Path = typer.Option(..., "-o", "--output", metavar="DIR", help="The chart's folder."),
    force: bool = typer.Option(False, "--force", help="Overwrite files of others, too."),
) -> int:
    """Write a Helm chart for a model or a gateway. Applies nothing."""
    from joymigrate.run.render import serving

    config = ""
    if Path(what).suffix in (".yaml", ".yml"):
        config, port, drain = gateway(Path(what), replicas)
    resource = resource_of(to) if cards else ""
    wanted = serving.Chart(
        label(name), image, port, config, "" if config else label(what), resource, cards,
        replicas, (), secret, drain,
    )  # fmt: skip
    files = serving.chart(wanted)
    write(output, files, force, serving.CHART_MARK)
    talk([f"wrote {output}: {len(files)} files. {WRITTEN}"])
    return Exit.OK


def resource_of(to: str | None) -> str:
    """What a cluster calls a card of the chip."""
    from joymigrate import chips, config

    chip = chips.get(to) if to else chips.target(config.load(Path.cwd())["to"])
    found = (chip.data("chip.yaml") or {}).get("launch", {}).get("resource")
    if not found:
        raise JoyError(
            f"it is not known what a cluster calls a card of {chip.name}",
            where=str(chip.folder / "chip.yaml"), help="launch: {resource: NAME}",
        )  # fmt: skip
    return str(found)


def gateway(path: Path, replicas: int) -> tuple[str, int, float]:
    """The text of a gateway's file, its port, and its drain; raises `JoyError`."""
    from joymigrate.run.serve.gateway import settings

    loaded = settings.load(path)
    if loaded.host in ("127.0.0.1", "localhost", "::1"):
        raise JoyError(
            f"this gateway listens on {loaded.host}, which no other pod reaches", where=str(path),
            help="listen: 0.0.0.0:8080",
        )  # fmt: skip
    if replicas > 1 and loaded.shared is None:
        raise JoyError(
            f"{replicas} gateways would each have a rollout of their own", where=str(path),
            help="state: redis://HOST:6379/0#NAME, which they share",
        )  # fmt: skip
    return path.read_text(encoding="utf-8"), loaded.port, loaded.limits.drain_seconds


def label(text: str) -> str:
    """A name that units and clusters take; raises `JoyError`."""
    from joymigrate.run.render.serving import LABEL

    if not LABEL.fullmatch(text):
        raise JoyError(
            f"'{text}' is no name: small letters, digits and hyphens, 53 at most",
            help="--name NAME",
        )
    return text


def write(folder: Path, files: dict[str, str], force: bool, mark: str) -> None:
    """Write files; one that somebody else made stays, unless forced."""
    for name in files:
        path = folder / name
        if path.is_file() and not force and mark not in path.read_text("utf-8", "replace"):
            raise JoyError(
                "this file was made by somebody else", where=str(path), help="-o DIR, or --force"
            )
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JoyError(f"cannot write: {error.strerror}", where=str(path.parent)) from None
        emit(text, path)
