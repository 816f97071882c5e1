"""The token cache: samples as memory-mapped arrays, built once per tokenizer and data content.

A cache is a folder (see columns.py). Its name is a hash of what went into it, so a changed
tokenizer, file or task is another cache. What it does not do: shuffle (see order.py) or pack (see
packing.py).
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from joymigrate.run.train import digests, records
from joymigrate.run.train import tokenizer as tokenizers
from joymigrate.run.train.build import CacheBuilder, Recipe, Tell
from joymigrate.run.train.columns import Array, Corrupt, Manifest, SampleColumn


class TokenCache:
    """Samples by number: `cache[7]["tokens"]`. Made by `open` or `build`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = Manifest.read(folder)
        self.columns = {
            name: SampleColumn(folder, name, self.manifest) for name in self.manifest.fields
        }

    @staticmethod
    def open(folder: Path | str) -> TokenCache:
        """An existing cache; `Corrupt` when files are missing, cut or damaged."""
        return TokenCache(Path(folder))

    @staticmethod
    def build(
        folder: Path | str,
        files: Sequence[Path | str],
        tokenizer: Any,
        *,
        encode: Callable[[Mapping[str, Any]], Sequence[int]] | None = None,
        format: str = "auto",
        tell: Callable[[str], None] = lambda line: None,
    ) -> TokenCache:
        """The cache of `files` under `folder`, opened if it is there and built if not.

        `encode` turns a record into tokens; without it the record's `text` is tokenised.
        """

        def one(record: records.TrainingRecord) -> list[dict[str, Array]]:
            if encode is not None:
                tokens = encode(record.value)
            else:
                text = record.text("text")
                tokens = [*tokenizer(text, add_special_tokens=False)["input_ids"]]
                if tokenizer.eos_token_id is not None:
                    tokens.append(tokenizer.eos_token_id)
            return [{"tokens": np.asarray(tokens)}] if len(tokens) else []

        source = "" if encode is None else tokenizers.source_of(encode)
        fields = {"tokens": tokenizers.dtype_for(len(tokenizer))}
        identity = digests.of_text(tokenizers.digest(tokenizer), source)
        recipe = Recipe(tuple(map(Path, files)), fields, identity, one, format)
        return open_cache(Path(folder), recipe, tell)

    def __len__(self) -> int:
        return self.manifest.samples

    def __getitem__(self, index: int) -> dict[str, Array]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return {name: column[index] for name, column in self.columns.items()}

    def weight(self, index: int) -> float:
        """What a sample counts in the mean of the loss: its number of targets, or 1."""
        column = self.columns.get("weight")
        return float(column[index][0]) if column is not None else 1.0

    def verify(self) -> None:
        """Compare every checksum; `Corrupt` names the first block that differs."""
        for column in self.columns.values():
            column.check(0, len(column.checks) - 1)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(self.manifest.bytes.values())


def open_cache(folder: Path, recipe: Recipe, tell: Tell = lambda line: None) -> TokenCache:
    """The cache of `recipe` below `folder`; one that is damaged is built anew."""
    folder.mkdir(parents=True, exist_ok=True)
    hashes = recipe.digests or digests.of_files(check_files(recipe), folder)
    fields = json.dumps(dict(recipe.fields))
    key = digests.of_text(recipe.identity, recipe.format, fields, *hashes)[:24]
    place = folder / key
    with hold_lock(folder / f"{key}.lock"):
        if place.is_dir():
            try:
                return TokenCache(place)
            except Corrupt as error:
                tell(f"the token cache is damaged ({error.what}); building it again")
                shutil.rmtree(place)
        sources = [
            {"path": str(path), "bytes": path.stat().st_size, "sha256": sha}
            for path, sha in zip(check_files(recipe), hashes, strict=True)
        ]
        CacheBuilder(place, recipe, key, sources, tell).run()
    return TokenCache(place)


def check_files(recipe: Recipe) -> list[Path]:
    """The recipe's files, which are there and of known kinds."""
    files = [one.path if isinstance(one, records.Portion) else one for one in recipe.files]
    records.check(files, recipe.format)
    return files


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """One process builds, the others wait for it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
