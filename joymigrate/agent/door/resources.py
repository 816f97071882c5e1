"""What can be read beside the tools: rules, operators of a chip, what joymigrate can't do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from joymigrate import chips
from joymigrate.agent.door.answers import dump, shorten
from joymigrate.data import rules_root
from joymigrate.errors import JoyError
from joymigrate.report import oplist as operators
from joymigrate.report import rules as book
from joymigrate.rewrite.rules import load

SCHEME = "joymigrate://"
FORMS = re.compile(
    r"joymigrate://(rules|limits|operators)(?:/([\w.-]{1,40}))?(?:/([\w.:-]{1,80}))?"
)
TEMPLATES = {
    "joymigrate://rules/{rule}": "One rule with its examples.",
    "joymigrate://operators/{chip}": "A chip's operators, counted by status.",
    "joymigrate://operators/{chip}/{operator}": "The operators of a chip whose name has a part.",
}


@dataclass(frozen=True, slots=True)
class AgentPage:
    """A resource: its address, its name, what it holds."""

    uri: str
    name: str
    about: str


def list_pages() -> Iterator[AgentPage]:
    """Those without a parameter."""
    yield AgentPage(
        f"{SCHEME}rules", "rules", "Every rule: what a scan looks for, and how far it goes."
    )
    yield AgentPage(
        f"{SCHEME}limits", "limits", "What joymigrate can't do, and what nobody measured."
    )
    for chip in chips.all_chips().values():
        if not chip.origin:
            yield AgentPage(
                f"{SCHEME}operators/{chip.name}", f"operators of {chip.name}", chip.title
            )


def read_page(uri: str) -> str:
    """A resource as text; an address that there is not raises `JoyError`."""
    found = FORMS.fullmatch(uri)
    if found is None:
        raise JoyError(f"there is no resource {uri[:100]!r}", help="list the resources")
    kind, first, second = found.groups()
    if kind == "limits":
        return read_limits()
    origin = chips.origin()
    if kind == "rules":
        chip = chips.target(None)
        if first:
            return dump(shorten(book.document(book.explain(first, chip, origin))))
        rows = load(chip, origin).values()
        return "\n".join(f"{one.id} {one.tier.value} {one.name}: {one.title}" for one in rows)
    return read_operators(first, second)


def read_operators(name: str | None, part: str | None) -> str:
    """The operators of a chip with a part of a name in them; without one, how many there are."""
    from joymigrate.profile.oplist import of

    known = of(chips.target(name))
    rows = [row for row in known.rows() if part and part in f"{row[0]}.{row[1]}"]
    document = operators.document(known, rows if part else list(known.rows()))
    if not part:
        return dump({k: v for k, v in document.items() if k != "ops"})
    return dump(shorten({**document, "schema": "joymigrate.coverage/1"}))


def read_limits() -> str:
    """The list of limits, as the checkout or the wheel has it."""
    for path in (
        rules_root().parent / "docs" / "reference" / "limits.yaml",
        Path(__file__).parents[2] / "_limits.yaml",
    ):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise JoyError("the list of limits is not in this installation", help="reinstall joymigrate")
