"""Options that several commands have, each declared once, with one meaning and one help text."""

from __future__ import annotations

import typer

OUTPUT = typer.Option(
    None, "-o", "--output", metavar="FILE", help="Write the result to FILE instead of to stdout."
)
TO = typer.Option(
    None, "--to", help="A chip of `chips list`, or a folder with its chip.yaml (default: settings)."
)
