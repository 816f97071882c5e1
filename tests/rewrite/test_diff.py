"""Diffs that git itself applies, whatever is in the files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate.rewrite.diff import find_changed, write_unified

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git_apply(folder: Path, patch: bytes) -> None:
    done = subprocess.run(
        ["git", "-c", "core.autocrlf=false", "apply", "--whitespace=nowarn", "-"],
        cwd=folder,
        input=patch,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode() + patch.decode("utf-8", "replace")


def check(folder: Path, name: str, before: bytes | None, after: bytes | None) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if before is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(before)
    git_apply(folder, write_unified(name, before, after))
    assert (path.read_bytes() if path.exists() else None) == after


def test_a_change_in_the_middle_has_three_lines_of_context() -> None:
    before = b"".join(b"line %d\n" % n for n in range(1, 10))
    after = before.replace(b"line 5\n", b"LINE 5\n")
    assert write_unified("pkg/a.py", before, after) == (
        b"diff --git a/pkg/a.py b/pkg/a.py\n--- a/pkg/a.py\n+++ b/pkg/a.py\n"
        b"@@ -2,7 +2,7 @@\n line 2\n line 3\n line 4\n-line 5\n+LINE 5\n line 6\n line 7\n line 8\n"
    )


def test_no_change_has_no_diff() -> None:
    assert write_unified("a.py", b"x", b"x") == b""


def test_lines_that_repeat_often_take_no_longer() -> None:
    """Work is counted, not time: every line is compared a bounded number of times."""
    compared = 0

    class Line(bytes):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return bytes(self) == other

        __hash__ = bytes.__hash__

    old = [Line(b"cuda" if n % 20 == 0 else b"y%d" % (n % 110)) for n in range(4000)]
    new = [Line(line.replace(b"cuda", b"npu")) for line in old]
    blocks = list(find_changed(old, new))
    assert blocks == [(n, n + 1, n, n + 1) for n in range(0, 4000, 20)]
    assert compared < 5 * len(old)


def test_an_insertion_before_the_last_lines_is_one_line() -> None:
    assert list(find_changed([b"a", b"b"], [b"x", b"a", b"b"])) == [(0, 0, 0, 1)]
    assert list(find_changed([b"a"], [b"a", b"x"])) == [(1, 1, 1, 2)]
    assert list(find_changed([b"x", b"a", b"b"], [b"a", b"b"])) == [(0, 1, 0, 0)]


@needs_git
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a\r\ncuda\r\nb\r\n", b"a\r\nnpu\r\nb\r\n"),
        (b"a\ncuda", b"a\nnpu"),
        (b"a\ncuda", b"a\ncuda\n"),
        (b"a\ncuda\n", b"a\ncuda"),
        (b"\xef\xbb\xbfcuda\n", b"\xef\xbb\xbfnpu\n"),
        ("# 中文\x0c\ncuda\u2028x\n".encode(), "# 中文\x0c\nnpu\u2028x\n".encode()),
        ("# 中文 cuda\n".encode("gb18030"), "# 中文 npu\n".encode("gb18030")),
        (b"one\rtwo\rcuda", b"one\rtwo\rnpu"),
        (None, b"new\n"),
        (None, b"new"),
        (b"gone\n", None),
        (b"", b"x"),
        (b"x", b""),
    ],
    ids=str,
)
def test_git_applies_every_kind_of_file(
    tmp_path: Path, before: bytes | None, after: bytes | None
) -> None:
    check(tmp_path, "a.py", before, after)


@needs_git
@pytest.mark.parametrize(
    "name", ["with space.py", 'quo"te.py', "tab\there.py", "名字/模型.py", "back\\slash.py", "ü.py"]
)
@pytest.mark.parametrize(("before", "after"), [(b"a\n", b"b\n"), (None, b"b\n"), (b"a\n", None)])
def test_git_applies_to_every_kind_of_name(
    tmp_path: Path, name: str, before: bytes | None, after: bytes | None
) -> None:
    check(tmp_path, name, before, after)


lines = st.lists(
    st.sampled_from([b"x = 1", b"cuda", b"", b"\t", b"# \xe4\xb8\xad", b"-a", b"+b", b"@@ x"]),
    max_size=14,
)


@needs_git
@settings(max_examples=60, deadline=None)
@given(old=lines, new=lines, end=st.sampled_from([b"\n", b"\r\n"]), final=st.booleans())
def test_git_applies_any_pair_of_texts(
    tmp_path_factory: pytest.TempPathFactory,
    old: list[bytes],
    new: list[bytes],
    end: bytes,
    final: bool,
) -> None:
    before, after = (end.join(part) + (end if final else b"") for part in (old, new))
    if before == after:
        return
    check(tmp_path_factory.mktemp("d"), "a.py", before, after)
