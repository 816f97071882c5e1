"""A rewritten copy elsewhere: complete, apart from the original, never over someone's work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.rewrite.copy import rewritten_copy
from tests.ledger.trees import tree_of, write_tree

FILES = {"a.py": b"cuda", "data/blob.bin": b"\0" * 100, "empty.txt": b"", "run.sh": b"#!"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    write_tree(root, {**FILES, ".git/HEAD": b"ref", "__pycache__/a.pyc": b"x"})
    write_tree(root, {".joymigrate/ledger.jsonl": b"", "env/pyvenv.cfg": b"", "env/bin/x": b""})
    os.chmod(root / "run.sh", 0o755)
    (root / "empty_folder").mkdir()
    (root / "link.py").symlink_to("a.py")
    (root / "data_link").symlink_to("data")
    return root


def rewritten(part: Path) -> None:
    (part / "a.py").write_bytes(b"npu")


def test_everything_is_there_and_the_original_is_untouched(source: Path, tmp_path: Path) -> None:
    before = tree_of(source)
    out = tmp_path / "out"
    left = rewritten_copy([source], source, out, rewritten)
    assert tree_of(source) == before
    copied = {name: data for name, (data, _) in tree_of(out).items()}
    assert copied == {**FILES, "a.py": b"npu", "link.py": b"npu"}
    assert tree_of(out)["run.sh"][1] == 0o755
    assert (out / "empty_folder").is_dir()
    assert os.readlink(out / "link.py") == "a.py"
    assert os.readlink(out / "data_link") == "data"
    assert not (out / ".git").exists()
    assert left == ["env"]


def test_an_output_inside_the_source_does_not_copy_itself(source: Path) -> None:
    rewritten_copy([source], source, source / "out", rewritten)
    assert not (source / "out/out").exists()
    assert (source / "out/a.py").read_bytes() == b"npu"


def test_a_second_run_replaces_the_first_result(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rewritten_copy([source], source, out, rewritten)
    (source / "empty.txt").unlink()
    rewritten_copy([source], source, out, rewritten)
    assert not (out / "empty.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_a_folder_with_other_content_is_refused(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_tree(out, {"mine.txt": b"x"})
    with pytest.raises(JoyError, match="is not empty"):
        rewritten_copy([source], source, out, rewritten)
    assert tree_of(out) == {"mine.txt": (b"x", (out / "mine.txt").stat().st_mode & 0o777)}


def test_an_edited_result_is_refused(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rewritten_copy([source], source, out, rewritten)
    (out / "a.py").write_bytes(b"npu and mine")
    with pytest.raises(JoyError, match="has changed since"):
        rewritten_copy([source], source, out, rewritten)
    assert (out / "a.py").read_bytes() == b"npu and mine"


def test_the_original_is_never_the_output(source: Path) -> None:
    for output in (source, source.parent):
        with pytest.raises(JoyError, match="place of the original"):
            rewritten_copy([source], source, output, rewritten)


def test_a_failing_rewrite_leaves_nothing_behind(source: Path, tmp_path: Path) -> None:
    def fails(part: Path) -> None:
        raise JoyError("no")

    with pytest.raises(JoyError, match="no"):
        rewritten_copy([source], source, tmp_path / "out", fails)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_single_files_keep_their_place(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rewritten_copy([source / "data/blob.bin", source / "a.py"], source, out, rewritten)
    assert set(tree_of(out)) == {"a.py", "data/blob.bin"}
