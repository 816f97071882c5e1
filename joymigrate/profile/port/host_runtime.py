"""What a translated C++ function stands on: pointers, integer division, options, thread grids.

This file is copied into every reference that needs it, so that the reference stands alone.
"""

from __future__ import annotations

import itertools
import math

import torch


class _Pointer:
    """`data_ptr<T>()` of a tensor: numbers by place, as C++ reads and writes them."""

    def __init__(self, flat, at=0):
        self.flat, self.at = flat, at

    @classmethod
    def of(cls, value):
        if value is None or isinstance(value, (list, cls)):
            return value
        if not value.is_contiguous():  # C++ walks the memory; so does a view of the storage
            whole = torch.empty(0, dtype=value.dtype, device=value.device)
            size = value.untyped_storage().nbytes() // value.element_size()
            whole.set_(value.untyped_storage(), 0, (size,), (1,))
            return cls(whole, value.storage_offset())
        return cls(value.view(-1))

    def place(self, index):
        place = self.at + int(index)
        if not 0 <= place < self.flat.numel():
            raise IndexError(f"place {place} of {self.flat.numel()}")
        return place

    def __getitem__(self, index):
        return self.flat[self.place(index)].item()

    def __setitem__(self, index, value):
        self.flat[self.place(index)] = value

    def __add__(self, count):
        return _Pointer(self.flat, self.at + int(count))

    def __sub__(self, count):
        return _Pointer(self.flat, self.at - int(count))


class _Part:
    """A pointer into a list: `array + 3`."""

    def __init__(self, rows, at):
        self.rows, self.at = rows, at

    def __getitem__(self, index):
        return self.rows[self.at + int(index)]

    def __setitem__(self, index, value):
        self.rows[self.at + int(index)] = value

    def __add__(self, count):
        return _Part(self.rows, self.at + int(count))


class _Options(dict[str, object]):
    """torch::TensorOptions: keywords of a factory."""

    @classmethod
    def of(cls, tensor):
        return cls(dtype=tensor.dtype, device=tensor.device)

    def dtype(self, value):
        return _Options({**self, "dtype": value})

    def device(self, value, index=None):
        return _Options({**self, "device": value})

    def requires_grad(self, value):
        return _Options({**self, "requires_grad": value})

    def layout(self, value):
        return self

    def memory_format(self, value):
        return self


def _options(value=None):
    """Keywords out of options or a dtype."""
    if isinstance(value, torch.dtype):
        return {"dtype": value}
    return dict(value or {})


def _add(a, b):
    """Sum; a place in an array moves."""
    if isinstance(a, list) and not isinstance(b, list):
        return _Part(a, int(b))
    return a + b


def _div(a, b):
    """C++ division: whole numbers are cut towards zero."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return _divide(a, b)
    if b == 0:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def _divide(a, b):
    """Division with a tensor: whole tensors divide as torch does, elements of them as C++ does."""
    whole = all(
        not one.is_floating_point() if isinstance(one, torch.Tensor) else isinstance(one, int)
        for one in (a, b)
    )
    single = all(one.dim() == 0 for one in (a, b) if isinstance(one, torch.Tensor))
    return torch.div(a, b, rounding_mode="trunc") if whole and single else a / b


def _round(value):
    """The nearest whole number, halves away from zero."""
    return math.copysign(math.floor(abs(value) + 0.5), value)


def _mod(a, b):
    """C++ remainder: its sign is that of the left side."""
    return a - _div(a, b) * b if isinstance(a, int) and isinstance(b, int) else math.fmod(a, b)


def _int(value):
    """A whole number, cut towards zero."""
    return int(value)


def _real(value):
    """A floating point number; tensors stay."""
    return float(value) if isinstance(value, (int, bool)) else value


def _put(tensor, where, value, accumulate=False):
    """index_put_."""
    if accumulate:
        return tensor.index_put_(where, torch.as_tensor(value), True)
    tensor[where] = value
    return tensor


def _array(*sizes):
    """A C array of numbers."""
    if len(sizes) == 1:
        return [0] * int(sizes[0])
    return [_array(*sizes[1:]) for _ in range(int(sizes[0]))]


def _function(name, *values):
    """A function of the C library on numbers: what Python raises for, C++ answers with NaN."""
    try:
        return getattr(math, name)(*values)
    except ValueError:
        return -math.inf if name.startswith("log") and values[0] == 0 else math.nan
    except OverflowError:
        return math.inf


def _atomic_add(place, value):
    """atomicAdd: what was there."""
    before = place[0]
    place[0] = before + value
    return before


def _atomic_max(place, value):
    before = place[0]
    place[0] = max(before, value)
    return before


def _atomic_min(place, value):
    before = place[0]
    place[0] = min(before, value)
    return before


class _Dim3:
    """dim3, blockIdx and the like."""

    def __init__(self, x=1, y=1, z=1):
        self.x, self.y, self.z = int(x), int(y), int(z)


class _Thread:
    """Where a thread of a grid stands, and the memory of its block."""

    def __init__(self, block, thread, grid, size, memory):
        self.blockIdx, self.threadIdx, self.gridDim, self.blockDim = block, thread, grid, size
        self.memory = memory

    def shared(self, name, *sizes):
        if name not in self.memory:
            self.memory[name] = _array(*sizes)
        return self.memory[name]


_BACKWARDS = False  # the order of threads, which a result must not depend on


def _launch(kernel, grid, block, *arguments):
    """Run a kernel: blocks one after the other, threads statement by statement where they share."""
    grid, block = (one if isinstance(one, _Dim3) else _Dim3(one) for one in (grid, block))
    blocks = list(itertools.product(range(grid.z), range(grid.y), range(grid.x)))
    threads = list(itertools.product(range(block.z), range(block.y), range(block.x)))
    if _BACKWARDS:
        blocks, threads = blocks[::-1], threads[::-1]
    for z, y, x in blocks:
        memory: dict[str, list[object]] = {}
        running = []
        for k, j, i in threads:
            thread = _Thread(_Dim3(x, y, z), _Dim3(i, j, k), grid, block, memory)
            started = kernel(thread, *arguments)
            if started is not None:
                running.append(started)
        _steps(running)


def _steps(running):
    """Let threads take a step in turn; at a barrier they wait for all that still run."""
    waiting = []
    while running:
        moving = []
        for one in running:
            at = next(one, "end")
            if at == 0:
                moving.append(one)
            elif at == 1:
                waiting.append(one)
        running = moving
        if not running:
            running, waiting = waiting, []
