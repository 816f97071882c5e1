"""Advice on packages says where it comes from, and what it names can be installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from joymigrate.chips import read_yaml, rules_root

FILES = ("packages", "imports")
NAMED = re.compile(r"Available versions: (.*)")


def entries() -> list[tuple[str, dict[str, object]]]:
    """Every note on a package, an import or a setting, by its name."""
    found = []
    for name in FILES:
        sections = read_yaml(rules_root() / "ascend" / f"{name}.yaml")
        for section in sections.values():
            if isinstance(section, dict):
                found += [(key, note) for key, note in section.items() if isinstance(note, dict)]
    return found


def named() -> list[tuple[str, str]]:
    """What notes tell people to install: distribution and versions, each once."""
    packages = read_yaml(rules_root() / "ascend" / "packages.yaml")["packages"]
    found = set()
    for note in packages.values():
        if note.get("to"):
            found.add((canonicalize_name(note["to"]), str(note.get("versions", ""))))
            found |= {(canonicalize_name(note["to"]), f"=={v}") for v in note.get("releases", ())}
    return sorted(found)


def test_every_note_has_a_date_and_a_source() -> None:
    assert [key for key, note in entries() if "date" not in note] == []
    assert [key for key, note in entries() if "source" not in note] == []


def test_versions_of_advice_are_readable() -> None:
    for _, versions in named():
        SpecifierSet(versions)


@pytest.mark.slow
@pytest.mark.parametrize("package", sorted({package for package, _ in named()}))
def test_what_advice_names_is_in_the_package_index(package: str) -> None:
    if not os.environ.get("JOYMIGRATE_ASK_INDEX"):
        pytest.skip("asks the package index; set JOYMIGRATE_ASK_INDEX=1")
    command = [sys.executable, "-m", "pip", "index", "versions", package, "--pre"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    answer = NAMED.search(done.stdout)
    assert answer is not None, done.stderr
    there = [each.strip() for each in answer.group(1).split(",")]
    for versions in (versions for name, versions in named() if name == package):
        assert any(SpecifierSet(versions).filter(there, prereleases=True)), (versions, there[:20])
