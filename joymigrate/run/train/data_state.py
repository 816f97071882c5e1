"""Which data a run has seen: what a checkpoint says of them, and how a run goes on once they grew.

Data come in pieces. The first is what the files held when the run began; each further one is what
was added to their ends while the run stood still, at a position of the run: lines, or records of a
Parquet file or a JSON array that was written anew. Any other change is named and refused.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from joymigrate.errors import JoyError
from joymigrate.run.train import digests, records
from joymigrate.run.train.checkpoint_store import CheckpointStore
from joymigrate.run.train.records import Portion
from joymigrate.run.train.run_folder import ACCEPT_DATA

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DataPiece:
    """What came at a position of the run: portions of files with the digests of their bytes."""

    position: int  # samples consumed before it came
    portions: tuple[Portion, ...]
    digests: tuple[str, ...]

    def by_file(self) -> list[DataPiece]:
        """A piece for each file."""
        parts = zip(self.portions, self.digests, strict=True)
        return [DataPiece(self.position, (one,), (sha,)) for one, sha in parts]

    def document(self) -> dict[str, Any]:
        """As a checkpoint keeps it."""
        parts = zip(self.portions, self.digests, strict=True)
        files = [[str(one.path), one.begin, one.end, sha] for one, sha in parts]
        return {"position": self.position, "files": files}


def pieces_of(
    files: Sequence[Path],
    format: str,
    reading: str,
    checkpoints: Path,
    tell: Tell,
    *,
    grows: bool = True,
    memory: Path | None = None,
    limit: int | None = None,
) -> list[DataPiece]:
    """The pieces of the data as the run goes on from its newest checkpoint.

    `reading` is the task's identity; `grows`: whether the order of samples can take more of
    them; `memory`: a folder that keeps digests; `limit`: records of each file. Raises `JoyError`
    where other data, or data that are read otherwise, would be gone on with, unless
    `--accept-data` was given.
    """
    everything = whole(files, format, limit)
    store = CheckpointStore(checkpoints)
    newest = store.newest()
    saved = store.extra(newest) if newest is not None else {}
    old = saved.get("data") or {}
    known = [renew(piece_of(one), format, memory) for one in old.get("pieces", ())]
    if not known:
        return [piece_at(0, everything, format, memory)]
    changed = find_changes(files, known, format, memory)
    if old["reading"] != reading:
        changed.append("how the task reads them (its labels or options, the tokenizer, the code)")
    ends = {one.path: one.end or 0 for piece in known for one in piece.portions}
    added = [
        Portion(one.path, ends[one.path], one.end)
        for one in everything
        if not changed and one.end != ends[one.path]
    ]
    changed += [one.path.name for one in added if not (grows and may_grow(one, format))]
    if changed:
        what = f"the data changed since the last checkpoint: {', '.join(changed)}"
        refuse_or_tell(what, tell, grows=grows)
        return [piece_at(0, everything, format, memory)]
    if added:
        names = ", ".join(one.path.name for one in added)
        tell(f"{names} grew since the last checkpoint: what was added comes next")
        known.append(piece_at(int(saved["position"]), added, format, memory))
    return known


def whole(files: Sequence[Path], format: str, limit: int | None = None) -> list[Portion]:
    """Files as they are now, with at most `limit` records of each."""
    return [Portion(path, 0, records.size_of(path, format, limit)) for path in files]


def has_grown(checkpoints: Path, format: str, limit: int | None = None) -> bool:
    """Whether a file is longer than at the newest checkpoint."""
    store = CheckpointStore(checkpoints)
    newest = store.newest()
    known = (store.extra(newest).get("data") or {}) if newest is not None else {}
    pieces = [piece_of(one) for one in known.get("pieces", ())]
    ends = {one.path: one.end or 0 for piece in pieces for one in piece.portions}
    there = ((path, end) for path, end in ends.items() if path.is_file())
    return any(records.size_of(path, format, limit) > end for path, end in there)


def piece_at(
    position: int, portions: Sequence[Portion], format: str, memory: Path | None = None
) -> DataPiece:
    """A piece with the digests of its content."""
    shas = tuple(records.digest_of(one, format, memory) for one in portions)
    return DataPiece(position, tuple(portions), shas)


def draw(
    piece: DataPiece, format: str, size: float, seed: int, *, held: bool
) -> npt.NDArray[np.bool_]:
    """Which records of a piece are held out, or are not; below 1 `size` is a share of them.

    The same ones as `train_test_split` of Hugging Face's datasets draws.
    """
    count = sum(1 for _ in records.read(piece.portions, format))
    number = math.ceil(size * count) if size < 1 else int(size)
    if number >= count:
        raise JoyError(
            f"{number} of {count} records held out leave none to train on", where="data.holdout"
        )
    drawn = np.zeros(count, dtype=bool)
    drawn[np.random.default_rng(seed).permutation(count)[:number]] = True
    return drawn if held else ~drawn


def renew(piece: DataPiece, format: str, memory: Path | None) -> DataPiece:
    """A piece of an older checkpoint, which knows the bytes of files whose records count now."""
    kept = [
        one
        if sha.startswith(records.BY_RECORD)
        or not one.path.is_file()
        or not records.counts_records(one.path, format)
        or digests.of_file(one.path, one.begin, one.end) != sha
        else whole([one.path], format)[0]
        for one, sha in zip(piece.portions, piece.digests, strict=True)
    ]
    if kept == list(piece.portions):
        return piece
    return piece_at(piece.position, kept, format, memory)


def piece_of(document: Mapping[str, Any]) -> DataPiece:
    """The piece of a checkpoint."""
    portions = tuple(Portion(Path(path), *ends) for path, *ends, _ in document["files"])
    return DataPiece(document["position"], portions, tuple(one[-1] for one in document["files"]))


def find_changes(
    files: Sequence[Path], known: Sequence[DataPiece], format: str, memory: Path | None
) -> list[str]:
    """Names of files that hold other bytes where the run has read, or are not the run's."""
    found = dict.fromkeys(
        one.path.name
        for piece in known
        for one, sha in zip(piece.portions, piece.digests, strict=True)
        if one.path not in files or records.digest_of(one, format, memory) != sha
    )
    ours = {one.path for piece in known for one in piece.portions}
    return [*found, *(path.name for path in files if path not in ours)]


def may_grow(added: Portion, format: str) -> bool:
    """Whether what stands behind a place of a file are whole records that were added."""
    if records.counts_records(added.path, format):
        return True
    with added.path.open("rb") as file:
        file.seek(max(0, added.begin - 1))
        return b"\n" in file.read(2)


def check_rows(old: Mapping[str, Any] | None, new: Mapping[str, Any], tell: Tell) -> None:
    """Rows of features are numbered over all files: another number of them is refused."""
    if old is not None and "samples" in old and old != new:
        refuse_or_tell(
            f"the data changed since the last checkpoint: {old['samples']} samples then, "
            f"{new['samples']} now",
            tell,
        )


def refuse_or_tell(what: str, tell: Tell, *, grows: bool = False) -> None:
    """Stop, or go on where `--accept-data` was given."""
    if os.environ.get(ACCEPT_DATA):
        tell(f"{what}; going on in another order (--accept-data)")
        return
    added = " (what is added at their ends is gone on with)" if grows else ""
    raise JoyError(
        what,
        help=f"put the old files back{added}; --fresh starts anew; --accept-data goes on, with "
        "some samples seen twice and some not at all in this pass",
    )
