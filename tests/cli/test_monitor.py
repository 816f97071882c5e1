"""`joymigrate monitor` on the command line: exports and errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from joymigrate.cli._main import run


def test_rules_and_dashboard_are_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["monitor", "--export", "prometheus"]) == 0
    assert "alert: BackendDown" in capsys.readouterr().out
    board = tmp_path / "board.json"
    assert run(["monitor", "--export", "grafana", "-o", str(board)]) == 0
    assert json.loads(board.read_text())["title"] == "joymigrate"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--export", "excel"], "unknown export 'excel'"),
        (["npu"], "a source is an address"),
    ],
)
def test_mistakes_are_one_clear_error(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["monitor", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_the_dashboard_is_served_until_it_is_told_to_stop(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "joymigrate", "monitor", "--port", "0", "--no-devices"]
    process = subprocess.Popen(
        [*command, "npu=http://127.0.0.1:9/metrics"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    address = process.stderr.readline().split()[-1]
    try:
        with urllib.request.urlopen(address, timeout=10) as page:
            assert "default-src 'none'" in page.headers["Content-Security-Policy"]
            assert b"<title>joymigrate</title>" in page.read()
        with urllib.request.urlopen(address.replace("dashboard", "monitor.json")) as numbers:
            assert json.loads(numbers.read())["sources"][0]["name"] == "npu"
    finally:
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20) == 0
        process.stderr.close()
