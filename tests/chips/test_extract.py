"""Reading the names of a package without importing it."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from joymigrate.chips.extract import Extractor, Revision, SourceTree, Wheel

FILES = {
    "acme/__init__.py": """
        import os, sys
        from typing import List
        import torch
        from .streams import Stream, Event as Happening
        from .memory import *
        from .hidden import *
        from .mark import mark
        from . import amp
        from ._inner import lazy
        try:
            from ._c import fast
        except ImportError:
            fast = None
        if sys.version_info > (3, 8):
            limit: int = 3
        else:
            other = 2
        first, (second, *_) = 1, (2, 3)
        def start(): pass
        class Graph: pass
        gone = 1
        del gone
        __all__ = ["start", "FloatTensor"]
        __all__ += ["LongTensor"]
    """,
    "acme/streams.py": "class Stream: pass\nclass Event: pass\n",
    "acme/memory.py": "__all__ = ['empty']\ndef empty(): pass\ndef secret(): pass\n",
    "acme/hidden.py": "__all__ = []\ndef invisible(): pass\n",
    "acme/mark.py": "class mark:\n  def push(self): pass\n  def _pop(self): pass\n",
    "acme/_inner.py": "from . import streams\ndef lazy(): pass\n",
    "acme/amp/__init__.py": "from .mode import autocast\nfrom .. import streams as s\n",
    "acme/amp/mode.py": "class autocast: pass\n",
    "acme/unused.py": "def later(): pass\n",
    "acme/csrc/kernel.cpp": "int main() {}",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    import textwrap

    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path


def test_everything_the_package_binds_is_found(root: Path) -> None:
    found = set(Extractor(SourceTree(root), "acme").dotted())
    wanted = {"Stream", "Happening", "empty", "mark", "amp", "lazy", "fast", "limit", "other"}
    wanted |= {"first", "second", "start", "Graph", "FloatTensor", "LongTensor"}
    wanted |= {"amp.autocast", "amp.mode.autocast", "memory.empty", "streams.Stream"}
    assert wanted <= found


def test_what_the_package_does_not_bind_is_not(root: Path) -> None:
    found = set(Extractor(SourceTree(root), "acme").dotted())
    assert not found & {"os", "sys", "List", "torch", "gone", "Event", "secret", "invisible"}
    assert "csrc" not in found


def test_a_module_nobody_imports_counts_because_a_program_may_import_it(root: Path) -> None:
    assert "unused.later" in set(Extractor(SourceTree(root), "acme").dotted())


def test_a_class_hides_the_module_of_its_name(root: Path) -> None:
    extractor = Extractor(SourceTree(root), "acme")
    assert "mark.mark" not in set(extractor.dotted())
    assert extractor.members("mark") == {"push"}


def test_a_wheel_and_a_git_revision_read_the_same(root: Path, tmp_path: Path) -> None:
    wanted = set(Extractor(SourceTree(root), "acme").dotted())
    wheel = tmp_path / "acme.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in FILES:
            archive.write(root / name, name)
    with zipfile.ZipFile(wheel) as archive:
        assert set(Extractor(Wheel(archive), "acme").dotted()) == wanted
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "acme"], [*identity, "commit", "-qm", "x"]):
        subprocess.run(["git", "-C", str(root), *command], check=True)
    assert set(Extractor(Revision(root, "HEAD"), "acme").dotted()) == wanted


def test_a_module_outside_the_tree_has_no_names(root: Path) -> None:
    assert list(Extractor(SourceTree(root), "nothing").dotted()) == []
