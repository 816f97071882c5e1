"""Ids of several features in one: TorchRec's `KeyedJaggedTensor`.

Shapes: F keys, B samples, T values in all. `values` [T], `weights` [T] or None, `lengths` [F·B] and
`offsets` [F·B + 1], key by key. With `stride_per_key_per_rank` each key has a number of samples of
its own (repeated ones are left out), and `inverse_indices` say which of them each of B rows is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.train.tables.jagged import JaggedTensor, Sequences

if TYPE_CHECKING:
    from typing_extensions import Self


class KeyedJaggedTensor(Sequences):
    """A `JaggedTensor` of B samples for each of F keys, stored as one.

    The constructor's `stride` is B; without it B follows from the lengths.
    """

    def __init__(
        self,
        keys: list[str],
        values: Tensor,
        weights: Tensor | None = None,
        lengths: Tensor | None = None,
        offsets: Tensor | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: Any = None,
        stride_per_key: list[int] | None = None,
        length_per_key: list[int] | None = None,
        lengths_offset_per_key: list[int] | None = None,
        offset_per_key: list[int] | None = None,
        index_per_key: dict[str, int] | None = None,
        jt_dict: dict[str, JaggedTensor] | None = None,
        inverse_indices: Any = None,
    ) -> None:
        super().__init__(values, weights, lengths, offsets)
        self._keys = list(keys)
        self._inverse: tuple[list[str], Tensor] | None = inverse_indices
        if stride_per_key_per_rank is not None:
            by_key = torch.as_tensor(stride_per_key_per_rank)
            stride_per_key = by_key.reshape(len(by_key), -1).sum(1).tolist() if len(by_key) else []
        self._uneven = None if stride_per_key is None else [int(one) for one in stride_per_key]
        if self._uneven is not None and stride is None:
            stride = max(self._uneven, default=0)
            if inverse_indices is not None:
                stride = int(inverse_indices[1].shape[-1])
        self._stride = stride if stride is not None else self._stride_of(lengths, offsets)
        self._starts = [0, *accumulate(self.stride_per_key())]  # of each key's lengths
        self._length_per_key, self._offset_per_key = length_per_key, offset_per_key
        self.prepared: Any = None  # what a pipeline has fetched for these keys
        self._check()

    def _stride_of(self, lengths: Tensor | None, offsets: Tensor | None) -> int:
        count = len(lengths) if lengths is not None else len(offsets) - 1  # type: ignore[arg-type]
        return count // len(self._keys) if self._keys else 0

    def _check(self) -> None:
        known = self._lengths if self._lengths is not None else self._offsets
        assert known is not None
        want = self._starts[-1] + (self._lengths is None)
        if len(known) != want and len(self._keys):
            what = "lengths" if self._lengths is not None else "offsets"
            each = self._stride if self._uneven is None else self._uneven
            raise JoyError(
                f"{len(known)} {what} do not fit {len(self._keys)} keys of {each} samples",
                help=f"a batch of these keys has {want}",
            )
        if self._uneven is not None and len(self._uneven) != len(self._keys):
            raise JoyError(f"{len(self._uneven)} strides for {len(self._keys)} keys",
                           help="one number of samples for each key")  # fmt: skip
        if self._inverse is not None:
            missing = [key for key in self._keys if key not in self._inverse[0]]
            if missing or self._inverse[1].shape != (len(self._inverse[0]), self._stride):
                raise JoyError(
                    f"inverse_indices of {self._inverse[0]} are {tuple(self._inverse[1].shape)}",
                    help=f"keys {self._keys}, and one index for each of {self._stride} rows",
                )
        if self._weights is not None and len(self._weights) != len(self._values):
            raise JoyError(
                f"{len(self._weights)} weights for {len(self._values)} values",
                help="every value has one weight",
            )

    @staticmethod
    def from_offsets_sync(
        keys: list[str],
        values: Tensor,
        offsets: Tensor,
        weights: Tensor | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: Any = None,
        inverse_indices: Any = None,
    ) -> KeyedJaggedTensor:
        """From offsets [F·B + 1]; the lengths by key are read at once."""
        return KeyedJaggedTensor(
            keys, values, weights, None, offsets, stride, stride_per_key_per_rank,
            inverse_indices=inverse_indices,
        ).sync()  # fmt: skip

    @staticmethod
    def from_lengths_sync(
        keys: list[str],
        values: Tensor,
        lengths: Tensor,
        weights: Tensor | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: Any = None,
        inverse_indices: Any = None,
    ) -> KeyedJaggedTensor:
        """From lengths [F·B]; the lengths by key are read at once."""
        return KeyedJaggedTensor(
            keys, values, weights, lengths, None, stride, stride_per_key_per_rank,
            inverse_indices=inverse_indices,
        ).sync()  # fmt: skip

    @staticmethod
    def from_jt_dict(jt_dict: Mapping[str, JaggedTensor]) -> KeyedJaggedTensor:
        """From a jagged tensor a key; all have the same number of samples."""
        parts = list(jt_dict.values())
        weighted = [item for item in parts if item.weights_or_none() is not None]
        if weighted and len(weighted) != len(parts):
            raise JoyError("some keys have weights and some have none", help="weigh all or none")
        samples = {key: len(item.lengths()) for key, item in jt_dict.items()}
        if len(set(samples.values())) > 1:
            raise JoyError(
                f"the keys have different numbers of samples: {samples}",
                help="give `stride_per_key_per_rank` to KeyedJaggedTensor for such a batch",
            )
        return KeyedJaggedTensor(
            list(jt_dict),
            torch.cat([item.values() for item in parts]),
            torch.cat([item.weights() for item in parts]) if weighted else None,
            torch.cat([item.lengths() for item in parts]),
        )

    @staticmethod
    def concat(kjt_list: Sequence[KeyedJaggedTensor]) -> KeyedJaggedTensor:
        """The keys of several, behind each other."""
        uneven = any(kjt.variable_stride_per_key() for kjt in kjt_list)
        if len({kjt.stride() for kjt in kjt_list}) > 1 and not uneven:
            raise JoyError("batches with different numbers of samples can't be joined by key")
        if any(kjt.inverse_indices_or_none() is not None for kjt in kjt_list):
            raise JoyError("batches with inverse_indices can't be joined by key",
                           help="join them first, and give the indices to the whole")  # fmt: skip
        weights = [kjt.weights_or_none() for kjt in kjt_list]
        present = [item for item in weights if item is not None]
        if present and len(present) != len(weights):
            raise JoyError("some batches have weights and some have none", help="weigh all or none")
        return KeyedJaggedTensor(
            [key for kjt in kjt_list for key in kjt._keys],
            torch.cat([kjt.values() for kjt in kjt_list]),
            torch.cat(present) if present else None,
            torch.cat([kjt.lengths() for kjt in kjt_list]),
            stride_per_key=[one for kjt in kjt_list for one in kjt.stride_per_key()]
            if uneven
            else None,
        )

    @staticmethod
    def empty(
        is_weighted: bool = False,
        device: torch.device | None = None,
        values_dtype: torch.dtype | None = None,
        weights_dtype: torch.dtype | None = None,
        lengths_dtype: torch.dtype = torch.int32,
    ) -> KeyedJaggedTensor:
        """No keys."""
        jagged = JaggedTensor.empty(is_weighted, device, values_dtype, weights_dtype, lengths_dtype)
        return KeyedJaggedTensor(
            [], jagged.values(), jagged.weights_or_none(), jagged.lengths(), stride=0
        )

    def sync(self) -> KeyedJaggedTensor:
        """Read lengths and offsets by key from the device now."""
        self.offset_per_key()
        return self

    def unsync(self) -> KeyedJaggedTensor:
        """Forget what `sync` read."""
        self._length_per_key = self._offset_per_key = None
        return self

    def keys(self) -> list[str]:
        """Names of the features."""
        return self._keys

    def stride(self) -> int:
        """B, the number of samples."""
        return self._stride

    def stride_per_key(self) -> list[int]:
        """The number of samples of every key."""
        return self._uneven or [self._stride] * len(self._keys)

    def stride_per_key_per_rank(self) -> list[list[int]]:
        """The same as lists of one rank; empty where all keys have B."""
        return [] if self._uneven is None else [[one] for one in self._uneven]

    def variable_stride_per_key(self) -> bool:
        """Whether keys have numbers of samples of their own."""
        return self._uneven is not None

    def inverse_indices(self) -> tuple[list[str], Tensor]:
        """Keys, and [F, B]: which of a key's samples each row is."""
        if self._inverse is None:
            raise JoyError("the batch has no inverse_indices")
        return self._inverse

    def inverse_indices_or_none(self) -> tuple[list[str], Tensor] | None:
        """The same, or None."""
        return self._inverse

    def inverse_of(self, key: str) -> Tensor | None:
        """Which of a key's samples each row is, [B]."""
        if self._inverse is None:
            return None
        return self._inverse[1][self._inverse[0].index(key)]

    def length_per_key(self) -> list[int]:
        """Number of values of each key."""
        if self._length_per_key is None:
            self._length_per_key = [b - a for a, b in pairwise(self.offset_per_key())]
        return self._length_per_key

    def length_per_key_or_none(self) -> list[int] | None:
        """As `length_per_key` where it was read already."""
        return self._length_per_key

    def offset_per_key(self) -> list[int]:
        """Where each key's values start, and the end of the last. [F + 1]"""
        if self._offset_per_key is None:
            if self._starts[-1]:
                edges = self.offsets()
                self._check_order(edges)
                if self._uneven is None:
                    edges = edges[:: self._stride]
                else:
                    edges = edges[torch.tensor(self._starts, device=edges.device)]
                self._offset_per_key = edges.tolist()
            else:
                self._offset_per_key = [0] * (len(self._keys) + 1)
            self._check_end(self._offset_per_key[-1])
        return self._offset_per_key

    def _check_order(self, edges: Tensor) -> None:
        """Lengths are 0 or more, where that can be seen without waiting for a device."""
        if edges.device.type == "cpu" and bool((edges[1:] < edges[:-1]).any()):
            raise JoyError(
                f"a length of the batch is {int(edges.diff().min())}",
                help="lengths are 0 or more; offsets rise",
            )

    def _check_end(self, end: int) -> None:
        if end != len(self._values):
            raise JoyError(
                f"the lengths of the batch say {end} values, and there are {len(self._values)}",
                help="look at how values and lengths were made",
            )

    def offset_per_key_or_none(self) -> list[int] | None:
        """As `offset_per_key` where it was read already."""
        return self._offset_per_key

    def index_per_key(self) -> dict[str, int]:
        """The place of each key."""
        return {key: number for number, key in enumerate(self._keys)}

    def __getitem__(self, key: str) -> JaggedTensor:
        """The sequences of one key."""
        if key not in self._keys:
            raise JoyError(
                f"the batch has no key '{key}'.{did_you_mean(key, self._keys)}",
                help=f"its keys are {', '.join(self._keys) or 'none'}",
            )
        number = self._keys.index(key)
        start, stop = self.offset_per_key()[number : number + 2]
        first, last = self._starts[number : number + 2]
        lengths = self.lengths()[first:last]
        offsets = self.offsets()[first : last + 1] - start
        weights = self._weights[start:stop] if self._weights is not None else None
        return JaggedTensor(self._values[start:stop], weights, lengths, offsets)

    def to_dict(self, compute_offsets: bool = True) -> dict[str, JaggedTensor]:
        """Every key with its sequences."""
        return {key: self[key] for key in self._keys}

    def split(self, segments: list[int]) -> list[KeyedJaggedTensor]:
        """Cut by keys: the first `segments[0]` keys, the next `segments[1]`, and so on."""
        edges = [0, *accumulate(segments)]
        return [self._of(list(range(a, b))) for a, b in pairwise(edges)]

    def permute(
        self, indices: list[int], indices_tensor: Tensor | None = None
    ) -> KeyedJaggedTensor:
        """The keys in another order; a key may come more than once or not at all."""
        return self._of(indices)

    def _of(self, indices: Sequence[int]) -> KeyedJaggedTensor:
        edges, starts = self.offset_per_key(), self._starts
        spans = [slice(edges[n], edges[n + 1]) for n in indices]
        lengths = [self.lengths()[starts[n] : starts[n + 1]] for n in indices]
        empty = self._values[:0]
        return KeyedJaggedTensor(
            [self._keys[n] for n in indices],
            torch.cat([self._values[span] for span in spans] or [empty]),
            torch.cat([self._weights[span] for span in spans] or [self._weights[:0]])
            if self._weights is not None
            else None,
            torch.cat(lengths or [self.lengths()[:0]]),
            stride=self._stride,
            stride_per_key=None if self._uneven is None else [self._uneven[n] for n in indices],
            inverse_indices=self._inverse,
            length_per_key=[span.stop - span.start for span in spans],
        )

    def flatten_lengths(self) -> KeyedJaggedTensor:
        """The same with lengths of one axis."""
        made = self.each(lambda tensor: tensor)
        made._lengths = self.lengths().view(-1)
        return made

    def to(
        self, device: torch.device, non_blocking: bool = False, dtype: torch.dtype | None = None
    ) -> KeyedJaggedTensor:
        """The same on another device; `dtype` changes the weights'."""
        made = self.each(lambda tensor: tensor.to(device, non_blocking=non_blocking))
        if made._weights is not None and dtype is not None:
            made._weights = made._weights.to(dtype)
        return made

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same keys with every tensor changed; without what was fetched for them."""
        made = super().each(change)
        made.prepared = None
        if self._inverse is not None:
            made._inverse = self._inverse[0], change(self._inverse[1])
        return made

    def __repr__(self) -> str:
        return (
            f"KeyedJaggedTensor({', '.join(self._keys)}: "
            f"{self._stride} samples, {len(self._values)} values)"
        )
