"""A `tf.data` pipeline in front of a torch trainer, in one process and without copies.

Tensors go over by DLPack: torch reads the memory that TensorFlow wrote. They are not to be written
to, for TensorFlow takes its tensors for unchanging; `.to(device)` and arithmetic make new ones.
Import this module before TensorFlow (`load` says why).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.extras import need
from joymigrate.run.tensorflow.load import load_in_order


class TorchBatches:
    """Batches of a `tf.data.Dataset` as torch tensors, in the dataset's own structure.

    Texts become numpy arrays of bytes, a ragged tensor the pair (values, row_splits), a sparse one
    a torch COO tensor. `consumed` counts batches; `start` leaves out the first ones, so that a
    pipeline whose order is fixed goes on where a run stood.
    """

    def __init__(self, dataset: Any, *, start: int = 0) -> None:
        need("tf", "tensorflow", what="reading a tf.data pipeline")
        load_in_order()
        if not hasattr(dataset, "element_spec"):
            raise JoyError(
                f"{type(dataset).__name__} is no tf.data.Dataset",
                help="hand over the dataset itself, not an iterator or a function",
            )
        if start < 0:
            raise JoyError(f"start={start} is below 0")
        self.dataset, self.consumed = dataset, start

    def __iter__(self) -> Iterator[Any]:
        """Batches from `consumed` on."""
        dataset = self.dataset.skip(self.consumed) if self.consumed else self.dataset
        for element in dataset:
            self.consumed += 1
            yield as_torch(element)

    def state_dict(self) -> dict[str, int]:
        """The place in the pipeline."""
        return {"consumed": self.consumed}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on at a place."""
        self.consumed = int(state["consumed"])


def as_torch(element: Any) -> Any:
    """TensorFlow's tensors in any structure as torch tensors that share their memory."""
    import tensorflow as tf

    if isinstance(element, Mapping):
        return {key: as_torch(value) for key, value in element.items()}
    if isinstance(element, tuple | list):
        parts = [as_torch(value) for value in element]
        return type(element)(*parts) if hasattr(element, "_fields") else type(element)(parts)
    if isinstance(element, tf.RaggedTensor):
        return as_torch(element.values), as_torch(element.row_splits)
    if isinstance(element, tf.SparseTensor):
        import torch

        values = as_torch(element.values)
        size = tuple(element.dense_shape.numpy().tolist())
        where = as_torch(element.indices).T
        return torch.sparse_coo_tensor(where, values, size, check_invariants=True)
    return share_memory(element) if isinstance(element, tf.Tensor) else element


def share_memory(tensor: Any) -> Any:
    """One tensor: its memory, seen by torch; texts as numpy has them."""
    import tensorflow as tf
    import torch

    if tensor.dtype == tf.string:
        return tensor.numpy()
    return torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(tensor))


if "tensorflow" not in sys.modules:
    load_in_order()
