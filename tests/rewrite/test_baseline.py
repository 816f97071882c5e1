"""Baselines: what survives an edit, what is new, what is stale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.model import Finding, Scan, Style, Tier
from joymigrate.rewrite import baseline


def scan_of(root: Path, *files: str) -> Scan:
    """A scan whose findings are the occurrences of `.cuda()` in `files`."""
    findings = []
    for name in files:
        for number, line in enumerate((root / name).read_text().splitlines(), 1):
            column = line.find(".cuda()") + 1
            if column:
                span = (number, column, number, column + 7)
                findings.append(Finding("JM110", "cuda", Tier.SAFE, name, *span, "m", ".cuda()"))
    return Scan(root, "chip", "cuda", Style.DIRECT, tuple(findings), len(files))


def known(root: Path, *files: str) -> list[baseline.BaselineEntry]:
    path = root / "baseline.json"
    path.write_text(baseline.render(scan_of(root, *files), root))
    return baseline.read(path)


def test_known_findings_are_not_reported_again(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x.cuda()\ny.cuda()\n")
    compared = baseline.compare(scan_of(tmp_path, "a.py"), known(tmp_path, "a.py"), tmp_path)
    assert (compared.scan.findings, compared.known, compared.stale) == ((), 2, ())


def test_fingerprints_survive_moved_and_reindented_lines(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x.cuda()\n")
    before = known(tmp_path, "a.py")
    (tmp_path / "a.py").write_text("# new first line\nif True:\n    x.cuda()\n")
    compared = baseline.compare(scan_of(tmp_path, "a.py"), before, tmp_path)
    assert (compared.scan.findings, compared.stale) == ((), ())


def test_a_new_site_is_the_one_reported(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x.cuda()\nz.cuda()\n")
    before = known(tmp_path, "a.py")
    (tmp_path / "a.py").write_text("x.cuda()\ny.cuda()\nz.cuda()\n")
    compared = baseline.compare(scan_of(tmp_path, "a.py"), before, tmp_path)
    assert [finding.line for finding in compared.scan.findings] == [2]


def test_a_second_copy_of_a_known_line_is_new(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x.cuda()\n")
    before = known(tmp_path, "a.py")
    (tmp_path / "a.py").write_text("x.cuda()\nx.cuda()\n")
    compared = baseline.compare(scan_of(tmp_path, "a.py"), before, tmp_path)
    assert [finding.line for finding in compared.scan.findings] == [2]


def test_a_mended_site_is_stale(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x.cuda()\n")
    before = known(tmp_path, "a.py")
    (tmp_path / "a.py").write_text("x.npu()\n")
    compared = baseline.compare(scan_of(tmp_path, "a.py"), before, tmp_path)
    assert [entry.path for entry in compared.stale] == ["a.py"]


def test_entries_outside_the_scanned_paths_are_not_stale(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.py").write_text("x.cuda()\n")
    (tmp_path / "sub/b.py").write_text("y.cuda()\n")
    before = known(tmp_path, "a.py", "sub/b.py")
    compared = baseline.compare(scan_of(tmp_path / "sub", "b.py"), before, tmp_path)
    assert (compared.scan.findings, compared.known, compared.stale) == ((), 1, ())


def test_the_file_is_one_line_per_site_and_stable(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x.cuda()\ny.cuda()\n")
    text = baseline.render(scan_of(tmp_path, "a.py"), tmp_path)
    assert text == baseline.render(scan_of(tmp_path, "a.py"), tmp_path)
    assert len(text.splitlines()) == 4
    assert json.loads(text)["schema"] == "joymigrate.baseline/1"


def test_an_empty_baseline_is_valid(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    assert known(tmp_path, "a.py") == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "joymigrate.scan/1", "findings": []}', "\xff"]
)
def test_another_file_is_one_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(JoyError, match="not a baseline"):
        baseline.read(path)


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="cannot read the baseline"):
        baseline.read(tmp_path / "none.json")
