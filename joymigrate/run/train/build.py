"""Builds a token cache: in a folder beside its place, in steps that survive an interruption.

Every few thousand records the data written so far is made durable and `progress.json` says how far
it goes; a build that finds one cuts the files to that length and goes on behind it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from joymigrate.errors import JoyError
from joymigrate.files import sync_folder
from joymigrate.run.train import digests, records
from joymigrate.run.train.columns import (
    MANIFEST,
    Array,
    Manifest,
    Sample,
    checksums,
    map_file,
)

PROGRESS = "progress.json"
FLUSH_RECORDS = 2048
Encode = Callable[[records.TrainingRecord], Sequence[Sample]]
Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """What a cache is made of. `fields` maps names to numpy dtypes."""

    files: tuple[Path | records.Portion, ...]
    fields: Mapping[str, str]
    identity: str  # of tokenizer and task: anything that changes what `encode` gives
    encode: Encode
    format: str = "auto"
    digests: tuple[str, ...] = ()  # of the files, where they are known
    taken: Array | None = None  # whether each record of the files counts; None: all of them


@dataclasses.dataclass(slots=True)
class Losses:
    """What records lose on their way into samples. Maps count records."""

    dropped: dict[str, int] = dataclasses.field(default_factory=dict)  # no sample, by reason
    unused: dict[str, int] = dataclasses.field(default_factory=dict)  # by the key nobody reads
    notes: dict[str, int] = dataclasses.field(default_factory=dict)
    cut: int = 0  # records
    cut_tokens: int = 0

    def add(self, record: records.TrainingRecord, dropped: bool) -> None:
        """Count one record that was encoded."""
        if dropped:
            reason = record.fate.dropped or "it gives no sample"
            self.dropped[reason] = self.dropped.get(reason, 0) + 1
        for key in record.unused:
            self.unused[key] = self.unused.get(key, 0) + 1
        for note in record.fate.notes:
            self.notes[note] = self.notes.get(note, 0) + 1
        self.cut += record.fate.cut > 0
        self.cut_tokens += record.fate.cut

    def lines(self) -> list[str]:
        """One line per kind of loss, in words."""
        found = [f"{count} left out: {reason}" for reason, count in sorted(self.dropped.items())]
        found += [f"{count} times {note}" for note, count in sorted(self.notes.items())]
        if self.cut:
            found.append(f"{self.cut} cut at data.max_length, {self.cut_tokens} tokens left out")
        if self.unused:
            keys = (f"{key} ({count})" for key, count in sorted(self.unused.items()))
            found.append(f"keys that nobody reads: {', '.join(keys)}")
        return found


class CacheBuilder:
    """One build: reads records, encodes, appends, and finishes by renaming the folder."""

    def __init__(
        self,
        place: Path,
        recipe: Recipe,
        key: str,
        sources: Sequence[Mapping[str, Any]],
        tell: Tell,
    ) -> None:
        self.place, self.recipe, self.key, self.sources = place, recipe, key, sources
        self.tell = tell
        self.work = place.with_name(f"{key}.building")
        self.mark: records.RecordPosition | None = None  # behind the last record
        self.read = self.records = self.samples = 0  # records read, and those that count
        self.lost = Losses()
        self.ends = dict.fromkeys(recipe.fields, 0)  # values written of each field
        self.waiting: dict[str, list[Array]] = {name: [] for name in recipe.fields}
        self.stops: dict[str, list[int]] = {name: [] for name in recipe.fields}

    def run(self) -> None:
        """Build to the end."""
        started = time.monotonic()
        self.resume()
        handles = {
            name: (self.work / name).open("ab")
            for field in self.recipe.fields
            for name in (f"{field}.bin", f"{field}.idx")
        }
        try:
            for record, mark in records.read(self.recipe.files, self.recipe.format, self.mark):
                self.read, self.mark = self.read + 1, mark
                if self.recipe.taken is not None and not self.recipe.taken[self.read - 1]:
                    continue
                self.add(record)
                if self.records % FLUSH_RECORDS == 0:
                    self.flush(handles)
                    self.tell(f"tokenising: {self.records} records")
            self.flush(handles)
        finally:
            for handle in handles.values():
                handle.close()
        self.finish()
        seconds = time.monotonic() - started
        self.tell(f"token cache: {self.samples} samples of {self.records} records, {seconds:.1f} s")

    def resume(self) -> None:
        """Go on behind what an interrupted build made durable, or begin."""
        try:
            state = json.loads((self.work / PROGRESS).read_text())
        except (OSError, ValueError):
            shutil.rmtree(self.work, ignore_errors=True)
            self.work.mkdir(parents=True)
            for name in self.recipe.fields:
                (self.work / f"{name}.bin").touch()
                (self.work / f"{name}.idx").write_bytes(np.zeros(1, dtype=np.int64).tobytes())
            return
        self.mark = records.RecordPosition(*state["mark"]) if state["mark"] else None
        self.records, self.samples = state["records"], state["samples"]
        self.read = state.get("read", self.records)
        self.lost, self.ends = Losses(**state["lost"]), state["ends"]
        for name, kind in self.recipe.fields.items():
            os.truncate(self.work / f"{name}.bin", self.ends[name] * np.dtype(kind).itemsize)
            os.truncate(self.work / f"{name}.idx", (self.samples + 1) * 8)
        self.tell(f"tokenising: going on behind record {self.records}")

    def add(self, record: records.TrainingRecord) -> None:
        """Encode one record."""
        self.records += 1
        made = self.recipe.encode(record)
        self.lost.add(record, not made)
        for sample in made:
            self.samples += 1
            for name, kind in self.recipe.fields.items():
                values = np.ascontiguousarray(sample[name], dtype=kind).reshape(-1)
                self.waiting[name].append(values)
                self.ends[name] += len(values)
                self.stops[name].append(self.ends[name])

    def flush(self, handles: Mapping[str, Any]) -> None:
        """Write what waits, make it durable, and say so."""
        for name in self.recipe.fields:
            if self.waiting[name]:
                handles[f"{name}.bin"].write(np.concatenate(self.waiting[name]).tobytes())
                handles[f"{name}.idx"].write(np.array(self.stops[name], dtype=np.int64).tobytes())
                self.waiting[name], self.stops[name] = [], []
        for handle in handles.values():
            handle.flush()
            os.fsync(handle.fileno())
        state = {
            "mark": dataclasses.astuple(self.mark) if self.mark else None,
            "read": self.read,
            "records": self.records,
            "samples": self.samples,
            "lost": dataclasses.asdict(self.lost),
            "ends": self.ends,
        }
        digests.write_json(self.work / PROGRESS, state)

    def finish(self) -> None:
        """Write the manifest and give the folder its name."""
        if not self.samples:
            shutil.rmtree(self.work, ignore_errors=True)
            raise JoyError(
                f"the data gave no sample: {self.records} records were read"
                + "".join(f"; {line}" for line in self.lost.lines()),
                where=", ".join(str(source["path"]) for source in self.sources),
                help="check that the records have the fields of the task",
            )
        names = [f"{f}.{suffix}" for f in self.recipe.fields for suffix in ("bin", "idx")]
        byte = np.dtype(np.uint8)
        manifest = Manifest(
            key=self.key,
            fields=dict(self.recipe.fields),
            samples=self.samples,
            records=self.records,
            lost=dataclasses.asdict(self.lost),
            sources=list(self.sources),
            bytes={name: (self.work / name).stat().st_size for name in names},
            checks={name: checksums(map_file(self.work / name, byte)) for name in names},
        )
        (self.work / PROGRESS).unlink()
        digests.write_json(self.work / MANIFEST, manifest.document())
        os.replace(self.work, self.place)
        sync_folder(self.place.parent)
