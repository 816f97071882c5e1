"""A model folder's subject changes with weights and config, and with nothing else."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.ledger.subject import of_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tiny"
    (made / "vae").mkdir(parents=True)
    (made / "model.safetensors").write_bytes(b"weights")
    (made / "config.json").write_bytes(b"{}")
    (made / "vae" / "model.safetensors").write_bytes(b"more")
    return made


def test_the_hash_is_over_sorted_paths_and_file_hashes(folder: Path) -> None:
    files = {
        "config.json": b"{}",
        "model.safetensors": b"weights",
        "vae/model.safetensors": b"more",
    }
    lines = "".join(f"{n}\0{hashlib.sha256(d).hexdigest()}\n" for n, d in files.items())
    subject = of_folder(folder)
    assert subject.name == "tiny"
    assert subject.sha256 == hashlib.sha256(lines.encode()).hexdigest()


def test_other_files_and_hidden_folders_do_not_matter(folder: Path) -> None:
    before = of_folder(folder)
    (folder / "README.md").write_text("words")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "old.safetensors").write_bytes(b"old")
    assert of_folder(folder) == before


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vae/model.safetensors"])
def test_changed_content_is_another_subject(folder: Path, name: str) -> None:
    before = of_folder(folder)
    (folder / name).write_bytes(b"changed")
    assert of_folder(folder).sha256 != before.sha256


def test_the_folder_may_be_named_from_inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert of_folder(Path()) == of_folder(folder)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="safetensors"):
        of_folder(tmp_path)
    with pytest.raises(JoyError, match="no such model folder"):
        of_folder(tmp_path / "absent")
