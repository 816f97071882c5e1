"""The rows of our documents as a pandas frame, and as CSV or Parquet.

One row per finding, operator, run, value or step, with the keys of the JSON document as columns. A
list becomes words with spaces between in CSV (`float16 float32`), and stays a list in a frame;
an object becomes one column per key (`phases.forward`).
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.extras import how_to_get, need
from joymigrate.files import write_output, write_stdout

if TYPE_CHECKING:
    import pandas

FORMATS = ("csv", "parquet")
# Which list of a document is its table; a document that names none is one row itself.
ROWS = {
    "scan": "findings",
    "rewrite": "edits",
    "coverage": "ops",
    "oplist": "ops",
    "rehearsal": "fallbacks",
    "verdict": "records",
    "kernels": "kernels",
    "models": "models",
    "tasks": "tasks",
    "chips": "chips",
    "plan": "placements",
    "history": "facts",
    "simulation": None,
    "evaluation": None,
}


def noun(document: Mapping[str, Any]) -> str:
    """`coverage` of `joymigrate.coverage/1`."""
    return str(document.get("schema", "")).removeprefix("joymigrate.").partition("/")[0]


def rows_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a document. Raises JoyError for one that has no table."""
    name = noun(document)
    if name not in ROWS:
        raise JoyError(
            f"a document of the kind '{name}' has no table.{did_you_mean(name, ROWS)}",
            help=f"tables: {', '.join(ROWS)}",
        )
    key = ROWS[name]
    if key is not None:
        return [dict(row) for row in document.get(key, ())]
    several = document.get("policies")
    return [dict(row) for row in (several if isinstance(several, list) else [document])]


def columns_of(document: Mapping[str, Any]) -> list[str]:
    """The columns that every row of a document has, as its schema says: also where it has none."""
    from joymigrate.schema import find, json_schema

    key = ROWS[noun(document)]
    schema = json_schema(find(noun(document)))
    return list(list_required(schema["properties"][key]["items"] if key else schema))


def list_required(schema: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The keys that an object must have, those of objects inside as `a.b`."""
    for key in schema.get("required", ()):
        inside = schema["properties"].get(key, {})
        if inside.get("type") == "object" and inside.get("required"):
            yield from list_required(inside, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def frame_of(document: Mapping[str, Any]) -> pandas.DataFrame:
    """The table of a document. Raises JoyError for one that has none."""
    rows = rows_of(document)
    return frame(rows, () if rows else columns_of(document))


def frame(rows: Iterable[Mapping[str, Any]], columns: Iterable[str] = ()) -> pandas.DataFrame:
    """Rows as a frame: columns in the order of their first row, objects as `a.b`; `columns` where
    there is no row."""
    import pandas

    listed = [dict(row) for row in rows]
    return pandas.json_normalize(listed) if listed else pandas.DataFrame(columns=list(columns))


def encode(table: pandas.DataFrame, form: str) -> bytes:
    """A frame as CSV (UTF-8, one head line) or Parquet. Raises JoyError without pyarrow."""
    if form == "parquet" and not has_pyarrow():
        raise JoyError("Parquet needs pyarrow", help=how_to_get("pyarrow"))
    if form == "csv":
        text = table.map(plain).to_csv(index=False, lineterminator="\n")
        return str(text).encode("utf-8", "backslashreplace")
    for column in table.columns:
        if table[column].map(lambda value: isinstance(value, list | dict)).any():
            table[column] = table[column].map(as_json)  # lists of different kinds have no type
    out = io.BytesIO()
    table.to_parquet(out, engine="pyarrow", index=False)
    return out.getvalue()


def has_pyarrow() -> bool:
    """Whether Parquet can be written."""
    try:
        need("train", "pyarrow", what="Parquet")
    except JoyError:
        return False
    return True


def plain(value: Any) -> Any:
    """A cell of CSV: a list of words in one line, anything deeper as JSON."""
    if isinstance(value, list | dict):
        words = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return " ".join(value) if words else as_json(value)
    return value


def as_json(value: Any) -> Any:
    """A cell as JSON text; nothing stays nothing."""
    return (
        value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    )


def write(table: pandas.DataFrame, form: str, output: Path | None) -> None:
    """Write a frame to a file in one step, or to stdout. Parquet is binary: it goes to a file."""
    to_stdout = output is None or str(output) == "-"
    if to_stdout and form == "parquet" and sys.stdout.isatty():
        raise JoyError("Parquet is not text", help="name a file with -o")
    data = encode(table, form)
    if output is not None and not to_stdout:
        write_output(output, data)
        return
    write_stdout(data)
