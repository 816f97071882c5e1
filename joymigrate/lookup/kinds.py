"""A name as everything that it is: each kind with what is known, and names that are near."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from joymigrate import chips
from joymigrate.chips import Chip
from joymigrate.chips.advice import normalise_name
from joymigrate.language import Text
from joymigrate.lookup import codes, list_entries, rewrite_lookup
from joymigrate.lookup.statements import Described, Statement, join

OPERATOR = re.compile(r"\w+::\w+(?:\.\w+)?")
NAME = re.compile(r"[A-Za-z_.][\w.-]*(?::\d+)?")
WRITES = (
    "what a rewrite writes; not whether the chip computes the same: rehearse and verify say that"
)
LISTS = (
    "the lists of these chips and releases; `joymigrate profile coverage` judges a whole program"
)
ADVICE = "advice as it was read on its day; `joymigrate doctor` looks at this machine"
MOST = 6


def find(name: str, chip: Chip, origin: Chip) -> list[Described]:
    """Everything that is known under a name, this chip first; empty where nothing is."""
    others = [one for one in chips.all_chips().values() if not one.origin and one is not chip]
    targets = [chip, *sorted(others, key=lambda one: one.name)]
    return [one for one in describe(name.strip(), targets, origin) if one.statements]


def describe(name: str, targets: list[Chip], origin: Chip) -> Iterator[Described]:
    """Each kind of thing that the name may be; one without statements is none."""

    def told(kind: str, found: Iterator[Statement], covers: str) -> Described:
        return Described(name, kind, join(found), Text(covers))

    yield told("code", codes.describe(name, targets), codes.COVERS)
    if OPERATOR.fullmatch(name):
        yield told("operator", list_entries.describe_operator(name, targets), LISTS)
        return
    if not NAME.fullmatch(name):
        return
    yield told("package", list_entries.describe_package(name, targets), ADVICE)
    kind = kind_of(name, targets, origin)
    if kind:
        full = f"{origin.module}.{name}" if kind == "api" and name in origin.names() else name
        found = list(rewrite_lookup.ask(full, kind, targets, origin))
        if any(one.rule for one in found) or kind == "api":
            yield told(kind, iter(found), WRITES)
            return
    yield told("api", list_entries.describe_own(name, targets), LISTS)
    base = name.rpartition(".")[2]
    if "." not in name or name.startswith("torch."):
        yield told("operator", list_entries.describe_operator(f"aten::{base}", targets), LISTS)


def kind_of(name: str, targets: list[Chip], origin: Chip) -> str | None:
    """What the engine can be asked about: an API, a variable, a tool, a value; None for nothing."""
    if re.fullmatch(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+", name):
        return "variable"
    if any(name in one.commands() for one in targets):
        return "tool"
    if name.partition(":")[0] in (origin.device, origin.backend):
        return "value"
    below = name.startswith(f"{origin.module}.")
    if name in origin.names() or (below and origin.exists(name) is not False):
        return "api"
    modules = [key for one in targets for key in one.imports()]
    if any(f"{name}.".startswith(f"{key}.") for key in modules):
        return "import"
    return "method" if name.rpartition(".")[2] in origin.tensor.values() else None


def suggest(name: str, known_rules: list[str], chip: Chip, origin: Chip) -> list[str]:
    """The names nearest to one that is not known, those with the same last part first."""
    last = re.split(r"[.:]+", name)[-1].lower()
    pool = list(dict.fromkeys(list_names(known_rules, chip, origin)))
    same = [one for one in pool if re.split(r"[.:]+", one)[-1].lower() == last and len(last) > 2]
    near = difflib.get_close_matches(name, pool, n=MOST, cutoff=0.7)
    return list(dict.fromkeys([*same[:MOST], *near]))[:MOST]


def list_names(known_rules: list[str], chip: Chip, origin: Chip) -> Iterator[str]:
    """Every name that `find` has an answer for, of this chip."""
    yield from known_rules
    yield from (f"{origin.module}.{one}" for one in origin.names())
    yield from (normalise_name(one) for one in chip.packages() if "*" not in one)
    yield from chip.imports()
    yield from (one for one in chip.variables() if "*" not in one)
    yield from chip.commands()
    yield from codes.list_codes(chip)
    yield from (f"{chip.module}.{one}" for one in chip.names())
    for known in list_entries.list_operators([chip]):
        yield from dict.fromkeys(one.partition(".")[0] for one in known.names())
