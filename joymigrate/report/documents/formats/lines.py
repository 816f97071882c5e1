"""JSON lines: a project's ledger, a run's metrics. A last line that was cut off is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError


def matches(path: Path, head: bytes) -> bool:
    """By its name."""
    return path.suffix == ".jsonl"


def read(path: Path) -> dict[str, Any]:
    """All lines as one document, by the schema that they name; without one, metrics."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    rows: list[dict[str, Any]] = []
    cut = 0
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            if number < len(lines):
                raise JoyError(
                    "not JSON", where=f"{path}:{number}", help="name a file of joymigrate"
                ) from None
            cut = 1
            continue
        if not isinstance(row, dict):
            raise JoyError("not an object", where=f"{path}:{number}", help="JSON lines of objects")
        rows.append(row)
    schemas = sorted({str(row["schema"]) for row in rows if "schema" in row})
    if len(schemas) > 1:
        raise JoyError(
            f"lines of several schemas: {', '.join(schemas)}",
            where=str(path),
            help="name a file with one kind of line",
        )
    schema = schemas[0] if schemas else "joymigrate.metrics/1"
    kept = [{key: value for key, value in row.items() if key != "schema"} for row in rows]
    return {"schema": schema, "lines": len(rows), "cut_off_lines": cut, "rows": kept}
