"""Opens a bundle: every file is held against its hash before anything of it is used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from joymigrate.errors import JoyError
from joymigrate.verify import crash
from joymigrate.verify.bundle.pack import unpack
from joymigrate.verify.bundle.table import RecordTable, read_table
from joymigrate.verify.bundle.write import MANIFEST, OUTPUTS, RANK_SCHEMA, SCHEMA, versions

AGAIN = "copy it again from where it was recorded, or record again"
CHUNK = 1 << 22


def damage_error(what: str, path: Path) -> JoyError:
    """The error for a bundle whose bytes are not what its manifest says."""
    return JoyError(f"damaged bundle: {what}", where=str(path), help=AGAIN)


class NothingRecorded(JoyError):
    """A bundle of a program that did not come to the end of a step. `why` begins with a colon, and
    is empty where nothing is known."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        stop = manifest.get("stopped")
        self.why = crash.early(manifest.get("crash"), stop)
        help_ = "mend that first: a recording begins with the first call of a torch module"
        if stop is not None:
            help_ = "make room there, name another place, or keep less: --budget, --stats-only"
        elif not self.why:
            help_ = (
                "the program ended before its first step, or calls no torch module; "
                "record again with --steps that it reaches"
            )
        super().__init__(
            f"nothing was recorded in this bundle{self.why}", where=str(path), help=help_
        )


@dataclass(slots=True)
class Rank:
    """What one process recorded."""

    folder: Path
    manifest: Mapping[str, Any]
    tables: dict[int, RecordTable] = field(default_factory=dict)
    # of a killed program: files whose next version is there, and where the committed one lies
    earlier: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False  # the recording ended before the program, or the program broke off

    @property
    def number(self) -> int:
        """The process's rank."""
        return int(self.manifest["rank"])

    @property
    def steps(self) -> list[int]:
        """Numbers of the recorded steps."""
        return sorted(int(step) for step in self.manifest.get("steps", []))

    def has(self, name: str) -> bool:
        """Whether a file of that name was recorded."""
        return name in self.manifest["files"]

    def file(self, name: str) -> Path:
        """Where the committed version of a file lies."""
        return self.folder / self.earlier.get(name, name)

    def json(self, name: str) -> Any:
        """One JSON file; an empty mapping where it was not recorded."""
        if not self.has(name):
            return {}
        try:
            return json.loads(self.file(name).read_bytes())
        except ValueError as error:
            raise damage_error(f"{name} is no JSON ({error})", self.folder) from None

    @property
    def program(self) -> Any:
        """Modules, weights, optimisers, notes."""
        return self.json("program.json")

    def facts(self, step: int) -> Any:
        """Losses, hyper-parameters and batches of one step."""
        return self.json(f"step-{step}.json")

    def table(self, step: int) -> RecordTable:
        """The records of one step."""
        if step not in self.tables:
            name = f"step-{step}.safetensors"
            try:
                self.tables[step] = read_table(step, self.arrays(name))
            except (KeyError, ValueError, TypeError) as error:
                raise damage_error(f"{name}: {error}", self.folder) from None
        return self.tables[step]

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """All tensors of one file. bfloat16 is held as its 16 bits."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            return dict(load_file(self.file(name)))
        except (SafetensorError, OSError) as error:
            raise damage_error(f"{name}: {error}", self.folder) from None


@dataclass(slots=True)
class Bundle:
    """A recording. `complete` is False when the program was cut short: then what was flushed."""

    path: Path
    manifest: Mapping[str, Any]
    ranks: list[Rank]

    @property
    def complete(self) -> bool:
        """Whether the recording came to its end."""
        killed = (self.manifest.get("exit_code") or 0) >= 128  # by a signal
        return bool(self.manifest.get("complete")) and not (killed or self.manifest.get("stopped"))

    @property
    def outputs(self) -> Any:
        """What was kept of the files that the program wrote; empty where none were named."""
        if OUTPUTS not in (self.manifest.get("files") or {}):
            return {}
        return json.loads((self.ranks[0].folder.parent / OUTPUTS).read_bytes())

    @property
    def world(self) -> int:
        """Processes of the program, those that left no recording too."""
        told = (int(rank.manifest.get("world", 1)) for rank in self.ranks)
        return max(len(self.ranks), *told)

    @property
    def asked(self) -> range:
        """The steps that were to be recorded; empty where the manifest does not say."""
        first, last = self.manifest.get("steps") or (0, -1)
        return range(int(first), int(last) + 1)

    def rank(self, number: int = 0) -> Rank:
        """One process's part."""
        for rank in self.ranks:
            if rank.number == number:
                return rank
        raise JoyError(
            f"the bundle has no rank {number}",
            where=str(self.path),
            help=f"it has {', '.join(str(rank.number) for rank in self.ranks)}",
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(f["bytes"] for rank in self.ranks for f in rank.manifest["files"].values())


def open_bundle(path: Path) -> Bundle:
    """The bundle at `path` (folder or tar); `JoyError` when it is damaged or no bundle."""
    if not path.exists():
        raise JoyError("there is no such bundle", where=str(path), help="check the path")
    folder = unpack(path) if path.is_file() else path
    manifest = read_manifest(folder / MANIFEST, SCHEMA, path)
    if manifest.get("complete"):
        check_files(folder, manifest.get("files"), path)
        names = [f"rank-{number}" for number in manifest.get("ranks", [])]
    else:
        names = sorted(p.name for p in folder.glob("rank-*") if (p / MANIFEST).is_file())
    ranks = []
    for name in names:
        inner = read_manifest(folder / name / MANIFEST, RANK_SCHEMA, path)
        earlier = {} if manifest.get("complete") else versions(folder / name, inner)
        check_files(folder / name, inner.get("files"), path, earlier)
        check_contents(folder / name, inner, path)
        check_strangers(folder / name, inner, path)
        ranks.append(Rank(folder / name, inner, earlier=earlier))
    if not ranks:
        raise NothingRecorded(path, manifest)
    bundle = Bundle(path, manifest, sorted(ranks, key=lambda rank: rank.number))
    for rank in ranks:
        rank.cut = not bundle.complete or bool(bundle.manifest.get("exit_code"))
    return bundle


def read_manifest(file: Path, schema: str, path: Path) -> dict[str, Any]:
    """A manifest of the given schema."""
    if not file.is_file():
        raise JoyError(
            f"not a bundle of joymigrate: it has no {file.name}",
            where=str(path),
            help="`joymigrate verify record -o base.jmb -- CMD` makes one",
        )
    try:
        raw = json.loads(file.read_bytes())
    except ValueError as error:
        raise damage_error(f"{file.name} is cut short or no JSON ({error})", path) from None
    found = raw.get("schema") if isinstance(raw, dict) else None
    if found != schema:
        raise JoyError(
            f"a bundle of schema {found!r}; this joymigrate reads {schema}",
            where=str(path),
            help="use the joymigrate that wrote it, or record again",
        )
    made: dict[str, Any] = raw
    return made


def check_files(
    folder: Path, files: Any, path: Path, earlier: Mapping[str, str] | None = None
) -> None:
    """Every named file is there with its size and hash."""
    if not isinstance(files, dict):
        raise damage_error("the manifest names no files", path)
    for name, expected in files.items():
        try:
            size, digest = int(expected["bytes"]), str(expected["sha256"])
        except (KeyError, TypeError, ValueError):
            raise damage_error(f"the manifest's entry of {name}", path) from None
        file = folder / (earlier or {}).get(name, name)
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise damage_error(f"a file outside of the bundle ({name})", path)
        if not file.is_file():
            raise damage_error(f"{name} is missing", path)
        if file.stat().st_size != size:
            raise damage_error(f"{name} has {file.stat().st_size} bytes instead of {size}", path)
        if hash_of(file) != digest:
            raise damage_error(f"{name} is not what was recorded (sha256 differs)", path)


def check_strangers(folder: Path, manifest: Mapping[str, Any], path: Path) -> None:
    """A rank's folder holds what its manifest names, and pieces of a killed program's next step."""
    named = {MANIFEST, *manifest["files"]}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.is_dir() or name in named or file.name.endswith((".part", ".before")):
            continue
        if file.suffix in (".json", ".safetensors") and "/" not in name:
            continue  # written after the last commit
        raise damage_error(f"{folder.name}/{name} is no part of it", path)


def hash_of(file: Path) -> str:
    """sha256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def check_contents(folder: Path, manifest: Mapping[str, Any], path: Path) -> None:
    """The manifest has what every reader counts on."""
    if not isinstance(manifest.get("rank"), int):
        raise damage_error(f"{folder.name}/{MANIFEST} names no rank", path)
    for step in manifest.get("steps", []):
        for name in (f"step-{step}.safetensors", f"step-{step}.json"):
            if name not in manifest["files"]:
                raise damage_error(f"{folder.name}/{name} is missing", path)
