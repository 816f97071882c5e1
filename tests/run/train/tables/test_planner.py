"""Where tables go, and the reason that is given."""

from __future__ import annotations

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.train.tables.planner import ShardingPlan, TableNeed, make_plan


def need(
    name: str, rows: int = 10_000, columns: int = 64, access: float = 1.0, **more
) -> TableNeed:
    return TableNeed(name, rows, columns, 4 * columns, access=access, **more)


def ways(plan: ShardingPlan) -> dict[str, str]:
    return {item.table: item.kind for item in plan.placements}


def test_even_tables_lie_whole_and_evenly() -> None:
    plan = make_plan([need(n) for n in "abcd"], world=2)
    assert set(ways(plan).values()) == {"table"}
    assert plan.load_by_rank[0] == plan.load_by_rank[1]


def test_a_hot_table_is_cut_by_rows_and_says_its_share() -> None:
    plan = make_plan([need("hot", access=90), *(need(n) for n in "abcdefghij")], world=4)
    assert ways(plan)["hot"] == "row"
    assert "hot: by row on processes 0-3: it has 90% of the traffic, a fair share is 25%" in str(
        plan
    )


def test_a_hot_table_of_few_wide_rows_is_cut_by_columns_unless_its_optimiser_forbids() -> None:
    tables = [need("hot", 100, 256, access=90), *(need(n) for n in "abc")]
    assert ways(make_plan(tables, world=4))["hot"] == "column"
    whole = [need("hot", 100, 256, access=90, optimiser="lamb"), *tables[1:]]
    assert ways(make_plan(whole, world=4))["hot"] == "row"


def test_what_does_not_fit_one_device_is_cut_and_what_fits_none_is_an_error() -> None:
    large = need("large", rows=1_000_000)
    plan = make_plan([large, *(need(n, access=9) for n in "abc")], world=4, memory_bytes=100 << 20)
    assert ways(plan)["large"] == "row"
    assert "244 MiB don't fit one device (100 MiB)" in str(plan)
    assert max(plan.bytes_by_rank) <= 100 << 20
    with pytest.raises(JoyError, match="the rows need 61 MiB on one process, and there are 50"):
        make_plan([large], world=4, memory_bytes=50 << 20)


def test_ids_without_bound_are_spread() -> None:
    assert ways(make_plan([need("d", dynamic=True)], world=2)) == {"d": "row"}


@pytest.mark.parametrize("kind", ["table", "row", "column"])
def test_the_parts_of_a_table_are_the_table(kind: str) -> None:
    plan = make_plan([need("t", 1003, 67)], world=4, fixed={"t": kind})
    parts = plan.placements[0].parts
    assert sum(part.rows * part.columns for part in parts) == 1003 * 67


@pytest.mark.parametrize(
    ("fixed", "more", "text"),
    [
        ({"t": "diagonal"}, {}, "no way 'diagonal'"),
        ({"x": "row"}, {}, "for table 'x'"),
        ({"t": "column"}, {"optimiser": "rowwise_adagrad"}, "needs whole rows"),
        ({"t": "column"}, {"columns": 3}, "3 columns can't be cut for 4"),
    ],
)
def test_what_cannot_be_is_refused(fixed: dict, more: dict, text: str) -> None:
    with pytest.raises(JoyError, match=text):
        make_plan([need("t", **more)], world=4, fixed=fixed)
