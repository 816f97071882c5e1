"""What one value reaches: a class of cells, grown from a word, with the way to each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from joymigrate.rewrite.values.cells import COMES, COMPARED, DECIDED, GOES, Cell, Edge

Near = Callable[[Cell, int], Iterable[Edge]]  # of a cell, the way that its value goes
State = tuple[Cell, bool]  # a cell, and whether a comparison was passed on the way
Way = tuple[State, Edge] | None


def sources(start: Iterable[Cell], near: Near, limit: int) -> set[Cell]:
    """Cells whose value may arrive in one of `start`. Ends after `limit` cells."""
    found = set(start)
    todo = deque(found)
    while todo and len(found) < limit:
        for edge in near(todo.popleft(), COMES):
            if edge.flow != GOES and edge.kind != COMPARED and edge.cell not in found:
                found.add(edge.cell)
                todo.append(edge.cell)
    return found


def grow(start: Cell, near: Near, limit: int) -> dict[State, Way]:
    """What a value meets: where it goes, what is compared with it there, and where that comes from.
    The answer of a question for it is another value.

    Each with the state that it was found from and the edge. Ends after `limit` cells: what a value
    meets then is not known as a whole.
    """
    found: dict[State, Way] = {(start, False): None}
    todo = deque(found)
    while todo and len(found) < limit:
        cell, passed = state = todo.popleft()
        for edge in near(cell, COMES if passed else GOES):
            after = (edge.cell, passed or edge.kind == COMPARED)
            again = passed and edge.kind == COMPARED
            if not again and edge.kind != DECIDED and after not in found:
                found[after] = (state, edge)
                todo.append(after)
    return found


def follow(start: Cell, near: Near, limit: int) -> dict[State, Way]:
    """Where a value goes, each cell with the way; ends after `limit` cells."""
    found: dict[State, Way] = {(start, False): None}
    todo = deque(found)
    while todo and len(found) < limit:
        state = todo.popleft()
        for edge in near(state[0], GOES):
            after = (edge.cell, False)
            if edge.kind != COMPARED and after not in found:
                found[after] = (state, edge)
                todo.append(after)
    return found


def way_to(state: State, found: dict[State, Way]) -> list[tuple[Cell, Edge]]:
    """The edges from where the growth started to a cell, in order."""
    chain: list[tuple[Cell, Edge]] = []
    while (step := found.get(state)) is not None:
        chain.append((step[0][0], step[1]))
        state = step[0]
    return chain[::-1]
