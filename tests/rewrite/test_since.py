"""Lines new since a git revision: staged, unstaged, untracked, renamed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.model import Finding, Scan, Style, Tier
from joymigrate.rewrite import new_lines
from joymigrate.rewrite.new_lines import Span


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one commit."""
    folder = tmp_path / "tree"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "a.py").write_text("one\ntwo\nthree\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def scan_of(root: Path, *sites: tuple[str, int]) -> Scan:
    findings = tuple(
        Finding("JM110", "cuda", Tier.SAFE, path, line, 1, line, 2, "m", "b")
        for path, line in sites
    )
    return Scan(root, "chip", "cuda", Style.DIRECT, findings, 1)


def new(tree: Path, *sites: tuple[str, int], base: str = "HEAD") -> list[tuple[str, int]]:
    left = new_lines.only_new(scan_of(tree, *sites), new_lines.new_lines(base, tree))
    return [(finding.path, finding.line) for finding in left.findings]


def test_only_changed_lines_count(tree: Path) -> None:
    (tree / "a.py").write_text("one\nTWO\nthree\nfour\n")
    assert new(tree, ("a.py", 1), ("a.py", 2), ("a.py", 3), ("a.py", 4)) == [
        ("a.py", 2),
        ("a.py", 4),
    ]


def test_staged_and_committed_changes_count(tree: Path) -> None:
    (tree / "a.py").write_text("ONE\ntwo\nthree\n")
    git(tree, "commit", "-qam", "second")
    (tree / "a.py").write_text("ONE\nTWO\nthree\n")
    git(tree, "add", ".")
    assert new(tree, ("a.py", 1), ("a.py", 2), ("a.py", 3), base="HEAD~1") == [
        ("a.py", 1),
        ("a.py", 2),
    ]


def test_an_untracked_file_is_new_throughout(tree: Path) -> None:
    (tree / "数据 b.py").write_text("x\n")
    assert new(tree, ("数据 b.py", 1), ("a.py", 1)) == [("数据 b.py", 1)]


def test_a_renamed_file_counts_only_its_changes(tree: Path) -> None:
    lines = [f"line {number}" for number in range(30)]
    (tree / "long.py").write_text("\n".join(lines))
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "long")
    git(tree, "mv", "long.py", "名 字.py")
    lines[4] = "changed"
    (tree / "名 字.py").write_text("\n".join(lines))
    assert new(tree, ("名 字.py", 4), ("名 字.py", 5)) == [("名 字.py", 5)]


def test_a_branch_is_compared_where_it_forked(tree: Path) -> None:
    git(tree, "checkout", "-qb", "mine")
    (tree / "b.py").write_text("mine\n")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "mine")
    git(tree, "checkout", "-q", "main")
    (tree / "a.py").write_text("one\ntwo, changed on main\nthree\n")
    git(tree, "commit", "-qam", "theirs")
    git(tree, "checkout", "-q", "mine")
    assert new(tree, ("a.py", 2), ("b.py", 1), base="main") == [("b.py", 1)]


def test_a_scan_of_a_folder_inside_the_tree_works(tree: Path) -> None:
    (tree / "sub").mkdir()
    (tree / "sub/c.py").write_text("x\n")
    left = new_lines.only_new(
        scan_of(tree / "sub", ("c.py", 1)), new_lines.new_lines("HEAD", tree / "sub")
    )
    assert len(left.findings) == 1


def test_a_multi_line_finding_counts_when_one_line_is_new() -> None:
    site = Finding("JM1", "n", Tier.SAFE, "a.py", 3, 1, 6, 1, "m", "b")
    assert new_lines.touches(site, (Span(6, 6),))
    assert not new_lines.touches(site, (Span(7, 9), Span(1, 2)))


def test_a_notebook_finding_counts_by_its_line_in_the_file() -> None:
    site = Finding("JM1", "n", Tier.SAFE, "a.ipynb", 1, 1, 1, 2, "m", "b", cell=2, file_line=40)
    assert new_lines.touches(site, (Span(40, 40),))
    assert not new_lines.touches(site, (Span(1, 1),))


def test_lines_that_look_like_headers_are_content(tree: Path) -> None:
    (tree / "a.py").write_text("++ b/evil.py\n@@ -1 +1,99 @@\ntwo\nthree\n")
    assert new_lines.new_lines("HEAD", tree) == {(tree / "a.py").resolve(): (Span(1, 2),)}


def test_an_unknown_revision_is_one_clear_error(tree: Path) -> None:
    with pytest.raises(JoyError, match="git knows no revision 'nowhere'"):
        new_lines.new_lines("nowhere", tree)


def test_an_option_is_no_revision(tree: Path) -> None:
    with pytest.raises(JoyError, match="git knows no revision '--output=x'"):
        new_lines.new_lines("--output=x", tree)


def test_outside_git_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(JoyError, match="needs a git tree"):
        new_lines.new_lines("HEAD", tmp_path)
