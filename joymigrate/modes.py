"""Dispatch modes of ours around programs that know nothing of them.

torch takes another path through `ctc_loss` while any dispatch mode is on: lengths that lie on the
CPU, as its documentation allows, then meet losses on the device, and the program ends with
"Expected all tensors to be on the same device" (aten/src/ATen/native/LossCTC.cpp,
`areAnyTensorSubclassLike`). Lengths in lists take the path that is taken without a mode.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class WatchingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode in which a program runs as it does without one."""

    def __enter__(self) -> Any:
        keep_path_of_ctc()
        return super().__enter__()  # type: ignore[no-untyped-call]


def keep_path_of_ctc() -> None:
    """Hand lengths to `torch.ctc_loss` in lists, as long as a mode is on. Done once a process."""
    real = torch.ctc_loss
    if hasattr(real, "__wrapped__"):
        return

    @functools.wraps(real)
    def ctc_loss(
        log_probs: Any,
        targets: Any,
        input_lengths: Any,
        target_lengths: Any,
        *rest: Any,
        **named: Any,
    ) -> Any:
        lengths = (input_lengths, target_lengths)
        if torch._C._len_torch_dispatch_stack() and all(map(whole, lengths)):
            input_lengths, target_lengths = (one.reshape(-1).tolist() for one in lengths)
        return real(log_probs, targets, input_lengths, target_lengths, *rest, **named)

    torch.ctc_loss = ctc_loss


def whole(lengths: Any) -> bool:
    """Whether it is a plain tensor of whole numbers; the rest is for torch to take or refuse."""
    if type(lengths) is not torch.Tensor or lengths.is_meta:
        return False
    return not (lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool)
