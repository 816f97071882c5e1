"""Optimisers around fused tables, under TorchRec's names: schedules for rows, and the rest.

    rows = fused_optimizer(model)                  # param groups of the tables: their rates
    dense = KeyedOptimizerWrapper(dict(in_backward_optimizer_filter(model.named_parameters())),
                                  lambda params: torch.optim.Adagrad(params, lr=0.1))
    both = CombinedOptimizer([rows, dense])        # zero_grad, step, schedules of both

Rows are changed in the backward pass; `step` of `fused_optimizer` does nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from joymigrate.errors import JoyError
from joymigrate.run.train.tables.row_optimiser import RowOptimiser
from joymigrate.run.train.tables.table_collection import TableCollection


def fuse_marked(model: nn.Module) -> None:
    """Fuse the tables that torch's own `_apply_optimizer_in_backward` marked."""
    for collection in collections_of(model):
        for name in list(collection.plain):
            weight = collection.plain_weight(name)
            kinds = getattr(weight, "_optimizer_classes", ())
            if len(kinds) > 1:
                raise JoyError(
                    f"{len(kinds)} optimisers were applied to one table",
                    where=f"table '{name}'",
                    help="apply one",
                )
            if kinds:
                (options,) = weight._optimizer_kwargs  # type: ignore[attr-defined]
                collection.fuse(name, RowOptimiser.of(kinds[0], options))


def collections_of(model: nn.Module) -> list[TableCollection]:
    """The collections of a model, each once, in its order."""
    return [module for module in model.modules() if isinstance(module, TableCollection)]


def fused_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """An optimiser whose param groups are the fused tables of a model: their learning rates."""
    return FusedRows(collections_of(model))


class FusedRows(torch.optim.Optimizer):
    """Shows the rates of fused tables to schedules; `step` has nothing to do."""

    def __init__(self, collections: Sequence[TableCollection]) -> None:
        groups = [
            (name, collection.rates_of(name))
            for collection in collections
            for name in collection.fused()
        ]
        super().__init__([{"params": []}], {})
        self.param_groups = []
        for name, group in groups:
            group |= {"params": [], "table": name}
            self.param_groups.append(group)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Rows were changed in the backward pass."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The rates alone; the tables go on reading the same groups."""
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group |= {key: value for key, value in saved.items() if key not in ("params", "table")}


class RowWiseAdagrad(torch.optim.Optimizer):
    """Adagrad with one accumulator a row: the mean of the squared gradient. For rows of matrices.

    On tables it is recognised by its name and never steps; on other matrices it does.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, eps: float = 1e-10, **options: Any
    ) -> None:
        unknown = {key: value for key, value in options.items() if value}
        if unknown:
            raise JoyError(f"RowWiseAdagrad has no {', '.join(unknown)}", help="lr and eps")
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """w -= lr g / (sqrt(sum of mean(g²)) + eps)."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                gradient = weight.grad.to_dense() if weight.grad.is_sparse else weight.grad
                mean = gradient.square().mean(-1, keepdim=True)
                total = self.state[weight].setdefault("sum", torch.zeros_like(mean))
                total += mean
                weight -= group["lr"] * gradient / (total.sqrt() + group["eps"])


def in_backward_optimizer_filter(
    named_parameters: Iterable[tuple[str, Tensor]], include: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """Parameters that are updated in the backward pass (`include`), or the others."""
    for name, parameter in named_parameters:
        if hasattr(parameter, "_in_backward_optimizers") == include:
            yield name, parameter


class KeyedOptimizerWrapper:
    """An optimiser over named parameters. It may have none: then it does nothing."""

    def __init__(
        self,
        params: Mapping[str, Tensor],
        optim_factory: Callable[[list[Tensor]], torch.optim.Optimizer],
    ) -> None:
        self.params = dict(params)
        self.inner = optim_factory(list(self.params.values())) if self.params else None

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the optimiser inside."""
        return [] if self.inner is None else self.inner.param_groups

    @property
    def state(self) -> Mapping[Any, Any]:
        """That of the optimiser inside."""
        return {} if self.inner is None else self.inner.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let the gradients go."""
        if self.inner is not None:
            self.inner.zero_grad(set_to_none=set_to_none)

    def step(self, closure: Any = None) -> None:
        """Change the parameters."""
        if self.inner is not None:
            self.inner.step(closure)

    def state_dict(self) -> dict[str, Any]:
        """State by the parameters' names."""
        names = {id(parameter): name for name, parameter in self.params.items()}
        return {
            "state": {names[id(parameter)]: dict(kept) for parameter, kept in self.state.items()},
            "param_groups": [
                {key: value for key, value in group.items() if key != "params"}
                | {"params": [names[id(parameter)] for parameter in group["params"]]}
                for group in self.param_groups
            ],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """State by names; parameters that are not named there raise `JoyError`."""
        # By the groups: a parameter that never had a gradient has no state.
        saved_names = {name for group in state_dict["param_groups"] for name in group["params"]}
        other = sorted(saved_names ^ self.params.keys())
        if other:
            raise JoyError(
                f"the optimiser's state has no '{other[0]}'"
                if other[0] in self.params
                else f"the optimiser's state has '{other[0]}', and the model has no such parameter",
                help="load the state of this model",
            )
        for name, kept in state_dict["state"].items():
            self.inner.state[self.params[name]].update(kept)  # type: ignore[union-attr]
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group |= {key: value for key, value in saved.items() if key != "params"}


class CombinedOptimizer:
    """Several optimisers as one, in order; pairs of a name and an optimiser may be given too."""

    def __init__(self, optims: Sequence[Any]) -> None:
        self.named = [
            item if isinstance(item, tuple) else (str(number), item)
            for number, item in enumerate(optims)
        ]

    @property
    def optimizers(self) -> list[tuple[str, Any]]:
        """The parts by name."""
        return self.named

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of all parts: schedules see them."""
        return [group for _, one in self.named for group in one.param_groups]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of all parts."""
        for _, one in self.named:
            one.zero_grad(set_to_none=set_to_none)

    def step(self, closure: Any = None) -> None:
        """Of all parts."""
        for _, one in self.named:
            one.step(closure)

    def state_dict(self) -> dict[str, Any]:
        """By the parts' names."""
        return {name: one.state_dict() for name, one in self.named}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """By the parts' names."""
        for name, one in self.named:
            one.load_state_dict(state_dict[name])
