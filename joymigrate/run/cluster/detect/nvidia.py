"""The origin's tool: its table of links, its lists of cards, and what it says of their health."""

from __future__ import annotations

import csv
import io
import re

from joymigrate.run.cluster.detect import LinkTable, groups, matrix

TOPO = ("nvidia-smi", "topo", "-m")
LISTS = (
    ("nvidia-smi", "--query-gpu=index,name", "--format=csv,noheader"),
    ("nvidia-smi", "-L"),
    ("nvidia-smi",),
)
HEALTH = (
    "nvidia-smi",
    "--query-gpu=index,ecc.errors.uncorrected.volatile.total,remapped_rows.failure",
    "--format=csv,noheader",
)
FAMILY = "gpu"


def topo(text: str, where: str = "nvidia-smi topo -m") -> LinkTable:
    """The link table: NV#, PIX, PXB, PHB, NODE, SYS."""
    return matrix.read(text, r"GPU(\d+)", where, "record the whole output of `nvidia-smi topo -m`")


# One card a line: of the table without arguments, which cuts names off, of `-L`, of the query. In
# the first the address on the bus follows; a row of its table of processes has none.
LISTED = re.compile(r"GPU (\d+): (.+?) \(UUID: .*")
CARD_LINES = (
    re.compile(r"\|\s+(\d+)\s+(\S.*?)\s+\S+\s*\|\s*[0-9A-Fa-f]+:[0-9A-Fa-f]{2}:.*"),
    LISTED,
    re.compile(r"(\d+)\s*,\s*([^,]+)"),
)
SLICE_LINE = re.compile(r"MIG \S+\s+Device\s+\d+:")


def models(text: str) -> dict[int, str]:
    """Card names by index, of any list that the tool prints of its cards: the fullest name."""
    lines = [line.strip() for line in text.splitlines()]
    found = (form.fullmatch(line) for form in CARD_LINES for line in lines)
    return {int(card[1]): card[2].strip() for card in found if card}


def kind(table: LinkTable) -> tuple[str, list[str]]:
    """The server kind; any legal count is a legal choice, so that links decide nothing."""
    return f"gpu-{len(table.ids)}", []


def islands(table: LinkTable) -> tuple[tuple[int, ...], ...]:
    """Cards joined by NVLink."""
    return groups(table, ("NV",))


def find_broken(text: str) -> dict[int, str]:
    """Cards with memory errors that were not corrected, or rows that could not be remapped, and
    those that `-L` says are cut into slices (MIG): nobody can have such a card as a whole.

    The first two are NVIDIA's own criteria for a reset or a replacement (GPU memory error
    management). A card that the driver has lost is not in the list; `[N/A]` says nothing.
    """
    found = {}
    last = -1
    for line in text.splitlines():
        card = LISTED.fullmatch(line.strip())
        last = int(card[1]) if card else last
        if SLICE_LINE.match(line.strip()):
            found[last] = "it is cut into MIG slices"
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(row) < 3 or not row[0].strip().isdigit():
            continue
        errors, failed = row[1].strip(), row[2].strip().lower()
        if errors.isdigit() and int(errors):
            found[int(row[0])] = f"{errors} uncorrected memory errors"
        if failed in ("1", "yes", "true"):
            found[int(row[0])] = "memory rows could not be remapped"
    return found
