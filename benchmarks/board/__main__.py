"""Run a shard of the board, or write its report.

    python -m benchmarks.board run --sources DIR --results DIR [--shard 1/4] [--again NAME …]
    python -m benchmarks.board report --results DIR [--html F] [--markdown F] [--csv F] [--update F]

DIR of `--sources` holds a checkout of each repository under `owner+name`; without it, they are
cloned from GitHub. A program that has a row in `--results` is not run again, so a shard that was
cut short goes on; `--again` runs one again and keeps its first outcome beside the new one.
On a busy machine, `--patience 3` gives each run three times its limit.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import date
from pathlib import Path

from benchmarks.board import journey, programs, report, rows
from benchmarks.board.outcome import judge


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.board", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("run", help="run programs, one row each")
    one.add_argument("--list", type=Path, default=programs.LIST)
    one.add_argument("--sources", type=Path)
    one.add_argument("--results", type=Path, default=rows.RESULTS)
    one.add_argument("--shard", default="1/1", help="i/n")
    one.add_argument("--name", action="append", help="only this program")
    one.add_argument("--again", action="append", default=[], help="a program to run again")
    one.add_argument("--patience", type=float, default=1.0, help="times each limit of time")
    one.add_argument("--keep", type=Path, help="keep logs and copies here")
    two = verbs.add_parser("report", help="the board as a page, Markdown and CSV")
    two.add_argument("--list", type=Path, default=programs.LIST)
    two.add_argument("--results", type=Path, default=rows.RESULTS)
    for form in report.FORMS:
        two.add_argument(f"--{form}", type=Path)
    two.add_argument("--update", type=Path, help="put the figures between a page's two marks")
    two.add_argument("--against", type=Path, help="rows of another release: the two side by side")
    given = parser.parse_args()
    try:
        listed = programs.load(given.list)
        if given.verb == "report":
            return report.write(given, listed)
        return run(given, programs.shard(listed, given.shard))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run(given: argparse.Namespace, chosen: list[programs.Program]) -> int:
    """Run what has no row yet, and what is to be run again."""
    known, failed = rows.load(given.results), 0
    for program in chosen:
        if given.name and program.name not in given.name + given.again:
            continue
        if program.name in known and program.name not in given.again:
            continue
        folder = Path(tempfile.mkdtemp(prefix=f"board-{program.name}-"))
        try:
            patient = replace(program, seconds=program.seconds * given.patience)
            seen, figures = journey.travel(patient, given.sources, folder)
        except (ValueError, subprocess.CalledProcessError) as error:
            print(f"{program.name}: no row: {error}", file=sys.stderr, flush=True)
            failed += 1
            continue
        finally:
            if given.keep:
                kept = given.keep / program.name
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(folder, kept, symlinks=True)
            shutil.rmtree(folder, ignore_errors=True)
        row = rows.made(
            program,
            seen,
            {**figures, "compared": dict(seen.compared)},
            before=known.get(program.name),
            day=date.today().isoformat(),
        )
        rows.save(given.results, row)
        outcome, cause = judge(seen)
        print(f"{program.name}: {outcome.value}{f': {cause}' if cause else ''}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
