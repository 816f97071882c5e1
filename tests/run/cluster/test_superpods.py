"""Logical super-pods against the published cases."""

from __future__ import annotations

import pytest

from joymigrate.run.cluster.superpods import classify, select


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
