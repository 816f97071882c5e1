"""Block pointers for releases of Triton without them, in its compiler and in its interpreter.

A block pointer is a base with shape, strides and offsets, each a scalar; a load or a store makes
pointers and a mask of them. Public kernels use them, and the chip's own Triton has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import triton.language as tl
from triton.language import core


class BlockPointerType(core.base_type):  # type: ignore[misc]
    """The type: that of the base, and the block's shape."""

    def __init__(self, base: Any, block: tuple[int, ...]) -> None:
        self.base, self.block = base, block

    def __eq__(self, other: object) -> bool:
        alike = isinstance(other, BlockPointerType)
        return alike and (self.base, self.block) == (other.base, other.block)  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self.block)

    def _unflatten_ir(self, handles: Sequence[Any], cursor: int) -> tuple[BlockPointer, int]:
        base = core.tensor(handles[cursor], self.base)
        sides = len(self.block)
        rest = [core.tensor(one, tl.int64) for one in handles[cursor + 1 : cursor + 1 + 3 * sides]]
        parts = (rest[at : at + sides] for at in range(0, 3 * sides, sides))
        return BlockPointer(base, self.block, *parts), cursor + 1 + 3 * sides

    def _flatten_ir_types(self, builder: Any, out: list[Any]) -> None:
        out.append(self.base.to_ir(builder))
        out.extend([builder.get_int64_ty()] * (3 * len(self.block)))

    def mangle(self) -> str:
        """The type in a function's name."""
        return f"BP{self.base.mangle()}_{'_'.join(map(str, self.block))}"


class BlockPointer(core.base_value):  # type: ignore[misc]
    """A base with shape, strides, offsets (scalars of 64 bits) and the block's shape."""

    def __init__(
        self, base: Any, block: tuple[int, ...], shape: list[Any], strides: list[Any],
        offsets: list[Any],
    ) -> None:  # fmt: skip
        self.base, self.block = base, block
        self.shape, self.strides, self.offsets = shape, strides, offsets
        self.dtype = base.dtype
        self.type = BlockPointerType(base.type, block)

    def _flatten_ir(self, handles: list[Any]) -> None:
        for one in (self.base, *self.shape, *self.strides, *self.offsets):
            handles.append(one.handle)

    def _set_name(self, builder: Any, name: str) -> None:
        pass

    def places(self, checked: set[int], semantic: Any) -> tuple[Any, Any]:
        """Pointers of the block's shape, and the mask of the sides that are checked."""
        pointers, mask = self.base, semantic.full(list(self.block), True, tl.int1)
        for side, size in enumerate(self.block):
            lanes = semantic.cast(semantic.arange(0, size), tl.int64)
            lanes = semantic.add(lanes, self.offsets[side], True)
            for axis in (axis for axis in range(len(self.block)) if axis != side):
                lanes = semantic.expand_dims(lanes, axis)
            pointers = semantic.add(pointers, semantic.mul(lanes, self.strides[side], True), True)
            if side in checked:
                mask = semantic.and_(mask, semantic.less_than(lanes, self.shape[side]))
                mask = semantic.and_(mask, semantic.greater_equal(lanes, semantic.to_tensor(0)))
        return semantic.broadcast_impl_shape(pointers, list(self.block)), mask


def scalars(values: Iterable[Any], semantic: Any) -> list[Any]:
    """Whole numbers as scalars of 64 bits."""
    return [semantic.cast(semantic.to_tensor(one), tl.int64) for one in values]


def number(value: Any) -> int:
    """A whole number that is known while the kernel is compiled."""
    return int(getattr(value, "value", value))


def sides(checked: Any) -> set[int]:
    """The sides of a `boundary_check`."""
    checked = getattr(checked, "value", checked)
    return {number(one) for one in checked} if hasattr(checked, "__iter__") else {number(checked)}


def make_block_ptr(
    base: Any, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any = None,
    _semantic: Any = None,
) -> BlockPointer:  # fmt: skip
    """As `tl.make_block_ptr` was."""
    given = (scalars(one, _semantic) for one in (shape, strides, offsets))
    return BlockPointer(base, tuple(map(number, block_shape)), *given)


def advance(base: BlockPointer, offsets: Any, _semantic: Any = None) -> BlockPointer:
    """The same block further on."""
    steps = zip(base.offsets, scalars(offsets, _semantic), strict=True)
    moved = [_semantic.add(at, step, True) for at, step in steps]
    return BlockPointer(base.base, base.block, base.shape, base.strides, moved)


def install() -> None:
    """Teach the language of this process, once."""
    read, write = tl.load, tl.store

    def load(pointer: Any, *args: Any, boundary_check: Any = (), padding_option: Any = "",
             _semantic: Any = None, **words: Any) -> Any:  # fmt: skip
        if isinstance(pointer, BlockPointer):
            pointer, mask = pointer.places(sides(boundary_check), _semantic)
            args = (mask, 0)
        return read(pointer, *args, _semantic=_semantic, **words)

    def store(pointer: Any, value: Any, *args: Any, boundary_check: Any = (),
              _semantic: Any = None, **words: Any) -> Any:  # fmt: skip
        if isinstance(pointer, BlockPointer):
            pointer, mask = pointer.places(sides(boundary_check), _semantic)
            args = (mask,)
        return write(pointer, value, *args, _semantic=_semantic, **words)

    made = {one.__name__: core.builtin(one) for one in (make_block_ptr, advance, load, store)}
    for module in (tl, core):
        vars(module).update(made)
