"""What a verdict about a model folder is about: its name, and one hash of weights and config."""

from __future__ import annotations

import hashlib
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.ledger.step import Subject

CHUNK_BYTES = 1 << 22


def of_folder(path: Path) -> Subject:
    """The subject of a model folder: its own name, and a hash of what it computes with.

    The hash is over the sorted (relative path, sha256) of `*.safetensors` and `config.json` at any
    depth; hidden folders don't count. It says nothing about tokenizers and chat templates. Raises
    `JoyError` where there is no such folder, or no weights in it.
    """
    if not path.is_dir():
        raise JoyError("there is no such model folder", where=str(path), help="name a folder")
    files = weights_and_config(path)
    if not any(file.suffix == ".safetensors" for file in files):
        raise JoyError(
            "a model folder without *.safetensors cannot be told from another one",
            where=str(path),
            help="save the weights as safetensors: model.save_pretrained(DIR)",
        )
    total = hashlib.sha256()
    for file in files:
        name = file.relative_to(path).as_posix()
        total.update(f"{name}\0{file_sha256(file)}\n".encode("utf-8", "surrogateescape"))
    return Subject(path.resolve().name, total.hexdigest())


def weights_and_config(path: Path) -> list[Path]:
    """The files that the hash is made of, sorted by their relative POSIX path."""
    found = [*path.rglob("*.safetensors"), *path.rglob("config.json")]
    visible = [
        file
        for file in found
        if file.is_file() and not any(p.startswith(".") for p in file.relative_to(path).parts)
    ]
    return sorted(visible, key=lambda file: file.relative_to(path).as_posix())


def file_sha256(path: Path) -> str:
    """The hexadecimal SHA-256 of a file, read in pieces."""
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(CHUNK_BYTES):
                found.update(piece)
    except OSError as error:
        raise JoyError(f"cannot read: {error.strerror}", where=str(path)) from None
    return found.hexdigest()
