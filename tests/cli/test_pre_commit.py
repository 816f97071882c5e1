"""The hooks in .pre-commit-hooks.yaml run as they are written."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from tests.cli.joy import joy_with

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "tests" / "samples" / "trainer"
HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}


def run_hook(name: str, capsys: pytest.CaptureFixture[str]) -> int:
    program, *arguments = shlex.split(HOOKS[name]["entry"])
    assert program == "joymigrate"
    return joy_with(capsys)(*arguments, "train.py", "run.sh").code


def test_the_scan_hook_fails_on_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(SAMPLE, tmp_path / "p")
    monkeypatch.chdir(tmp_path / "p")
    assert run_hook("joymigrate-scan", capsys) == 1


def test_the_rewrite_hook_changes_files_and_then_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(SAMPLE, tmp_path / "p")
    monkeypatch.chdir(tmp_path / "p")
    assert run_hook("joymigrate-rewrite", capsys) == 0
    once = Path("train.py").read_bytes()
    assert once != (SAMPLE / "train.py").read_bytes()
    assert run_hook("joymigrate-rewrite", capsys) == 0
    assert Path("train.py").read_bytes() == once


def test_hooks_see_all_files_in_one_process() -> None:
    assert set(HOOKS) == {"joymigrate-scan", "joymigrate-rewrite"}
    assert all(hook["require_serial"] for hook in HOOKS.values())
