"""Files that a program writes (`--outputs`): what is kept of them in a bundle.

Arrays by shape, type, norm and sketch; text by its lines; anything else by its hash. Nothing that
is pickled is run: `.pt` files are read with weights only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joymigrate.errors import JoyError
from joymigrate.verify.signs import WIDTH, signs

SCHEMA = "joymigrate.outputs/1"
MOST_FILES = 1_000
MOST_BYTES = 8 << 30  # of one file
MOST_TEXT = 4 << 20
TORCH = (".pt", ".pth", ".ckpt", ".bin")
TEXT = (".json", ".jsonl", ".csv", ".tsv", ".txt", ".log", ".yaml", ".yml", ".md")


def collect(patterns: Sequence[str], folder: Path, since: float) -> dict[str, Any]:
    """What lies under `folder` and fits one of the patterns, after the program has ended.

    `since` is when the program began: an older file was not written by it, and is an error.
    """
    found: dict[str, Any] = {}
    stale: list[str] = []
    matched: dict[str, int] = {}
    for pattern in patterns:
        paths = sorted(below(folder, pattern))
        matched[pattern] = len(paths)
        for path in paths[:MOST_FILES]:
            name = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
            if path.stat().st_mtime < since - 2:  # file systems keep whole seconds, or two
                stale.append(name)
            elif name not in found:
                found[name] = contents(path)
    facts = {"patterns": list(patterns), "matched": matched, "stale": sorted(stale)}
    return {"schema": SCHEMA, **facts, "files": found}


def below(folder: Path, pattern: str) -> Iterator[Path]:
    """Files of one pattern; a folder stands for everything in it."""
    base = Path(pattern)
    if base.is_absolute():
        folder, pattern = Path(base.anchor), str(base.relative_to(base.anchor))
    try:
        matches = list(folder.glob(pattern))
    except (ValueError, NotImplementedError) as error:
        raise JoyError(
            f"--outputs cannot be '{pattern}': {error}", help="a file, a folder, or out/*.npy"
        ) from None
    for path in matches:
        if path.is_dir():
            yield from (p for p in path.rglob("*") if p.is_file())
        elif path.is_file():
            yield path


def contents(path: Path) -> dict[str, Any]:
    """One file as values that can be compared."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return {"kind": "bytes", "why": "larger than 8 GiB", "bytes": path.stat().st_size}
        if path.suffix in TEXT and path.stat().st_size <= MOST_TEXT:
            return {"kind": "text", "lines": text_lines(path)}
        arrays = dict(read_arrays(path))
    except JoyError:
        raise
    except Exception as error:  # any file may be damaged or of another kind than its name says
        why = f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
        return {"kind": "bytes", "sha256": sha256_of(path), "why": why}
    if not arrays:
        return {"kind": "bytes", "sha256": sha256_of(path), "why": "no known format"}
    return {"kind": "arrays", "arrays": {name: summary(a) for name, a in arrays.items()}}


def text_lines(path: Path) -> list[str]:
    """Lines of a text; JSON with one value on each line, by its path."""
    text = path.read_text("utf-8", "replace")
    if path.suffix == ".json":
        return [f"{name}: {value}" for name, value in leaves(json.loads(text))]
    return text.splitlines()


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of everything in a JSON document."""
    if isinstance(value, Mapping):
        for key, member in value.items():
            yield from leaves(member, f"{path}.{key}")
    elif isinstance(value, list):
        yield f"{path}.length", len(value)
        for index, member in enumerate(value):
            yield from leaves(member, f"{path}[{index}]")
    else:
        yield path, value


def read_arrays(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    """Arrays of the formats that are known; nothing of any other."""
    if path.suffix == ".npy":
        yield "", np.load(path, allow_pickle=False)
    elif path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as held:
            yield from ((name, held[name]) for name in held.files)
    elif path.suffix == ".safetensors":
        from safetensors.torch import load_file

        yield from ((name, as_numpy(tensor)) for name, tensor in load_file(path).items())
    elif path.suffix in TORCH:
        import torch

        held = torch.load(path, map_location="cpu", weights_only=True)
        yield from of_tree(held)


def of_tree(value: Any, path: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """Tensors and numbers of what torch has saved."""
    if hasattr(value, "detach"):
        yield path, as_numpy(value)
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield from of_tree(member, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for index, member in enumerate(value):
            yield from of_tree(member, f"{path}.{index}".lstrip("."))
    elif isinstance(value, int | float):
        yield path, np.asarray(value)


def as_numpy(tensor: Any) -> NDArray[Any]:
    """A tensor of any type; types that numpy lacks become float32."""
    tensor = tensor.detach().cpu()
    try:
        return np.asarray(tensor.numpy())
    except TypeError:
        return np.asarray(tensor.float().numpy())


def summary(array: NDArray[Any]) -> dict[str, Any]:
    """Shape, type, norm and 64 signed sums; whole numbers by content as well."""
    made: dict[str, Any] = {"shape": list(array.shape), "dtype": str(array.dtype)}
    if array.dtype.kind not in "fcbiu":
        made["sha256"] = hashlib.sha256(array.tobytes()).hexdigest()
        return made
    if array.dtype.kind in "biu":
        made["sha256"] = hashlib.sha256(array.astype(np.int64).tobytes()).hexdigest()
    flat = array.reshape(-1)
    flat = flat.view(flat.real.dtype) if array.dtype.kind == "c" else flat
    flat = flat.astype(np.float64)
    made["nonfinite"] = int((~np.isfinite(flat)).sum())
    flat = np.nan_to_num(flat, nan=0.0, posinf=0.0, neginf=0.0)
    rows = -(-max(flat.size, 1) // WIDTH)
    padded = np.zeros(rows * WIDTH)
    padded[: flat.size] = flat
    folded = signs(rows).astype(np.float64) @ padded.reshape(rows, WIDTH)
    made["sketch"] = [float(v) for v in folded]
    made["norm"] = float(np.linalg.norm(flat))
    return made


def sha256_of(path: Path) -> str:
    """The hash of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()
