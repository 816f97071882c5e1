"""Where a collection gets its rows from: its own tables, or (in `sharded.py`) other processes' too.

fetched = exchange.fetch(routes)      # rows on their way; in the order of the batches
rows = exchange.rows(fetched)         # one [U, D] a table, as they are now
exchange.update(fetched, gradients)   # or fetched.release()

Where a route is `pooled`, its rows are the sums of its bags [k·B, D], and so are the gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.train.tables.route import TableRoute
from joymigrate.run.train.tables.table import Table
from joymigrate.run.train.tables.table_shape import Ticket


@dataclass
class Fetched:
    """One batch's rows, until they are updated or let go."""

    owner: Any
    routes: list[TableRoute]
    tickets: list[tuple[Table, Ticket]] = field(default_factory=list)
    brought: int = 0  # of the tickets
    parts: Any = None  # what an exchange between processes remembers
    done: bool = False

    def release(self) -> None:
        """Let the rows go unchanged. Twice does no harm."""
        if not self.done:
            self.done = True
            for table, ticket in self.tickets[: self.brought]:
                table.release(ticket)
            for table, ticket in self.tickets[self.brought :]:
                table.abandon(ticket)

    def __del__(self) -> None:
        self.release()


class LocalExchange:
    """All rows of all tables lie in this process."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self.tables = {name: (table,) for name, table in tables.items()}
        self.order = list(tables.values())

    def fetch(self, routes: list[TableRoute]) -> Fetched:
        """Find the rows' places. Bad ids are refused before anything is counted."""
        for table, asked in zip(self.order, routes, strict=True):
            table.check(asked.distinct.ids)
        fetched = Fetched(self, routes)
        for table, asked in zip(self.order, routes, strict=True):
            found = asked.distinct
            fetched.tickets.append((table, table.prepare(found.ids, found.counts)))
            _ = asked.bags if asked.pooled else asked.inverse  # by the thread that routes
        return fetched

    def bring(self, fetched: Fetched) -> None:
        """Bring the rows to the device; after `CacheFull` it goes on where it stopped."""
        while fetched.brought < len(fetched.tickets):
            table, ticket = fetched.tickets[fetched.brought]
            table.bring(ticket)
            fetched.brought += 1

    def rows(self, fetched: Fetched) -> list[Tensor]:
        """The rows as they are now."""
        return [
            table.pool(ticket, asked.bags) if asked.pooled else table.rows(ticket)
            for asked, (table, ticket) in zip(fetched.routes, fetched.tickets, strict=True)
        ]

    def update(self, fetched: Fetched, gradients: Sequence[Tensor | None]) -> None:
        """Change the rows; without a gradient a table's are let go."""
        if fetched.done:
            raise second_backward()
        fetched.done = True
        for asked, (table, ticket), gradient in zip(
            fetched.routes, fetched.tickets, gradients, strict=True
        ):
            if gradient is None:
                table.release(ticket)
            else:
                table.update(ticket, asked.bags.gather(gradient) if asked.pooled else gradient)

    def look(self, routes: list[TableRoute]) -> list[Tensor]:
        """Rows for a forward pass that learns nothing: no id is admitted, counted or moved."""
        found = []
        for table, asked in zip(self.order, routes, strict=True):
            rows = table.look(asked.distinct.ids)
            found.append(asked.bags.pool(rows) if asked.pooled else rows)
        return found


def second_backward() -> JoyError:
    """Rows are updated in the backward pass, so there is one for each forward pass."""
    return JoyError(
        "the rows of this batch were updated already",
        help="run forward again; with fused optimisers there is one backward for each forward",
    )


class FetchRows(torch.autograd.Function):
    """Rows into the graph; their gradients into the exchange, which updates the tables."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, fetched: Fetched) -> tuple[Tensor, ...]:
        ctx.fetched = fetched
        ctx.set_materialize_grads(False)
        return tuple(fetched.owner.rows(fetched))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None]:
        ctx.fetched.owner.update(ctx.fetched, gradients)
        return None, None


def rows_with_grad(fetched: Fetched) -> tuple[Tensor, ...]:
    """The rows of a batch; backward updates them."""
    anchor = torch.zeros((), requires_grad=True)
    rows: tuple[Tensor, ...] = FetchRows.apply(anchor, fetched)  # type: ignore[no-untyped-call]
    return rows
