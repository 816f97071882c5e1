"""Detection from recorded tool outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.cluster import inventory
from joymigrate.run.cluster.detect import ascend_npu_smi, groups, lscpu, node, numa_groups, nvidia
from joymigrate.run.cluster.inventory import Inventory

RANGES_A = ["144-167", "144-167", "96-119", "96-119", "0-23", "0-23", "48-71", "48-71"]
RANGES_B = ["144-167", "96-119", "144-167", "96-119", "0-23", "48-71", "0-23", "48-71"]


def mesh(ranges: list[str], rings: list[range] | None = None) -> str:
    """A link table as the vendor's tool prints it, with HCCS inside each ring."""
    count = len(ranges)
    rings = rings or [range(count)]
    lines = ["\t   " + "       ".join(f"NPU{i}" for i in range(count)) + "       CPU Affinity"]
    for a in range(count):
        ring = next(r for r in rings if a in r)
        links = ["X" if a == b else "HCCS" if b in ring else "SYS" for b in range(count)]
        lines.append(f"NPU{a}       " + "       ".join(links) + f"       {ranges[a]}")
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", ""])


A3 = """
           Phy-ID0    Phy-ID1    Phy-ID2    Phy-ID3    Phy-ID4    Phy-ID5    Phy-ID6    Phy-ID7
Phy-ID0    X          SIO        HCCS_SW    HCCS_SW    HCCS_SW    HCCS_SW    HCCS_SW    HCCS_SW
Phy-ID1    SIO        X          HCCS_SW    HCCS_SW    HCCS_SW    HCCS_SW    HCCS_SW    HCCS_SW
Phy-ID2    HCCS_SW    HCCS_SW    X          SIO        HCCS_SW    HCCS_SW    HCCS_SW    HCCS_SW
Phy-ID3    HCCS_SW    HCCS_SW    SIO        X          HCCS_SW    HCCS_SW    HCCS_SW    HCCS_SW
Phy-ID4    HCCS_SW    HCCS_SW    HCCS_SW    HCCS_SW    X          SIO        HCCS_SW    HCCS_SW
Phy-ID5    HCCS_SW    HCCS_SW    HCCS_SW    HCCS_SW    SIO        X          HCCS_SW    HCCS_SW
Phy-ID6    HCCS_SW    HCCS_SW    HCCS_SW    HCCS_SW    HCCS_SW    HCCS_SW    X          SIO
Phy-ID7    HCCS_SW    HCCS_SW    HCCS_SW    HCCS_SW    HCCS_SW    HCCS_SW    SIO        X
"""

NVIDIA = """
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV4\tSYS\tSYS\tPIX\t0-15,32-47\t0\t\tN/A
GPU1\tNV4\t X \tSYS\tSYS\tPIX\t0-15,32-47\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tNV4\tSYS\t16-31,48-63\t1\t\tN/A
GPU3\tSYS\tSYS\tNV4\t X \tSYS\t16-31,48-63\t1\t\tN/A
NIC0\tPIX\tPIX\tSYS\tSYS\t X \t\t\t\t

Legend:
  X    = Self
"""


def detected(tmp_path: Path, **files: str) -> Inventory:
    for name, text in files.items():
        (tmp_path / f"{name.replace('_', '-')}.txt").write_text(text, encoding="utf-8")
    return node.detect(tmp_path, "host")


@pytest.mark.parametrize(
    ("ranges", "numa"),
    [
        (RANGES_A, ((0, 1), (2, 3), (4, 5), (6, 7))),
        (RANGES_B, ((0, 2), (1, 3), (4, 6), (5, 7))),
    ],
)
def test_two_boxes_of_one_model_pair_their_cards_differently(
    tmp_path: Path, ranges: list[str], numa: tuple[tuple[int, ...], ...]
) -> None:
    found = detected(tmp_path, npu_smi_topo=mesh(ranges)).nodes[0]
    assert found.kind.name == "ascend-910b-8"
    assert found.numa == numa


def test_the_recorded_full_mesh_is_one_ring(tmp_path: Path) -> None:
    record = Path(__file__).parents[3].parent / "shared/data/topo/ascend910b3_x8_a.txt"
    if not record.is_file():
        pytest.skip("the recorded table is not here")
    found = detected(tmp_path, npu_smi_topo=record.read_text()).nodes[0]
    assert (found.kind.name, found.cards) == ("ascend-910b-8", 8)


def test_rings_come_from_links_not_from_names(tmp_path: Path) -> None:
    two = mesh(RANGES_A, [range(4), range(4, 8)])
    assert detected(tmp_path, npu_smi_topo=two).nodes[0].kind.name == "ascend-910-8"
    box = mesh(["0-23"] * 16, [range(8), range(8, 16)])
    assert detected(tmp_path, npu_smi_topo=box).nodes[0].kind.name == "ascend-910b-16"


def test_unknown_rings_are_not_claimed(tmp_path: Path) -> None:
    odd = mesh(RANGES_A, [range(3), range(3, 8)])
    found = detected(tmp_path, npu_smi_topo=odd)
    assert found.nodes[0].kind.groups == ()
    assert "no known server kind" in " ".join(found.warnings)


def test_dies_of_a_module_are_joined_by_sio(tmp_path: Path) -> None:
    table = ascend_npu_smi.topo(A3)
    assert groups(table, ("SIO",)) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert detected(tmp_path, npu_smi_topo=A3).nodes[0].kind.name == "ascend-a3-8"


def test_a_board_that_cannot_say_gets_no_ring(tmp_path: Path) -> None:
    listed = "\n".join(f"\tNPU ID                         : {i}" for i in range(8))
    found = detected(
        tmp_path,
        npu_smi_topo="This device does not support querying topo.\n",
        npu_smi_list=listed,
    )
    assert found.nodes[0].cards == 8
    assert "no ring is claimed" in found.warnings[0]


def test_the_origins_table_with_colours_and_nics(tmp_path: Path) -> None:
    table = nvidia.topo(NVIDIA)
    assert nvidia.islands(table) == ((0, 1), (2, 3))
    cpus = "CPU NODE\n0 0\n16 1\n"
    found = detected(
        tmp_path,
        nvidia_smi_topo=NVIDIA,
        lscpu=cpus,
        nvidia_smi_list="0, NVIDIA A10\n1, NVIDIA A10\n",
    ).nodes[0]
    assert (found.kind.name, found.model) == ("gpu-4", "NVIDIA A10")
    assert found.numa == ((0, 1), (2, 3))
    assert found.cpu_milli == 2000


def test_a_table_that_is_cut_off_is_an_error() -> None:
    with pytest.raises(JoyError, match="cut off"):
        ascend_npu_smi.topo(mesh(RANGES_A).split("NPU6  ")[0])
    with pytest.raises(JoyError, match="no link table"):
        nvidia.topo("command not found")


def test_links_asked_of_the_runtime() -> None:
    table = ascend_npu_smi.from_acl(4, lambda a, b: 0x21 if a // 2 == b // 2 else 0x10)
    assert groups(table, ("HCCS",)) == ((0, 1), (2, 3))
    assert numa_groups(table, {}) == ()


def test_cpu_tables() -> None:
    assert lscpu.read("CPU NODE SOCKET\n0 0 0\n1 1 0\n") == {0: 0, 1: 1}
    assert lscpu.expand("0-2,5") == [0, 1, 2, 5]
    with pytest.raises(JoyError):
        lscpu.read("nothing")


def test_health_is_read() -> None:
    text = "| 0     910B3  | OK     | 90.1 |\n| 3     910B3  | Alarm  | 90.1 |\n"
    assert list(ascend_npu_smi.find_broken(text)) == [3]


def test_network_files(tmp_path: Path) -> None:
    path = tmp_path / "net.csv"
    path.write_text("node,leaf,superpod\nhost,l1,s0\n")
    assert node.read_network(path) == {"host": {"leaf": "l1", "superpod": "s0"}}
    path = tmp_path / "tor.json"
    path.write_text('{"server_list": [{"tor_id": 3, "server": [{"server_ip": "10.0.0.1"}]}]}')
    assert node.read_network(path) == {"10.0.0.1": {"leaf": "3"}}


def test_an_inventory_reads_back_what_it_writes(tmp_path: Path) -> None:
    found = detected(tmp_path, npu_smi_topo=mesh(RANGES_A))
    assert inventory.from_data(inventory.to_data(found)).nodes == found.nodes


TWO_DIES = """\
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 2     Ascend910           | OK            | 170.3       44                0    / 0             |
| 0     4                   | 0000:14:00.0  | 0           0    / 0          3104 / 65536         |
+---------------------------+---------------+----------------------------------------------------+
| 2     Ascend910           | Alarm         | -           45                0    / 0             |
| 1     5                   | 0000:15:00.0  | 0           0    / 0          3105 / 65536         |
"""
ONE_DIE = """\
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 3     910B3               | Warning       | 92.5        46                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3356 / 65536         |
| 4     910B3               | Critical      | 92.5        46                0    / 0             |
| 0                         | 0000:C2:00.0  | 0           0    / 0          3356 / 65536         |
"""


@pytest.mark.parametrize(("text", "sick"), [(TWO_DIES, 5), (ONE_DIE, 4)])
def test_the_sick_die_is_named_and_not_its_twin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, sick: int
) -> None:
    """The reading that a controller does every minute, over a tool that prints a recorded text."""
    from joymigrate.run.cluster.detect import node as this_node

    tool = tmp_path / "npu-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = this_node.read_health()
    assert list(found) == [sick]
    assert "health" in found[sick]
