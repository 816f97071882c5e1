"""What the packages' data names exists in the package index. Needs a network."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from packaging.specifiers import SpecifierSet

from joymigrate import chips

NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
# Installed from source, as their `covers` or `note` says.
FROM_SOURCE = {"apex", "mmcv-full"}


def advised() -> list[tuple[str, str, tuple[str, ...]]]:
    """Distribution, range and releases of every advice that names something to install."""
    found = {
        (one.to, one.versions, one.releases)
        for one in chips.get("ascend").packages().values()
        if one.to and NAME.fullmatch(one.to) and one.to not in FROM_SOURCE
    }
    return sorted(found)


@pytest.fixture(scope="module")
def index() -> None:
    if not versions("pip"):
        pytest.skip("no package index can be reached")


def versions(name: str) -> list[str]:
    """Versions that pip sees of a distribution, for any Python."""
    line = [sys.executable, "-m", "pip", "index", "versions", name, "--disable-pip-version-check"]
    done = subprocess.run(
        [*line, "--ignore-requires-python", "--pre"], capture_output=True, text=True, timeout=120
    )
    listed = re.search(r"Available versions: (.*)", done.stdout)
    return listed[1].split(", ") if listed else []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "wanted", "releases"), advised())
def test_what_is_advised_can_be_installed(
    index: None, name: str, wanted: str, releases: tuple[str, ...]
) -> None:
    known = versions(name)
    assert known, "no such distribution for this machine"
    assert list(SpecifierSet(wanted).filter(known, prereleases=True)), f"none of {known} fits"
    assert [one for one in releases if one not in known] == []


def test_every_advice_is_dated() -> None:
    assert [n for n, one in chips.get("ascend").packages().items() if not one.date] == []
