"""Link tables and lists of cards that people have published, in the tools' own form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.cluster.detect import node, numa_groups, nvidia

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


@dataclass(frozen=True)
class PublishedList:
    """What a tool says of its cards one by one, without a table of links."""

    seen: str
    record: str  # the command, as its record is called
    text: str
    cards: int
    model: str
    broken: tuple[int, ...] = ()


def npu_table(*chips: str, head: str = "Chip  Phy-ID") -> str:
    """The table of `npu-smi info`; a chip is `number name health` and `die [physical]`."""
    lines = ["| NPU   Name  | Health | Power(W) |", f"| {head}  | Bus-Id | AICore(%) |", "+=====+"]
    for chip in chips:
        number, name, health, *die = chip.split()
        lines += [
            f"| {number:5} {name:19} | {health:13} | 91.3        53                0    / 0  |",
            f"| {' '.join(die):25} | 0000:D9:00.0  | 0           0    / 0     3412 / 65536 |",
            "+===========================+===============+=========================+",
        ]
    return "\n".join(lines)


PROCESSES = """\
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
"""
A3_DIES = [f"{i // 2} Ascend910 OK {i % 2} {i}" for i in range(16)]
MIG = """\
GPU 0: NVIDIA A100 40GB PCIe (UUID: GPU-48aeb943-9458-4282-da24-e5f49e0db44b)
  MIG 1g.5gb     Device  0: (UUID: MIG-fb42055e-9e53-5764-9278-438605a3014c)
  MIG 1g.5gb     Device  1: (UUID: MIG-3d4db13e-c42d-5555-98f4-8b50389791bc)
GPU 1: NVIDIA A100 40GB PCIe (UUID: GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f)
"""
SMI = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:18:00.0 Off |                    0 |
| N/A   32C    P0             71W /  700W |       4MiB /  81559MiB |      0%      Default |
|   1  NVIDIA H100 80GB HBM3          On  |   00000000:2A:00.0 Off |                    0 |
| N/A   32C    P0             71W /  700W |       4MiB /  81559MiB |      0%      Default |
+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|    0   N/A  N/A      1234      C   python                                        4000MiB |
|    1   N/A  N/A      1301      C   /opt/conda/bin/python                             N/A      |
"""
LISTS = (
    PublishedList("one card, list of a worker's test", "nvidia-smi-L",
                  "GPU 0: NVIDIA L40S (UUID: GPU-6b5e6f6e-0000-0000-0000-000000000000)", 1,
                  "NVIDIA L40S"),
    PublishedList("a card in slices and a whole one, AKS guide", "nvidia-smi-L", MIG, 2,
                  "NVIDIA A100 40GB PCIe", (0,)),
    PublishedList("the table without arguments", "nvidia-smi-info", SMI, 2,
                  "NVIDIA H100 80GB HBM3"),
    PublishedList("the query of a monitor", "nvidia-smi-list",
                  "0, NVIDIA GeForce RTX 3090\n1, NVIDIA GeForce RTX 3090\n", 2,
                  "NVIDIA GeForce RTX 3090"),
    PublishedList("no driver", "nvidia-smi-L",
                  "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
                  0, ""),
    PublishedList("one 910B4 of a container, number 5, tensordict guide", "npu-smi-info",
                  npu_table("5 910B4 OK 0", head="Chip"), 1, "910B4"),
    PublishedList("two 910B2C of a container, 12 and 13, vllm-ascend issue", "npu-smi-info",
                  npu_table("12 910B2C OK 0", "13 910B2C Alarm 0", head="Chip"), 2, "910B2C", (1,)),
    PublishedList("one 310P3 of an older tool, ModelZoo", "npu-smi-info",
                  npu_table("0 310P3 OK 0 0", head="Chip    Device"), 1, "310P3"),
    PublishedList("a 310P card of two chips", "npu-smi-info",
                  npu_table("1 310P3 OK 0 0", "1 310P3 Critical 1 1"), 2, "310P3", (1,)),
    PublishedList("8 910B3 of a tool that writes NA, monitor's test", "npu-smi-info",
                  npu_table(*[f"{i} 910B3 OK 0 NA" for i in range(8)]), 8, "910B3"),
    PublishedList("8 910B2 with processes, report of a serving test", "npu-smi-info",
                  npu_table(*[f"{i} 910B2 {'Alarm' if i == 4 else 'OK'} 0" for i in range(8)],
                            head="Chip") + "\n" + PROCESSES +
                  "| 4       0                 | 2759218       | VLLMWorker_DP  | 56293 |\n"
                  "| 5       0                 | 29570         |                | 3806  |",
                  8, "910B2", (4,)),
    PublishedList("910B4 number 5 with a process of a container", "npu-smi-info",
                  npu_table("5 910B4 OK 0", head="Chip") + "\n" + PROCESSES +
                  "| 0       0                 | 48988         | python         | 13330 |", 1,
                  "910B4"),
    PublishedList("one 310B4 without a bus", "npu-smi-info",
                  "| 0     310B4               | Alarm           | 0.0     49     15  / 15   |\n"
                  "| 0       0                 | NA              | 0       1656 / 3513       |", 1,
                  "310B4", (0,)),
    PublishedList("one 310, which is its name", "npu-smi-info",
                  npu_table("0 310 OK 0 0"), 1, "310"),
)  # fmt: skip


@pytest.mark.parametrize("one", LISTS, ids=lambda one: one.seen)
def test_cards_are_counted_where_no_table_of_links_is(one: PublishedList, tmp_path: Path) -> None:
    (tmp_path / f"{one.record}.txt").write_text(one.text)
    found = node.detect(tmp_path, "host")
    host = found.nodes[0]
    assert (host.cards, host.model) == (one.cards, one.model)
    assert set(host.unhealthy) - set(host.absent) == set(one.broken)
    assert not host.kind.groups
    assert any("no ring is claimed" in note for note in found.warnings) == bool(one.cards)


def test_the_query_has_the_whole_name_that_the_table_cuts_off(tmp_path: Path) -> None:
    whole, cut = "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM...  "
    (tmp_path / "nvidia-smi-list.txt").write_text(f"0, {whole}\n1, {whole}\n")
    table = SMI.replace("NVIDIA H100 80GB HBM3", cut)
    (tmp_path / "nvidia-smi-info.txt").write_text(table)
    host = node.detect(tmp_path, "host").nodes[0]
    assert (host.cards, host.model) == (2, whole)
    assert nvidia.models(table) == {0: cut.strip(), 1: cut.strip()}


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ("npu-smi-info", npu_table(*A3_DIES)),
        ("npu-smi-list", "\n".join(f"NPU ID : {i}\nChip Count : 2" for i in range(8))),
    ],
)
def test_sixteen_cards_of_unknown_links_may_be_several_servers(
    record: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / f"{record}.txt").write_text(text)
    found = node.detect(tmp_path, "host")
    assert found.nodes[0].cards == 0
    said = "16 cards without known links may be ascend-910b-16 or ascend-a3-16"
    assert said in " ".join(found.warnings)


SLURM = """\
NodeName=cg14 Arch=x86_64 CoresPerSocket=16  CPUAlloc=0 CPUEfctv=32 CPUTot=32 CPULoad=10.64 \
AvailableFeatures=icelake,gpua40 Gres=gpu:a40:1 GresUsed=gpu:a40:0(IDX:N/A) NodeAddr=cg14 \
OS=Linux 5.14.0-687.24.1.el9_8.x86_64 #1 SMP PREEMPT_DYNAMIC Thu Jul 9 16:32:56 UTC 2026  \
RealMemory=512000 AllocMem=0 State=IDLE ThreadsPerCore=1 CfgTRES=cpu=32,mem=500G,gres/gpu=1
NodeName=h2 Arch=x86_64 CoresPerSocket=56
   CPUAlloc=88 CPUEfctv=192 CPUTot=224 CPULoad=18.41
   Gres=gpu:h100:8(S:0-1)
   RealMemory=2060000 AllocMem=706560 FreeMem=224124 Sockets=2 Boards=1
   State=MIXED+DRAIN ThreadsPerCore=2 TmpDisk=0 Weight=1
   Reason=NHC: check failed [root@2026-03-11T11:05:51]
NodeName=p0685 Arch=x86_64 CoresPerSocket=24
   CPUAlloc=48 CPUTot=48 CPULoad=48.16
   Gres=pfsdir:scratch:1,pfsdir:ess:1,ime:1,gpfs:project:1
   RealMemory=182272 AllocMem=182256 State=ALLOCATED ThreadsPerCore=1
NodeName=mig1 CPUTot=64 RealMemory=257000
   Gres=gpu:nvidia_b200:4,gpu:nvidia_b200_2g.45gb:8 State=IDLE
NodeName=datamover2 CoresPerSocket=1 CPUAlloc=17 CPUTot=24
   Gres=(null) RealMemory=1 State=DOWN*+DRAIN
NodeName=gpu-st-ml-1 CPUTot=32 Gres=gpu:rtxproserver6000:1 RealMemory=249036 State=IDLE+CLOUD
NodeName=both CPUTot=32 Gres=gpu:a100:4(S:0),gpu:v100:4(S:1) RealMemory=249036 State=IDLE
NodeName=twice CPUTot=32 Gres=gpu:a100:2(S:0),gpu:a100:2(S:1) RealMemory=249036 State=IDLE
"""


def test_the_nodes_of_a_slurm_cluster(tmp_path: Path) -> None:
    """Lines of four clusters' guides and tests, on one line or on several."""
    (tmp_path / "scontrol-show-node.txt").write_text(SLURM)
    found = node.detect(tmp_path, network={"h2": {"leaf": "l1"}})
    rows = [
        (n.name, n.kind.name, n.cards, n.model, n.cpu_milli // 1000, n.ready) for n in found.nodes
    ]
    assert rows == [
        ("cg14", "gpu-1", 1, "a40", 32, True),
        ("h2", "gpu-8", 8, "h100", 192, False),
        ("p0685", "cpu", 0, "", 48, True),
        ("mig1", "cpu", 0, "", 64, True),
        ("datamover2", "cpu", 0, "", 24, False),
        ("gpu-st-ml-1", "gpu-1", 1, "rtxproserver6000", 32, True),
        ("both", "cpu", 0, "", 32, True),
        ("twice", "gpu-4", 4, "a100", 32, True),
    ]
    assert (found.nodes[1].leaf, found.nodes[0].memory_mib) == ("l1", 512000)
    for left_out in ("mig1: Gres gpu:nvidia_b200:4,gpu:nvidia_b200_2g.45gb:8", "both: Gres gpu:a1"):
        assert left_out in " ".join(found.warnings)
    (tmp_path / "scontrol-show-node.txt").write_text("slurm_load_node error: Unable to contact")
    with pytest.raises(JoyError, match="no NodeName"):
        node.detect(tmp_path)
