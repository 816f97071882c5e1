"""What may be written: links, dirty trees, names twice, and nothing outside the project."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.ledger import Ledger
from joymigrate.model import Patch
from joymigrate.rewrite.apply import Applied, apply

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@t")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def repository(folder: Path) -> Path:
    """A git repository with two committed files."""
    folder.mkdir(exist_ok=True)
    (folder / "a.py").write_bytes(b"cuda")
    (folder / "b.py").write_bytes(b"cuda")
    git(folder, "init", "-q")
    git(folder, "add", "a.py", "b.py")
    git(folder, "commit", "-q", "-m", "start")
    return folder


def rewrite(root: Path, *patches: Patch, allow_dirty: bool = False) -> Applied:
    return apply(patches, Ledger(root), command="test", allow_dirty=allow_dirty)


def patch(path: Path | str, before: bytes | None = b"cuda", after: bytes | None = b"npu") -> Patch:
    return Patch(Path(path), before, after)


def test_relative_and_absolute_paths_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"cuda")
    (tmp_path / "b.py").write_bytes(b"cuda")
    done = rewrite(tmp_path, patch("a.py"), patch(tmp_path / "b.py"))
    assert [target.name for target in done.targets] == ["a.py", "b.py"]
    assert (tmp_path / "b.py").read_bytes() == b"npu"


def test_nothing_to_change_writes_nothing_at_all(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"cuda")
    done = rewrite(tmp_path, patch("a.py", b"cuda", b"cuda"))
    assert done.step is None
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]


def test_a_link_is_written_through_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.py").write_bytes(b"cuda")
    (tmp_path / "link.py").symlink_to("real.py")
    done = rewrite(tmp_path, patch("link.py"))
    assert (tmp_path / "link.py").is_symlink()
    assert (tmp_path / "real.py").read_bytes() == b"npu"
    assert [target.name for target in done.targets] == ["real.py"]
    Ledger(tmp_path).rollback()
    assert (tmp_path / "link.py").is_symlink()
    assert (tmp_path / "real.py").read_bytes() == b"cuda"


def test_a_file_with_two_names_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "real.py").write_bytes(b"cuda")
    (tmp_path / "link.py").symlink_to("real.py")
    done = rewrite(tmp_path, patch("link.py"), patch("real.py"))
    assert len(done.targets) == 1


def test_a_link_out_of_the_project_is_left_with_the_reason(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "shared.py").write_bytes(b"cuda")
    (root / "link.py").symlink_to("../shared.py")
    (root / "a.py").write_bytes(b"cuda")
    done = rewrite(root, patch("link.py"), patch("a.py"))
    assert (tmp_path / "shared.py").read_bytes() == b"cuda"
    assert [target.name for target in done.targets] == ["a.py"]
    assert "leads outside the project" in done.left[0][1]


def test_a_hard_link_is_noted(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"cuda")
    os.link(tmp_path / "a.py", tmp_path / "other.py")
    done = rewrite(tmp_path, patch("a.py"))
    assert "a.py has 2 hard links" in done.notes[0]
    assert (tmp_path / "other.py").read_bytes() == b"cuda"


def test_one_stale_file_stops_all(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"cuda")
    (tmp_path / "b.py").write_bytes(b"edited")
    with pytest.raises(JoyError, match="has changed since it was read"):
        rewrite(tmp_path, patch("a.py"), patch("b.py"))
    assert (tmp_path / "a.py").read_bytes() == b"cuda"
    assert Ledger(tmp_path).steps() == []


@needs_git
def test_uncommitted_changes_are_refused_by_name(tmp_path: Path) -> None:
    root = repository(tmp_path)
    (root / "b.py").write_bytes(b"cuda and mine")
    with pytest.raises(JoyError, match=r"uncommitted changes in b\.py"):
        rewrite(root, patch("a.py"))
    assert (root / "a.py").read_bytes() == b"cuda"
    rewrite(root, patch("a.py"), allow_dirty=True)
    assert (root / "a.py").read_bytes() == b"npu"


@needs_git
def test_staged_changes_count_and_untracked_files_do_not(tmp_path: Path) -> None:
    root = repository(tmp_path)
    (root / "new.py").write_bytes(b"cuda")
    rewrite(root, patch("new.py"))
    git(root, "add", "new.py")
    (root / "new.py").write_bytes(b"mine")
    with pytest.raises(JoyError, match="uncommitted"):
        rewrite(root, patch("a.py"))


@needs_git
def test_our_own_uncommitted_step_does_not_stop_the_next_one(tmp_path: Path) -> None:
    root = repository(tmp_path)
    rewrite(root, patch("a.py"))
    rewrite(root, patch("b.py"))
    assert (root / "b.py").read_bytes() == b"npu"
    (root / "a.py").write_bytes(b"npu and mine")
    with pytest.raises(JoyError, match=r"uncommitted changes in a\.py"):
        rewrite(root, patch("b.py", b"npu", b"npu2"))


@needs_git
def test_git_never_sees_the_ledger(tmp_path: Path) -> None:
    root = repository(tmp_path)
    rewrite(root, patch("a.py"))
    Ledger(root).rollback()
    done = subprocess.run(
        ["git", "status", "--porcelain"], cwd=root, capture_output=True, check=True
    )
    assert done.stdout == b""


@needs_git
def test_only_changes_below_the_project_count(tmp_path: Path) -> None:
    root = repository(tmp_path)
    part = root / "part"
    part.mkdir()
    (part / "pyproject.toml").write_text("")
    (part / "c.py").write_bytes(b"cuda")
    git(root, "add", "part")
    git(root, "commit", "-q", "-m", "part")
    (root / "b.py").write_bytes(b"mine")
    rewrite(part, patch("c.py"))
    (part / "pyproject.toml").write_text("# mine")
    with pytest.raises(JoyError, match=r"uncommitted changes in pyproject\.toml"):
        rewrite(part, patch("c.py", b"npu", b"npu2"))


@needs_git
def test_the_patches_of_the_step_apply_forward_and_back(tmp_path: Path) -> None:
    root = repository(tmp_path)
    done = rewrite(root, patch("a.py"), patch("made.py", None, b"new\n"))
    assert done.step is not None
    folder = Ledger(root).folder(done.step.id)
    git(root, "apply", str(folder / "reverse.patch"))
    assert (root / "a.py").read_bytes() == b"cuda"
    assert not (root / "made.py").exists()
    git(root, "apply", str(folder / "change.patch"))
    assert (root / "a.py").read_bytes() == b"npu"


@needs_git
def test_uncommitted_changes_are_refused_unless_allowed_by_name(tmp_path: Path) -> None:
    root = repository(tmp_path / "project")
    (root / "b.py").write_bytes(b"edited")
    with pytest.raises(JoyError, match="uncommitted"):
        apply([patch("a.py")], Ledger(root))  # nothing said: refused
    assert (root / "a.py").read_bytes() == b"cuda"
    assert rewrite(root, patch("a.py"), allow_dirty=True).step is not None


def test_the_patches_of_a_step_keep_the_mode_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_bytes(b"cuda")
    (tmp_path / "run.py").chmod(0o755)
    done = rewrite(tmp_path, patch("run.py"), patch("new.py", None, b"x"))
    assert done.step is not None
    text = (Ledger(tmp_path).folder(done.step.id) / "change.patch").read_text()
    assert "new file mode 100644" in text
    assert "100755" not in text.partition("new.py")[2]
    assert (tmp_path / "run.py").stat().st_mode & 0o777 == 0o755


def test_every_file_with_a_second_name_is_noted(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_bytes(b"cuda")
        os.link(tmp_path / name, tmp_path / f"other-{name}")
    done = rewrite(tmp_path, patch("new.py", None, b"x"), patch("a.py"), patch("b.py"))
    assert ["a.py" in done.notes[0], "b.py" in done.notes[1]] == [True, True]


def break_index(root: Path) -> None:
    (root / ".git/index").write_bytes(b"garbage")


def break_head(root: Path) -> None:
    (root / ".git/HEAD").unlink()


@needs_git
@pytest.mark.parametrize(
    ("damage", "words"), [(break_index, "index"), (break_head, "not a git repository")]
)
def test_a_repository_that_git_cannot_read_is_refused_in_its_words(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    root = repository(tmp_path)
    damage(root)
    with pytest.raises(JoyError, match=words) as refused:
        rewrite(root, patch("a.py"))
    assert "--allow-dirty" in str(refused.value.help)
    assert (root / "a.py").read_bytes() == b"cuda"
    assert rewrite(root, patch("a.py"), allow_dirty=True).step is not None


@needs_git
def test_a_repository_without_git_on_the_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = repository(tmp_path / "project")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JoyError, match="git is not on PATH"):
        rewrite(root, patch("a.py"))
    assert rewrite(root, patch("a.py"), allow_dirty=True).step is not None


@needs_git
def test_a_repository_of_another_owner_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = repository(tmp_path / "project")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own switch for its tests
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    with pytest.raises(JoyError, match="dubious ownership"):
        rewrite(root, patch("a.py"))
