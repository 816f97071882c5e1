"""What is free and who holds it: inventories written and read, holdings, shares, fragments."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.run.cluster import inventory, kinds, policies
from joymigrate.run.cluster.allocations import Allocations
from joymigrate.run.cluster.inventory import node_data
from joymigrate.run.cluster.policies import Typical
from joymigrate.run.cluster.policies._gradient import WHOLE, Fragments
from joymigrate.run.cluster.policies.fragmentation import FILLED, STARVED, Farsighted
from joymigrate.run.cluster.scheduler import Scheduler
from joymigrate.run.cluster.state import ClusterState, Grant
from tests.run.cluster.cases import job, nodes, scheduler, started, submit, workload

# -- inventories ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "{name: a, kind: gpu-8, cpu: 64, memory_gib: 512, used: [1], unhealthy: [2], leaf: l}",
        "{name: a, kind: gpu-8, cards: [0, 1, 4, 5]}",
        "{name: a, kind: ascend-910b-16, ready: false, superpod: s, spine: p, reserved: q}",
        "{name: a, kind: gpu-8, cpu: 0.5, memory_gib: 1.5, shared: {3: 250}, model: A10}",
        "{name: a, kind: gpu-8, numa: [[0, 1, 2, 3], [4, 5, 6, 7]], labels: {zone: x}}",
    ],
)
def test_a_node_that_is_written_and_read_again_is_the_same(text: str) -> None:
    first = nodes(f"[{text}]")
    again = inventory.from_data({"nodes": [node_data(node) for node in first.nodes]})
    assert again.nodes == first.nodes
    before, after = ClusterState(first), ClusterState(again)
    assert all((a == b).all() for a, b in zip(before.snapshot(), after.snapshot(), strict=True))
    assert (before.usable == after.usable).all()


@pytest.mark.parametrize(
    ("text", "line"),
    [("nodes:\n- a\n- b: c: d\n", 3), ('{\n  "nodes": [\n    {"name": }\n]}', 3)],
)
def test_a_syntax_error_is_named_with_its_line(text: str, line: int) -> None:
    with pytest.raises(JoyError) as caught:
        inventory.parse(text, "inv.yaml")
    assert (caught.value.where or "").startswith(f"inv.yaml:{line}:")


def test_json_after_blank_lines_is_still_json() -> None:
    assert inventory.parse('\n  {"nodes": [{"a": "\\u0041"}]}', "x") == {"nodes": [{"a": "A"}]}


@pytest.mark.parametrize(
    ("held", "says"),
    [
        ("{node: a, cards: [0], card: 1}", "card"),
        ("{node: a, cards: [16]}", "is 16, the most is 15"),
        ("{node: a, cards: [1, 16]}", "is 16, the most is 15"),
        ("{node: a, cards: [1, 1]}", "card ids of one node"),
        ("{cards: [1]}", "'node' is missing"),
    ],
)
def test_where_a_job_runs_is_checked(held: str, says: str) -> None:
    with pytest.raises(JoyError, match=says):
        workload(f"jobs: [{{name: j, kind: gpu-8, cards_per_pod: 1, running: [{held}]}}]")


def test_the_last_card_of_the_largest_node_may_be_held() -> None:
    held = "running: [{node: a, cards: [15]}]"
    text = f"jobs: [{{name: j, kind: ascend-910b-16, cards_per_pod: 1, {held}}}]"
    assert workload(text).jobs[0].running[0].cards == (15,)


def topology(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "topology.yaml"
    path.write_text(text)
    return path


def test_a_kind_that_says_little_claims_little(tmp_path: Path) -> None:
    (kind,) = kinds.read_kinds(topology(tmp_path, "kinds: [{name: x, cards: 4}]"), "chip")
    assert (kind.title, kind.family, kind.chip, kind.rule) == ("x", "chip", "chip", "count")
    assert kind.legal == (1, 2, 3, 4)
    assert (kind.share, kind.health_weight, kind.tightness_weight) == (False, 0, 1)
    assert (kind.superpod_size, kind.superpod_reserve, kind.kubernetes) == (0, 0, {})
    assert (kind.groups, kind.alone, kind.ray_resource, kind.visible) == ((), (), "", "")


def test_a_kind_with_several_counts_is_one_kind_each(tmp_path: Path) -> None:
    text = (
        "family: npu\nray: {resource: R, visible: V}\n"
        "kinds: [{name: 'x-{cards}', cards: [2, 16], share: true, superpod: {size: 4, reserve: 1},"
        " kubernetes: {resource: r}}]"
    )
    two, sixteen = kinds.read_kinds(topology(tmp_path, text), "chip")
    assert (two.name, two.cards, sixteen.name, sixteen.cards) == ("x-2", 2, "x-16", 16)
    assert (two.family, two.ray_resource, two.visible, two.share) == ("npu", "R", "V", True)
    assert (two.superpod_size, two.superpod_reserve, two.kubernetes) == (4, 1, {"resource": "r"})


@pytest.mark.parametrize(
    "item",
    [
        "{name: x, cards: 0}",
        "{name: x, cards: 17}",
        "{name: x, cards: 4, rule: stars}",
        "{name: x, cards: 4, rule: rings, groups: [[0, 1], [2]]}",
        "{name: x, cards: 4, colour: red}",
    ],
)
def test_a_kind_that_cannot_be_is_refused_with_its_file(item: str, tmp_path: Path) -> None:
    path = topology(tmp_path, f"kinds: [{item}]")
    with pytest.raises(JoyError) as caught:
        list(kinds.read_kinds(path, "chip"))
    assert (caught.value.where or "").startswith(f"{path}:1 kinds[0]")


@pytest.mark.parametrize("text", ["[]", "kinds: {name: x}", "family: npu"])
def test_a_topology_without_kinds_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(JoyError, match=r"expected keys|'kinds' takes a list|'kinds' is missing"):
        list(kinds.read_kinds(topology(tmp_path, text), "chip"))


# -- holdings -------------------------------------------------------------------------------------

MANY = "[{name: n, kind: gpu-8, count: 60, cpu: 64, memory_gib: 64}]"


@given(st.integers(0, 1000))
@settings(max_examples=5, deadline=None)
def test_what_would_be_free_is_what_giving_back_makes_free(seed: int) -> None:
    """More jobs than slots and more pods than rows: tables grow and gaps close on the way."""
    state, holdings, chance = ClusterState(nodes(MANY)), Allocations(), Random(seed)
    placed: dict[str, tuple[Grant, ...]] = {}
    for number in range(700):
        name = f"j{number}"
        wanted = chance.randint(1, 6)
        free = [i for i in range(60) if state.free[i]][:wanted]
        grants = []
        for node in free:
            card = int(state.free[node]) & -int(state.free[node])
            milli = 500 if chance.random() < 0.2 else 0
            grants.append(Grant(node, card, milli, 100, 64))
        placed[name] = tuple(grants)
        state.take(placed[name])
        holdings.add(name, placed[name], float(number))
        full = not any(state.free)
        while placed and (full or chance.random() < 0.3):
            gone = chance.choice(sorted(placed))
            state.give(placed.pop(gone))
            holdings.drop(gone)
            full = full and len(placed) > 40
    stopping = [name for name in placed if chance.random() < 0.5]
    before = state.snapshot()
    with holdings.without(state, holdings.flags(stopping)):
        seen = [
            array.copy() for array in (state.free, state.idle, state.share, state.cpu, state.memory)
        ]
    assert all((a == b).all() for a, b in zip(before, state.snapshot(), strict=True))
    for name in stopping:
        state.give(placed[name])
    really = (state.free, state.idle, state.share, state.cpu, state.memory)
    assert [(a == b).all() for a, b in zip(seen, really, strict=True)] == [True] * 5
    for node in range(60):
        there = [int(name[1:]) for name, own in placed.items() if node in {g.node for g in own}]
        assert holdings.last_end(node) == max(there, default=0)
    for name in placed:
        slot = holdings.names.index(name)
        assert holdings.sizes[slot] == sum(grant.mask.bit_count() for grant in placed[name])


def test_more_pods_than_the_table_has_rows_are_all_kept() -> None:
    holdings, state = Allocations(), ClusterState(nodes("[{name: n, kind: gpu-8, count: 300}]"))
    for number in range(300):
        grants = tuple(Grant(number, 1 << card) for card in range(8))
        state.take(grants)
        holdings.add(f"j{number}", grants, 0.0)
    with holdings.without(state, holdings.flags([f"j{number}" for number in range(300)])):
        assert (state.free == 255).all()
    assert (state.free == 0).all()


# -- shares of cards ------------------------------------------------------------------------------


def shared(policy: str, *wanted: tuple[str, float]) -> Scheduler:
    run = scheduler(nodes("[{name: a, kind: gpu-8, count: 2, cpu: 4}]"), policy=policy)
    submit(run, *(job(name, cards_per_pod=share) for name, share in wanted))
    return run


def where(run: Scheduler, name: str) -> tuple[int, int]:
    grant = run.running[name].placement[0]
    return grant.node, grant.mask.bit_length() - 1


def test_a_share_goes_to_the_card_with_least_room_that_is_enough() -> None:
    run = shared("binpack", ("half", 0.5), ("most", 0.75), ("quarter", 0.25), ("rest", 0.5))
    assert where(run, "quarter") == where(run, "most")
    assert where(run, "rest") == where(run, "half")


def test_spreading_gives_a_share_a_card_of_its_own_on_the_emptier_node() -> None:
    run = shared("spread", ("one", 0.5), ("two", 0.5))
    assert where(run, "one")[0] != where(run, "two")[0]


def test_a_card_held_whole_takes_no_share_and_a_shared_one_is_not_granted_whole() -> None:
    run = scheduler(nodes("[{name: a, kind: gpu-2}]"), policy="binpack")
    submit(run, job("whole", "gpu-2", cards_per_pod=1), job("half", "gpu-2", cards_per_pod=0.5))
    assert where(run, "half") != where(run, "whole")
    assert started(submit(run, job("two", "gpu-2", cards_per_pod=1))) == []
    assert started(submit(run, job("rest", "gpu-2", cards_per_pod=0.5))) == ["rest"]
    assert started(submit(run, job("more", "gpu-2", cards_per_pod=0.25))) == []


def test_a_share_needs_the_processors_and_the_memory_it_asks_for() -> None:
    small, large = "cpu: 2, memory_gib: 4", "cpu: 8, memory_gib: 8"
    cluster = f"[{{name: a, kind: gpu-8, {small}}}, {{name: b, kind: gpu-8, {large}}}]"
    run = scheduler(nodes(cluster), policy="binpack")
    asked = job("cpu", cards_per_pod=0.5, cpu_per_pod=4)
    more = job("memory", cards_per_pod=0.5, memory_gib_per_pod=6)
    assert started(submit(run, asked, more)) == ["cpu", "memory"]
    assert where(run, "cpu")[0] == where(run, "memory")[0] == 1
    none = job("none", cards_per_pod=0.5, memory_gib_per_pod=6)
    assert started(submit(run, none)) == []


# -- fragments ------------------------------------------------------------------------------------


def states(*rows: tuple[int, list[int]]) -> tuple[np.ndarray, np.ndarray]:
    left = np.zeros((len(rows), 16), dtype=np.int64)
    for i, (_, cards) in enumerate(rows):
        left[i, : len(cards)] = cards
    return np.array([cpu for cpu, _ in rows]), left


def test_fragments_are_what_a_typical_request_cannot_use() -> None:
    half = Typical(0, 600, 2000, 0.25)  # 0.6 of a card
    pair = Typical(2, 0, 4000, 0.5)
    plain = Typical(0, 0, 1000, 0.25)  # no card: all of them are lost to it
    fragments = Fragments((half, pair, plain))
    cpu, left = states(
        (8000, [1000, 1000, 500]),  # half: loses the 500; pair: too
        (8000, [1000, 600]),  # pair does not fit: loses all; half loses nothing
        (3000, [1000, 1000]),  # no CPU for the pair
        (1000, [1000]),  # no CPU for either
    )
    assert fragments.of(cpu, left).tolist() == [
        0.25 * 500 + 0.5 * 500 + 0.25 * 2500,
        0.5 * 1600 + 0.25 * 1600,
        0.5 * 2000 + 0.25 * 2000,
        1000.0,
    ]


def test_the_own_policy_also_counts_what_a_full_node_would_leave() -> None:
    """Requests of two cards and 4 CPU on a node of five cards and 4 CPU."""
    farsighted = Farsighted((Typical(2, 0, 4000, 1.0),))
    cpu, left = states((4000, [WHOLE] * 5), (40_000, [WHOLE] * 5))
    # One pod fits by CPU, so three cards stay; CPU feeds two of five cards. With CPU enough two
    # pods fit, one card stays, and none is starved.
    assert farsighted.of(cpu, left) == pytest.approx(
        [FILLED * 3000 + STARVED * 3000, FILLED * 1000]
    )


def test_a_share_fills_what_is_left_of_each_card() -> None:
    farsighted = Farsighted((Typical(0, 400, 0, 1.0),))
    cpu, left = states((0, [1000, 700]))
    # Three pods of 0.4 fit: two on the first card, one on the second; 500 stay.
    assert farsighted.unfilled(cpu, left) == pytest.approx([500])
    assert farsighted.of(cpu, left) == pytest.approx([FILLED * 500])


@pytest.mark.parametrize("name", ["gradient", "fragmentation"])
def test_a_small_request_goes_where_it_spoils_nothing_for_the_typical_one(name: str) -> None:
    """Typical work takes four cards: the lone card of the second node is of no use to it."""
    cluster = nodes(
        "[{name: a, kind: gpu-8, used: [4, 5, 6, 7]},"
        " {name: b, kind: gpu-8, used: [1, 2, 3, 4, 5, 6, 7]}]"
    )
    demand = (Typical(4, 0, 0, 0.9), Typical(1, 0, 0, 0.1))
    run = Scheduler(cluster, (), policies.get(name, demand))
    assert started(submit(run, job("small", cards_per_pod=1))) == ["small"]
    assert run.running["small"].placement[0].node == 1
    share = Scheduler(cluster, (), policies.get(name, demand))
    submit(share, job("share", cards_per_pod=0.5))
    assert share.running["share"].placement[0].node == 1


@pytest.mark.parametrize("name", ["gradient", "fragmentation"])
def test_what_a_policy_remembers_follows_every_start_and_end(name: str) -> None:
    """The same decisions as a scheduler that has just been made over the same state."""
    demand = (Typical(4, 0, 0, 0.5), Typical(1, 0, 2000, 0.3), Typical(0, 500, 0, 0.2))
    cluster = nodes("[{name: n, kind: gpu-8, count: 4, cpu: 16}]")
    sizes = (1, 4, 0.5, 1, 0.5, 8, 4, 1, 0.5, 2)
    run = Scheduler(cluster, (), policies.get(name, demand))
    for number, size in enumerate(sizes):
        submit(run, job(f"j{number}", cards_per_pod=size, cpu_per_pod=1))
        if number in (3, 6):
            run.on(ended(f"j{number - 1}"))
    for probe in (1, 0.5, 2, 4):
        fresh = Scheduler(cluster, (), policies.get(name, demand))
        for running in run.running.values():
            fresh.state.take(running.placement)
        wanted = job("probe", cards_per_pod=probe, cpu_per_pod=1)
        assert run.placer.place(wanted) == fresh.placer.place(wanted)


def ended(name: str) -> object:
    from joymigrate.run.cluster.events import Ended

    return Ended(name)


def test_yaml_of_an_inventory_is_what_was_meant() -> None:
    """What `detect` writes is YAML that `plan` reads."""
    written = yaml.safe_dump({"nodes": [node_data(node) for node in nodes(MANY).nodes]})
    assert len(inventory.from_data(yaml.safe_load(written)).nodes) == 60


@pytest.mark.parametrize("name", ["gradient", "fragmentation"])
def test_processors_are_taken_where_the_cards_can_spare_them(name: str) -> None:
    """Typical work takes one card and 8 CPU; the probe takes 16 CPU and no card."""
    cluster = nodes(
        "[{name: b, kind: gpu-8, cpu: 16, used: [0, 1, 2, 3, 4, 5]},"
        " {name: a, kind: gpu-8, cpu: 24, used: [0, 1, 2, 3, 4, 5]}]"
    )
    run = Scheduler(cluster, (), policies.get(name, (Typical(1, 0, 8000, 1.0),)))
    assert started(submit(run, job("probe", cards_per_pod=0, cpu_per_pod=16))) == ["probe"]
    assert run.running["probe"].placement[0].node == 1
