"""Huawei's tool: `npu-smi info -t topo` (and the ACL call that answers the same question).

Rings are what is connected over HCCS, modules what is connected over SIO. The pairing of cards and
NUMA nodes differs between boxes of one model, so it is read, never assumed. Some boards answer
that they do not support the question: then no ring is claimed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from joymigrate.errors import JoyError
from joymigrate.run.cluster.detect import LinkTable, groups, matrix

TOPO = ("npu-smi", "info", "-t", "topo")
HEALTH = ("npu-smi", "info")
LISTS = (HEALTH, ("npu-smi", "info", "-l"))
FAMILY = "npu"
RING, MODULE = ("HCCS",), ("SIO",)
# acl.rt.get_devices_topo: one bit per kind of path (CANN 8.5 reference).
ACL_BITS = {0x01: "HCCS", 0x20: "SIO", 0x40: "HCCS_SW", 0x02: "PIX", 0x08: "PHB", 0x10: "SYS"}
UNSUPPORTED = re.compile(r"does not support querying topo", re.IGNORECASE)


def topo(text: str, where: str = "npu-smi info -t topo") -> LinkTable:
    """The link table, in the form `NPU0 …` or, for two-die modules, `Phy-ID0 …`."""
    if UNSUPPORTED.search(text):
        raise JoyError(
            "this device does not support querying its links",
            where=where,
            help="give the rings in the inventory if you know them; none is claimed",
        )
    form = r"Phy-ID(\d+)" if "Phy-ID" in text else r"NPU(\d+)"
    return matrix.read(text, form, where, "record the whole output of `npu-smi info -t topo`")


def from_acl(count: int, ask: Callable[[int, int], int]) -> LinkTable:
    """The same table from `acl.rt.get_devices_topo(a, b)`."""
    rows = []
    for a in range(count):
        rows.append(tuple("X" if a == b else acl_name(ask(a, b)) for b in range(count)))
    return LinkTable(tuple(range(count)), tuple(rows), ("",) * count)


def ask_runtime() -> LinkTable | None:
    """The table from the vendor's runtime, None where it is not installed or does not answer."""
    try:
        import acl  # type: ignore[import-not-found]

        acl.init()
        count, error = acl.rt.get_device_count()
        if error:
            return None

        def ask(a: int, b: int) -> int:
            bits, failed = acl.rt.get_devices_topo(a, b)
            return 0 if failed else int(bits)

        return from_acl(int(count), ask)
    except (ImportError, AttributeError, OSError):
        return None


def acl_name(bits: int) -> str:
    """The strongest path among the bits."""
    return next((name for bit, name in ACL_BITS.items() if bits & bit), "NA")


def kind(table: LinkTable) -> tuple[str | None, list[str]]:
    """The server kind that these links make; None and a warning when no known one does."""
    count = len(table.ids)
    rings, modules = groups(table, RING), groups(table, MODULE)
    found = by_links(count, rings, modules)
    if found is None:
        sizes = "+".join(str(len(ring)) for ring in rings) or "none"
        return None, [
            f"{count} cards with rings {sizes} are no known server kind: no ring is claimed"
        ]
    return found, []


def by_links(
    count: int, rings: Sequence[tuple[int, ...]], modules: Sequence[tuple[int, ...]]
) -> str | None:
    """Server kinds by what is connected; ids must lie as the kind says they do."""
    if modules and all(len(m) == 2 and m[0] % 2 == 0 and m[1] == m[0] + 1 for m in modules):
        return {16: "ascend-a3-16", 8: "ascend-a3-8"}.get(count)
    shape = tuple(rings)
    return {
        (tuple(range(8)),): "ascend-910b-8",
        (tuple(range(4)), tuple(range(4, 8))): "ascend-910-8",
        (tuple(range(8)), tuple(range(8, 16))): "ascend-910b-16",
    }.get(shape)


# Two lines a chip: `| NPU Name | Health | …`, then `| Chip Phy-ID | Bus-Id | …` (older tools call
# the second column Device). One-die modules have none, and their NPU is the card. A row of the
# table of processes has a number where a card has its health.
CARD = re.compile(
    r"^ *\| *(?P<npu>\d+) +(?P<name>\S+) *\| *(?P<health>[A-Za-z]\w*) *\|.*"
    r"(?:\n *\| *\d+ +(?P<die>\d*|NA) *\|.*)?",
    re.MULTILINE,
)
LISTED = re.compile(r"NPU ID\s*:\s*(\d+)")
DIES = re.compile(r"Chip Count\s*:\s*(\d+)")  # of each of them
BAD = ("Alarm", "Critical", "Unknown")  # neither OK nor a warning that work survives


def chips(text: str) -> dict[int, tuple[str, str]]:
    """Name and health of each card of the table of `npu-smi info`, by physical id."""
    found = {}
    for card in CARD.finditer(text):
        die = card["die"] or ""
        found[int(die if die.isdigit() else card["npu"])] = card["name"], card["health"]
    return found


def models(text: str) -> dict[int, str]:
    """Card names by physical id, of that table; without names, of a list of NPUs."""
    table = chips(text)
    if table:
        return {card: name for card, (name, _) in table.items()}
    listed, dies = LISTED.findall(text), DIES.findall(text)
    count = sum(map(int, dies)) if len(dies) == len(listed) else len(listed)
    return dict.fromkeys(range(count), "")


def find_broken(text: str) -> dict[int, str]:
    """Cards, by physical id, whose health in `npu-smi info` does not let work go on."""
    return {
        card: f"npu-smi says {health} of its health"
        for card, (_, health) in chips(text).items()
        if health in BAD
    }
