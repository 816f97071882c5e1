"""A chip's operators per version: show, compare, build from a wheel, check with the dispatcher."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from joymigrate.chips.names import version_key
from joymigrate.cli._answers import Answer, answers
from joymigrate.cli._common_options import TO
from joymigrate.cli._groups import group
from joymigrate.cli._output import emit, one_of, split, talk
from joymigrate.errors import Exit, JoyError, did_you_mean
from joymigrate.extras import how_to_get
from joymigrate.files import read_json, write_output

if TYPE_CHECKING:
    from joymigrate.profile.oplist import OpList

NEEDS = {"validate": ("rehearsal",), "validate --dump FILE": ()}
WANTS = {
    "show": {"chip-package": "--installed"},
    "build": {"chip-package": "the installed package (--wheel FILE reads a wheel)"},
}

app = group("A chip's operators per version: show, compare, build, check with the dispatcher.")

VERSION = typer.Option(
    None, "--chip-version", "--version", help="Version of the chip's torch package: 2.13."
)
OPS = typer.Option(
    None, "--ops", metavar="FILE", help="A list to use instead (docs/how-to/oplist.md)."
)
WHEEL = typer.Option(None, "--wheel", metavar="FILE", help="A wheel of the chip's torch package.")


def choose_list(
    to: str | None, version: str | None, ops: Path | None = None, wheel: Path | None = None
) -> OpList:
    """The list that the options name."""
    from joymigrate.config import load
    from joymigrate.profile.oplist import from_wheel, of
    from joymigrate.profile.oplist.lists import chip_of

    if ops and wheel:
        raise JoyError("--ops and --wheel are two lists", help="give one of them")
    settings = load(Path.cwd())
    chip = chip_of(to or settings["to"])
    if wheel is None:
        return of(chip, version or (None if ops else settings["chip_version"]), file=ops)
    found = from_wheel(chip, wheel)
    if version and not found.version.startswith(".".join(version.split(".")[:2])):
        raise JoyError(
            f"the wheel is version {found.version}, not {version}",
            where=str(wheel),
            help="leave --chip-version out",
        )
    return found


@app.command("show")
@answers("oplist")
def show(
    names: list[str] | None = typer.Argument(
        None, metavar="[NAME]...", help="Only these: aten::add, add.Tensor, a part of a name."
    ),
    to: str | None = TO,
    version: str | None = VERSION,
    ops: Path | None = OPS,
    wheel: Path | None = WHEEL,
    installed: bool = typer.Option(False, "--installed", help="Read the installed package."),
    status: list[str] = typer.Option([], "--status", help="Only these: native, missing, …"),
) -> Answer:
    """Say what happens to every operator of torch, and which ones the chip adds."""
    from joymigrate.profile.oplist import SupportStatus, from_wheel
    from joymigrate.profile.oplist.lists import chip_of
    from joymigrate.report import oplist as report

    wanted = split(status)
    for one in wanted:
        one_of(one, tuple(s.value for s in SupportStatus), "--status")
    found = from_wheel(chip_of(to)) if installed else choose_list(to, version, ops, wheel)
    every = list(found.rows())
    for name in names or []:
        if not any(is_wanted(op, overload, [name]) for op, overload, _ in every):
            near = did_you_mean(name, sorted({op.rpartition("::")[2] for op, _, _ in every}))
            raise JoyError(
                f"no operator of {found.chip.name} {found.version} is called {name}.{near}",
                help="joymigrate oplist show lists them all",
            )
    rows = [
        row
        for row in every
        if (not wanted or row[2].status.value in wanted) and is_wanted(row[0], row[1], names or [])
    ]
    return Answer(report.document(found, rows), report.text(found, rows))


def is_wanted(op: str, overload: str, names: list[str]) -> bool:
    """Whether an operator is one of those asked for; a bare word is a part of its name."""
    if not names:
        return True
    full = f"{op}.{overload}" if overload else op
    return any(
        name in (op, full) if "::" in name or "." in name else name in op for name in names
    ) or any(f"aten::{name}" == full for name in names)


@app.command("diff")
@answers("oplist-diff")
def diff(
    before: str = typer.Argument(..., metavar="A", help="2.7, chip@2.7, a wheel, or a list."),
    after: str = typer.Argument(..., metavar="B", help="The same for the other side."),
    to: str | None = TO,
) -> Answer:
    """Say which operators two versions, two chips, or two lists treat differently."""
    from joymigrate.profile.oplist import compare
    from joymigrate.report import oplist as report

    one, two = side(before, to), side(after, to)
    changes = compare.diff(one, two)
    document = report.diff_document(one, two, changes)
    return Answer(document, report.diff_text(one, two, changes))


def side(text: str, to: str | None) -> OpList:
    """One side of a comparison."""
    path = Path(text)
    if text.endswith(".whl"):
        return choose_list(to, None, wheel=path)
    if path.suffix in (".yaml", ".yml", ".csv"):
        return choose_list(to, None, ops=path)
    name, at, version = text.partition("@")
    if at:
        return choose_list(name or to, version or None)
    if text[:1].isdigit():
        return choose_list(to, text)
    return choose_list(text, None)


@app.command("build")
def build(
    to: str | None = TO,
    wheel: list[Path] = typer.Option(
        [], "--wheel", metavar="FILE", help="One or more wheels (default: what is installed)."
    ),
    output: Path = typer.Option(
        Path("ops"), "-o", "--output", metavar="DIR", help="Folder of operators.yaml and .csv."
    ),
) -> int:
    """Write a list with provenance from the chip's wheels, or from its installed package."""
    from joymigrate.profile.oplist import build as building
    from joymigrate.profile.oplist import entries, package
    from joymigrate.profile.oplist.lists import chip_of

    chip = chip_of(to)
    known = entries.read(entries.find(chip))
    if known.package is None:
        raise JoyError(
            f"it is not known where the package of {chip.name} keeps its list",
            where=str(known.path),
            help="`package:` in the chip's list says it; docs/how-to/oplist.md",
        )
    place = known.package
    found = [package.read_wheel(path, place) for path in wheel]
    if not wheel:
        here = package.read_installed(place)
        if here is None:
            raise JoyError(
                f"{place.distribution} is not installed",
                help=f"--wheel FILE reads a wheel; or {how_to_get(place.distribution)}",
            )
        found = [here]
    built = building.build(found, (known.namespaces or (chip.device,))[0], known.entries)
    output.mkdir(parents=True, exist_ok=True)
    write_output(output / "operators.csv", built.table().encode())
    write_output(output / "operators.yaml", building.head(known, chip, built).encode())
    emit(f"{output / 'operators.yaml'}\n{output / 'operators.csv'}\n")
    versions = ", ".join(built.releases)
    talk([f"{len(built.rows)} rows for {chip.name} {versions}"])
    return Exit.OK


@app.command("validate")
@answers("oplist-validation")
def validate(
    to: str | None = TO,
    version: str | None = VERSION,
    ops: Path | None = OPS,
    wheel: Path | None = WHEEL,
    dump: Path | None = typer.Option(
        None, "--dump", metavar="FILE", help="A dump of the dispatcher taken elsewhere."
    ),
) -> Answer:
    """Compare a list with the real dispatcher, in a rehearsal or with --dump; exit 1 if it errs."""
    from joymigrate.profile.oplist import compare, dispatcher
    from joymigrate.report import oplist as report

    oplist = choose_list(to, version, ops, wheel)
    raw = read_json(dump) if dump else rehearsed_dump(oplist)
    real = dispatcher.read(raw, str(dump or "the rehearsal"))
    seen = str(real.get("version", ""))
    short = ".".join(seen.split(".")[:2])
    if version is None and ops is None and wheel is None and short in oplist.entries.releases:
        oplist = choose_list(to, seen)
    if short and oplist.version and version_key(short) != version_key(oplist.version):
        talk([f"warning: the list is for {oplist.version}, the dispatcher has {seen}"])
    found = compare.validate(oplist, real)
    document = report.validation_document(oplist, found)
    return Answer(document, report.validation_text(oplist, found), code=bool(found.differences))


def rehearsed_dump(oplist: OpList) -> Any:
    """A dump of the dispatcher with the chip's package on the simulated chip."""
    from joymigrate import launching

    package = oplist.chip.package
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "dispatch.json"
        module = "joymigrate.profile.oplist.dispatcher"
        program = ["python", "-m", module, "--package", str(package), "-o", str(target)]
        ours = [sys.executable, "-m", "joymigrate", "rehearse", "-q", "--to", oplist.chip.name]
        done = subprocess.run(
            [*ours, "--", *program],
            env=launching.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode or not target.is_file():
            last = [line for line in done.stderr.strip().splitlines() if line][-3:]
            raise JoyError(
                f"{oplist.chip.name} cannot be rehearsed here",
                where=os.linesep.join(last),
                help="--dump FILE compares with a dump taken on the chip's machine: "
                f"python -m {module} --package {package} -o FILE",
            )
        return read_json(target)
