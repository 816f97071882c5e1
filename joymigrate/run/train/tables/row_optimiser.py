"""Row-wise optimisers: what changes the rows of a batch, and nothing else of a table.

Only rows with a gradient change (lazy updates, as in fbgemm and torch's SparseAdam); the gradients
of repeated ids are summed once before. State lies beside the rows, in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

WIDTHS = {
    "sgd": (0, 0),
    "rowwise_adagrad": (0, 1),
    "adagrad": (1, 0),
    "adam": (2, 0),
    "lamb": (2, 0),
}
WHOLE_ROW = ("rowwise_adagrad", "lamb")  # an element's update depends on the rest of its row

# Optimisers of torch, TorchRec and fbgemm by class name or EmbOptimType.
KNOWN = {
    "sgd": "sgd", "exactsgd": "sgd", "exact_sgd": "sgd",
    "adagrad": "adagrad", "exactadagrad": "adagrad", "exact_adagrad": "adagrad",
    "rowwiseadagrad": "rowwise_adagrad", "exactrowwiseadagrad": "rowwise_adagrad",
    "exact_row_wise_adagrad": "rowwise_adagrad", "exact_rowwise_adagrad": "rowwise_adagrad",
    "adam": "adam", "sparseadam": "adam", "lamb": "lamb",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RowOptimiser:
    """One rule of update. `kind`: sgd, adagrad, rowwise_adagrad, adam or lamb.

    `eps` None is the kind's usual one: 1e-10 for Adagrad (torch), 1e-8 for Adam, 1e-6 for LAMB.
    `weight_decay` is added to the gradient (sgd, adagrad, adam), and to LAMB's direction. `initial`
    is Adagrad's first accumulator.
    """

    kind: str = "sgd"
    lr: float = 0.01
    eps: float | None = None
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    initial: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in WIDTHS:
            raise JoyError(
                f"rows have no optimiser '{self.kind}'.{did_you_mean(self.kind, WIDTHS)}",
                help=f"one of {', '.join(WIDTHS)}",
            )
        if not self.lr >= 0 or not 0 <= self.beta1 < 1 or not 0 <= self.beta2 < 1:
            raise JoyError(f"{self} can't train", help="lr ≥ 0, 0 ≤ beta < 1")
        for name in ("lr", "epsilon", "weight_decay", "initial"):
            if not 0 <= getattr(self, name) < math.inf:
                raise JoyError(
                    f"{name} is {getattr(self, name)}: {self} can't train",
                    help="lr, eps, weight_decay and initial are numbers from 0",
                )

    @property
    def epsilon(self) -> float:
        """`eps`, or the kind's usual one."""
        usual = {"adam": 1e-8, "lamb": 1e-6}.get(self.kind, 1e-10)
        return usual if self.eps is None else self.eps

    def state_width(self, columns: int) -> int:
        """Numbers of state for each row."""
        by_column, by_row = WIDTHS[self.kind]
        return by_column * columns + by_row

    def arguments(self) -> dict[str, Any]:
        """Keywords of the registry's `row_update`."""
        return {
            "kind": self.kind, "lr": self.lr, "eps": self.epsilon, "beta1": self.beta1,
            "beta2": self.beta2, "weight_decay": self.weight_decay,
        }  # fmt: skip

    @staticmethod
    def of(optimiser: Any, options: Mapping[str, Any] | None = None) -> RowOptimiser:
        """From an optimiser class of torch, TorchRec or fbgemm and its keyword arguments.

        Raises `JoyError` for a class or an option that has no row-wise form.
        """
        name = getattr(optimiser, "__name__", None) or str(getattr(optimiser, "value", optimiser))
        kind = KNOWN.get(name.lower())
        if kind is None:
            raise JoyError(
                f"{name} has no row-wise form here",
                help=f"one of {', '.join(WIDTHS)}, or a table without a fused optimiser",
            )
        given = dict(options or {})
        names = {
            "lr": "lr", "learning_rate": "lr", "eps": "eps", "weight_decay": "weight_decay",
            "initial_accumulator_value": "initial", "beta1": "beta1", "beta2": "beta2",
        }  # fmt: skip
        found: dict[str, Any] = {"kind": kind, "lr": default_rate(kind)}
        if kind == "rowwise_adagrad":
            found["eps"] = 1e-8  # what TorchRec's fused kernel computes with, unless it is told
        if "betas" in given:
            found["beta1"], found["beta2"] = given.pop("betas")
        for key, value in given.items():
            if key in names:
                found[names[key]] = value
            elif value not in (None, False, 0, 0.0):
                raise JoyError(
                    f"{name}({key}={value}) has no row-wise form here",
                    help=f"options that have one: {', '.join(names)}, betas",
                )
        return RowOptimiser(**found)


def default_rate(kind: str) -> float:
    """The learning rate of torch's optimiser of that name (LAMB: as Adam)."""
    return {"sgd": 1e-3, "adagrad": 1e-2, "rowwise_adagrad": 1e-2}.get(kind, 1e-3)


def apply_optimizer_in_backward(
    optimizer_class: Any,
    params: Iterable[Tensor],
    optimizer_kwargs: Mapping[str, Any] | None = None,
) -> None:
    """TorchRec's call: the tables of these parameters are updated in the backward pass from now on.

    Parameters that are not rows of a table raise `JoyError`.
    """
    chosen = RowOptimiser.of(optimizer_class, optimizer_kwargs)
    owners = []
    for param in params:
        owner = getattr(param, "table_owner", None)
        if owner is None:
            raise JoyError(
                f"a parameter of shape {tuple(param.shape)} is no table",
                help="give the parameters of an EmbeddingBagCollection or EmbeddingCollection",
            )
        owners.append(owner)
    for collection, name in owners:
        collection.fuse(name, chosen)
