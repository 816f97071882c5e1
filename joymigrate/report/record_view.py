"""What `train show` prints: the runs of a record that are read or learned, and what is lost."""

from __future__ import annotations

from joymigrate.report.text import Paint
from joymigrate.run.train.show import ShownData, ShownRecord, ShownRow, runs

SHADES = {True: (("green", "bold"), ("green",)), False: (("dim",), ("cyan", "dim"))}


def text(found: ShownData, *, color: bool) -> str:
    """Every record, then what is lost over all; in colour, tokens alternate between two shades."""
    paint = Paint(color)
    lines = [line for record in found.records for line in record_lines(record, paint)]
    reach = "all" if found.whole else "the first"
    lines.append(f"{reach} {found.counted} records give {found.samples} samples")
    lines += [f"  {line}" for line in found.lost.lines()]
    lines += [f"  {count} refused: {what}" for what, count in sorted(found.refused.items())]
    return "\n".join(lines) + "\n"


def record_lines(record: ShownRecord, paint: Paint) -> list[str]:
    """One record: a line of counts, then its runs, each as it would be quoted."""
    tokens = sum(len(row.tokens) for row in record.rows)
    learned = sum(sum(row.learned) for row in record.rows)
    told = [f"record {record.number}: {tokens} tokens, {learned} learned"]
    if record.cut:
        told.append(f"{record.cut} tokens cut at data.max_length")
    if record.dropped:
        told.append(f"left out: {record.dropped}")
    if record.unused:
        told.append(f"nobody reads {', '.join(record.unused)}")
    if record.refused:
        told = [f"record {record.number}: refused: {record.refused}"]
    lines = [paint(f"{record.where} {'; '.join(told)}", "bold")]
    for row in record.rows:
        lines += [f"  {row.name}"] if row.name else []
        lines += row_lines(row, paint)
    return [*lines, *(f"  {name:<8}{value}" for name, value in record.values.items()), ""]


def row_lines(row: ShownRow, paint: Paint) -> list[str]:
    """The runs of one row of tokens."""
    lines = []
    for learned, tokens in runs(row):
        shades = SHADES[learned]
        quoted = (repr(token)[1:-1] for token in tokens)
        whole = "".join(paint(one, *shades[at % 2]) for at, one in enumerate(quoted))
        lines.append(f"  {'learned' if learned else 'read':<8}{whole}")
    return lines
