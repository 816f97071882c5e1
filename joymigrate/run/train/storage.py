"""What a run takes on disk, and what it would take if equal content were stored once.

It measures and rewrites nothing. Equal content: whole samples of the token cache, and blocks of
64 KiB of checkpoint files, over all checkpoints that are there.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.train import build
from joymigrate.run.train.checkpoint_store import CheckpointStore
from joymigrate.run.train.job import cache_folder
from joymigrate.run.train.run_folder import CHECKPOINTS, RunFolder
from joymigrate.run.train.tokens import TokenCache, open_cache

SCHEMA = "joymigrate.storage/1"
BLOCK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class TokenCacheBytes:
    """A token cache: the data it was made of, itself, and itself with every sample once."""

    source_bytes: int
    cache_bytes: int
    unique_bytes: int
    samples: int
    unique_samples: int


@dataclass(frozen=True, slots=True)
class CheckpointSeries:
    """The checkpoints of a run: all bytes, and those of different blocks."""

    checkpoints: int
    bytes: int
    unique_bytes: int


def storage(folder: Path) -> dict[str, Any]:
    """Both, of one run folder."""
    run = RunFolder(folder)
    job = run.job()
    from joymigrate.run.train.assemble import task_of

    task = task_of(job)
    files = tuple(job.path(name) for name in job.data.train)
    place = cache_folder(job)
    fields = task.fields()
    recipe = build.Recipe(files, fields, task.identity(), task.encode, job.data.format)
    if not place.is_dir():
        raise JoyError("the run's token cache is gone", where=str(place))
    tokens = tokens_of(open_cache(place, recipe))
    series = series_of(folder / CHECKPOINTS)
    return {
        "schema": SCHEMA,
        "run": str(folder),
        "tokens": asdict(tokens),
        "checkpoints": asdict(series),
    }


def tokens_of(cache: TokenCache) -> TokenCacheBytes:
    """Sizes of a cache; a sample counts once however often it occurs."""
    import numpy as np

    seen: set[bytes] = set()
    unique = 0
    for index in range(len(cache)):
        parts = [np.ascontiguousarray(value).tobytes() for value in cache[index].values()]
        mark = hashlib.sha256(b"|".join(b"%d:" % len(part) + part for part in parts)).digest()
        if mark not in seen:
            seen.add(mark)
            unique += sum(map(len, parts)) + 8 * len(parts)  # values, and where each field ends
    # a reference per sample says which of the unique ones it is
    unique += 4 * len(cache) if len(seen) < len(cache) else 0
    return TokenCacheBytes(
        source_bytes=sum(int(source["bytes"]) for source in cache.manifest.sources),
        cache_bytes=cache.bytes,
        unique_bytes=unique,
        samples=len(cache),
        unique_samples=len(seen),
    )


def series_of(folder: Path) -> CheckpointSeries:
    """Sizes of all checkpoints in a folder."""
    shelf = CheckpointStore(folder)
    seen: set[bytes] = set()
    total = unique = 0
    numbers = shelf.numbers()
    for number in numbers:
        for path in sorted(shelf.place(number).iterdir()):
            with path.open("rb") as file:
                while piece := file.read(BLOCK_BYTES):
                    total += len(piece)
                    mark = hashlib.sha256(piece).digest()
                    if mark not in seen:
                        seen.add(mark)
                        unique += len(piece)
    return CheckpointSeries(len(numbers), total, unique)


def text(found: dict[str, Any]) -> str:
    """For people."""
    tokens, series = found["tokens"], found["checkpoints"]
    lines = [
        f"data files      {tokens['source_bytes']:>14,} bytes",
        f"token cache     {tokens['cache_bytes']:>14,} bytes, {tokens['samples']} samples",
        f"  stored once   {tokens['unique_bytes']:>14,} bytes, {tokens['unique_samples']} kinds",
        f"checkpoints     {series['bytes']:>14,} bytes in {series['checkpoints']}",
        f"  stored once   {series['unique_bytes']:>14,} bytes",
    ]
    return "\n".join(lines) + "\n"
