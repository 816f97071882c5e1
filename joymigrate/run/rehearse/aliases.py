"""Device memory seen as CPU tensors, and CPU results moved onto the device.

The simulated device keeps its memory in this process, so a CPU tensor can be laid over the same
bytes. Aliases are kept: allocator blocks come back at the same address again and again, and making
a view costs more than finding one.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

CPU = torch.device("cpu")
LIMIT = 8192  # aliases kept; beyond that all are dropped and made anew
_construct = torch._C._construct_storage_from_data_pointer
_kept: dict[Any, Tensor] = {}
_devices: dict[int, torch.device] = {}


def device(index: int) -> torch.device:
    """The device with this number."""
    found = _devices.get(index)
    if found is None:
        found = _devices[index] = torch.device("npu", index)
    return found


def make_alias(tensor: Tensor) -> Tensor:
    """A CPU tensor over the memory of `tensor`: same dtype, sizes, strides, offset and bits."""
    storage = tensor.untyped_storage()
    address = storage.data_ptr()
    # Aliases made under inference mode could not be written to outside of it.
    with torch.inference_mode(False), torch.no_grad():
        if not address:  # nothing in it, or one of autograd's zero tensors
            return torch.zeros(tensor.size(), dtype=tensor.dtype, device=CPU)
        memory = _construct(address, CPU, storage.nbytes())
        alias = torch.empty(0, dtype=tensor.dtype, device=CPU)
        alias.set_(memory, tensor.storage_offset(), tensor.size(), tensor.stride())
        if tensor.is_conj():
            alias = torch._conj(alias)
        if tensor.is_neg():
            alias = torch._neg_view(alias)
        return alias


def keep(key: Any, tensor: Tensor) -> Tensor:
    """Make an alias and keep it under `key`. Empty tensors all have the address 0: not kept."""
    if not key[0]:
        return make_alias(tensor)
    if len(_kept) >= LIMIT:
        _kept.clear()
    alias = _kept[key] = make_alias(tensor)
    return alias


def forget(alias: Tensor) -> None:
    """Drop a kept alias whose sizes an operator changed."""
    for key, value in list(_kept.items()):
        if value is alias:
            del _kept[key]


def to_device(result: Tensor, index: int) -> Tensor:
    """A CPU result as a new device tensor with the same strides."""
    if result.layout is not torch.strided:
        kind = str(result.layout).removeprefix("torch.")
        raise NotImplementedError(
            f"rehearsal device: a {kind} tensor on the device; it holds dense tensors only"
        )
    if result.is_conj() or result.is_neg():
        result = result.resolve_conj().resolve_neg()
    made = torch.empty_strided(
        result.size(), result.stride(), dtype=result.dtype, device=device(index)
    )
    fill(made, result)
    return made


def fill(target: Tensor, result: Tensor) -> None:
    """Write a CPU result into a device tensor of the same sizes."""
    count = result.numel()
    if not count:
        return
    if not result.data_ptr():  # one of autograd's zero tensors
        make_alias(target).zero_()
        return
    if (
        result.dtype is target.dtype
        and target.stride() == result.stride()
        and target.untyped_storage().nbytes() == count * result.element_size()
        and not result.is_neg()
        and not result.is_conj()
    ):
        # As many elements as the memory holds: it has no holes, whatever the order.
        ctypes.memmove(target.data_ptr(), result.data_ptr(), count * result.element_size())
        return
    with torch.no_grad():
        make_alias(target).copy_(result)


def view_of(result: Tensor, sources: list[tuple[Tensor, Tensor]]) -> Tensor | None:
    """The device tensor that is to its base what `result` is to one of the aliases in `sources`.

    None when `result` has memory of its own. `sources` holds (alias, device tensor) pairs.
    """
    if not result.numel():
        return None
    address = result.untyped_storage().data_ptr()
    for _alias, source in sources:
        storage = source.untyped_storage()
        start, bytes_ = storage.data_ptr(), storage.nbytes()
        if not start or not start <= address < start + bytes_:
            continue
        offset = (result.data_ptr() - start) // result.element_size()
        if result.dtype is source.dtype and result.is_conj() == source.is_conj():
            return source.as_strided(result.size(), result.stride(), offset)
        made = torch.empty(0, dtype=result.dtype, device=source.device)
        made.set_(storage, offset, result.size(), result.stride())
        return made
    return None


POISON = 0xA5  # the byte of what nobody wrote


def poison(tensor: Tensor) -> None:
    """Fill a CPU tensor like memory that nobody wrote: NaN, or the byte 0xA5; True for bools."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))
    elif tensor.dtype is torch.bool:
        tensor.fill_(True)
    else:
        size = tensor.element_size()
        value = int.from_bytes(bytes([POISON]) * size, "little", signed=tensor.dtype.is_signed)
        tensor.fill_(value)
