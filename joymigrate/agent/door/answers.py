"""Answers for a reader that pays by the word: small, the worst first, the rest behind a cursor."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

MOST_BYTES = 4_000
LONG = 320  # characters of one text
DROPPED = {"texts", "files", "digests", "edits", "end_line", "end_column", "sha256", "asked"}
# The list that a document is about, by the noun of its schema.
LISTS = {
    "scan": "findings", "rewrite": "edits", "coverage": "ops", "advice": "advice",
    "names": "names", "rule": "examples", "rules": "rules", "status": "steps",
    "rehearsal": "refusals", "verdict": "records", "text": "lines",
    "server-runs": "runs",
}  # fmt: skip
# Worst first, by the words that documents use.
WORST = (
    "error", "failed", "fail", "stopped", "missing", "report", "inconclusive", "pending",
    "warning", "cpu_fallback", "unknown", "unsafe", "running", "note", "skipped", "composite",
    "fused", "safe", "done", "native", "pass",
)  # fmt: skip
RANK = {word: number for number, word in enumerate(WORST)}


def dump(found: Any) -> str:
    """Plain data as short JSON."""
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def size(found: Any) -> int:
    """The bytes of an answer."""
    return len(dump(found).encode("utf-8", "replace"))


def shorten(document: Mapping[str, Any], cursor: int = 0, most: int = MOST_BYTES) -> dict[str, Any]:
    """The document in at most `most` bytes: its facts, then rows from `cursor`, the worst first.

    `more` says how many rows are behind `cursor`; nothing is left out without a word. A next step
    is short already.
    """
    noun = str(document.get("schema", "")).partition(".")[2].partition("/")[0]
    if noun == "next" and size(document) <= most:
        return dict(document)
    key = LISTS.get(noun, "")
    rows = document.get(key)
    rest = {k: v for k, v in document.items() if k != key or not isinstance(rows, list)}
    ordered = order(rows, noun) if isinstance(rows, list) else []
    for deep, text in ((6, LONG), (4, 200), (3, 120), (2, 80), (1, 40)):
        head = {name: trim(value, deep, text, 6) for name, value in rest.items()
                if name not in DROPPED}  # fmt: skip
        room = most - size(head) - 80
        if room > most // 3 or not ordered:
            break
    if size(head) > most:
        head = {name: head[name] for name in ("schema", "verdict", "error", "next") if name in head}
    if not isinstance(rows, list):
        return head
    shown: list[Any] = []
    for row in ordered[cursor:]:
        small = row if noun == "text" else trim(row, 4, LONG, 8)
        for limit in (160, 60):
            if shown or size(small) <= room:
                break
            small = row[:room] if noun == "text" else trim(row, 3, limit, 3)
        room -= size(small) + 1
        if room < 0 and shown:
            break
        shown.append(small)
    head[key] = shown
    if cursor:
        head["from"] = cursor
    left = len(ordered) - cursor - len(shown)
    if left > 0:
        head["more"], head["cursor"] = left, cursor + len(shown)
    return head


def order(rows: Sequence[Any], noun: str) -> list[Any]:
    """Rows with the worst first; text and runs keep their order, the latest step of the ledger is
    the first."""
    if noun == "status":
        return list(reversed(rows))
    if noun in ("text", "server-runs"):
        return list(rows)
    return sorted(rows, key=rank)


def rank(row: Any) -> int:
    """How bad a row is: 0 the worst."""
    if not isinstance(row, Mapping):
        return len(WORST)
    words = (row.get(key) for key in ("status", "tier", "verdict", "level", "severity"))
    return min((RANK[w] for w in words if isinstance(w, str) and w in RANK), default=len(WORST))


def trim(value: Any, deep: int, text: int, rows: int) -> Any:
    """A value with long texts cut, lists shortened and deep parts counted; what is cut ends in …"""
    if isinstance(value, str):
        return value if len(value) <= text else f"{value[: text - 1].rstrip()}…"
    if isinstance(value, Mapping):
        if deep <= 0:
            return f"… {len(value)} keys"
        kept = {k: v for k, v in value.items() if k not in DROPPED and v not in (None, "", [], {})}
        items = list(kept.items())
        found = {str(k)[:text]: trim(v, deep - 1, text, rows) for k, v in items[: 4 * rows]}
        return found | ({"…": f"{len(items) - 4 * rows} more"} if items[4 * rows :] else {})
    if isinstance(value, list | tuple):
        if deep <= 0:
            return f"… {len(value)} items"
        kept_rows = [trim(one, deep - 1, text, rows) for one in value[:rows]]
        return [*kept_rows, f"… {len(value) - rows} more"] if len(value) > rows else kept_rows
    return value
