"""The dense part in its process: ids by the cut graph, rows from the shards, the rest here."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from joymigrate.run.serve.ranking.cut import SparseCut, compact
from joymigrate.run.serve.ranking.remote import Shards
from joymigrate.run.serve.web.errors import HttpRefusal

if TYPE_CHECKING:
    import torch

DEFAULT, ERROR = "default", "error"  # what a lost shard gives


class Split:
    """Fetches the rows of a batch. `number` is the version that rows are asked of."""

    def __init__(
        self, cut: SparseCut, state: Mapping[str, torch.Tensor], shards: Shards, lost: str = ERROR
    ) -> None:
        self.cut, self.shards, self.on_lost = cut, shards, lost
        self.number = 0
        self.forms = {name: (state[name].dtype, tuple(state[name].shape[1:]))
                      for name in cut.rows}  # fmt: skip
        self.widths = {
            name: state[name][:1].numel() * state[name].element_size() for name in cut.rows
        }
        self.local = threading.local()

    @property
    def tables(self) -> frozenset[str]:
        """The weights that are not here."""
        return frozenset(self.cut.rows)

    def prepare(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What the dense part takes; raises `HttpRefusal` where a lost shard is an error."""
        import torch

        found = self.cut.ids.run(**{name: inputs[name] for name in self.cut.ids.inputs})
        unique, places = compact(self.cut, found)
        ids = {name: one.long().numpy() for name, one in unique.items()}
        rows = self.shards.fetch(ids, self.widths, self.number)
        self.local.lost = rows.lost
        if rows.lost and self.on_lost == ERROR:
            which = ", ".join(f"{one} of {len(self.shards.shards)}" for one in rows.lost)
            raise HttpRefusal(503, f"sparse shard {which} is lost", code="shard_lost")
        given = {**inputs, **places}
        for name, place in self.cut.rows.items():
            dtype, shape = self.forms[name]
            table = torch.from_numpy(rows.tables[name]).view(dtype)
            given[place] = table.reshape(-1, *shape)
        return {name: given[name] for name in self.cut.dense.inputs}

    def take_lost(self) -> tuple[str, ...]:
        """What the last batch of this thread lacked, in words."""
        lost = getattr(self.local, "lost", ())
        return tuple(f"shard-{one}-of-{len(self.shards.shards)}" for one in lost)
