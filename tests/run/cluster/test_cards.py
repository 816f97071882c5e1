"""The choice of cards against a second reading of the rules, over every free mask and size."""

from __future__ import annotations

from itertools import combinations

import pytest

from joymigrate.run.cluster import cards, kinds


def ring_of_4(free: set[int], k: int, gang: bool) -> set[int]:
    """Two rings of four: the published priority of free counts, ring 0 first, lowest ids."""
    order = {1: [1, 3, 2, 4], 2: [2, 4, 3], 4: [4]}
    if k == 8:
        return free if len(free) == 8 else set()
    left, right = sorted(c for c in free if c < 4), sorted(c for c in free if c >= 4)
    for want in order.get(k, []):
        for ring in (left, right):
            if len(ring) == want:
                return set(ring[:k])
    return set()


def ring_of_8(free: set[int], k: int, gang: bool) -> set[int]:
    """Two rings of eight: one ring up to 8; 10, 12, 14 half in each; 16 all."""
    if k == 16:
        return free if len(free) == 16 else set()
    left, right = sorted(c for c in free if c < 8), sorted(c for c in free if c >= 8)
    if k <= 8:
        for want in range(k, 9):
            for ring in (left, right):
                if len(ring) == want:
                    return set(ring[:k])
        return set()
    if k % 2:
        return set()
    if gang:
        pairs = list(zip(left, right, strict=False))
    else:
        pairs = [(c, c + 8) for c in left if c + 8 in right]
    if 2 * len(pairs) < k:
        return set()
    return {card for pair in pairs[: k // 2] for card in pair}


def whole_modules(free: set[int], k: int, gang: bool) -> set[int]:
    """Modules of two dies: one die from the fewest-free module; an even count of whole modules."""
    modules = [sorted({2 * m, 2 * m + 1} & free) for m in range(8)]
    if k == 1:
        some = sorted((m for m in modules if m), key=len)
        return {some[0][0]} if some else set()
    whole = [m for m in modules if len(m) == 2]
    if k % 2 or 2 * len(whole) < k:
        return set()
    return {card for module in whole[: k // 2] for card in module}


def any_cards(free: set[int], k: int, gang: bool) -> set[int]:
    """A full mesh: count only, lowest ids."""
    return set(sorted(free)[:k]) if len(free) >= k else set()


READINGS = {
    "ascend-910-8": ring_of_4,
    "ascend-910b-8": any_cards,
    "ascend-910b-16": ring_of_8,
    "ascend-a3-16": whole_modules,
}


def check(name: str, gang: bool, step: int) -> None:
    kind = kinds.get(name)
    for k in kind.legal:
        select = cards.choice(kind, k, gang).select
        for mask in range(0, 1 << kind.cards, step):
            want = READINGS[name](set(cards.ids(mask)), k, gang)
            assert set(cards.ids(int(select[mask]))) == want, (name, k, gang, cards.ids(mask))


@pytest.mark.parametrize("gang", [False, True])
@pytest.mark.parametrize("name", ["ascend-910-8", "ascend-910b-8"])
def test_every_mask_of_an_8_card_node(name: str, gang: bool) -> None:
    check(name, gang, 1)


@pytest.mark.parametrize("gang", [False, True])
@pytest.mark.parametrize("name", ["ascend-910b-16", "ascend-a3-16"])
def test_masks_of_a_16_card_node(name: str, gang: bool) -> None:
    check(name, gang, 17)  # 17 is prime to 65,536: all low and high bytes occur


@pytest.mark.slow
@pytest.mark.parametrize("gang", [False, True])
@pytest.mark.parametrize("name", ["ascend-910b-16", "ascend-a3-16"])
def test_every_mask_of_a_16_card_node(name: str, gang: bool) -> None:
    check(name, gang, 1)


def test_the_published_scores_of_a_ring_node() -> None:
    """One card on nodes with 1, 3, 2, 4 free cards in one ring, 8 healthy: 263, 253, 246, 236."""
    kind = kinds.get("ascend-910-8")
    cost = cards.choice(kind, 1, False).cost
    scores = [8 * 4 * 8 + 8 - int(cost[mask]) for mask in (0b1, 0b111, 0b11, 0b1111)]
    assert scores == [263, 253, 246, 236]


def test_pods_that_fit_is_what_greedy_placing_reaches() -> None:
    kind = kinds.get("ascend-910-8")
    choice = cards.choice(kind, 2, False)
    for mask in range(256):
        left, pods = mask, 0
        while choice.select[left]:
            left &= ~int(choice.select[left])
            pods += 1
        assert choice.fits[mask] == pods == sum(bin(mask >> s & 15).count("1") // 2 for s in (0, 4))


@pytest.mark.parametrize(("k", "mesh"), [(1, True), (3, True), (4, True), (8, True), (5, False)])
def test_blocks_keep_small_requests_in_one_mesh_and_multiples_in_full_ones(
    k: int, mesh: bool
) -> None:
    select = cards.choice(kinds.get("ascend-350-8"), k, False).select
    for mask in range(256):
        chosen = cards.ids(int(select[mask]))
        parts = {card // 4 for card in chosen}
        if not chosen:
            possible = [
                c
                for c in combinations(cards.ids(mask), k)
                if not mesh or len({x // 4 for x in c}) == (k + 3) // 4
            ]
            assert not possible, cards.ids(mask)
        elif mesh:
            assert len(parts) == (k + 3) // 4


def test_a_kind_without_groups_claims_no_ring() -> None:
    for kind in kinds.all_kinds().values():
        assert bool(kind.groups) == (kind.rule != "count")


def test_one_die_breaks_no_whole_module_while_another_node_has_a_broken_one() -> None:
    cost = cards.choice(kinds.get("ascend-a3-16"), 1, False).cost
    broken, whole = 0xFFFF & ~1, 0b11  # fifteen free dies, one of them alone; one module
    assert cost[broken] < cost[whole]
    assert cost[0b1] < cost[0b101] < cost[broken]  # among broken ones the tighter node
    assert cost[0b11] < cost[0b1111]


def test_the_tighter_node_is_cheaper_whatever_the_rule() -> None:
    modules = cards.choice(kinds.get("ascend-a3-16"), 4, False)
    assert modules.cost[0xF] < modules.cost[0x3F] < modules.cost[0xFFFF]
    blocks = kinds.get("ascend-350-8")
    small = cards.choice(blocks, 2, False)
    # Two cards: from a mesh with two free, then three, then four, whatever else is free.
    assert small.cost[0x3F] < small.cost[0x07] < small.cost[0x0F]
    large = cards.choice(blocks, 5, False)
    assert large.cost[0x1F] < large.cost[0x3F] < large.cost[0xFF]


def test_small_requests_take_the_mesh_with_fewest_free_cards_that_are_enough() -> None:
    select = cards.choice(kinds.get("ascend-350-8"), 2, False).select
    assert cards.ids(int(select[0b0011_0111])) == [4, 5]  # two free there, three here
    assert cards.ids(int(select[0b0111_1111])) == [4, 5]
    assert cards.ids(int(select[0b1111_1111])) == [0, 1]
    whole = cards.choice(kinds.get("ascend-350-8"), 4, False).select
    assert cards.ids(int(whole[0b1111_0111])) == [4, 5, 6, 7]


def test_an_odd_number_of_dies_fits_no_modules() -> None:
    choice = cards.choice(kinds.get("ascend-a3-16"), 3, False)
    assert not choice.select.any()
    assert (choice.cost == cards.IMPOSSIBLE).all()
