"""Which versions go together: read from one file, with a source and a date in every line."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest
from packaging.version import Version

from joymigrate.chips import get
from joymigrate.chips.versions import FITS, REFUSED, UNPROVEN, Matrix, begins, read
from joymigrate.errors import JoyError
from joymigrate.report import versions as report

MATRIX = get("ascend").matrix()
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("version", "start", "said"),
    [
        ("9.1.0", "9.1", True),
        ("9.10.0", "9.1", False),
        ("24.1.rc3", "24.1", True),
        ("8.3.rc1", "8.3.RC1", True),
        ("8.3.RC2", "8.3.RC1", False),
        ("CANN 9.1.0", "9.1.0", True),
    ],
)
def test_a_number_stands_for_what_begins_with_it(version: str, start: str, said: bool) -> None:
    assert begins(version, start) is said


def test_every_line_has_a_source_and_a_date_and_every_release_parses() -> None:
    for line in MATRIX.lines():
        assert line.source
        datetime.date.fromisoformat(line.date)
    versions = [Version(row.package) for row in MATRIX.releases]
    assert versions == sorted(versions, reverse=True)
    assert len(set(versions)) == len(versions)


def test_pairs_are_judged_with_the_line_that_says_so() -> None:
    assert MATRIX.judge_sdk("2.12.0", "9.1.0")[0] == FITS
    assert MATRIX.judge_sdk("2.12.0", "9.2.0")[0] == "compatible"
    verdict, line = MATRIX.judge_sdk("2.9.0", "8.3.RC1")  # older than all that are listed
    assert verdict == UNPROVEN
    assert line is not None
    assert MATRIX.judge_sdk("2.5.1.dev20250218", "8.1.RC1") == (UNPROVEN, None)
    assert MATRIX.judge_driver("9.1.0", "25.0.RC1")[0] == REFUSED
    assert MATRIX.judge_driver("8.5.2", "26.1.0")[0] == FITS
    assert MATRIX.judge_driver("8.5.0", "26.1.0")[0] == UNPROVEN


def test_a_wheel_asks_for_another_torch_on_x86() -> None:
    x86 = MATRIX.requirement("2.7.1.post2", "2.7.1", "x86_64")
    arm = MATRIX.requirement("2.7.1.post2", "2.7.1", "aarch64")
    assert x86 is not None
    assert arm is not None
    assert (x86.requires, arm.requires) == ("torch=={torch}+cpu", "torch=={torch}")


def test_a_line_older_than_six_months_is_stale() -> None:
    line = MATRIX.releases[0]
    read_on = datetime.date.fromisoformat(line.date)
    assert not MATRIX.is_stale(line, read_on + datetime.timedelta(days=183))
    assert MATRIX.is_stale(line, read_on + datetime.timedelta(days=184))
    text = report.table(get("ascend"), read_on + datetime.timedelta(days=400))
    assert f"{len(list(MATRIX.lines()))} lines were read more than 183 days ago" in text


def test_a_wrong_file_names_the_key(tmp_path: Path) -> None:
    (tmp_path / "versions.yaml").write_text(
        "schema: joymigrate.versions/1\nreleases:\n  - {package: 2.7.1, torhc: 2.7.1}\n"
    )
    with pytest.raises(JoyError, match="torhc"):
        read(tmp_path)
    assert get("musa").matrix() == Matrix()


def test_the_page_has_every_line() -> None:
    rows = re.findall(r"^\| .* \| \d{4}-\d\d-\d\d \|$", report.page(get("ascend")), re.MULTILINE)
    assert len(rows) == len(list(MATRIX.lines()))


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_readmes_name_the_pair_that_the_table_assumes(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    newest = max(
        (row for row in MATRIX.releases if row.package.startswith(f"{MATRIX.default}.")),
        key=lambda row: Version(row.package),
    )
    named = {
        row.partition("|")[0].strip(): set(re.findall(r"\d+\.\d+(?:\.\d+)?", row.partition("|")[2]))
        for row in re.findall(r"^\| (.*)$", text, re.MULTILINE)
    }
    assert MATRIX.default in named["torch"]
    assert named["torch_npu"] == {newest.package, newest.torch}
    line = next(line for line in text.splitlines() if "pip install torch==" in line)
    assert f"torch=={newest.torch} " in line
