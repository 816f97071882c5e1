"""Logical super-pods against the published cases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.run.cluster.superpods import classify, select
from tests.run.cluster.cases import job, nodes, scheduler, started, submit


def free(counts: list[int]) -> list[list[int]]:
    """Super-pods with this many free nodes each; node numbers are unique."""
    nodes, start = [], 0
    for count in counts:
        nodes.append(list(range(start, start + count)))
        start += count
    return nodes


def used_sizes(counts: list[int], block: int, blocks: int, reserve: int) -> set[int]:
    """Sizes of the super-pods that the chosen nodes come from."""
    members = free(counts)
    chosen = select(members, block, blocks, reserve)
    assert len(chosen) == len(set(chosen)) == block * blocks
    for start in range(0, len(chosen), block):
        owners = {
            i for i, nodes in enumerate(members) for n in nodes if n in chosen[start:][:block]
        }
        assert len(owners) == 1, "a block lies in two super-pods"
    return {len(nodes) for nodes in members if set(nodes) & set(chosen)}


@pytest.mark.parametrize(
    ("counts", "want"),
    [
        ([4, 5, 6], {4, 5}),
        ([5, 6], {6}),
        ([5, 8], {5, 8}),
        ([3, 5, 8], {5, 8}),
        ([3, 5], {3, 5}),
        ([5, 5], {5}),
    ],
)
def test_two_blocks_of_two_nodes_with_a_reserve_of_two(counts: list[int], want: set[int]) -> None:
    assert used_sizes(counts, 2, 2, 2) == want


def test_equal_super_pods_give_a_block_each() -> None:
    members = free([5, 5])
    chosen = select(members, 2, 2, 2)
    assert [sum(n in nodes for n in chosen) for nodes in members] == [2, 2]


def test_a_small_job_takes_the_larger_super_pod_when_both_live_on_their_reserve() -> None:
    assert used_sizes([1, 3], 1, 1, 4) == {3}


def test_the_documented_classes() -> None:
    sizes = [47, 16, 31, 31, 15]
    classes = classify(free(sizes), 14, 2, soft=False)
    assert classes == {(3, 3): [0], (0, 1): [1], (1, 2): [2, 3], (13, 0): [4]}


def test_soft_breaks_blocks_over_smaller_super_pods() -> None:
    chosen = select(free([3, 3]), 4, 1, 2, soft=True)
    assert len(chosen) == 4


def test_soft_blocks_come_from_the_largest_remainders_first() -> None:
    members = free([2, 3])
    assert select(members, 4, 1, 2, soft=True) == [2, 3, 4, 0]


def test_the_reserve_is_used_block_after_block_when_nothing_else_is_left() -> None:
    assert sorted(select(free([4]), 1, 4, 2)) == [0, 1, 2, 3]
    assert len(select(free([5, 3]), 2, 3, 4)) == 6


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(0, 4),
)
def test_blocks_stay_whole_and_the_reserve_is_kept_while_it_can_be(
    counts: list[int], block: int, blocks: int, reserve: int
) -> None:
    members = free(counts)
    chosen = select(members, block, blocks, reserve)
    assert len(chosen) == len(set(chosen))
    owner = {node: number for number, nodes in enumerate(members) for node in nodes}
    owners = [
        {owner[node] for node in chosen[at : at + block]} for at in range(0, len(chosen), block)
    ]
    assert all(len(one) == 1 for one in owners)
    assert len(chosen) == block * min(blocks, sum(count // block for count in counts))
    left = [len(set(nodes) - set(chosen)) for nodes in members]
    if sum(max(0, count - reserve) // block for count in counts) >= blocks:
        taken = [count - rest for count, rest in zip(counts, left, strict=True)]
        assert all(rest >= reserve for rest, used in zip(left, taken, strict=True) if used)


CLUSTER = """[
  {name: s, kind: ascend-a3-16, count: 4, superpod: one},
  {name: t, kind: ascend-a3-16, count: 2, superpod: two, used: [0]},
  {name: u, kind: ascend-a3-16, superpod: two},
]"""


@pytest.mark.parametrize(
    ("cards", "pods", "block", "says"),
    [
        (8, 2, 16, "needs pods of 16 cards, not 8"),
        (16, 2, 24, "no multiple of a node's 16 cards"),
        (16, 3, 32, "does not divide the job's 48 cards"),
        (16, 64, 16 * 64, "larger than a super-pod of 48 nodes"),
        (4, 1, 8, "is not the 4 cards of the only pod"),
    ],
)
def test_a_block_that_can_never_be_laid_out_is_refused_with_the_reason(
    cards: int, pods: int, block: int, says: str
) -> None:
    run = scheduler(nodes(CLUSTER))
    assert (
        submit(run, job("j", "ascend-a3-16", cards_per_pod=cards, pods=pods, sp_block=block)) == []
    )
    refusal = run.why("j")
    assert refusal is not None
    assert refusal.permanent
    assert says in refusal.reason


def test_without_super_pods_a_block_is_refused() -> None:
    run = scheduler(nodes("[{name: n, kind: ascend-a3-16, count: 2}]"))
    submit(run, job("j", "ascend-a3-16", cards_per_pod=16, pods=2, sp_block=16))
    assert "name none" in run.why("j").reason  # type: ignore[union-attr]


def test_each_block_lies_in_one_super_pod_in_rank_order() -> None:
    run = scheduler(nodes(CLUSTER))
    actions = submit(run, job("j", "ascend-a3-16", cards_per_pod=16, pods=4, sp_block=32))
    assert started(actions) == ["j"]
    assert {grant.node for grant in run.running["j"].placement} == {0, 1, 2, 3}


def test_a_block_waits_until_one_super_pod_has_it_whole() -> None:
    """Five whole nodes are free, but never three of them in one super-pod beside the four."""
    run = scheduler(nodes(CLUSTER))
    assert submit(run, job("six", "ascend-a3-16", cards_per_pod=16, pods=6, sp_block=48)) == []
    assert run.why("six").code == "superpod"  # type: ignore[union-attr]
    assert run.why("six").facts == {"need": 2, "block": 3, "have": 1}  # type: ignore[union-attr]


def test_a_single_pod_takes_the_node_that_has_least_room() -> None:
    cluster = "[{name: a, kind: ascend-a3-16, superpod: s}, " + (
        "{name: b, kind: ascend-a3-16, superpod: s, used: [0, 1, 2, 3, 4, 5, 6, 7]}]"
    )
    run = scheduler(nodes(cluster))
    submit(run, job("j", "ascend-a3-16", cards_per_pod=4, sp_block=4))
    assert run.running["j"].placement[0].node == 1
    submit(run, *(job(f"f{i}", "ascend-a3-16", cards_per_pod=16, sp_block=16) for i in range(2)))
    assert run.why("f1").facts == {"need": 1, "block": 1, "have": 0}  # type: ignore[union-attr]


def test_only_a_soft_job_breaks_its_blocks_over_super_pods() -> None:
    """Super-pods of four and three nodes; then of four and two, with one block of three."""
    cluster = CLUSTER.replace(", used: [0]", "")
    asked = {"cards_per_pod": 16, "pods": 6, "sp_block": 48}
    run = scheduler(nodes(cluster))
    assert started(submit(run, job("soft", "ascend-a3-16", superpod="soft", **asked))) == ["soft"]
    assert len({grant.node for grant in run.running["soft"].placement}) == 6
    run = scheduler(nodes(cluster.replace("count: 2", "count: 1")))
    hard = job("hard", "ascend-a3-16", **asked)
    soft = job("soft", "ascend-a3-16", superpod="soft", **asked)
    assert started(submit(run, hard, soft)) == ["soft"]
    more = job("more", "ascend-a3-16", superpod="soft", **{**asked, "pods": 9})
    assert started(submit(scheduler(nodes(cluster)), more)) == []
