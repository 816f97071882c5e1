"""How many processors count: one function asks, and it knows the limits of containers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from joymigrate import processors

ROOT = Path(__file__).parents[1]


def group(top: Path, path: str, **files: str) -> None:
    (top / path).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (top / path / name.replace("__", ".")).write_text(text)


def member(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "membership"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_quota_of_the_second_version_counts(tmp_path: Path) -> None:
    group(tmp_path, "", cpu__max="150000 100000\n")
    assert processors.quota_of_groups(tmp_path, member(tmp_path, "0::/")) == 1.5


def test_the_smallest_quota_of_the_groups_above_counts(tmp_path: Path) -> None:
    group(tmp_path, "pods", cpu__max="200000 100000\n")
    group(tmp_path, "pods/one", cpu__max="max 100000\n")
    assert processors.quota_of_groups(tmp_path, member(tmp_path, "0::/pods/one")) == 2.0


def test_a_quota_of_the_first_version_counts(tmp_path: Path) -> None:
    group(tmp_path, "cpu/docker/x", cpu__cfs_quota_us="300000", cpu__cfs_period_us="100000")
    lines = ("4:memory:/docker/x", "3:cpu,cpuacct:/docker/x")
    assert processors.quota_of_groups(tmp_path, member(tmp_path, *lines)) == 3.0


@pytest.mark.parametrize("quota", ["-1", "0", "broken"])
def test_no_limit_is_none(tmp_path: Path, quota: str) -> None:
    group(tmp_path, "cpu", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert processors.quota_of_groups(tmp_path, member(tmp_path, "3:cpu:/")) is None


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert processors.quota_of_groups(tmp_path, tmp_path / "absent") is None


@pytest.mark.parametrize(("quota", "found"), [(None, 8), (0.2, 1), (1.5, 2), (64.0, 8)])
def test_the_smaller_of_affinity_and_quota_counts(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, found: int
) -> None:
    monkeypatch.setattr(processors, "in_affinity", lambda: 8)
    monkeypatch.setattr(processors, "quota_of_groups", lambda: quota)
    assert processors.available() == found


def test_nobody_else_asks_the_system() -> None:
    asks = re.compile(r"\b(cpu_count|sched_getaffinity)\b")
    found = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "joymigrate").rglob("*.py"))
        if path.name != "processors.py" and asks.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []
