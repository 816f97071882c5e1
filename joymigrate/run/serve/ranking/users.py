"""The user's side computed once per user, not once per batch: a cache by user and version.

The program is cut where candidates meet the user. What the user's side gave is kept for the user's
key; it is used again for equal user inputs (they are compared) and for the version that made it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joymigrate.run.serve.ranking.cut import UserCut
from joymigrate.run.serve.ranking.request import Arrays, RankingRequest
from joymigrate.run.serve.ranking.signature import USER, ModelSignature
from joymigrate.run.serve.ranking.tensors import as_arrays, as_typed, outputs_of, writable

if TYPE_CHECKING:
    import torch

    from joymigrate.run.serve.ranking.merge import MergedBatch

Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class UserState:
    """What the user's side gave for one user, and for which inputs."""

    version: str
    inputs: Arrays
    values: tuple[torch.Tensor, ...]
    bytes: int


class UserSide:
    """Computes a batch in two parts, the first only for users that are not known."""

    def __init__(self, cut: UserCut, signature: ModelSignature, device: str, room: int) -> None:
        self.cut, self.signature, self.device, self.room = cut, signature, device, room
        self.kept: OrderedDict[str, UserState] = OrderedDict()
        self.bytes = self.hits = self.misses = 0
        self.lock = threading.Lock()
        self.names = [one.name for one in signature.inputs if one.axis == USER]

    def whole(self, user: Run, candidate: Run) -> Run:
        """Both parts as one program: for comparisons."""

        def run(**inputs: Any) -> Any:
            made = user(**{name: inputs[name] for name in self.cut.user.inputs})
            given = {**inputs, **dict(zip(self.cut.user.outputs, made, strict=True))}
            return candidate(**{name: given[name] for name in self.cut.candidate.inputs})

        return run

    def run(
        self, batch: MergedBatch, version: str, parts: tuple[Run, Run] | None
    ) -> tuple[np.ndarray[Any, Any], ...]:
        """Outputs of a batch; `parts` instead of the eager ones."""
        import torch

        user, candidate = parts or (self.cut.user.run, self.cut.candidate.run)
        known = [self.look_up(request, version) for request in batch.bringers]
        with torch.inference_mode():
            missing = [place for place, one in enumerate(known) if one is None]
            if missing:
                rows = user_rows(batch)
                fresh = self.compute(user, batch, [rows[place] for place in missing])
                for place, values in zip(missing, fresh, strict=True):
                    known[place] = self.keep(batch.bringers[place], version, values)
            frontier = self.join(batch, [one.values for one in known if one is not None])
            given = {
                **{one.name: as_typed(torch.from_numpy(writable(batch.arrays[one.name])), one.dtype)
                   for one in self.signature.inputs if one.name in self.cut.candidate.inputs},
                **frontier,
            }  # fmt: skip
            made = candidate(**{name: given[name].to(self.device)
                                for name in self.cut.candidate.inputs})  # fmt: skip
            return as_arrays(outputs_of(made))

    def look_up(self, request: RankingRequest, version: str) -> UserState | None:
        """What is kept for a request's user, if it is of these inputs and this version."""
        if not request.key:
            return None
        with self.lock:
            found = self.kept.get(request.key)
            same = found is not None and found.version == version and all(
                np.array_equal(found.inputs[name], request.arrays[name]) for name in self.names
            )  # fmt: skip
            self.hits, self.misses = self.hits + same, self.misses + (not same)
            if same:
                self.kept.move_to_end(request.key)
            return found if same else None

    def compute(
        self, user: Run, batch: MergedBatch, spans: list[tuple[int, int]]
    ) -> list[tuple[torch.Tensor, ...]]:
        """The user's side of some users of a batch, divided by request."""
        import torch

        places = np.concatenate([np.arange(*span) for span in spans])
        arrays = {name: batch.arrays[name] for name in self.cut.user.inputs}
        every = len(places) == batch.sizes.users
        inputs = {
            name: as_typed(
                torch.from_numpy(np.array(array) if every else array[places]),
                self.signature.by_name[name].dtype,
            ).to(self.device)
            for name, array in arrays.items()
        }
        made = [one.cpu() if self.room else one for one in user(**inputs)]
        ends = np.cumsum([stop - start for start, stop in spans]).tolist()
        return [tuple(one[start:stop] for one in made)
                for start, stop in zip([0, *ends[:-1]], ends, strict=True)]  # fmt: skip

    def keep(
        self, request: RankingRequest, version: str, values: tuple[torch.Tensor, ...]
    ) -> UserState:
        """Keep one user's values without the batch's padding; the oldest go."""
        own = []
        for name, value in zip(self.cut.user.outputs, values, strict=True):
            for at, sequence in self.cut.lengths[name].items():
                value = value.narrow(at, 0, request.arrays[sequence].shape[1])
            own.append(value.clone() if request.key else value)
        inputs = {name: np.array(request.arrays[name]) for name in self.names if request.key}
        size = sum(one.nbytes for one in own) + sum(one.nbytes for one in inputs.values())
        found = UserState(version, inputs, tuple(own), size)
        if request.key and size <= self.room:
            with self.lock:
                before = self.kept.pop(request.key, None)
                self.bytes += size - (before.bytes if before is not None else 0)
                self.kept[request.key] = found
                while self.bytes > self.room:
                    _, oldest = self.kept.popitem(last=False)
                    self.bytes -= oldest.bytes
        return found

    def join(
        self, batch: MergedBatch, values: list[tuple[torch.Tensor, ...]]
    ) -> Mapping[str, torch.Tensor]:
        """The frontier of a batch: every user's values, shorter ones filled with zeros."""
        import torch

        found = {}
        for place, name in enumerate(self.cut.user.outputs):
            parts = [one[place] for one in values]
            shape = list(parts[0].shape)
            shape[0] = batch.sizes.users
            for at, sequence in self.cut.lengths[name].items():
                shape[at] = batch.arrays[sequence].shape[1]
            if all(list(part.shape[1:]) == shape[1:] for part in parts):
                found[name] = torch.cat(parts)
                continue
            whole = torch.zeros(shape, dtype=parts[0].dtype, device=parts[0].device)
            start = 0
            for part in parts:
                where = [slice(start, start + part.shape[0])]
                where += [slice(0, size) for size in part.shape[1:]]
                whole[tuple(where)] = part
                start += part.shape[0]
            found[name] = whole
        return found


def user_rows(batch: MergedBatch) -> list[tuple[int, int]]:
    """The rows of the users that each bringing request has in the batch."""
    ends = np.cumsum([request.sizes.users for request in batch.bringers]).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))
