"""Published versions of a model that keeps learning: snapshots and deltas, each whole or absent.

docs/how-to/continuous.md is the contract. A version's forms lie in a folder or in Redis; what is
read is compared with its content hash before it is handed out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.files import replace_file, sync_file, sync_folder
from joymigrate.run.train.formats.first_rows import UniformRows

SCHEMA, LATEST_SCHEMA = "joymigrate.version/1", "joymigrate.latest/1"
MANIFEST, LATEST = "manifest.json", "latest"
DENSE, TRAINING = "dense.safetensors", "training.safetensors"
FORM = re.compile(r"(snapshot|delta)-(\d{8,})$")
PREFIX = "joymigrate"
Manifest = dict[str, Any]


class TornVersion(JoyError):
    """A published file is not what its manifest says."""


def open_versions(place: str | Path) -> VersionStore:
    """The store at a folder, or at `redis://HOST:PORT/DB#PREFIX`."""
    text = str(place)
    if text.startswith(("redis://", "rediss://", "unix://")):
        url, _, prefix = text.partition("#")
        return RedisVersions(url, prefix or PREFIX)
    return FolderVersions(Path(text))


def sha256(data: bytes) -> str:
    """The content hash of one file."""
    return hashlib.sha256(data).hexdigest()


def identity(previous: str, files: Mapping[str, Mapping[str, Any]]) -> str:
    """Of a version: what it was built on, and the content of its files."""
    lines = [previous, *(f"{name}:{files[name]['sha256']}" for name in sorted(files))]
    return sha256("\n".join(lines).encode())


def encode(manifest: Manifest) -> bytes:
    """A manifest as bytes."""
    return (json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def decode(data: bytes, where: str) -> dict[str, Any]:
    """JSON of a manifest or of `latest`; an error says which is broken."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise TornVersion(f"cannot read the manifest: {error}", where=where) from None
    if not isinstance(value, dict) or value.get("schema") not in (SCHEMA, LATEST_SCHEMA):
        raise TornVersion("not a published version", where=where, help=f"its schema is {SCHEMA}")
    return value


def latest_of(manifest: Manifest, data: bytes) -> bytes:
    """What `latest` says about a form that was written."""
    known = {key: manifest[key] for key in ("version", "form", "identity")}
    return (json.dumps({"schema": LATEST_SCHEMA, **known, "sha256": sha256(data)}) + "\n").encode()


def check_hash(manifest: Manifest, name: str, data: bytes, where: str) -> bytes:
    """The bytes of a file, if they are those that the manifest names."""
    entry = manifest["files"][name]
    if len(data) != entry["bytes"] or sha256(data) != entry["sha256"]:
        raise TornVersion(
            f"{name} of version {manifest['version']} is not what its manifest says "
            f"({len(data)} bytes, expected {entry['bytes']})",
            where=where,
            help="keep the version that is held, and take the next one or the newest snapshot",
        )
    return data


class FolderVersions:
    """Versions in a folder; a form appears by one rename."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.where = str(folder)

    def place(self, version: int, form: str) -> Path:
        """The folder of one form."""
        return self.folder / f"{form}-{version:08d}"

    def latest(self) -> dict[str, Any] | None:
        """What `latest` says; None before the first version."""
        try:
            data = (self.folder / LATEST).read_bytes()
        except FileNotFoundError:
            return None
        return decode(data, str(self.folder / LATEST))

    def forms(self) -> list[tuple[int, str]]:
        """All forms that are whole."""
        if not self.folder.is_dir():
            return []
        matches = (FORM.match(path.name) for path in self.folder.iterdir())
        return sorted((int(m.group(2)), m.group(1)) for m in matches if m)

    def manifest(self, version: int, form: str) -> Manifest:
        """The manifest of a form."""
        path = self.place(version, form) / MANIFEST
        try:
            return decode(path.read_bytes(), str(path))
        except FileNotFoundError:
            raise absent(version, form, self.where) from None

    def file(self, manifest: Manifest, name: str) -> bytes:
        """One file's bytes, compared with the manifest."""
        path = self.place(manifest["version"], manifest["form"]) / name
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise absent(manifest["version"], manifest["form"], str(path)) from None
        return check_hash(manifest, name, data, str(path))

    def publish(
        self, manifest: Manifest, files: Mapping[str, bytes], *, newest: bool = True
    ) -> None:
        """Write a form beside its place, make it durable, rename it, then replace `latest`.

        `newest=False` leaves `latest` alone: another form of a version that is named already.
        """
        place = self.place(manifest["version"], manifest["form"])
        partial = place.with_name(f"{place.name}.partial")
        data = encode(manifest)
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            for name, content in {**files, MANIFEST: data}.items():
                (partial / name).write_bytes(content)
                sync_file(partial / name)
            sync_folder(partial)
            if place.exists():  # the same version again, after a kill before `latest` was replaced
                old = place.with_name(f"{place.name}.partial-old")
                shutil.rmtree(old, ignore_errors=True)
                os.replace(place, old)
                shutil.rmtree(old)
            os.replace(partial, place)
            sync_folder(self.folder)
            if newest:
                replace_file(self.folder / LATEST, latest_of(manifest, data), durable=True)
        except OSError as error:
            with contextlib.suppress(OSError):
                shutil.rmtree(partial, ignore_errors=True)
            raise JoyError(
                f"cannot publish version {manifest['version']}: {error.strerror}",
                where=self.where,
                help="the last published version is whole; make room and start the same command "
                "again, it goes on behind that version",
            ) from None

    def remove(self, version: int, form: str) -> None:
        """Remove a form; half a removal is no form."""
        place = self.place(version, form)
        gone = place.with_name(f"{place.name}.partial-old")
        with contextlib.suppress(FileNotFoundError):
            os.replace(place, gone)
            shutil.rmtree(gone)


class RedisVersions:
    """Versions in Redis: files by content hash, then the manifest and `latest` in one step."""

    def __init__(self, url: str, prefix: str = PREFIX) -> None:
        from redis import Redis

        self.prefix = prefix
        self.where = f"{url}#{prefix}"
        self.redis: Any = Redis.from_url(url)

    def key(self, *parts: object) -> str:
        """A key below the prefix."""
        return ":".join([self.prefix, *map(str, parts)])

    def ask(self, name: str, *arguments: Any) -> Any:
        """One command; a server that is away is an error of its own."""
        from redis import RedisError

        try:
            return getattr(self.redis, name)(*arguments)
        except RedisError as error:
            raise away(error, self.where) from None

    def latest(self) -> dict[str, Any] | None:
        """What `latest` says; None before the first version."""
        data = self.ask("get", self.key(LATEST))
        return None if data is None else decode(data, self.where)

    def forms(self) -> list[tuple[int, str]]:
        """All forms."""
        members = self.ask("zrange", self.key("forms"), 0, -1)
        pairs = (member.decode().partition(":") for member in members)
        return sorted((int(version), form) for form, _, version in pairs)

    def manifest(self, version: int, form: str) -> Manifest:
        """The manifest of a form."""
        data = self.ask("get", self.key(form, version))
        if data is None:
            raise absent(version, form, self.where)
        return decode(data, self.where)

    def file(self, manifest: Manifest, name: str) -> bytes:
        """One file's bytes, compared with the manifest."""
        data = self.ask("get", self.key("file", manifest["files"][name]["sha256"]))
        if data is None:
            raise absent(manifest["version"], manifest["form"], f"{self.where} {name}")
        return check_hash(manifest, name, data, self.where)

    def publish(
        self, manifest: Manifest, files: Mapping[str, bytes], *, newest: bool = True
    ) -> None:
        """Files first; the manifest and, with `newest`, `latest` in one transaction."""
        from redis import RedisError

        version, form, data = manifest["version"], manifest["form"], encode(manifest)
        try:
            for name, content in files.items():
                self.redis.set(self.key("file", manifest["files"][name]["sha256"]), content)
            with self.redis.pipeline(transaction=True) as step:
                step.set(self.key(form, version), data)
                step.zadd(self.key("forms"), {f"{form}:{version}": version})
                if newest:
                    step.set(self.key(LATEST), latest_of(manifest, data))
                    step.publish(self.key("versions"), str(version))
                step.execute()
        except RedisError as error:
            raise away(error, self.where) from None

    def remove(self, version: int, form: str) -> None:
        """Remove a form, and the files that no other form names."""
        gone = {entry["sha256"] for entry in self.manifest(version, form)["files"].values()}
        for other in self.forms():
            if other != (version, form):
                files = self.manifest(*other)["files"].values()
                gone -= {entry["sha256"] for entry in files}
        self.ask("zrem", self.key("forms"), f"{form}:{version}")
        self.ask("delete", self.key(form, version), *(self.key("file", one) for one in gone))


VersionStore = FolderVersions | RedisVersions  # `forms`: (version, its kind), in order


def absent(version: int, form: str, where: str) -> JoyError:
    """What to say when a form is not there."""
    return JoyError(
        f"there is no {form} of version {version}",
        where=where,
        help="it may have been pruned: start from the newest snapshot",
    )


def away(error: Exception, where: str) -> JoyError:
    """What to say when Redis does not answer."""
    return JoyError(
        f"Redis does not answer: {error}", where=where, help="start it, or check the address"
    )


# -- content --------------------------------------------------------------------------------------


def pack(tensors: Mapping[str, Any]) -> bytes:
    """Tensors as the bytes of a safetensors file."""
    from safetensors.torch import save

    return save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})


def unpack(data: bytes) -> dict[str, Any]:
    """The tensors of a safetensors file."""
    from safetensors.torch import load

    return load(data)


def chain(store: VersionStore, version: int | None = None) -> list[Manifest]:
    """The snapshot and the deltas that make up a version (default: the newest), in order."""
    newest = store.latest()
    wanted = version if version is not None else (newest or {}).get("version")
    if wanted is None:
        raise JoyError("no version is published there", where=store.where)
    forms = [one for one in store.forms() if one[0] <= wanted]
    start = max((number for number, form in forms if form == "snapshot"), default=None)
    if start is None:
        raise absent(wanted, "snapshot", store.where)
    links = [store.manifest(start, "snapshot")]
    for number in range(start + 1, wanted + 1):
        link = store.manifest(number, "delta")
        if link["previous"] != links[-1]["identity"]:
            raise TornVersion(
                f"version {number} was not built on version {number - 1} that is there",
                where=store.where,
                help="two trainers publish to this place; give each its own",
            )
        links.append(link)
    return links


Table = dict[str, Any]  # ids int64 [N] sorted, rows [N, D]


def apply(table: Table, change: Mapping[str, Any]) -> Table:
    """A table's rows after a delta: `removed` dropped, `rows` set. Ids stay sorted.

    Every tensor but `ids` and `removed` has one row per id.
    """
    import torch

    touched = torch.cat([change["removed"], change["ids"]])
    kept = ~torch.isin(table["ids"], touched)
    ids = torch.cat([table["ids"][kept], change["ids"]])
    order = torch.argsort(ids)
    names = [name for name in change if name not in ("ids", "removed")]
    rows = {name: torch.cat([table[name][kept], change[name]])[order] for name in names}
    return {"ids": ids[order], **rows}


def replay(store: VersionStore, links: Sequence[Manifest]) -> dict[str, Any]:
    """The content of a chain: `dense` by parameter name, `tables` by name, `training` as stored.

    `training` of tables stands beside their rows, under `state.NAME`.
    """
    tables: dict[str, Table] = {}
    for link in links:
        state = training_of(store, link)
        for name, entry in link["tables"].items():
            content = unpack(store.file(link, entry["file"]))
            content |= {
                key.removeprefix(f"{name}/"): value
                for key, value in state.items()
                if key.startswith(f"{name}/")
            }
            if link["form"] == "snapshot":
                content.pop("removed", None)
            tables[name] = content if name not in tables else apply(tables[name], content)
    last = links[-1]
    dense = unpack(store.file(last, DENSE))
    training = {k: v for k, v in training_of(store, last).items() if k.startswith("dense/")}
    return {"dense": dense, "tables": tables, "training": training}


def training_of(store: VersionStore, link: Manifest) -> dict[str, Any]:
    """The optimiser state of a form; empty where it was left out."""
    return unpack(store.file(link, TRAINING)) if TRAINING in link["files"] else {}


def verify(store: VersionStore, links: Sequence[Manifest]) -> int:
    """Compare every file of a chain with its hash; returns the bytes that were read."""
    total = 0
    for link in links:
        for name in link["files"]:
            total += len(store.file(link, name))
        if (
            link["form"] == "delta"
            and identity(link["previous"], link["files"]) != link["identity"]
        ):
            raise TornVersion(
                f"version {link['version']} has another identity than it says", where=store.where
            )
    return total


def summary(manifest: Manifest) -> dict[str, Any]:
    """One form in a few figures."""
    tables = manifest.get("tables", {}).values()
    return {
        "version": manifest["version"],
        "form": manifest["form"],
        "identity": manifest["identity"],
        "bytes": sum(entry["bytes"] for entry in manifest["files"].values()),
        "rows_changed": sum(entry["ids"] for entry in tables),
        "samples": manifest.get("rows", {}).get("to", 0),
    }


def describe(files: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """The `files` of a manifest."""
    return {name: {"sha256": sha256(data), "bytes": len(data)} for name, data in files.items()}


def compact(store: VersionStore, version: int | None = None) -> Manifest:
    """Write the snapshot of a version from its chain; the manifest of the snapshot."""
    import torch

    links = chain(store, version)
    last = links[-1]
    if last["form"] == "snapshot":
        return last
    content = replay(store, links)
    files = {DENSE: pack(content["dense"])}
    training = dict(content["training"])
    tables = {}
    for name, table in content["tables"].items():
        entry = last["tables"][name]
        none = torch.empty(0, dtype=torch.int64)
        files[entry["file"]] = pack({"ids": table["ids"], "rows": table["rows"], "removed": none})
        tables[name] = {**entry, "ids": len(table["ids"]), "removed": 0}
        training |= {f"{name}/{k}": v for k, v in table.items() if k.startswith("state.")}
    if training:
        files[TRAINING] = pack(training)
    manifest = {
        **last,
        "form": "snapshot",
        "previous": None,
        "files": describe(files),
        "tables": tables,
    }
    store.publish(manifest, files, newest=False)
    return manifest


def prune(store: VersionStore, keep: int = 2) -> list[tuple[int, str]]:
    """Remove forms older than the `keep` newest snapshots; those that are gone."""
    forms = store.forms()
    snapshots = [number for number, form in forms if form == "snapshot"]
    if len(snapshots) <= keep:
        return []
    oldest = snapshots[-keep]
    gone = [(n, form) for n, form in forms if n < oldest or (n == oldest and form == "delta")]
    for number, form in gone:
        store.remove(number, form)
    return gone


# -- rows that were never published ---------------------------------------------------------------


def initial_rows(initial: Mapping[str, Any], ids: Any, dim: int) -> Any:
    """Rows [N, dim] of ids that no version has, as `initial` of a table says."""
    import torch

    if initial["name"] == "zero":
        return torch.zeros(len(ids), dim)
    about = (initial["table"], dim, initial["low"], initial["high"], initial["seed"])
    return torch.from_numpy(UniformRows(*about).rows(ids))
