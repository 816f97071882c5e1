"""Rows of other processes: distinct ids go to their owners, rows come back, gradients follow.

    plan = shard_tables(model)             # every collection of the model, by the planner
    print(plan)

Repeated ids are removed before anything is sent. Groups of their own: keys and rows are fetched by
a pipeline's thread while the main thread sends gradients, and collectives of one group must come in
the same order on all ranks. A rank that refuses its batch tells the others, so that none waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.train.tables.exchange import Fetched, second_backward
from joymigrate.run.train.tables.hash_index import Places
from joymigrate.run.train.tables.initialise import Ids, hash_ids
from joymigrate.run.train.tables.planner import Part
from joymigrate.run.train.tables.route import Route
from joymigrate.run.train.tables.table import Table

OWNER_SEED = 0x5EED  # another hash than that of the owner's own index


@dataclass(frozen=True, slots=True)
class Groups:
    """Process groups: keys (host), rows (fetching thread), gradients (main thread)."""

    keys: Any
    rows: Any
    gradients: Any
    rank: int
    world: int

    @staticmethod
    def open(device: torch.device) -> Groups:
        """New groups over all ranks; called by all of them."""
        kind = "gloo" if device.type == "cpu" else None
        keys, rows, gradients = (dist.new_group(backend=b) for b in ("gloo", kind, kind))
        return Groups(keys, rows, gradients, dist.get_rank(), dist.get_world_size())


@dataclass
class RowRequest:
    """One batch between processes. Lists are by part, in the plan's order."""

    chosen: list[Tensor]  # what this rank asks: positions among its route's distinct ids
    sent: Places  # [world, parts]: how many ids go to each rank
    got: Places  # [world, parts]: how many came from each
    inverse: list[Tensor]  # own parts: from what was asked, rank by rank, to distinct ids
    counts: list[Places]  # own parts: how often
    distinct: list[Ids]
    rows: list[Tensor] | None = None  # fetched, one [U, D] a table
    seen: list[int] | None = None  # own parts: updates done when the rows were read


class ShardedExchange:
    """Tables in parts on several processes."""

    def __init__(
        self,
        order: Sequence[str],
        columns: Mapping[str, int],
        parts: Sequence[Part],
        own: Mapping[int, Table],
        groups: Groups,
        device: torch.device,
        check: Mapping[str, int | None],
    ) -> None:
        self.order, self.columns, self.parts = list(order), columns, list(parts)
        self.own, self.groups, self.device, self.bounds = own, groups, device, check
        self.pipelined, self.staleness = False, 0
        self.tables: dict[str, tuple[Table, ...]] = {
            name: tuple(own[n] for n, part in enumerate(parts) if part.table == name and n in own)
            for name in order
        }
        self.of_table = {
            name: [n for n, part in enumerate(parts) if part.table == name] for name in order
        }
        self.rank_of = np.array([part.rank for part in parts], dtype=np.int64)
        self.bytes_sent = self.bytes_plain = 0  # this rank's; plain: without removing repeats

    # -- ids ------------------------------------------------------------------------------------

    def fetch(self, routes: list[Route]) -> Fetched:
        """Send ids to their owners; owners find the rows' places."""
        asked = self._ask(routes)
        fetched = Fetched(self, routes, parts=asked)
        for number, table in enumerate(self.own.values()):
            ids, counts = asked.distinct[number], asked.counts[number]
            fetched.tickets.append((table, table.prepare(ids, counts)))
        return fetched

    def _ask(self, routes: list[Route]) -> RowRequest:
        error = self._mistake(routes)
        chosen = [np.zeros(0, dtype=np.int64)] * len(self.parts)
        if error is None:
            for name, asked in zip(self.order, routes, strict=True):
                for part, at in zip(
                    self.of_table[name], self._owners(name, asked.ids), strict=True
                ):
                    chosen[part] = at
        table_of = dict(zip(self.order, routes, strict=True))
        sent = np.zeros((self.groups.world, len(self.parts) + 1), dtype=np.int64)
        sent[self.rank_of, np.arange(len(self.parts))] = [len(at) for at in chosen]
        sent[:, -1] = error is not None
        got = self._exchange_counts(sent, self.groups.keys)
        if error is not None:
            raise error
        refused = np.flatnonzero(got[:, -1])
        if len(refused):
            raise JoyError(
                f"process {refused[0]} refused its batch, so this step can't be done",
                help="its own message says why",
            )
        words = [
            pack_keys(table_of[self.parts[n].table].ids[chosen[n]],
                      table_of[self.parts[n].table].counts[chosen[n]])
            for n in self._by_rank()
        ]  # fmt: skip
        sent, got = sent[:, :-1], got[:, :-1]
        received = self._exchange(
            torch.from_numpy(np.concatenate(words or [np.zeros(0, dtype=np.int32)])),
            3 * sent.sum(1), 3 * got.sum(1), self.groups.keys,
        ).numpy()  # fmt: skip
        self._count_traffic(routes, sent)
        result = RowRequest(
            [torch.from_numpy(at).to(self.device) for at in chosen], sent, got, [], [], []
        )
        pieces = np.split(received, np.cumsum(3 * got[:, list(self.own)].ravel())[:-1])
        for number in range(len(self.own)):
            self._gather_asked(result, pieces[number :: len(self.own)])
        return result

    def _mistake(self, routes: list[Route]) -> JoyError | None:
        for name, asked in zip(self.order, routes, strict=True):
            bound = self.bounds[name]
            if bound is None:
                continue
            bad = np.flatnonzero((asked.ids < 0) | (asked.ids >= bound))
            if len(bad):
                return JoyError(
                    f"id {asked.ids[bad[0]]} is outside of [0, {bound})",
                    where=f"table '{name}'",
                    help="raise num_embeddings, hash the ids, or make the table dynamic",
                )
        return None

    def _by_rank(self) -> list[int]:
        """Parts in the order in which they are sent: by rank, then by plan."""
        return list(np.argsort(self.rank_of, kind="stable"))

    def _owners(self, name: str, ids: Ids) -> list[Places]:
        """For each part of a table the positions of the ids that it owns."""
        parts = [self.parts[n] for n in self.of_table[name]]
        every = np.arange(len(ids), dtype=np.int64)
        if len(parts) == 1 or len({part.first_column for part in parts}) > 1:
            return [every] * len(parts)
        if self.bounds[name] is None:
            owner = owner_among(ids, len(parts))
        else:
            edges = np.array([part.first_row for part in parts[1:]], dtype=np.int64)
            owner = np.searchsorted(edges, ids, side="right")
        return [np.flatnonzero(owner == number) for number in range(len(parts))]

    def _gather_asked(self, asked: RowRequest, pieces: Sequence[Any]) -> None:
        keys, counts = zip(*(unpack_keys(piece) for piece in pieces), strict=True)
        inverse, distinct = pd.factorize(np.concatenate(keys))
        total = np.bincount(inverse, weights=np.concatenate(counts), minlength=len(distinct))
        asked.inverse.append(torch.from_numpy(inverse.astype(np.int64)).to(self.device))
        asked.counts.append(total.astype(np.int64))
        asked.distinct.append(np.ascontiguousarray(distinct, dtype=np.int64))

    def _count_traffic(self, routes: list[Route], sent: Places) -> None:
        away = np.arange(self.groups.world) != self.groups.rank
        width = np.array([part.columns * 8 + 12 for part in self.parts])  # rows, gradients, key
        self.bytes_sent += int((sent[away] * width).sum())
        for name, asked in zip(self.order, routes, strict=True):
            distinct = max(1, len(asked.ids))
            for part in self.of_table[name]:
                each = int(sent[away][:, part].sum() * width[part])
                self.bytes_plain += each * asked.values // distinct

    # -- rows -----------------------------------------------------------------------------------

    def bring(self, fetched: Fetched) -> None:
        """Owners bring the rows to their devices, and send them."""
        while fetched.brought < len(fetched.tickets):
            table, ticket = fetched.tickets[fetched.brought]
            table.bring(ticket)
            fetched.brought += 1
        asked: RowRequest = fetched.parts
        asked.seen = [table.finished for table, _ in fetched.tickets]
        rows = [table.rows(ticket) for table, ticket in fetched.tickets]
        asked.rows = self._send_rows(fetched.routes, asked, rows, self.groups.rows)

    def _send_rows(
        self, routes: list[Route], asked: RowRequest, rows: Sequence[Tensor], group: Any
    ) -> list[Tensor]:
        """Rows of own parts, distinct, to those who asked: one [U, D] a table."""
        spread = [part.index_select(0, at) for part, at in zip(rows, asked.inverse, strict=True)]
        received = self._exchange(
            self._by_asker(spread, asked), *self._widths(asked, back=True), group
        )
        found = [
            torch.zeros(len(route.ids), self.columns[name], device=self.device)
            for name, route in zip(self.order, routes, strict=True)
        ]
        at = 0
        for number in self._by_rank():
            part, chosen = self.parts[number], asked.chosen[number]
            size = len(chosen) * part.columns
            block = received[at : at + size].view(len(chosen), part.columns)
            place = found[self.order.index(part.table)]
            columns = slice(part.first_column, part.first_column + part.columns)
            place[:, columns] = place[:, columns].index_copy(0, chosen, block)
            at += size
        return found

    def _by_asker(self, blocks: Sequence[Tensor], asked: RowRequest) -> Tensor:
        """Own parts' blocks, each rank by rank, as one vector rank by rank, each part by part."""
        split = [
            torch.split(block, asked.got[:, part].tolist())
            for part, block in zip(self.own, blocks, strict=True)
        ]
        flat = [pieces[r].reshape(-1) for r in range(self.groups.world) for pieces in split]
        return torch.cat(flat) if flat else torch.zeros(0, device=self.device)

    def _widths(self, asked: RowRequest, back: bool) -> tuple[Places, Places]:
        """Numbers to each rank and from each rank; `back`: from owners to those who asked."""
        columns = np.array([part.columns for part in self.parts], dtype=np.int64)
        asking, owning = (asked.sent * columns).sum(1), (asked.got * columns).sum(1)
        return (owning, asking) if back else (asking, owning)

    def rows(self, fetched: Fetched) -> list[Tensor]:
        """The rows as they are now: in a pipeline, with those that later updates changed."""
        asked: RowRequest = fetched.parts
        assert asked.rows is not None
        if self.pipelined:
            self._refresh(fetched, asked)
        return asked.rows

    def _refresh(self, fetched: Fetched, asked: RowRequest) -> None:
        assert asked.seen is not None
        assert asked.rows is not None
        spots, values = [], []
        counts = np.zeros((self.groups.world, len(self.parts)), dtype=np.int64)
        for number, (part, (table, ticket)) in enumerate(
            zip(self.own, fetched.tickets, strict=True)
        ):
            stamp = table.stamp[np.maximum(ticket.slots, 0)]
            stale = (stamp > asked.seen[number] + self.staleness) & ticket.held
            inverse = asked.inverse[number].cpu().numpy()
            hit = np.flatnonzero(stale[inverse])
            edges = np.cumsum(asked.got[:, part])
            counts[:, part] = np.diff(np.searchsorted(hit, edges), prepend=0)
            starts = np.concatenate(([0], edges))[np.searchsorted(edges, hit, side="right")]
            spots.append(hit - starts)
            at = torch.from_numpy(inverse[hit]).to(self.device)
            values.append(table.rows(ticket).index_select(0, at))
        got = self._exchange_counts(counts, self.groups.gradients)
        refreshed = RowRequest(
            [torch.zeros(0)] * len(self.parts), got, counts, [], [], []
        )  # what came to this rank was "sent" by it as a question
        places = self._exchange(
            self._by_asker([torch.from_numpy(s).to(self.device) for s in spots], refreshed),
            counts.sum(1), got.sum(1), self.groups.gradients,
        )  # fmt: skip
        new = self._exchange(
            self._by_asker(values, refreshed), *self._widths(refreshed, back=True),
            self.groups.gradients,
        )  # fmt: skip
        spot = at_value = 0
        for number in self._by_rank():
            piece = self.parts[number]
            count = int(got[piece.rank, number])
            if not count:
                continue
            where = asked.chosen[number].index_select(0, places[spot : spot + count].long())
            block = new[at_value : at_value + count * piece.columns].view(count, piece.columns)
            place = asked.rows[self.order.index(piece.table)]
            columns = slice(piece.first_column, piece.first_column + piece.columns)
            place[:, columns] = place[:, columns].index_copy(0, where, block)
            spot, at_value = spot + count, at_value + count * piece.columns

    # -- gradients ------------------------------------------------------------------------------

    def update(self, fetched: Fetched, gradients: Sequence[Tensor | None]) -> None:
        """Send gradients to the owners, who sum them rank by rank and change the rows.

        They are divided by the number of processes, as DDP does with those of the dense part.
        """
        if fetched.done:
            raise second_backward()
        fetched.done = True
        asked: RowRequest = fetched.parts
        flat = []
        for number in self._by_rank():
            part, chosen = self.parts[number], asked.chosen[number]
            at = self.order.index(part.table)
            given = gradients[at]
            if given is None:
                given = torch.zeros(len(fetched.routes[at].ids), self.columns[part.table])
            given = given.to(self.device, torch.float32) / self.groups.world
            columns = slice(part.first_column, part.first_column + part.columns)
            flat.append(given[:, columns].index_select(0, chosen).reshape(-1))
        send = torch.cat(flat) if flat else torch.zeros(0, device=self.device)
        received = self._exchange(send, *self._widths(asked, back=False), self.groups.gradients)
        blocks = self._from_askers(received, asked)
        for number, (table, ticket) in enumerate(fetched.tickets):
            total = torch.zeros(len(ticket.ids), table.form.columns, device=self.device)
            total.index_add_(0, asked.inverse[number], blocks[number])
            table.update(ticket, total)

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

    def look(self, routes: list[Route]) -> list[Tensor]:
        """Rows for a pass that learns nothing; called by all ranks."""
        asked = self._ask(routes)
        rows = [
            table.look(ids) for table, ids in zip(self.own.values(), asked.distinct, strict=True)
        ]
        return self._send_rows(routes, asked, rows, self.groups.rows)

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

    def _exchange(self, send: Tensor, to_each: Places, from_each: Places, group: Any) -> Tensor:
        found = send.new_empty(int(from_each.sum()))
        dist.all_to_all_single(
            found, send.contiguous(), from_each.tolist(), to_each.tolist(), group=group
        )
        return found


def owner_among(ids: Ids, parts: int) -> Places:
    """The part of a dynamic table that each id belongs to."""
    owner: Places = (hash_ids(ids, OWNER_SEED) % np.uint64(parts)).astype(np.int64)
    return owner


def pack_keys(ids: Ids, counts: Places) -> Any:
    """Ids and how often each was seen, as int32 words: 12 bytes a key."""
    return np.concatenate((ids.view(np.int32), counts.astype(np.int32)))


def unpack_keys(words: Any) -> tuple[Ids, Places]:
    """What `pack_keys` packed."""
    count = len(words) // 3
    return words[: 2 * count].view(np.int64), words[2 * count :].astype(np.int64)
