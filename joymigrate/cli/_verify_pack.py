"""`verify pack`: one file of a bundle, for shipping."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli._output import talk


def command(
    bundle: Path = typer.Argument(..., metavar="BUNDLE", help="The folder of a recording."),
    output: Path | None = typer.Option(
        None, "-o", "--output", help="The archive (default: BUNDLE.tar)."
    ),
) -> int:
    """Make one tar of a bundle. Every command that reads bundles reads the tar as well."""
    from joymigrate.errors import JoyError
    from joymigrate.verify.bundle import open_bundle, pack

    if bundle.is_file():
        raise JoyError("the bundle is packed already", where=str(bundle))
    open_bundle(bundle)  # a damaged one is not shipped
    made = output or bundle.with_name(f"{bundle.name}.tar")
    size = pack(bundle, made)
    print(made)
    talk([f"verify: packed {size / 1e6:.1f} MB"])
    return 0
