"""`verify show`: what a bundle holds."""

from __future__ import annotations

from pathlib import Path

import typer

FORMATS = ("text", "json")

NEEDS = ("extra:torch",)


def command(
    bundle: Path = typer.Argument(..., metavar="BUNDLE", help="A bundle: folder or tar."),
    privacy: bool = typer.Option(
        False, "--privacy", help="Which of it are data of yours: inputs, weights, results."
    ),
    records: str | None = typer.Option(
        None, "--records", metavar="MODULE", help="The statistics of one module."
    ),
    form: str = typer.Option("text", "--format", help="text or json."),
    output: Path | None = typer.Option(None, "-o", "--output", help="Write to a file."),
) -> int:
    """Show what was recorded. Hashes are checked first."""
    import json

    from joymigrate.cli._output import emit, one_of
    from joymigrate.extras import need
    from joymigrate.report import bundle as report
    from joymigrate.verify.bundle import open_bundle
    from joymigrate.verify.contents import contents, data_in, records_of

    need("torch", "safetensors", what="reading a recording")
    one_of(form, FORMATS, "--format")
    found = open_bundle(bundle)
    document = contents(found)
    if privacy:
        document = {**document, "privacy": data_in(found)}
    if records is not None:
        document = {**document, "records": records_of(found, records)}
    text = json.dumps(document, ensure_ascii=False, indent=1) + "\n"
    emit(text if form == "json" else report.render(document), output)
    return 0
