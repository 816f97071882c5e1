"""`--mode async`: programs that race, and programs that do not, as a user would run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.run.rehearse.conftest import PROGRAMS, Run

pytestmark = [pytest.mark.compiler, pytest.mark.slow]
ASYNC = ("--mode", "async")


def marked(program: Path) -> set[tuple[int, int]]:
    """The pairs of lines that are marked in a program."""
    pairs, first = set(), 0
    for number, line in enumerate(program.read_text(encoding="utf-8").splitlines(), 1):
        if re.search(r"# first\b", line):
            first = number
        elif line.endswith("# second"):
            pairs.add((first, number))
    return pairs


def told(report: dict[str, Any], program: Path) -> set[tuple[int, int]]:
    """The pairs of lines that were reported; a line elsewhere is 0."""

    def line(place: str) -> int:
        name, _, number = place.rpartition(":")
        return int(number) if Path(name) == program else 0

    return {(line(row["first_where"]), line(row["where"])) for row in report["races"]}


def test_each_race_is_told_with_both_lines_and_nothing_else_is(rehearse: Run) -> None:
    program = PROGRAMS / "streams.py"
    done = rehearse("python", str(program), options=ASYNC)
    assert done.out == "done\n", done.err
    assert done.code == 1  # the program itself ended well
    assert done.report is not None
    assert done.report["exit_code"] == 0
    assert told(done.report, program) == marked(program)
    assert len(marked(program)) == 14
    assert "RACES: 14 pairs of lines" in done.err
    assert done.report["ordered"]["copies"] > 20
    assert done.report["ordered"]["streams"] > 10


def test_odd_uses_of_streams(rehearse: Run) -> None:
    program = PROGRAMS / "streams_odd.py"
    done = rehearse("python", str(program), options=ASYNC)
    assert done.out == "done\n", done.err
    assert done.report is not None
    assert told(done.report, program) == marked(program)
    assert len(marked(program)) == 8


def test_collectives_that_are_not_waited_for(rehearse: Run) -> None:
    program = PROGRAMS / "streams_of_ranks.py"
    done = rehearse("torchrun", "--nproc-per-node", "2", str(program), options=ASYNC)
    assert done.code == 1, done.err
    assert done.report is not None
    assert done.report["exit_code"] == 0
    assert told(done.report, program) == marked(program)
    assert done.report["ordered"]["collectives"] >= 10


@pytest.mark.parametrize(("soc", "found"), [("310P3", True), ("910B3", False)])
def test_a_copy_that_one_model_does_not_order(
    rehearse: Run, tmp_path: Path, soc: str, found: bool
) -> None:  # vllm-project/vllm-ascend 11678
    program = tmp_path / "rotary.py"
    program.write_text(
        "import torch, torch_npu\n"
        "table = torch.randn(64, 8, device='npu:0')\n"
        "ids = torch.cat([torch.arange(4), torch.arange(9)]).to('npu:0', non_blocking=True)\n"
        "table[ids].flatten(1)\n"
        "ids = torch.arange(3).to('npu:0')\n"
        "table[ids]\n",
        encoding="utf-8",
    )
    done = rehearse("python", str(program), options=(*ASYNC, "--soc", soc))
    assert done.report is not None
    assert told(done.report, program) == ({(3, 4)} if found else set())
    assert done.code == int(found)


def test_programs_without_races_have_none(rehearse: Run) -> None:
    checks = ("-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(PROGRAMS))
    # One check asks whether the package's own kernels make memory: here they are watched.
    without = "test_the_vendors_kernels_are_registered_and_ours_lie_over_them"
    asked = ("-m", "pytest", "-q", *checks, "-k", f"not {without}", "device_checks.py")
    done = rehearse("python", *asked[:-1], str(PROGRAMS / asked[-1]), options=ASYNC)
    assert done.code == 0, done.out[-4000:]
    for command in (
        ("python", str(PROGRAMS / "models.py")),
        ("torchrun", "--nproc-per-node", "2", str(PROGRAMS / "collectives.py")),
    ):
        done = rehearse(*command, options=ASYNC)
        assert done.code == 0, done.err
        assert done.report is not None
        assert done.report["races"] == []
        assert done.report["ordered"]["accesses"] > 2000
