"""Collect wheels, rules, documentation and the simulated chip for a machine without network."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli._output import talk
from joymigrate.errors import Exit, JoyError, did_you_mean

SHOWN = 20


def command(
    offline: bool = typer.Option(False, "--offline", help="For a machine without network."),
    extras: list[str] = typer.Option(
        None, "--extra", metavar="NAME", help="One of joymigrate's extras; repeatable."
    ),
    output: Path = typer.Option(
        Path("joymigrate-bundle"), "-o", "--output", metavar="DIR", help="A new folder."
    ),
    no_shim: bool = typer.Option(False, "--no-shim", help="Leave the simulated chip out."),
) -> int:
    """Write a folder that installs joymigrate without a network: python install.py.

    pip brings the wheels for this Python and machine; every file has its hash in bundle.json.
    """
    from importlib import metadata

    from joymigrate.run.bundle import collect

    if not offline:
        raise JoyError("a bundle for what?", help="joymigrate bundle --offline")
    known = metadata.metadata("joymigrate").get_all("Provides-Extra") or []
    for name in extras or ():
        if name not in known:
            raise JoyError(
                f"no extra is called '{name}'.{did_you_mean(name, known)}",
                help=f"joymigrate has {', '.join(sorted(known))}",
            )
    document = collect.write(output, extras or (), shim=not no_shim)
    talk([f"left out: {line}" for line in document["left_out"]][:SHOWN])
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    said = f"{len(document['files'])} files, {size / 1e6:.1f} MB; there: python install.py"
    talk([f"{output}: {said}"])
    return Exit.OK
