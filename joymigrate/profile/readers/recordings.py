"""Recordings of `joymigrate profile record`: JSON lines, `joymigrate.trace/1`, plain or gzip."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.language import Text
from joymigrate.profile.readers.stream import open_bytes, was_cut
from joymigrate.profile.table import PHASES, CallSignature, OpTable, Trace

SCHEMA = "joymigrate.trace/1"
# What the optimiser would call on an accelerator, where torch takes another way on the CPU.
KINDS = ("op", "accelerator_op")
CHECK = "aten::_linalg_check_errors"
EX = re.compile(r"aten::_?linalg_(?P<name>\w+)_ex\b")
EARLY = "the program ended before every step was recorded"
WHOLE = "no step ended in this program: all of its calls are added up"


def read(path: Path) -> Trace:
    """One recording. A line that is cut short at the end of the file is left out."""
    table = OpTable()
    parents: dict[int, tuple[str, ...]] = {}
    notes: list[str] = []
    watched: list[str] = []
    known: set[Any] = set()
    beside: list[tuple[int, dict[str, Any]]] = []
    seen: dict[int, str] = {}
    unread: list[str] = []
    checks: dict[str, set[str]] = {}
    header: Mapping[str, Any] | None = None
    for number, item in lines(path, notes):
        if header is None:
            header = check(item, path)
            continue
        if item.get("kind") == "watched":
            watched.append(str(item.get("until")))
        if item.get("kind") == "unread":
            unread.append(str(item.get("what")))
        if item.get("kind") == "seen":
            beside.append((number, item))
        if item.get("op") == CHECK and len(item.get("args") or ()) > 1:
            checks.setdefault(str(item.get("where") or ""), set()).add(str(item["args"][1]))
        if item.get("kind") in KINDS:
            known.add(identity(item))
            row = add(table, item, f"{path}:{number}")
            if item.get("parents"):
                parents[row] = tuple(str(name) for name in item["parents"])
    if header is None:
        raise JoyError("an empty recording", where=str(path))
    if header.get("complete") is False:
        notes.append(WHOLE if header.get("steps_seen") == 0 else EARLY)
    for number, item in beside:
        if (key := identity(item)) not in known:
            known.add(key)
            row = add(table, {**item, "self_us": 0}, f"{path}:{number}")
            if item.get("parents"):
                parents[row] = tuple(str(name) for name in item["parents"])
            seen[row] = "exact" if item.get("exact") else "name"
    check_parents(table, checks, parents)
    stopped = [why for why in watched if why not in ("exit", "killed")]
    if stopped:
        notes.append(Text("not watched any more from {reason} on", reason=stopped[0]))
    elif not watched and header.get("steps_seen"):
        notes.append("what came after the recorded steps was not watched")
    if unread:
        names = ", ".join(sorted(set(unread)))
        notes.append(
            Text("an export's graph does not show what is inside of: {names}", names=names)
        )
    environment = dict(header.get("environment") or {})
    return Trace(
        path,
        "recorded",
        table,
        overloads=True,
        tree=False,
        steps=int(header.get("steps") or 0),
        device=str(header.get("device") or ""),
        environment={**environment, "torch": header.get("torch")},
        notes=tuple(notes),
        inside=parents,
        seen=seen,
        watched=tuple(watched),
    )


def check_parents(
    table: OpTable, checks: Mapping[str, set[str]], parents: dict[int, tuple[str, ...]]
) -> None:
    """Name the function around an operator whose errors torch checks on the same line.

    `linalg.cholesky` is `linalg_cholesky_ex` and a check that names it; nothing else of it is seen.
    """
    for row in range(len(table)):
        found = EX.match(table.names[table.name[row]])
        place = table.places[table.place[row]]
        if found and place and f"linalg.{found['name']}" in checks.get(place, ()):
            parents[row] = (*parents.get(row, ()), f"aten::linalg_{found['name']}")


def identity(item: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes a call seen outside of the exact step the same as one that is known."""
    dtypes = tuple(v["dtype"] for v in item.get("args") or () if is_tensor(v))
    return (item.get("op"), item.get("overload"), dtypes, item.get("phase"))


def lines(path: Path, notes: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of the file with their line numbers."""
    number = 0
    with open_bytes(path) as file:
        for number, data in enumerate(file, 1):
            if not data.strip():
                continue
            try:
                item = json.loads(data.decode("utf-8", "replace"), strict=False)
            except RecursionError:
                raise JoyError("nested too deeply", where=f"{path}:{number}") from None
            except ValueError:
                if data.endswith(b"\n"):
                    raise JoyError("not a line of JSON", where=f"{path}:{number}") from None
                notes.append("the last line is cut short and was left out")
                return
            if not isinstance(item, dict):
                raise JoyError("not an object", where=f"{path}:{number}")
            yield number, item
        if was_cut(file):
            notes.append(f"the file is cut short after line {number}")


def check(header: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """The first line, if it is one of ours."""
    if header.get("schema") != SCHEMA:
        raise JoyError(
            f"schema {header.get('schema')!r} is not one this joymigrate reads",
            where=f"{path}:1",
            help=f"the first line says {SCHEMA}",
        )
    return header


def add(table: OpTable, item: Mapping[str, Any], where: str) -> int:
    """One signature as a row."""
    name = item.get("op")
    if not isinstance(name, str) or not name:
        raise JoyError("an operator without a name", where=where)
    overload = item.get("overload")
    phase = str(item.get("phase") or "")
    try:
        calls, self_us = int(item.get("calls") or 1), float(item.get("self_us") or 0)
    except (TypeError, ValueError):
        raise JoyError("calls and self_us are numbers", where=where) from None
    if calls < 0 or self_us < 0 or calls >= 1 << 62:
        raise JoyError(f"{calls} calls in {self_us} µs", where=where)
    self_us = self_us if isfinite(self_us) else 0.0
    return table.add(
        table.name_id(f"{name}.{overload}" if overload else name),
        signature=table.signature_id(signature_of(item)),
        dur=self_us,
        self_us=self_us,
        place=table.place_id(str(item.get("where") or "")),
        phase=PHASES.index(phase) if phase in PHASES else PHASES.index("other"),
        calls=calls,
    )


def signature_of(item: Mapping[str, Any]) -> CallSignature:
    """The arguments in order, keyword arguments behind."""
    values = [*(item.get("args") or ()), *(item.get("kwargs") or {}).values()]
    parts = [argument(value) for value in values]
    for value in values:  # a list may hold several dtypes: each has to be judged
        other = {dtype_of(v): v for v in value if is_tensor(v)} if isinstance(value, list) else {}
        parts += [argument([v]) for v in list(other.values())[1:]]
    dtypes, dims, strides, kinds = zip(*parts, strict=True) if parts else ((), (), (), ())
    return CallSignature(dtypes, dims, strides, kinds)


def argument(value: Any) -> tuple[str, Any, Any, str]:
    """dtype, dims, strides and kind of one argument."""
    if is_tensor(value):
        return dtype_of(value), *shape_of(value), "tensor"
    if isinstance(value, list) and value and all(is_tensor(v) or v is None for v in value):
        found = [v for v in value if v is not None]
        if found:
            dims = tuple(shape_of(v)[0] for v in found)
            strides = tuple(shape_of(v)[1] for v in found)
            return dtype_of(found[0]), dims, strides, "tensors"
    return "", None, None, "none" if value is None else "value"


def dtype_of(value: Mapping[str, Any]) -> str:
    """The dtype, with the layout where it is none with a place for each number."""
    layout = value.get("layout")
    return f"{layout} {value['dtype']}" if layout else str(value["dtype"])


def is_tensor(value: Any) -> bool:
    """Whether an argument describes a tensor."""
    return isinstance(value, dict) and "dtype" in value


def shape_of(value: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Dims and strides of a tensor."""
    return numbers(value.get("shape") or ()), numbers(value.get("stride") or ())


def numbers(values: Iterable[Any]) -> tuple[int, ...]:
    """Whole numbers of a list; what is none (a symbolic size) counts as -1."""
    return tuple(v if isinstance(v, int) else -1 for v in values)


def kind_of(start: bytes, text: str) -> str:
    """recorded for a first line that names a schema of ours."""
    first = text.partition("\n")[0]
    return "recorded" if re.match(r'\{\s*"schema"\s*:\s*"joymigrate\.', first) else ""


RANK = 1
READERS = {"recorded": read}
