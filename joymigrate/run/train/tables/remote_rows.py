"""Rows of other processes: ids go to their owners, rows or sums come back, gradients go.

    plan = shard_tables(model)             # every collection of the model, by the planner
    print(plan)

Repeated ids are removed before rows are sent; where the sums of bags are fewer bytes, the owner
adds the rows up and sends those. Groups of their own: keys and rows are fetched by a pipeline's
thread while the main thread sends gradients, and collectives of one group must come in the same
order on all ranks. A rank that refuses its batch, or has no more of them, tells the others, so that
none waits; lookups that learn nothing have a group for their keys, as the main thread makes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.train.formats.first_rows import Ids
from joymigrate.run.train.tables.bags import make_bags
from joymigrate.run.train.tables.exchange import Fetched, second_backward
from joymigrate.run.train.tables.failures import AgreedError
from joymigrate.run.train.tables.hash_index import Places
from joymigrate.run.train.tables.planner import TablePart
from joymigrate.run.train.tables.questions import (
    KEYS,
    NOTHING,
    UNITS,
    QuestionSizes,
    TableQuestion,
    Way,
    bags_in_part,
    is_wide,
    read_question,
)
from joymigrate.run.train.tables.route import TableRoute
from joymigrate.run.train.tables.sharded_parts import (
    OwnPart,
    RowRequest,
    TableGroups,
    owner_among,
    stale_units,
)
from joymigrate.run.train.tables.table import Table
from joymigrate.run.train.tables.wire import Wire, pack_values, unpack_values

REFUSED, LEFT = 1, 2  # what a rank says instead of sizes


class ShardedExchange:
    """Tables in parts on several processes."""

    def __init__(
        self,
        order: Sequence[str],
        columns: Mapping[str, int],
        parts: Sequence[TablePart],
        own: Mapping[int, Table],
        groups: TableGroups,
        device: torch.device,
        check: Mapping[str, int | None],
        wire: Wire | None = None,
    ) -> None:
        self.order, self.columns, self.parts = list(order), columns, list(parts)
        self.own, self.groups, self.device, self.bounds = own, groups, device, check
        self.wire = wire or Wire()
        self.pipelined, self.staleness = False, 0
        self.waited_for = True  # by the others, who send sizes next; not in the middle of a batch
        self.tables: dict[str, tuple[Table, ...]] = {
            name: tuple(own[n] for n, part in enumerate(parts) if part.table == name and n in own)
            for name in order
        }
        self.of_table = {
            name: [n for n, part in enumerate(parts) if part.table == name] for name in order
        }
        self.rank_of = np.array([part.rank for part in parts], dtype=np.int64)
        self.wide = np.array([is_wide(check[part.table]) for part in parts], dtype=bool)
        self.ways = {name: Way() for name in order}
        self.bytes_sent = self.bytes_plain = 0  # this rank's; plain: without removing repeats

    # -- ids ------------------------------------------------------------------------------------

    def fetch(self, routes: list[TableRoute]) -> Fetched:
        """Send ids to their owners; owners find the rows' places."""
        asked = self._ask(routes, self.groups.keys)
        fetched = Fetched(self, routes, parts=asked)
        for part, table in zip(asked.own, self.own.values(), strict=True):
            fetched.tickets.append((table, table.prepare(part.ids, part.counts)))
        return fetched

    def leave(self) -> None:
        """Tell the others that no batch follows; returns when all of them say so or are told.

        Does nothing where they know already: one refused its batch, or left before.
        """
        if self.waited_for:
            self._tell_sizes([NOTHING] * len(self.parts), None, self.groups.keys, left=True)

    def _ask(self, routes: list[TableRoute], keys: Any) -> RowRequest:
        error = self._mistake(routes)
        questions = [NOTHING] * len(self.parts)
        if error is None:
            for name, asked in zip(self.order, routes, strict=True):
                made = self._questions(name, asked)
                for part, question in zip(self.of_table[name], made, strict=True):
                    questions[part] = question
        counts = self._tell_sizes(questions, error, keys)
        words = [questions[n].words(self.wide[n]) for n in self._by_rank()]
        sizes = self._words(counts.sent), self._words(counts.got)
        received = self._exchange(
            torch.from_numpy(np.concatenate([*words, np.zeros(0, dtype=np.int32)])),
            sizes[0].sum(1), sizes[1].sum(1), keys,
        ).numpy()  # fmt: skip
        self._count_traffic(routes, questions, sizes[0], counts.sent[..., UNITS])
        return RowRequest(
            [q.places(self.device) for q in questions],
            [q.pooled for q in questions],
            counts.sent[..., UNITS],
            counts.got[..., UNITS],
            self._read_questions(received, counts.got, sizes[1]),
        )

    def _mistake(self, routes: list[TableRoute]) -> JoyError | None:
        for name, asked in zip(self.order, routes, strict=True):
            bound, ids = self.bounds[name], asked.given
            if bound is None or not len(ids):
                continue
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= bound:
                return JoyError(
                    f"id {low if low < 0 else high} is outside of [0, {bound})",
                    where=f"table '{name}'",
                    help="raise num_embeddings, hash the ids, or make the table dynamic",
                )
        return None

    def _questions(self, name: str, asked: TableRoute) -> list[TableQuestion]:
        """What to ask of each part of a table: sums of bags where they are fewer bytes."""
        parts = [self.parts[n] for n in self.of_table[name]]
        spread = len(parts) > 1 and len({part.first_column for part in parts}) == 1
        cut = len(parts) if spread else 1
        pooled = asked.pooled and self.ways[name].pools(asked, self.columns[name], cut)
        if pooled:
            ids, extra = asked.given, np.asarray(asked.lengths.numpy(), dtype=np.int64)
        else:
            ids, extra = asked.distinct.ids, asked.distinct.counts
        if not spread:
            return [TableQuestion(ids, extra, None, pooled)] * len(parts)
        owner = self._owner(name, ids, parts)
        if not pooled:
            mine = [np.flatnonzero(owner == number) for number in range(len(parts))]
            return [TableQuestion(ids[at], extra[at], at, False) for at in mine]
        bag = np.repeat(np.arange(len(extra)), extra)
        return [bags_in_part(ids, bag, owner == number, len(extra)) for number in range(len(parts))]

    def _owner(self, name: str, ids: Ids, parts: Sequence[TablePart]) -> Places:
        if self.bounds[name] is None:
            return owner_among(ids, len(parts))
        edges = np.array([part.first_row for part in parts[1:]], dtype=np.int64)
        return np.searchsorted(edges, ids, side="right")

    def _by_rank(self) -> list[int]:
        """Parts in the order in which they are sent: by rank, then by plan."""
        return list(np.argsort(self.rank_of, kind="stable"))

    def _tell_sizes(
        self,
        questions: Sequence[TableQuestion],
        error: JoyError | None,
        keys: Any,
        left: bool = False,
    ) -> QuestionSizes:
        """Who asks how much of whom; an error on every rank where one refuses its batch or left."""
        parts = len(self.parts)
        sent = np.zeros((self.groups.world, parts + 1, 3), dtype=np.int64)
        for number, question in enumerate(questions):
            sent[self.rank_of[number], number] = question.size()
        sent[:, -1] = LEFT if left else REFUSED if error is not None else 0
        if keys is self.groups.keys:
            self.waited_for = False
        got = self._exchange_counts(sent.reshape(len(sent), -1), keys).reshape(sent.shape)
        if error is not None:
            raise AgreedError(error.what, where=error.where, help=error.help) from error
        gone = np.flatnonzero(got[:, -1, 0] == LEFT)
        if len(gone) and not left:
            raise AgreedError(
                f"process {gone[0]} has no more batches, and this one has",
                help="give every process as many batches as the others, or stop all at one step",
            )
        refused = np.flatnonzero(got[:, -1, 0] == REFUSED)
        if len(refused) and not left:
            raise AgreedError(
                f"process {refused[0]} refused its batch, so this step can't be done",
                help="its own message says why",
            )
        return QuestionSizes(sent[:, :-1], got[:, :-1])

    def _words(self, sizes: Places) -> Places:
        """Words of 4 bytes of each question: [world, parts]."""
        found: Places = sizes[..., KEYS] * np.where(self.wide, 2, 1) + sizes[..., UNITS]
        return found

    def _read_questions(self, received: Any, got: Places, words: Places) -> list[OwnPart]:
        numbers = list(self.own)
        pieces = np.split(received, np.cumsum(words[:, numbers].ravel())[:-1])
        parts = []
        for place, number in enumerate(numbers):
            asked = [
                read_question(piece, got[rank, number], self.wide[number])
                for rank, piece in enumerate(pieces[place :: len(numbers)])
            ]
            rows, ids = pd.factorize(np.concatenate([ids for ids, _, _ in asked]))
            seen = np.concatenate([counts for _, counts, _ in asked])
            lengths = np.concatenate([lengths for _, _, lengths in asked])
            rows = rows.astype(np.int64, copy=False)
            counts = np.bincount(rows, weights=seen, minlength=len(ids)).astype(np.int64)
            bags = make_bags(rows, lengths, len(ids), self.device)
            parts.append(OwnPart(np.ascontiguousarray(ids), counts, bags, rows, lengths))
        return parts

    def _count_traffic(
        self,
        routes: list[TableRoute],
        questions: Sequence[TableQuestion],
        words: Places,
        units: Places,
    ) -> None:
        away = np.arange(self.groups.world) != self.groups.rank
        each = self.wire.rows.itemsize + self.wire.gradients.itemsize
        width = np.array([part.columns * each for part in self.parts])  # rows, gradients
        self.bytes_sent += int((units[away] * width).sum() + 4 * words[away].sum())
        values = dict(zip(self.order, (len(asked.given) for asked in routes), strict=True))
        for number, question in enumerate(questions):
            if away[self.rank_of[number]]:
                part = self.parts[number]
                seen = len(question.ids) if question.pooled else int(question.extra.sum())
                self.bytes_plain += min(seen, values[part.table]) * int(width[number] + 12)

    # -- rows -----------------------------------------------------------------------------------

    def bring(self, fetched: Fetched) -> None:
        """Owners bring the rows to their devices, and send them."""
        while fetched.brought < len(fetched.tickets):
            table, ticket = fetched.tickets[fetched.brought]
            table.bring(ticket)
            fetched.brought += 1
        asked: RowRequest = fetched.parts
        asked.seen = [table.finished for table, _ in fetched.tickets]
        asked.blocks = self._send_units(asked, self._own_units(fetched), self.groups.rows)
        self.waited_for = True

    def drop(self, fetched: Fetched) -> None:
        """Send zeros in place of rows that can't be brought: the others wait for this many."""
        asked: RowRequest = fetched.parts
        zeros = [
            torch.zeros(len(part.lengths), self.parts[number].columns, device=self.device)
            for number, part in zip(self.own, asked.own, strict=True)
        ]
        self._send_units(asked, zeros, self.groups.rows)
        self.waited_for = True

    def _own_units(self, fetched: Fetched) -> list[Tensor]:
        """The units of own parts as they are now, [units, columns]."""
        asked: RowRequest = fetched.parts
        return [
            table.pool(ticket, part.bags)
            for part, (table, ticket) in zip(asked.own, fetched.tickets, strict=True)
        ]

    def _send_units(self, asked: RowRequest, units: Sequence[Tensor], group: Any) -> list[Tensor]:
        """Units of own parts to those who asked; those of this rank, by part."""
        widths = self._widths(asked.sent, asked.got)[::-1]
        received = self._send(self._by_asker(units, asked.got), *widths, group, self.wire.rows)
        blocks = [received] * len(self.parts)
        at = 0
        for number in self._by_rank():
            part = self.parts[number]
            count = int(asked.sent[part.rank, number])
            blocks[number] = received[at : at + count * part.columns].view(count, part.columns)
            at += count * part.columns
        return blocks

    def _result(self, routes: list[TableRoute], asked: RowRequest) -> list[Tensor]:
        """One matrix a table: of bags where they are wanted, else of distinct rows."""
        assert asked.blocks is not None
        found = []
        for name, route in zip(self.order, routes, strict=True):
            numbers = self.of_table[name]
            pooled, whole = asked.pooled[numbers[0]], asked.chosen[numbers[0]] is None
            if len(numbers) == 1 and whole:
                result = asked.blocks[numbers[0]]
            elif whole:
                result = torch.cat([asked.blocks[n] for n in numbers], 1)
            else:
                count = len(route.lengths) if pooled else len(route.distinct.ids)
                result = torch.zeros(count, self.columns[name], device=self.device)
                for n in numbers:
                    result.index_add_(0, asked.chosen[n], asked.blocks[n])  # type: ignore[arg-type]
            found.append(route.bags.pool(result) if route.pooled and not pooled else result)
        return found

    def _by_asker(self, blocks: Sequence[Tensor], got: Places) -> Tensor:
        """Own parts' blocks, each rank by rank, as one vector rank by rank, each part by part."""
        split = [
            torch.split(block, got[:, part].tolist())
            for part, block in zip(self.own, blocks, strict=True)
        ]
        flat = [pieces[r].reshape(-1) for r in range(self.groups.world) for pieces in split]
        return torch.cat(flat) if flat else torch.zeros(0, device=self.device)

    def _widths(self, sent: Places, got: Places) -> tuple[Places, Places]:
        """Numbers to each rank and from each rank, from those who asked to owners."""
        columns = np.array([part.columns for part in self.parts], dtype=np.int64)
        return (sent * columns).sum(1), (got * columns).sum(1)

    def rows(self, fetched: Fetched) -> list[Tensor]:
        """The rows as they are now: in a pipeline, with those that later updates changed."""
        if self.pipelined:
            self._refresh(fetched, fetched.parts)
        return self._result(fetched.routes, fetched.parts)

    def _refresh(self, fetched: Fetched, asked: RowRequest) -> None:
        """Send again what updates changed since it was sent."""
        assert asked.seen is not None
        assert asked.blocks is not None
        spots, values = [], []
        counts = np.zeros((self.groups.world, len(self.parts)), dtype=np.int64)
        units = self._own_units(fetched)
        for number, (part, (table, ticket)) in enumerate(
            zip(self.own, fetched.tickets, strict=True)
        ):
            own = asked.own[number]
            stamp = table.stamp[np.maximum(ticket.slots, 0)]
            stale = (stamp > asked.seen[number] + self.staleness) & ticket.held
            hit = stale_units(own, stale)
            edges = np.cumsum(asked.got[:, part])
            counts[:, part] = np.diff(np.searchsorted(hit, edges), prepend=0)
            starts = np.concatenate(([0], edges))[np.searchsorted(edges, hit, side="right")]
            spots.append(torch.from_numpy(hit - starts).to(self.device))
            values.append(units[number].index_select(0, torch.from_numpy(hit).to(self.device)))
        got = self._exchange_counts(counts, self.groups.gradients)
        places = self._exchange(
            self._by_asker(spots, counts), counts.sum(1), got.sum(1), self.groups.gradients
        )
        asking, owning = self._widths(got, counts)
        new = self._send(
            self._by_asker(values, counts), owning, asking, self.groups.gradients, self.wire.rows
        )
        spot = at = 0
        for number in self._by_rank():
            piece = self.parts[number]
            count = int(got[piece.rank, number])
            size = count * piece.columns
            if count:
                block = new[at : at + size].view(count, piece.columns)
                asked.blocks[number].index_copy_(0, places[spot : spot + count].long(), block)
            spot, at = spot + count, at + size

    # -- gradients ------------------------------------------------------------------------------

    def update(self, fetched: Fetched, gradients: Sequence[Tensor | None]) -> None:
        """Send gradients to the owners, who sum them rank by rank and change the rows.

        They are divided by the number of processes, as DDP does with those of the dense part.
        """
        if fetched.done:
            raise second_backward()
        fetched.done = True
        asked: RowRequest = fetched.parts
        given = [self._gradient(*item, asked) for item in zip(
            self.order, fetched.routes, gradients, strict=True)]  # fmt: skip
        widths = self._widths(asked.sent, asked.got)
        send = torch.empty(int(widths[0].sum()), device=self.device)
        at = 0
        for number in self._by_rank():
            part, chosen = self.parts[number], asked.chosen[number]
            block = given[self.order.index(part.table)]
            if part.columns != block.shape[1]:
                block = block[:, part.first_column : part.first_column + part.columns]
            block = block if chosen is None else block.index_select(0, chosen)
            into = send[at : at + block.numel()].view(block.shape)
            torch.div(block, self.groups.world, out=into)
            at += block.numel()
        received = self._send(send, *widths, self.groups.gradients, self.wire.gradients)
        blocks = self._from_askers(received, asked)
        for own, block, (table, ticket) in zip(asked.own, blocks, fetched.tickets, strict=True):
            table.update(ticket, own.bags.gather(block))

    def _gradient(
        self, name: str, route: TableRoute, gradient: Tensor | None, asked: RowRequest
    ) -> Tensor:
        """Of the units of a table, [units, columns]."""
        pooled = asked.pooled[self.of_table[name][0]]
        if gradient is None:
            count = len(route.lengths) if pooled else len(route.distinct.ids)
            return torch.zeros(count, self.columns[name], device=self.device)
        gradient = gradient.to(self.device, torch.float32)
        return route.bags.gather(gradient) if route.pooled and not pooled else gradient

    def _from_askers(self, received: Tensor, asked: RowRequest) -> list[Tensor]:
        """What came rank by rank, each part by part, as one matrix for each own part."""
        columns = [self.parts[part].columns for part in self.own]
        pieces: list[list[Tensor]] = [[] for _ in self.own]
        at = 0
        for rank in range(self.groups.world):
            for number, part in enumerate(self.own):
                count = int(asked.got[rank, part])
                size = count * columns[number]
                pieces[number].append(received[at : at + size].view(count, columns[number]))
                at += size
        return [torch.cat(blocks) for blocks in pieces]

    def look(self, routes: list[TableRoute]) -> list[Tensor]:
        """Rows for a pass that learns nothing; called by all ranks."""
        asked = self._ask(routes, self.groups.looks)
        units = [
            part.bags.pool(table.look(part.ids))
            for part, table in zip(asked.own, self.own.values(), strict=True)
        ]
        asked.blocks = self._send_units(asked, units, self.groups.gradients)
        return self._result(routes, asked)

    # -- collectives ----------------------------------------------------------------------------

    def _exchange_counts(self, counts: Places, group: Any) -> Places:
        world, width = counts.shape
        given = torch.from_numpy(np.ascontiguousarray(counts)).reshape(-1)
        if group is not self.groups.keys:
            given = given.to(self.device)
        found = torch.empty_like(given)
        dist.all_to_all_single(found, given, group=group)
        result: Places = found.cpu().view(world, width).numpy()
        return result

    def _send(
        self, values: Tensor, to_each: Places, from_each: Places, group: Any, kind: torch.dtype
    ) -> Tensor:
        """`_exchange` of float32 numbers, sent as `kind`."""
        each = 1 if kind == torch.float32 else kind.itemsize  # of what `packed` makes
        got = self._exchange(pack_values(values, kind), to_each * each, from_each * each, group)
        return unpack_values(got, kind)

    def _exchange(self, send: Tensor, to_each: Places, from_each: Places, group: Any) -> Tensor:
        found = send.new_empty(int(from_each.sum()))
        dist.all_to_all_single(
            found, send.contiguous(), from_each.tolist(), to_each.tolist(), group=group
        )
        return found
