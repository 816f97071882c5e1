"""The origin's tool: `nvidia-smi topo -m`, `nvidia-smi --query-gpu=index,name --format=csv`."""

from __future__ import annotations

import csv
import io

from joymigrate.run.cluster.detect import LinkTable, groups, matrix

TOPO = ("nvidia-smi", "topo", "-m")
LIST = ("nvidia-smi", "--query-gpu=index,name", "--format=csv,noheader")
HEALTH = (
    "nvidia-smi",
    "--query-gpu=index,ecc.errors.uncorrected.volatile.total,remapped_rows.failure",
    "--format=csv,noheader",
)
FAMILY = "gpu"


def topo(text: str, where: str = "nvidia-smi topo -m") -> LinkTable:
    """The link table: NV#, PIX, PXB, PHB, NODE, SYS."""
    return matrix.read(text, r"GPU(\d+)", where, "record the whole output of `nvidia-smi topo -m`")


def models(text: str) -> tuple[str, ...]:
    """Card names by index."""
    rows = [row for row in csv.reader(io.StringIO(text), skipinitialspace=True) if len(row) >= 2]
    return tuple(row[1].strip() for row in sorted(rows, key=lambda row: int(row[0])))


def kind(table: LinkTable) -> tuple[str, list[str]]:
    """The server kind; any legal count is a legal choice, so that links decide nothing."""
    return f"gpu-{len(table.ids)}", []


def islands(table: LinkTable) -> tuple[tuple[int, ...], ...]:
    """Cards joined by NVLink."""
    return groups(table, ("NV",))


def find_broken(text: str) -> dict[int, str]:
    """Cards with memory errors that were not corrected, or rows that could not be remapped.

    Both are NVIDIA's own criteria for a reset or a replacement (GPU memory error management). A
    card that the driver has lost is not in the list; `[N/A]` says nothing.
    """
    found = {}
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(row) < 3 or not row[0].strip().isdigit():
            continue
        errors, failed = row[1].strip(), row[2].strip().lower()
        if errors.isdigit() and int(errors):
            found[int(row[0])] = f"{errors} uncorrected memory errors"
        if failed in ("1", "yes", "true"):
            found[int(row[0])] = "memory rows could not be remapped"
    return found
