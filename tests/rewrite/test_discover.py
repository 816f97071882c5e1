"""Which files are read: ignore files, links, odd files, limits, order."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.errors import JoyError
from joymigrate.model import Style
from joymigrate.rewrite import discover
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.discover import Exclusion
from joymigrate.rewrite.vocabulary import Vocabulary

WORDS = Vocabulary.of(Context.between(chips.get("ascend"), chips.get("nvidia"), Style.DIRECT))


def lay(root: Path, *names: str, text: str = "x = 1\n") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def found(root: Path, *paths: Path, exclude: tuple[str, ...] = ()) -> list[str]:
    files, _ = discover.files(paths or (root,), root, Exclusion(exclude, root))
    return [file.relative for file in files]


def reasons(root: Path, *paths: Path) -> dict[str, str]:
    _, skipped = discover.files(paths or (root,), root)
    return {each.path: each.reason for each in skipped}


def test_files_come_in_the_order_of_names_with_their_kind(tmp_path: Path) -> None:
    lay(tmp_path, "b.py", "a/z.sh", "a/c.py", "notes.md", "picture.png")
    files, skipped = discover.files([tmp_path], tmp_path)
    assert [(file.relative, file.kind) for file in files] == [
        ("b.py", "python"),
        ("a/c.py", "python"),
        ("a/z.sh", "shell"),
    ]
    assert skipped == []


def test_gitignore_holds_without_git_and_a_negation_takes_back(tmp_path: Path) -> None:
    lay(tmp_path, "keep.py", "gen/a.py", "gen/b.py", "out/deep/c.py", "sub/x.py", "sub/y.py")
    (tmp_path / ".gitignore").write_text("gen/*\n!gen/b.py\nout/\n")
    (tmp_path / "sub" / ".gitignore").write_text("/x.py\n")
    assert found(tmp_path) == ["keep.py", "gen/b.py", "sub/y.py"]


def test_a_file_below_an_ignored_folder_stays_out_in_spite_of_a_negation(tmp_path: Path) -> None:
    lay(tmp_path, "out/a.py")
    (tmp_path / ".gitignore").write_text("out/\n!out/a.py\n")
    assert found(tmp_path) == []


def test_a_nested_negation_wins_over_the_ignore_file_above(tmp_path: Path) -> None:
    lay(tmp_path, "sub/a.py", "b.py")
    (tmp_path / ".gitignore").write_text("*.py\n")
    (tmp_path / "sub" / ".gitignore").write_text("!a.py\n")
    assert found(tmp_path) == ["sub/a.py"]


def test_ignore_files_above_a_named_folder_hold_inside_its_repository(tmp_path: Path) -> None:
    lay(tmp_path, "src/a.py", "src/gen_b.py")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("gen_*\n")
    assert found(tmp_path, tmp_path / "src") == ["src/a.py"]


def test_a_named_folder_is_entered_though_it_is_ignored(tmp_path: Path) -> None:
    lay(tmp_path, "vendor/a.py", "vendor/deep/b.py")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("vendor/\n*.py\n")
    assert found(tmp_path, tmp_path / "vendor") == ["vendor/a.py", "vendor/deep/b.py"]


def test_a_named_file_is_taken_though_it_is_ignored(tmp_path: Path) -> None:
    lay(tmp_path, "a.py", "b.py")
    (tmp_path / ".gitignore").write_text("*.py\n")
    assert found(tmp_path, tmp_path / "b.py") == ["b.py"]


def test_environments_caches_and_build_folders_are_left_out(tmp_path: Path) -> None:
    for folder in (".git", ".venv", "node_modules", "__pycache__", "build", ".joymigrate"):
        lay(tmp_path, f"{folder}/a.py")
    lay(tmp_path, "lib/python3.11/site-packages/torch/b.py", "pkg.egg-info/c.py", "ok.py")
    assert found(tmp_path) == ["ok.py"]
    named = tmp_path / "lib/python3.11/site-packages/torch"
    assert found(tmp_path, named) == ["lib/python3.11/site-packages/torch/b.py"]


def test_an_environment_is_known_by_what_lies_in_it(tmp_path: Path) -> None:
    lay(tmp_path, "my-env/pyvenv.cfg", "my-env/lib/a.py", "ok.py")
    assert found(tmp_path) == ["ok.py"]


def test_exclude_reads_patterns_as_gitignore_does(tmp_path: Path) -> None:
    lay(tmp_path, "a.py", "tests/b.py", "tests/keep.py")
    assert found(tmp_path, exclude=("tests/*", "!tests/keep.py")) == ["a.py", "tests/keep.py"]


def test_a_symlink_loop_ends_and_a_link_is_said_to_be_one(tmp_path: Path) -> None:
    lay(tmp_path, "src/a.py")
    (tmp_path / "src" / "loop").symlink_to(tmp_path)
    (tmp_path / "src" / "again.py").symlink_to("a.py")
    (tmp_path / "self.py").symlink_to("self.py")
    assert found(tmp_path) == ["src/a.py"]
    assert reasons(tmp_path)["src/again.py"] == "a symbolic link (to src/a.py)"
    assert set(reasons(tmp_path)) == {"src/again.py", "src/loop", "self.py"}


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    lay(tmp_path, "src/a.py", "src/b.py")
    (tmp_path / "link").symlink_to(tmp_path / "src")
    paths = (tmp_path / "src" / "b.py", tmp_path / "src", tmp_path / "link", tmp_path)
    assert found(tmp_path, *paths) == ["src/b.py", "src/a.py"]


def test_pipes_and_sockets_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    with tempfile.TemporaryDirectory(dir="/tmp") as short, socket.socket(socket.AF_UNIX) as server:
        root = Path(short)
        server.bind(str(root / "s.py"))
        assert reasons(root) == {"s.py": "not a regular file"}
    assert reasons(tmp_path) == {"pipe.py": "not a regular file"}


def test_large_files_are_left_out_with_their_size(tmp_path: Path) -> None:
    sizes = {"huge.sh": 51, "generated.py": 6, "data.json": 2, "big.ipynb": 3}
    for name, size in sizes.items():
        with open(tmp_path / name, "wb") as file:
            file.truncate(size * discover.MB)
    assert found(tmp_path) == ["big.ipynb"]
    assert reasons(tmp_path) == {
        "huge.sh": "51 MB, over the limit of 50 MB",
        "generated.py": "6 MB of Python, taken for generated code (limit 5 MB)",
        "data.json": "2.0 MB, taken for data (limit 1 MB)",
    }


def test_data_that_programs_write_is_left_out(tmp_path: Path) -> None:
    lay(tmp_path, "tokenizer.json", "package-lock.json", "config.json", text="{}")
    assert found(tmp_path) == ["config.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_may_not_be_read_is_skipped_with_the_reason(tmp_path: Path) -> None:
    lay(tmp_path, "a.py", "closed/b.py", "open.py")
    (tmp_path / "a.py").chmod(0)
    (tmp_path / "closed").chmod(0)
    try:
        assert found(tmp_path) == ["open.py"]
        assert "Permission denied" in reasons(tmp_path)["a.py"]
        assert "Permission denied" in reasons(tmp_path)["closed"]
    finally:
        (tmp_path / "closed").chmod(0o755)


def test_a_folder_that_cannot_be_listed_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tmp_path, "closed/b.py", "open.py")
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert found(tmp_path) == ["open.py"]
    assert reasons(tmp_path) == {"closed": "cannot list this folder: Permission denied"}


def test_scripts_without_an_ending_are_known_by_their_first_line(tmp_path: Path) -> None:
    lay(tmp_path, "launch", text="#!/usr/bin/env bash\nnvidia-smi\n")
    lay(tmp_path, "train", text="#!/usr/bin/python3\nimport torch\n")
    lay(tmp_path, "LICENSE", text="words\n")
    files, _ = discover.files([tmp_path], tmp_path)
    assert {file.relative: file.kind for file in files} == {"launch": "shell", "train": "python"}


def test_a_missing_path_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="No such file"):
        discover.files([tmp_path / "nowhere"], tmp_path)


def test_a_named_file_of_an_unknown_kind_is_skipped_with_the_reason(tmp_path: Path) -> None:
    lay(tmp_path, "a.png")
    assert reasons(tmp_path, tmp_path / "a.png") == {"a.png": "no reader for this kind of file"}


def test_a_path_outside_the_root_is_shown_from_the_root(tmp_path: Path) -> None:
    lay(tmp_path, "project/a.py", "other/b.py")
    assert found(tmp_path / "project", tmp_path / "other") == ["../other/b.py"]


def test_git_agrees_on_what_is_ignored(tmp_path: Path) -> None:
    names = ["a.py", "x/a.py", "x/b.py", "x/y/c.py", "foo/bar.py", "log.py", "d/log.py", "#h.py"]
    lay(tmp_path, *names)
    (tmp_path / ".gitignore").write_text("x/*\n!x/y/\n/log.py\n**/bar.py\n\\#h.py\n \n# note\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    listed = subprocess.run(
        ["git", "-C", str(tmp_path), "ls-files", "-co", "--exclude-standard", "*.py"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert sorted(found(tmp_path)) == sorted(listed)


def test_what_git_tracks_in_spite_of_its_ignore_file_is_read(tmp_path: Path) -> None:
    lay(tmp_path, "pkg/data/load.py", "pkg/data/cache.py", "gen.py", "data/other.py")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    tracked = ["pkg/data/load.py", "gen.py"]
    subprocess.run(["git", "-C", str(tmp_path), "add", "-f", *tracked], check=True)
    (tmp_path / ".gitignore").write_text("data/\ngen.py\n")
    assert found(tmp_path) == ["gen.py", "pkg/data/load.py"]
    assert found(tmp_path, exclude=("data/",)) == ["gen.py"]
    told = reasons(tmp_path)
    assert told["pkg/data/cache.py"] == "left out by .gitignore or --exclude"
    assert told["data"].endswith("Python files inside: 1")


def test_code_that_no_reader_reads_is_listed_where_it_names_the_device(tmp_path: Path) -> None:
    lay(tmp_path, "fast.pyx", "train.py.j2", "notes.md", text="x.to('cuda')\n")
    lay(tmp_path, "plain.pyx")
    _, skipped = discover.files([tmp_path], tmp_path, vocabulary=WORDS)
    reason = "no reader for this kind of file; it names `cuda`"
    assert {each.path: each.reason for each in skipped} == {
        "fast.pyx": reason,
        "train.py.j2": reason,
    }


def test_settings_left_out_are_listed_where_a_value_is_the_device_not_a_word(
    tmp_path: Path,
) -> None:
    lay(tmp_path, "run.yaml", text="device: cuda:0\n")
    lay(tmp_path, "env.json", text='{"run": {"backend": "nccl"}}\n')
    lay(tmp_path, "notes.yaml", text="# device: cuda\nabout: kernels for cuda and nccl\n")
    lay(tmp_path, "path.toml", text='home = "/usr/local/cuda"\ncuda = true\n')
    leave = Exclusion(("*.yaml", "*.json", "*.toml"), tmp_path)
    _, skipped = discover.files([tmp_path], tmp_path, leave, WORDS)
    assert sorted(each.path for each in skipped) == ["env.json", "run.yaml"]


@pytest.mark.parametrize("at", [".", "pkg"])
def test_patterns_count_from_the_folder_of_the_settings(tmp_path: Path, at: str) -> None:
    for name in ("pkg/gen/a.py", "pkg/b.py", "gen/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    root = tmp_path / at
    files, _ = discover.files([root], root, Exclusion(("pkg/gen/",), tmp_path))
    assert "pkg/b.py" in {file.path.relative_to(tmp_path).as_posix() for file in files}
    assert not any("pkg/gen" in str(file.path) for file in files)


def test_an_excluded_path_that_is_named_is_left_out_and_taken_when_asked(tmp_path: Path) -> None:
    (tmp_path / "gen").mkdir()
    file = tmp_path / "gen/a.py"
    file.write_text("")
    for named in (file, tmp_path / "gen"):
        files, skipped = discover.files([named], tmp_path, Exclusion(("gen/",), tmp_path))
        assert (files, [one.path for one in skipped]) == (
            [],
            [named.relative_to(tmp_path).as_posix()],
        )
        assert "--no-force-exclude" in skipped[0].reason
        taken, _ = discover.files([named], tmp_path, Exclusion(("gen/",), tmp_path, force=False))
        assert [one.relative for one in taken] == ["gen/a.py"]
