"""The contract `joymigrate.oplist/1`, and lists, their differences and their validation as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from joymigrate.evidence import count_grades, grade_line
from joymigrate.profile.oplist.compare import OplistChange, Validation
from joymigrate.profile.oplist.lists import OpList
from joymigrate.profile.support import Support
from joymigrate.report.fields import fields

SCHEMA = "joymigrate.oplist/1"
DIFF_SCHEMA = "joymigrate.oplist-diff/1"
VALIDATION_SCHEMA = "joymigrate.oplist-validation/1"
Row = tuple[str, str, Support]


def document(oplist: OpList, rows: Iterable[Row]) -> dict[str, Any]:
    """A list as plain data."""
    made = [row(*one) for one in rows]
    counts: dict[str, int] = {}
    for one in made:
        counts[one["status"]] = counts.get(one["status"], 0) + 1
    return {
        "schema": SCHEMA,
        **fields(oplist, "chip=chip.name version torch"),
        "provenance": fields(oplist.release, "source commit date"),
        "fallback": oplist.resolver.absent.value,
        "summary": counts,
        "grades": count_grades("documented" for _ in made),
        "ops": made,
    }


def row(op: str, overload: str, support: Support) -> dict[str, Any]:
    """One operator."""
    more = fields(support, "alternative kernels contiguous")
    return {
        "op": op,
        "overload": overload,
        **fields(support, "status dtypes note source"),
        **{key: value for key, value in more.items() if value},
    }


def text(oplist: OpList, rows: Sequence[Row]) -> str:
    """One line per operator, and what the list is."""
    lines = []
    for op, overload, support in rows:
        name = f"{op}.{overload}" if overload else op
        parts = [" ".join(support.dtypes), support.note]
        if support.alternative:
            parts.append(f"instead: {support.alternative}")
        lines.append(f"{support.status.value:<12} {name}  {'; '.join(p for p in parts if p)}")
    counts: dict[str, int] = {}
    for *_, support in rows:
        counts[support.status.value] = counts.get(support.status.value, 0) + 1
    said = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
    lines.append(
        f"{oplist.chip.name} {oplist.version}, resolved against torch {oplist.torch}: "
        f"{len(rows)} operators ({said or 'none'}). Source: {oplist.release}."
    )
    lines.append(grade_line(count_grades("documented" for _ in rows)))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def diff_document(before: OpList, after: OpList, changes: Sequence[OplistChange]) -> dict[str, Any]:
    """Two lists as plain data."""
    return {
        "schema": DIFF_SCHEMA,
        "before": side(before),
        "after": side(after),
        "grades": count_grades("documented" for _ in changes),
        "changes": [
            {"op": change.name, "before": half(change.before), "after": half(change.after)}
            for change in changes
        ],
    }


def side(oplist: OpList) -> dict[str, Any]:
    """Which list one side is."""
    return {**fields(oplist, "chip=chip.name version"), "source": str(oplist.release)}


def half(support: Support | None) -> dict[str, Any] | None:
    """What one side says."""
    return None if support is None else fields(support, "status dtypes note")


def diff_text(before: OpList, after: OpList, changes: Sequence[OplistChange]) -> str:
    """One line per change, gains first."""
    lines = []
    for change in sorted(changes, key=lambda c: (not c.gained, c.name)):
        sign = "+" if change.gained else "-"
        one = change.before.status.value if change.before else "absent"
        two = change.after.status.value if change.after else "absent"
        if one == two:
            sign, two = "~", dtype_change(change)
        lines.append(f"{sign} {change.name}  {one} → {two}")
    gained = sum(1 for change in changes if change.gained)
    lines.append(grade_line(count_grades("documented" for _ in changes)))
    lines.append(
        f"{before.chip.name} {before.version} → {after.chip.name} {after.version}: "
        f"{len(changes)} changes, {gained} better."
    )
    return "\n".join(lines) + "\n"


def dtype_change(change: OplistChange) -> str:
    """Dtypes that came and went."""
    one = set(change.before.dtypes) if change.before else set()
    two = set(change.after.dtypes) if change.after else set()
    return " ".join([*(f"+{d}" for d in sorted(two - one)), *(f"-{d}" for d in sorted(one - two))])


def validation_document(oplist: OpList, found: Validation) -> dict[str, Any]:
    """A validation as plain data."""
    return {
        "schema": VALIDATION_SCHEMA,
        **side(oplist),
        "dispatcher": fields(found, "torch package"),
        **fields(found, "overloads equal share"),
        "generated": fields(found, "overloads=generated equal=generated_equal"),
        "own": fields(found, "operators=own equal=own_equal"),
        "differences": [
            fields(one, "op=name listed dispatcher reason") for one in found.differences
        ],
    }


def validation_text(oplist: OpList, found: Validation) -> str:
    """Every difference with its reason, and the counts."""
    lines = [
        f"{one.name}: listed {one.listed}, dispatcher {one.dispatcher} ({one.reason})"
        for one in found.differences
    ]
    lines.append(
        f"{oplist.chip.name} {oplist.version} against {found.package}, torch {found.torch}: "
        f"{found.equal} of {found.overloads} overloads of torch equal "
        f"({100 * found.share:.2f} %), {found.generated_equal} of {found.generated} generated, "
        f"{found.own_equal} of {found.own} of the chip's own."
    )
    return "\n".join(lines) + "\n"
