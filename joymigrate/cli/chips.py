"""Show, check and create chips: the data behind --to."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli._answers import Answer, answers
from joymigrate.cli._groups import group
from joymigrate.cli._output import emit, split, talk
from joymigrate.errors import Exit, JoyError

app = group("Show, check and create chips: the data behind --to.")


@app.command("list")
@answers("chips")
def list_chips() -> Answer:
    """Name every chip that --to accepts, with where each comes from."""
    from joymigrate.chips import all_chips
    from joymigrate.report import chips as report

    chips = list(all_chips().values())
    rows = [report.row(chip) for chip in chips]
    return Answer({"schema": report.LIST_SCHEMA, "chips": rows}, report.table(chips))


@app.command("show")
@answers("chip-facts")
def show_chip(
    name: str | None = typer.Argument(
        None, metavar="[NAME]", help="A chip or an alias (default: the default target)."
    ),
    version: str | None = typer.Option(
        None, "--chip-version", help="Version of the chip's torch package."
    ),
    section: list[str] | None = typer.Option(
        None, "--section", help="Only these: names, absent, environment, packages, skus, …"
    ),
) -> Answer:
    """Show all that is known about one chip, with sources."""
    from joymigrate.chips import origin, relate, target
    from joymigrate.report import chips as report

    chip = target(name)
    data = report.facts(chip, relate(origin(), chip), version)
    data = report.pick(data, split(section or []))
    document = {"schema": report.SHOW_SCHEMA, "grade": "documented", **data}
    return Answer(document, report.show(data))


@app.command("versions")
@answers("version-matrix")
def show_versions(
    name: str | None = typer.Argument(
        None, metavar="[NAME]", help="A chip or an alias (default: the default target)."
    ),
) -> Answer:
    """Show which versions of a chip's software go together, with source and date of each line."""
    import datetime

    from joymigrate.chips import target
    from joymigrate.report import versions as report

    chip = target(name)
    today = datetime.date.today()
    own = {"md": lambda: report.page(chip)}
    return Answer(report.as_json(chip, today), report.table(chip, today), own=own)


@app.command("validate")
@answers("chip-problems")
def validate_chip(
    chips: list[str] | None = typer.Argument(
        None, metavar="[NAME|PATH]...", help="Chips or folders (default: every chip)."
    ),
) -> Answer:
    """Check every file of a chip's folder; exit 1 when something is wrong."""
    from joymigrate.chips.validate import validate
    from joymigrate.cli import _chip_files
    from joymigrate.report import chips as report

    results = {
        str(folder): [*validate(folder), *_chip_files.problems(folder)]
        for folder in chip_folders(chips or [])
    }
    found = [report.plain(problem) for items in results.values() for problem in items]
    document = {"schema": report.VALIDATE_SCHEMA, "checked": [*results], "problems": found}
    return Answer(document, report.problems(results), code=any(results.values()))


def chip_folders(named: list[str]) -> list[Path]:
    """Folders of the chips named, or of all chips; a path is one even where a chip has its name."""
    from joymigrate.chips import folders, get

    if not named:
        return [folder for folder, _ in folders()]
    found = []
    for item in named:
        path = Path(item)
        is_path = path.is_dir() or path.name == "chip.yaml" or "/" in item
        if not is_path:
            found.append(get(item).folder)
            continue
        folder = path.parent if path.name == "chip.yaml" else path
        if not (folder / "chip.yaml").is_file():
            raise JoyError(
                "no chip.yaml here", where=str(folder), help="joymigrate chips new creates one"
            )
        found.append(folder)
    return found


@app.command("new")
def new_chip(
    name: str = typer.Argument(..., help="What --to will call it: lower-case, as in acme."),
    device: str = typer.Option(..., "--device", help="torch's device type: torch.<device>."),
    backend: str = typer.Option(..., "--backend", help="The name of its collective backend."),
    title: str = typer.Option("", "--title", help="The chip's name in sentences."),
    package: str | None = typer.Option(None, "--package", help="The module that brings it."),
    distribution: str | None = typer.Option(None, "--distribution", help="What pip installs."),
    names_from: Path | None = typer.Option(
        None, "--names-from", metavar="DIR", help="Read the package's names from source in DIR."
    ),
    version: str = typer.Option("1.0", "--chip-version", help="The version of those sources."),
    as_package: bool = typer.Option(
        False, "--as-package", help="An installable package with the entry point around it."
    ),
    output: Path | None = typer.Option(
        None, "-o", "--output", metavar="DIR", help="Where to write (default: ./NAME)."
    ),
) -> int:
    """Write a folder for a new chip that validates as it stands."""
    from joymigrate.chips import skeleton

    draft = skeleton.Draft(name, device, backend, title, package, distribution)
    skeleton.check(draft)
    names = skeleton.names_text(draft, version, names_from) if names_from else None
    target = output or Path(name)
    written = skeleton.write(draft, target, package=as_package, names=names)
    for path in written:
        emit(f"{path}\n")
    talk(
        [f"Next: pip install -e {target}, then joymigrate chips show {name}."]
        if as_package
        else [
            f"Next: fill in {target / 'chip.yaml'}, then joymigrate chips validate {target}.",
            "--to knows folders of rules/ in a checkout; --as-package makes what pip installs.",
        ]
    )
    return Exit.OK
