"""Memory that a program asks for without values (`torch.empty`).

What lies there differs from run to run, and a solver or a cache that fills it part by part hands it
on. While calls are recorded it holds one value, the same on both sides and in their repetition: a
program that reads what it never wrote agrees with itself, and not with one that asks for zeros.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from joymigrate.verify.transforms import tensors_in

CALLS = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
VALUE = 0.0625  # of numbers with a fraction; whole ones are 1, an index that most tables have
MOST = 1 << 22  # elements: more may be meant never to be touched


def fill_blanks(name: str, made: Any, kwargs: Any) -> None:
    """Give what a call has just made its value, where it has none of its own."""
    if name not in CALLS or kwargs.get("out") is not None:
        return
    for tensor in tensors_in(made):
        plain = tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_quantized)
        if plain and not tensor.is_nested and tensor.numel() <= MOST:
            whole = not (tensor.is_floating_point() or tensor.is_complex())
            with suppress(NotImplementedError):  # types of 4 bits and fewer have no numbers yet
                tensor.detach().fill_(1 if whole else VALUE)
