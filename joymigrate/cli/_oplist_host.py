"""`oplist validate --host-checks`: the recorded answers of the vendor's host code, asked again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from joymigrate.cli._output import emit, talk
from joymigrate.errors import Exit, JoyError
from joymigrate.files import write_output

if TYPE_CHECKING:
    from joymigrate.chips.answers import TensorAnswer
    from joymigrate.profile.oplist import OpList


def validate(
    oplist: OpList, folder: Path, table: Path | None, form: str, output: Path | None
) -> int:
    """Ask the library that was built from the checkouts in `folder`, and compare with the list's
    table of answers; `table` also gets what it answers. Exit 1 on a difference."""
    from joymigrate.chips.answers import read_answers, table_of
    from joymigrate.report import oplist as report
    from joymigrate.report.json_ import dumps
    from joymigrate.run.rehearse.host_checks.validate import compare

    asked, label = ask(folder)
    if table is not None:
        write_output(table, table_of(asked).encode())
    path = oplist.entries.answers
    found = compare(read_answers(path) if path else (), asked)
    if form == "json":
        emit(dumps(report.answers_document(oplist, label, found)), output)
    else:
        emit(report.answers_text(oplist, label, found), output)
    return Exit.FOUND if found.changes else Exit.OK


def ask(folder: Path) -> tuple[list[TensorAnswer], str]:
    """Everything that a finished build answers, what the definitions of generated kernels say, and
    which versions it was made of."""
    from joymigrate.run.rehearse import symbols
    from joymigrate.run.rehearse.build import find_package
    from joymigrate.run.rehearse.host_checks import grid
    from joymigrate.run.rehearse.host_checks.build import read_build
    from joymigrate.run.rehearse.host_checks.checkouts import find_checkouts
    from joymigrate.run.rehearse.host_checks.declarations import read_declarations
    from joymigrate.run.rehearse.host_checks.definitions import read_definitions
    from joymigrate.run.rehearse.settings import HOST_MODELS

    checkouts = find_checkouts(folder)
    package = find_package()
    build = read_build(checkouts, package)
    if build is None:
        raise JoyError(
            "there is no finished build of these checkouts",
            where=str(checkouts.root),
            help=f"joymigrate rehearse setup --host-checks {folder}",
        )
    declared, sources = read_declarations(checkouts)
    found = grid.ask_models(
        build, declared, list(HOST_MODELS.values()), lambda line: talk([f"host checks: {line}"])
    )
    generated = set(symbols.chip_kernels(package.main_library)) - declared.keys()
    rows = [*grid.rows_of(found, sources), *read_definitions(checkouts, generated)]
    return rows, build.label
