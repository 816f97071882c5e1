"""The arguments of one call as the CPU kernel gets them, and what was met on the way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from joymigrate.run.rehearse import aliases
from joymigrate.run.rehearse.callsite import call_site
from joymigrate.run.rehearse.operator import RehearsedOperator


class HostArguments:
    """Lays CPU tensors over the device arguments of one call, and notes what was met."""

    __slots__ = ("device", "host_tensor", "mixes", "operator", "pairs", "signature")

    def __init__(
        self,
        operator: RehearsedOperator,
        pairs: list[tuple[Tensor, Tensor]],
        signature: list[Any],
        mixes: bool,
    ) -> None:
        self.mixes = mixes  # tensors of several devices may meet
        self.operator = operator
        self.pairs = pairs
        self.signature = signature
        self.device = -1
        self.host_tensor: Tensor | None = None

    def value(self, value: Any) -> Any:
        """One argument as the CPU kernel gets it."""
        if isinstance(value, Tensor):
            index = value.get_device()
            if index < 0:
                return self.host(value)
            if index != self.device:
                self.meet(index, value)
            form = (value.dtype, value.size(), value.stride())
            self.signature.append(form)
            if self.operator.fresh_alias or value.is_neg() or value.is_conj():
                alias = aliases.make_alias(value)
            else:
                key = (value.data_ptr(), form)
                found = aliases._kept.get(key)
                alias = aliases.keep(key, value) if found is None else found
            self.pairs.append((alias, value))
            return alias
        kind = type(value)
        if kind is int or value is None:
            self.signature.append(value)
            return value
        if kind is bool:  # True == 1, and a result's dtype is not the same
            self.signature.append("True" if value else "False")
            return value
        if kind is list or kind is tuple:
            self.signature.append(len(value))  # [2], [2, 1] is not [2, 2], [1]
            return [self.value(item) for item in value]
        if kind is float:
            self.signature.append(float)
            return value
        return self.other(value)

    def host(self, tensor: Tensor) -> Tensor:
        """A CPU tensor among the arguments; a number in disguise is welcome everywhere."""
        self.signature.append((tensor.dtype, tensor.size()))
        if tensor.dim():
            self.host_tensor = tensor
        return tensor

    def other(self, value: Any) -> Any:
        """Devices, dtypes, strings, generators."""
        if isinstance(value, torch.device):
            if value.type == "cpu":
                return value
            if self.device < 0 and value.index is not None:
                self.device = value.index
            return aliases.CPU
        if isinstance(value, complex):
            self.signature.append(complex)
        elif not isinstance(value, torch.Generator):
            self.signature.append(value)
        return value

    def meet(self, index: int, tensor: Tensor) -> None:
        """Another device, or a kind of tensor that has no plain memory."""
        if tensor.layout is not torch.strided:
            kind = str(tensor.layout).removeprefix("torch.")
            raise NotImplementedError(
                f"rehearsal device: {self.operator.name} got a {kind} tensor; the rehearsal "
                f"computes dense tensors only ({call_site()})"
            )
        if tensor.is_quantized:
            raise NotImplementedError(
                f"rehearsal device: {self.operator.name} got a quantised tensor "
                f"({tensor.dtype}); use the npu_quant_* operators ({call_site()})"
            )
        if self.device < 0:
            self.device = index
        elif not self.mixes:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"npu:{self.device} and npu:{index}! (in {self.operator.name})"
            )


def refuse_host_tensor(operator: RehearsedOperator, tensor: Tensor, index: int) -> None:
    """The commonest mistake of a migrated program."""
    raise RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"npu:{index} and cpu! (in {operator.name}, a CPU tensor of shape {list(tensor.shape)})"
    )
