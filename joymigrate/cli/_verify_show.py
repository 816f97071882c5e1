"""`verify show`: what a bundle holds."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli._answers import Answer, answers

NEEDS = ("extra:torch",)


@answers("bundle-contents")
def command(
    bundle: Path = typer.Argument(..., metavar="BUNDLE", help="A bundle: folder or tar."),
    privacy: bool = typer.Option(
        False, "--privacy", help="Which of it are data of yours: inputs, weights, results."
    ),
    records: str | None = typer.Option(
        None, "--records", metavar="MODULE", help="The statistics of one module."
    ),
) -> Answer:
    """Show what was recorded. Hashes are checked first."""
    from joymigrate.extras import need
    from joymigrate.report import bundle as report
    from joymigrate.verify.bundle import open_bundle
    from joymigrate.verify.contents import contents, data_in, records_of

    need("torch", "safetensors", what="reading a recording")
    found = open_bundle(bundle)
    document = contents(found)
    if privacy:
        document = {**document, "privacy": data_in(found)}
    if records is not None:
        document = {**document, "records": records_of(found, records)}
    return Answer(document, report.render(document))
