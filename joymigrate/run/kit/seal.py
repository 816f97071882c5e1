"""Sealed predictions: what was said about a chip before it was seen, with a hash and a time."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from joymigrate import __version__
from joymigrate.errors import JoyError
from joymigrate.files import write_output

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
) -> dict[str, Any]:
    """The predictions of a rehearsal (`rehearsal/1`). Nothing is said about times."""
    distinct = {json.dumps(row, sort_keys=True): dict(row) for row in signatures}
    fallbacks = {row["op"] for row in result["fallbacks"]}
    rows = [
        {**row, "grade": "rehearsed", "source": f"torch_npu {result['package']['torch_npu']}"}
        for row in distinct.values()
    ]
    collectives = {op: n for op, n in kernels(result).items() if op.startswith("Hccl")}
    return finish(
        "rehearsal",
        result["chip"],
        {"torch_npu": result["package"]["torch_npu"], "soc": result["soc"]},
        {
            "signatures": rows,
            "fallbacks": sorted(fallbacks),
            "refusals": list(result.get("refusals") or ()),
            "kernels": kernels(result),
            "kernel_sequence": list(result.get("kernel_sequence") or ()),
            "peak_memory_bytes": dict(result["peak_memory_bytes"]),
            "collectives": collectives,
            "precision": result.get("precision"),
            "time_lower_bound_us": None,
            "first_divergence": None,
            "measured": list(measured),
        },
    )


def kernels(result: Mapping[str, Any]) -> dict[str, int]:
    """How often each kernel was asked for."""
    return dict(result.get("kernels") or {})


def of_coverage(document: Mapping[str, Any]) -> dict[str, Any]:
    """The predictions of `coverage/1`: per operator and dtypes, without shapes."""
    outcomes = {"cpu": "fallback", "missing": "refused", "unknown": None}
    rows = []
    for op in document["ops"]:
        status = str(op["status"])
        name = str(op["op"]) + (f".{op['overload']}" if op.get("overload") else "")
        rows.append({
            "op": name, "args": [], "kwargs": {}, "dtypes": op.get("dtypes"),
            "outcome": outcomes.get(status, "accepted"), "status": status,
            "messages": [str(op["note"])] if op.get("note") else [],
            "grade": "documented", "source": op.get("source"),
        })  # fmt: skip
    versions = {"version": document.get("version")}
    return finish("coverage", document["chip"], versions, {"signatures": rows})


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
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JoyError(f"cannot read: {error.strerror}", where=str(path)) from None
    except ValueError as error:
        raise JoyError(f"not JSON: {error}", where=str(path)) from None
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise JoyError("not a seal", where=str(path), help="joymigrate rehearse --seal FILE")
    if raw.get("sha256") != digest(raw):
        raise JoyError(
            "the seal is broken: its content was changed after it was sealed", where=str(path)
        )
    return raw


def signatures_of(records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The distinct calls of all processes of a rehearsal."""
    return [row for record in records for row in record.get("signatures") or ()]
