"""A vendor's package without its driver counts as not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROBE = """
import importlib.util
from joymigrate.chips import hide_driverless
print(hide_driverless(), importlib.util.find_spec("torch_npu") is None, hide_driverless())
"""


def probe(monkeypatch: pytest.MonkeyPatch, rehearsal: str) -> str:
    monkeypatch.setenv("JOYMIGRATE_REHEARSE", rehearsal)
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def installed() -> None:
    from importlib.machinery import PathFinder

    from joymigrate.chips import get
    from joymigrate.chips.presence import loads

    chip = get("ascend")
    if PathFinder.find_spec("torch_npu") is None:
        pytest.skip("torch_npu is not installed")
    if loads(chip.library or ""):
        pytest.skip("this machine has the driver")


@pytest.mark.usefixtures("installed")
def test_a_package_without_its_driver_is_hidden_and_stays_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert probe(monkeypatch, "") == "('torch_npu',) True ('torch_npu',)"


@pytest.mark.usefixtures("installed")
def test_a_rehearsal_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe(monkeypatch, "1") == "() False ()"
