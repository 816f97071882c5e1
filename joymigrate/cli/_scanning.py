"""What `scan` does with one or many projects: the configuration, the scan, how it is shown."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from joymigrate.cli._common_options import TO
from joymigrate.cli._language import OPTION as LANG
from joymigrate.cli._output import Progress, one_of, split
from joymigrate.errors import JoyError, did_you_mean

if TYPE_CHECKING:
    from joymigrate.chips import Chip
    from joymigrate.config import Config
    from joymigrate.model import Scan
    from joymigrate.rewrite.codemod import Codemod

STYLES = ("direct", "accelerator", "agnostic", "shim")
STYLE = (
    "direct (one chip), accelerator (torch's portable names, for pull requests), agnostic (runs on "
    "both, with a helper file) or shim (entry line)."
)


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """What `scan` and `rewrite` can be asked alike: for which chip, which rules, which files."""

    to: str | None = TO
    origin: Annotated[
        str | None, Option("--from", help="The platform to migrate from.")
    ] = None  # fmt: skip
    style: Annotated[str | None, Option("--style", help=STYLE)] = None
    select: Annotated[list[str], Option("--select", help="Only these rules (ids or prefixes).")] = (
        field(default_factory=list)
    )
    ignore: Annotated[list[str], Option("--ignore", help="Not these rules (ids or prefixes).")] = (
        field(default_factory=list)
    )
    exclude: Annotated[
        list[str], Option("--exclude", help="Paths to leave out (gitignore form).")
    ] = field(default_factory=list)
    force_exclude: Annotated[
        bool,
        Option(
            "--force-exclude/--no-force-exclude",
            help="Leave excluded paths out even where PATH names them.",
        ),
    ] = True
    chip_version: Annotated[
        str | None, Option("--chip-version", help="Version of the chip's torch package.")
    ] = None
    jobs: Annotated[
        int | None, Option("-j", "--jobs", min=0, help="Processes; default, and 0: one per core.")
    ] = None
    lang: str | None = LANG
    quiet: Annotated[bool, Option("-q", "--quiet")] = False

    def overrides(self) -> dict[str, Any]:
        """The keys of the configuration that the command line wins over."""
        return {
            "to": self.to,
            "style": self.style,
            "select": split(self.select),
            "ignore": split(self.ignore),
            "exclude": self.exclude,
            "chip_version": self.chip_version,
            "jobs": self.jobs,
        }

    def scan(self, paths: list[Path], settings: Config, **more: Any) -> Scan:
        """Scan under a configuration; `more` as of `run`."""
        return run(
            paths, self.origin, settings, self.quiet, force_exclude=self.force_exclude, **more
        )


@dataclass(frozen=True, slots=True)
class ScanView:
    """How the result is shown."""

    format: str
    output: Path | None
    lang: str
    statistics: bool = False
    show_kept: bool = False
    verbose: bool = False
    quiet: bool = False


def must_exist(paths: list[Path]) -> None:
    """Every PATH must be there; one error names all that are not."""
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise JoyError(f"no such file or folder: {', '.join(missing)}", help="check the path")


def configure(start: Path, overrides: dict[str, Any]) -> Config:
    """The configuration that holds for `start`, with its style checked."""
    from joymigrate import config

    settings = config.load(start, overrides)
    one_of(settings["style"], STYLES, "--style")
    return settings


def pause_searches() -> None:
    """No search for circular garbage until the command ends, which is soon: a large project's
    findings would be gone through again and again."""
    gc.disable()


def run(
    paths: list[Path],
    origin: str | None,
    settings: Config,
    quiet: bool = False,
    want_kept: bool = False,
    only: type[Codemod] | None = None,
    force_exclude: bool = True,
) -> Scan:
    """Scan under a configuration, with progress on a terminal; with `only` for one rule alone."""
    from joymigrate import chips, rewrite
    from joymigrate.model import Style

    chip = chips.target(settings["to"])
    source = chips.get(origin) if origin else chips.origin()
    if chip.name == source.name:
        raise JoyError(
            f"'{chip.name}' is where the move starts", help="name another chip with --to"
        )
    codemods = (only,) if only is not None else project_codemods(settings)
    if only is None:
        known_rules(settings, chip, source, codemods)
    with Progress("scanning", on=not quiet) as progress:
        return rewrite.scan(
            paths,
            chip=chip,
            origin=source,
            style=Style(settings["style"]),
            select=settings["select"] if only is None else [only.RULE],
            ignore=settings["ignore"] if only is None else [],
            exclude=rewrite.Exclusion(
                tuple(settings["exclude"]), settings.folder("exclude"), force_exclude
            ),
            follow_imports=settings["follow_imports"],
            jobs=settings["jobs"],
            chip_version=settings["chip_version"],
            want_kept=want_kept,
            codemods=codemods,
            on_progress=progress,
        )


def project_codemods(settings: Config) -> tuple[type[Codemod], ...]:
    """The codemods that the configuration names, and those of installed packages."""
    from joymigrate.rewrite.codemod_loader import load

    return load(settings["codemods"], settings.folder("codemods"))


def known_rules(
    settings: Config, chip: Chip, origin: Chip, codemods: Iterable[type[Codemod]] = ()
) -> None:
    """Refuse a rule in `select` or `ignore` that is no rule and no beginning of one."""
    from joymigrate.rewrite.rules import load

    known = {**load(chip, origin), **{one.RULE: one.rule() for one in codemods}}
    names = {rule.name for rule in known.values()}
    for key in ("select", "ignore"):
        for word in settings[key]:
            if word not in names and not any(rule.startswith(word) for rule in known):
                source = settings.sources[key]
                raise JoyError(
                    f"unknown rule '{word}'.{did_you_mean(word, known)}",
                    where=f"--{key}" if source == "command line" else f"{source} {key}",
                    help="joymigrate explain --list",
                )


def now() -> str:
    """The time for a page's footer."""
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
