"""Finds the overheads of each call while a program runs, and counts its steps."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from joymigrate.run.rehearse.callsite import call_site
from joymigrate.run.rehearse.limits import Limits, value_of_token
from joymigrate.run.rehearse.matrix_unit import MATMUL
from joymigrate.run.rehearse.operator import COPIES, RehearsedOperator
from joymigrate.run.rehearse.overheads import (
    CAST,
    COPY,
    SLOW,
    STRIDED,
    UNALIGNED,
    WAIT,
    Overhead,
)
from joymigrate.run.rehearse.record import RehearsalRecord

MOVES = {"aclnnInplaceCopy": (1, 0), "aclnnCast": (0, 1)}  # where from and to are
MOVING = (*COPIES, "clone", "contiguous")
SYNCHRONISE = "_npu_synchronize"


def find_overheads(
    operator: RehearsedOperator,
    forms: Sequence[str],
    tensors: Sequence[Tensor],
    limits: Limits,
    *,
    waits: bool,
) -> tuple[Overhead, ...]:
    """Those of a call whose kernels are `forms` (Shim.forms) and whose arguments hold `tensors`;
    `waits` says that the form of its results depends on numbers."""
    found = list(find_moves(operator, forms))
    if forms and not operator.views and operator.base not in MOVING:
        found += find_layouts(operator, tensors, limits)
    slow, source = limits.slow(forms)
    if slow:
        found.append(Overhead(SLOW, operator.name, " ".join(slow), slow, source))
    to_host = operator.base in COPIES and [one.is_cpu for one in tensors] == [True, False]
    if waits or to_host:
        found.append(Overhead(WAIT, operator.name))
    return tuple(dict.fromkeys(found))


def find_moves(operator: RehearsedOperator, forms: Iterable[str]) -> Iterator[Overhead]:
    """Casts and copies among the kernels of an operator."""
    for form in forms:
        kernel, *tokens = form.split()
        given = [value_of_token(one) for one in tokens if one[0] == "T"]
        if kernel not in MOVES or len(given) != 2:
            continue
        before, after = (given[place] for place in MOVES[kernel])
        if before.dtype != after.dtype:
            yield Overhead(CAST, operator.name, f"{before.dtype} to {after.dtype}")
        else:
            yield Overhead(COPY, operator.name, f"{after.dtype}{list(after.shape or ())}")


def find_layouts(
    operator: RehearsedOperator, tensors: Sequence[Tensor], limits: Limits
) -> Iterator[Overhead]:
    """Operands with gaps or in another order, and factors of a matrix product whose inner axis
    is read slowly. A product takes a factor that is transposed as it is; what is expanded has no
    memory of its own."""
    product = operator.base in MATMUL
    for one in tensors:
        if one.is_cpu or one.layout is not torch.strided or one.numel() < 2 or 0 in one.stride():
            continue
        transposed = one.dim() >= 2 and one.mT.is_contiguous()
        text = f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}"
        if not (one.is_contiguous() or (product and transposed)):
            yield Overhead(STRIDED, operator.name, text)
        elif product and min(one.shape[-2:]) > 1 < one.dim() and limits.inner_axis is not None:
            inner = one.shape[-2] if transposed and not one.is_contiguous() else one.shape[-1]
            if inner * one.element_size() % limits.inner_axis.bytes:
                yield Overhead(
                    UNALIGNED, operator.name, text, source=limits.inner_axis.source
                )  # fmt: skip


def watch(record: RehearsalRecord) -> None:
    """Note the waits that the program asks for itself, and count the steps of its optimizer."""
    import torch_npu

    StepCount(record)
    real = getattr(torch_npu._C, SYNCHRONISE)

    def synchronise() -> None:
        found = Overhead(WAIT, SYNCHRONISE.removeprefix("_npu_"))
        record.overhead(found, call_site())["calls"] += 1
        real()

    setattr(torch_npu._C, SYNCHRONISE, synchronise)


class StepCount:
    """Counts the steps of the optimizer that steps first; what happens from the end of its first
    step to the end of its last is in the steps, the rest is not."""

    def __init__(self, record: RehearsalRecord) -> None:
        self.record = record
        self.optimizer: weakref.ref[Any] | None = None
        self.before: dict[str, int] = {}
        register_optimizer_step_post_hook(self.count)

    def count(self, optimizer: Any, *_: Any) -> None:
        """One step has ended."""
        self.optimizer = self.optimizer or weakref.ref(optimizer)
        if self.optimizer() is not optimizer:
            return
        self.record.steps += 1
        rows = self.record.overheads
        if self.record.steps == 1:
            self.before = {key: row["calls"] for key, row in rows.items()}
        else:
            for key, row in rows.items():
                row["in_steps"] = row["calls"] - self.before.get(key, 0)
