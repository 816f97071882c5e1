"""Link tables that people have published, in the tool's own tabs, and where they were seen."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from joymigrate.run.cluster.detect import numa_groups, nvidia

Groups = tuple[tuple[int, ...], ...]
ALONE, ALL4, ALL8 = (), ((0, 1, 2, 3),), (tuple(range(8)),)
HALVES4, HALVES8 = ((0, 1), (2, 3)), ((0, 1, 2, 3), (4, 5, 6, 7))
NODES = "0-55,112-167", "56-111,168-223"


@dataclass(frozen=True)
class PublishedTable:
    """Rows of links and CPU ranges, and what they mean: cards joined by NVLink, cards by NUMA."""

    seen: str
    rows: tuple[str, ...]  # links of one card, then those of the NICs
    ranges: tuple[str, ...]
    islands: Groups
    numa: Groups = ()
    numbered: bool = True  # drivers since 2023 have the column GPU NUMA ID

    @property
    def text(self) -> str:
        """The table as `nvidia-smi topo -m` prints it: X between spaces, two tabs before N/A."""
        count = len(self.rows)
        more = len(self.rows[0].split()) - count
        head = [f"GPU{i}" for i in range(count)] + [f"NIC{i}" for i in range(more)]
        last = ["CPU Affinity", "NUMA Affinity", *(["GPU NUMA ID"] if self.numbered else [])]
        lines = ["\t" + "\t".join([*head, *last])]
        for card, (row, cpus) in enumerate(zip(self.rows, self.ranges, strict=True)):
            cells = [" X " if word == "X" else word for word in row.split()]
            end = "\t0\t\tN/A" if self.numbered else "\t\tN/A"
            lines.append("\t".join([f"GPU{card}", *cells, cpus]) + end)
        for nic in range(more):  # a NIC has no CPU range
            lines.append("\t".join([f"NIC{nic}", *["NODE"] * len(head)]) + "\t\t\t\t")
        return "\n".join([*lines, "", "Legend:", "", "  X    = Self", ""])


def full(count: int, link: str) -> tuple[str, ...]:
    """Every card joined to every other one in the same way."""
    return tuple(" ".join("X" if a == b else link for b in range(count)) for a in range(count))


def nics(count: int, link: str) -> tuple[str, ...]:
    """The same beside twelve NICs, six of them on each half."""
    near, far = "PXB NODE NODE NODE NODE NODE", "SYS SYS SYS SYS SYS SYS"
    ends = [f"{near} {far}"] * (count // 2) + [f"{far} {near}"] * (count // 2)
    return tuple(f"{row} {end}" for row, end in zip(full(count, link), ends, strict=True))


TABLES = (
    PublishedTable("4 A100-SXM4, report of a serving test", full(4, "NV12"),
                   ("0-31,64-95", *["32-63,96-127"] * 3), ALL4, ((0,), (1, 2, 3))),
    PublishedTable("4 V100, AWS p3.8xlarge, README of HUVM", (
        "X NV1 NV1 NV2", "NV1 X NV2 NV1", "NV1 NV2 X NV2", "NV2 NV1 NV2 X",
    ), ("0-31",) * 4, ALL4, numbered=False),
    PublishedTable("4 V100, ppc-like ring, README of a thesis", (
        "X NV2 NV2 SYS", "NV2 X SYS NV1", "NV2 SYS X NV2", "SYS NV1 NV2 X",
    ), ("0-19,40-59", "0-19,40-59", "20-39,60-79", "20-39,60-79"), ALL4, HALVES4, False),
    PublishedTable("one GB10, a scheduler's test", ("X",), ("0-19",), ALONE),
    PublishedTable("one card, EKS guide", ("X",), ("0-31",), ALONE),
    PublishedTable("4 H100 in a container that sees the CPUs of one of them", full(4, "NV18"),
                   ("44-51,148-155", "", "", ""), ALL4),
    PublishedTable("4 RTX 5060 Ti, P2P evidence", full(4, "PHB"), ("0-7",) * 4, ALONE),
    PublishedTable("4 RTX A4000, hardware report", full(4, "NODE"), ("0-31",) * 4, ALONE),
    PublishedTable("4 cards behind two switches, lmdeploy issue", (
        "X PIX PHB PHB", "PIX X PHB PHB", "PHB PHB X PIX", "PHB PHB PIX X",
    ), ("0-13,28-41",) * 4, ALONE),
    PublishedTable("2 RTX 5090, club-3090 issue 1229", full(2, "PHB"), ("0-63",) * 2, ALONE),
    PublishedTable("2 RTX 3090 with a bridge", full(2, "NV4"), ("0-23",) * 2, ((0, 1),)),
    PublishedTable("8 H100 with 12 NICs", nics(8, "NV18"),
                   (*[NODES[0]] * 4, *[NODES[1]] * 4), ALL8, HALVES8),
    PublishedTable("8 cards without NVLink", full(8, "SYS"),
                   (*["0-15,32-47"] * 4, *["16-31,48-63"] * 4), ALONE, HALVES8),
    PublishedTable("8 cards, test of HAMi", full(8, "NV18"),
                   (*["0-191"] * 4, *["192-383"] * 4), ALL8, HALVES8),
)  # fmt: skip


@pytest.mark.parametrize("one", TABLES, ids=lambda one: one.seen)
def test_a_published_table_is_read_as_it_is_meant(one: PublishedTable) -> None:
    table = nvidia.topo(one.text)
    assert table.ids == tuple(range(len(one.rows)))
    assert table.affinity == one.ranges
    assert nvidia.islands(table) == one.islands
    assert nvidia.kind(table) == (f"gpu-{len(one.rows)}", [])
    assert numa_groups(table, {}) == one.numa
