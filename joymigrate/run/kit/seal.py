"""Sealed predictions: what was said about a chip before it was seen, with a hash and a time."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from joymigrate import __version__
from joymigrate.chips import Sku, get
from joymigrate.errors import JoyError
from joymigrate.files import read_document, write_output
from joymigrate.profile.coverage import CoverageCall
from joymigrate.profile.support import SupportStatus
from joymigrate.profile.table import CallSignature
from joymigrate.run.kit import bound

SCHEMA = "joymigrate.seal/1"


def digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of all of a seal but the hash itself."""
    body = {key: value for key, value in document.items() if key != "sha256"}
    text = json.dumps(body, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def of_rehearsal(
    result: Mapping[str, Any],
    signatures: Sequence[Mapping[str, Any]],
    measured: Sequence[Mapping[str, Any]],
    sku: Sku | None,
    unit_of: Callable[[str], str | None],
    rates: Mapping[str, tuple[float, str]] | None = None,
) -> dict[str, Any]:
    """The predictions of a rehearsal (`rehearsal/1`). Of times there is a lower bound only."""
    distinct = join_calls(signatures)
    package, version = next(iter(result["package"].items()))
    fallbacks = {row["op"] for row in result["fallbacks"]}
    rows = [{**row, "grade": "rehearsed", "source": f"{package} {version}"} for row in distinct]
    library = get(result["chip"]).backend.casefold()
    asked = kernels(result).items()
    collectives = {op: n for op, n in asked if op.casefold().startswith(library)}
    return finish(
        "rehearsal",
        result["chip"],
        {package: version, "soc": result["soc"]},
        {
            "signatures": rows,
            "fallbacks": sorted(fallbacks),
            "refusals": list(result.get("refusals") or ()),
            "kernels": kernels(result),
            "kernel_sequence": list(result.get("kernel_sequence") or ()),
            "peak_memory_bytes": dict(result["peak_memory_bytes"]),
            "collectives": collectives,
            "precision": result.get("precision"),
            "time_lower_bound": bound.lower_bound(rows, sku, rates),
            "first_divergence": bound.first_divergence(rows, str(result["precision"]), unit_of),
            "measured": list(measured),
        },
    )


def join_calls(signatures: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The distinct calls of all processes, in the order of the first, with their calls added up."""
    distinct: dict[str, dict[str, Any]] = {}
    for row in signatures:
        plain = {name: value for name, value in row.items() if name != "calls"}
        known = distinct.setdefault(json.dumps(plain, sort_keys=True), {**plain, "calls": 0})
        known["calls"] += row.get("calls", 1)
    return list(distinct.values())


def kernels(result: Mapping[str, Any]) -> dict[str, int]:
    """How often each kernel was asked for."""
    return dict(result.get("kernels") or {})


NOT_RECORDED = "<not recorded>"
OUTCOMES = {
    SupportStatus.CPU_FALLBACK: "fallback",
    SupportStatus.MISSING: "refused",
    SupportStatus.UNKNOWN: None,
}


def of_coverage(document: Mapping[str, Any], calls: Iterable[CoverageCall]) -> dict[str, Any]:
    """The predictions of `coverage/1` for the distinct calls of its recordings.

    What a recording holds of arguments is types, shapes and strides; numbers are null.
    """
    rows: list[dict[str, Any]] = [
        {
            "op": call.name, "args": arguments(call.signature), "kwargs": {}, "calls": call.calls,
            "outcome": OUTCOMES.get(call.support.status, "accepted"),
            "status": call.support.status.value,
            "messages": [str(call.support.note)] if call.support.note else [],
            "grade": call.support.grade, "source": str(call.support.source),
        }
        for call in calls
    ]  # fmt: skip
    versions = {"version": document.get("version")}
    return finish("coverage", document["chip"], versions, {"signatures": rows})


def arguments(signature: CallSignature) -> list[Any]:
    """The arguments of a recorded call, as far as it was recorded."""
    found: list[Any] = []
    for number, dtype in enumerate(signature.dtypes):
        kind = signature.kinds[number] if number < len(signature.kinds) else "value"
        if kind != "tensor" or not dtype:
            found.append(None if kind == "none" else NOT_RECORDED)
            continue
        shape = signature.dims[number] if number < len(signature.dims) else None
        strides = signature.strides[number] if number < len(signature.strides) else None
        tensor = {"dtype": dtype, "shape": list_lengths(shape), "strides": list_lengths(strides)}
        found.append({"tensor": tensor})
    return found


def list_lengths(lengths: Any) -> list[Any] | None:
    """Lengths as a list; None where they were not recorded."""
    return None if lengths is None else list(lengths)


def finish(
    kind: str, chip: str, versions: Mapping[str, Any], predictions: Mapping[str, Any]
) -> dict[str, Any]:
    """The document with its time and hash."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    document: dict[str, Any] = {
        "schema": SCHEMA, "kind": kind, "chip": chip, "sealed": now,
        "joymigrate": __version__, "versions": dict(versions), "predictions": dict(predictions),
    }  # fmt: skip
    return {**document, "sha256": digest(document)}


def write(document: Mapping[str, Any], path: Path) -> None:
    """Write a seal, whole or not at all."""
    write_output(path, (json.dumps(document, ensure_ascii=False, indent=1) + "\n").encode())


def read(path: Path) -> dict[str, Any]:
    """A seal whose hash fits; JoyError for anything else."""
    raw = read_document(path, SCHEMA, "a seal", help="joymigrate rehearse --seal FILE")
    if raw.get("sha256") != digest(raw):
        raise JoyError(
            "the seal is broken: its content was changed after it was sealed", where=str(path)
        )
    return raw


def signatures_of(records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The distinct calls of all processes of a rehearsal."""
    return [row for record in records for row in record.get("signatures") or ()]
