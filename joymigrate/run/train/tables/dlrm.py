"""TorchRec's `DLRM` and `DLRMTrain`, with its constructors, calls and names of weights.

Naumov et al., arXiv 1906.00091: numbers become a vector (dense_arch), ids rows (sparse_arch), all
pairs are multiplied (inter_arch), an MLP gives the logit (over_arch). B rows, F features, D
columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from joymigrate.errors import JoyError
from joymigrate.run.train.tables.embedding import EmbeddingBagCollection
from joymigrate.run.train.tables.keyed_jagged import KeyedJaggedTensor


class Perceptron(nn.Module):
    """A linear layer and ReLU."""

    def __init__(self, inputs: int, outputs: int, device: torch.device | None) -> None:
        super().__init__()
        self._linear = nn.Linear(inputs, outputs, device=device)

    def forward(self, x: Tensor) -> Tensor:
        """[B, outputs]"""
        return torch.relu(self._linear(x))


class Mlp(nn.Module):
    """Perceptrons behind each other."""

    def __init__(self, inputs: int, widths: Sequence[int], device: torch.device | None) -> None:
        super().__init__()
        edges = [inputs, *widths]
        self._mlp = nn.Sequential(
            *(Perceptron(a, b, device) for a, b in zip(edges, widths, strict=False))
        )

    def forward(self, x: Tensor) -> Tensor:
        """[B, last width]"""
        found: Tensor = self._mlp(x)
        return found


class SparseArch(nn.Module):
    """Pooled rows of every feature [B, F, D]."""

    def __init__(self, embedding_bag_collection: EmbeddingBagCollection) -> None:
        super().__init__()
        self.embedding_bag_collection = embedding_bag_collection
        configs = embedding_bag_collection.embedding_bag_configs()
        widths = sorted({config.embedding_dim for config in configs})
        if len(widths) != 1:
            raise JoyError(
                f"DLRM multiplies pairs of rows: its tables have one embedding_dim, not {widths}",
                help="make the tables equally wide",
            )
        self.D = widths[0]
        self.names = [name for config in configs for name in config.features()]

    @property
    def sparse_feature_names(self) -> list[str]:
        """The features in order."""
        return self.names

    @property
    def F(self) -> int:
        """Number of features."""
        return len(self.names)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """[B, F, D]"""
        found: Tensor = self.embedding_bag_collection(features).values()
        return found.view(len(found), self.F, self.D)


class DenseArch(nn.Module):
    """Numbers as a vector [B, D]."""

    def __init__(
        self, in_features: int, layer_sizes: list[int], device: torch.device | None = None
    ) -> None:
        super().__init__()
        self.model = Mlp(in_features, layer_sizes, device)

    def forward(self, features: Tensor) -> Tensor:
        """[B, last size]"""
        found: Tensor = self.model(features)
        return found


class InteractionArch(nn.Module):
    """The dense vector, and products of all pairs of the 1 + F vectors [B, D + (1 + F) F / 2]."""

    def __init__(self, num_sparse_features: int) -> None:
        super().__init__()
        self.F = num_sparse_features
        pairs = torch.triu_indices(self.F + 1, self.F + 1, 1)
        self.register_buffer("triu_indices", pairs, persistent=False)

    def forward(self, dense_features: Tensor, sparse_features: Tensor) -> Tensor:
        """dense [B, D], sparse [B, F, D]"""
        every = torch.cat((dense_features[:, None], sparse_features), 1)
        rows, columns = self.triu_indices.to(every.device).unbind()  # type: ignore[operator]
        products = torch.bmm(every, every.transpose(1, 2))[:, rows, columns]
        return torch.cat((dense_features, products), 1)


class OverArch(nn.Module):
    """Hidden layers with ReLU, the last one without."""

    def __init__(
        self, in_features: int, layer_sizes: list[int], device: torch.device | None = None
    ) -> None:
        super().__init__()
        if len(layer_sizes) < 2:
            raise JoyError(f"over_arch has {len(layer_sizes)} layers", help="at least two")
        last = nn.Linear(layer_sizes[-2], layer_sizes[-1], device=device)
        self.model = nn.Sequential(Mlp(in_features, layer_sizes[:-1], device), last)

    def forward(self, features: Tensor) -> Tensor:
        """[B, last size]"""
        found: Tensor = self.model(features)
        return found


class DLRM(nn.Module):
    """Logits [B, 1] of numbers [B, G] and a `KeyedJaggedTensor`."""

    def __init__(
        self,
        embedding_bag_collection: EmbeddingBagCollection,
        dense_in_features: int,
        dense_arch_layer_sizes: list[int],
        over_arch_layer_sizes: list[int],
        dense_device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.sparse_arch = SparseArch(embedding_bag_collection)
        width, count = self.sparse_arch.D, self.sparse_arch.F
        if dense_arch_layer_sizes[-1] != width:
            raise JoyError(
                f"the numbers become {dense_arch_layer_sizes[-1]} columns, rows have {width}",
                where="dense_arch_layer_sizes",
                help="its last size is the tables' embedding_dim",
            )
        self.dense_arch = DenseArch(dense_in_features, dense_arch_layer_sizes, dense_device)
        self.inter_arch = InteractionArch(count)
        self.over_arch = OverArch(
            width + (count + 1) * count // 2, over_arch_layer_sizes, dense_device
        )

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Logits [B, last size]."""
        dense = self.dense_arch(dense_features)
        logits: Tensor = self.over_arch(self.inter_arch(dense, self.sparse_arch(sparse_features)))
        return logits


class DLRMTrain(nn.Module):
    """A DLRM with its loss: batch -> (loss, (loss, logits [B], labels [B]))."""

    def __init__(self, dlrm_module: DLRM) -> None:
        super().__init__()
        self.model = dlrm_module

    def forward(self, batch: Any) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Binary cross entropy of a batch with dense_features, sparse_features and labels."""
        logits = self.model(batch.dense_features, batch.sparse_features).squeeze(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels.float())
        return loss, (loss.detach(), logits.detach(), batch.labels.detach())
