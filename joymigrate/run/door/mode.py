"""The door to this machine's CPU: every call of torch's functions goes through it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext, _device_constructors

from joymigrate.blame.program import is_fault
from joymigrate.blame.watch import frames_of
from joymigrate.run.door import refusals
from joymigrate.run.door.cards import cards
from joymigrate.run.door.frames import DoorFrameOwner, owner_of
from joymigrate.run.door.marks import (
    HOST,
    MARK,
    card_of,
    find_card,
    holder,
    mark,
    put,
    tensors_in,
)
from joymigrate.run.door.notes import notes
from joymigrate.run.door.table import table

Tensor = torch.Tensor
CPU = torch.device("cpu")
DEVICE_NAMES = ("device", "map_location")
NARROW = (torch.float16, torch.bfloat16)
# Files of torch's that hand a call on: another mode's, those of functions written in Python, and
# those of operators, which modes below call once more.
PASSING = frozenset(
    sys.modules[name].__file__
    for name in (DeviceContext.__module__, "torch.overrides", "torch._ops")
)
TYPED = type(torch.FloatTensor)
PINNED = "_joymigrate_pinned"
# Their second result stays on the host, wherever the first lies.
SECOND_ON_HOST = ("_pack_padded_sequence",)


class Door(TorchFunctionMode):
    """Translates devices, and lets tensors say where the program believes them to be."""

    def __init__(self) -> None:
        super().__init__()
        self.constructors = _device_constructors()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename in PASSING:
            frame = frame.f_back
        owner = owner_of(frame.f_code.co_filename)
        if owner is DoorFrameOwner.OURS:
            return func(*args, **kwargs)
        if func is torch.device:
            return func(*map(name_number, args[:1]), *args[1:], **kwargs)
        own = SPECIAL.get(func)
        try:
            return own(func, owner, args, kwargs) if own else self.call(func, args, kwargs)
        except TypeError as error:  # operators of torch's take it for an operand of another kind
            file, _, _, text = frames_of(error)[-1]
            if not is_fault(file, text):
                raise
            raise RuntimeError(f"stand-in: {error}") from error

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A call that computes something."""
        args, kwargs, named = translate(func, args, kwargs)
        if named is None and cards.default is not None and func in self.constructors:
            named = cards.checked(cards.default)
        name = getattr(func, "__name__", "")
        tensors = tensors_in((args, kwargs))
        found = [find_card(one) for one in tensors]
        if name in table().one_device:
            refuse_mixed(tensors, found)
        made = compute(func, name, args, kwargs)
        card = named
        if card is None:
            card = next((one for one in found if one is not None and one != HOST), None)
        if card is None and all(one == HOST for one in found):
            card = HOST
        if card is None:
            return made
        if type(made) is Tensor:  # the usual case first
            return settle(made, card, named, found)
        results = made[:1] if name in SECOND_ON_HOST else made
        for one in tensors_in(results):
            mark(one, card)
        return made


def settle(made: Tensor, card: int, named: int | None, found: list[int | None]) -> Tensor:
    """One result on its card. A copy where it shares memory that lies elsewhere: a copy to a card
    never shares."""
    on = holder(made)
    before = getattr(on, MARK, None)
    if before is None:
        foreign = named is not None and named != HOST and not found and is_shared(made)
        if foreign:  # as_tensor of an array that the program may still change
            made = made.clone()
        return mark(made, card)
    if named is not None and before.card != named and not made.is_meta:
        made = made.clone()
        put(holder(made), named)
    return made


def is_shared(made: Tensor) -> bool:
    """Whether memory came from outside of torch: such storages can't be resized."""
    try:
        return not made.untyped_storage().resizable()
    except (NotImplementedError, RuntimeError):
        return False


def shut_in_checkpoints() -> None:
    """Activation checkpointing compares what it saved inside of a call, with the door shut, with
    what it computes again in a backward pass, with the door open: both are asked with it shut."""
    from torch.utils import checkpoint

    checks = checkpoint._allowed_determinism_checks_to_fns
    real = checks["default"]

    def extract(value: torch.Tensor) -> Any:
        with torch._C.DisableTorchFunction():
            return real(value)

    checks["default"] = extract


def translate(
    func: Any, args: Any, kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any], int | None]:
    """The call in words of the CPU, and the card (or HOST) that it named."""
    named: int | None = None
    for n, value in enumerate(args):
        plain = isinstance(value, str) and not value.startswith((cards.word, "cpu"))
        if plain or not isinstance(value, str | torch.device):
            continue
        card = cards.read(value)
        if card is not None:
            named = card
            args = (*args[:n], CPU, *args[n + 1 :])
    for name in DEVICE_NAMES:
        if kwargs.get(name) is not None:
            card = cards.read(kwargs[name])
            if card is not None:
                named = card
                kwargs = {**kwargs, name: CPU}
    if kwargs.get("pin_memory"):
        kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    if named is not None and named != HOST:
        notes.word(getattr(func, "__name__", "?"))
    return args, kwargs, named


def name_number(value: Any) -> Any:
    """A number alone is a card, as on a machine that has cards."""
    return cards.shown(cards.checked(value)) if type(value) is int else value


def refuse_mixed(tensors: list[Tensor], found: list[int | None]) -> None:
    """Torch's own words where a call mixes devices, as on a GPU. Tensors without dimensions are
    taken from the host, and what nobody saw made is never refused."""
    pairs = zip(tensors, found, strict=True)
    places = {card for one, card in pairs if card is not None and (card != HOST or one.dim())}
    if len(places) > 1:
        names = ["cpu" if p == HOST else f"{cards.word}:{p}" for p in sorted(places, reverse=True)]
        refusals.refuse_two_devices(names)


def compute(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """The call; where this CPU has no kernel for a 16-bit dtype, in float32 and rounded."""
    try:
        return func(*args, **kwargs)
    except (RuntimeError, NotImplementedError) as error:
        missing = "not implemented for 'Half'" in str(error)
        missing |= "not implemented for 'BFloat16'" in str(error)
        missing |= "could not create a primitive" in str(error)  # oneDNN's words for an LSTM
        if not missing or name.endswith("_") or "out" in kwargs:
            raise
    asked = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float16
    narrow = next((t.dtype for t in tensors_in((args, kwargs)) if t.dtype in NARROW), asked)
    wide_args, wide_kwargs = widen(args), widen(kwargs)
    notes.differs(f"{name}: computed in float32 and rounded to {narrow}")
    with torch.autocast("cpu", enabled=False):
        return convert(func(*wide_args, **wide_kwargs), torch.float32, narrow)


def widen(value: Any) -> Any:
    """16-bit tensors as float32."""
    return convert(convert(value, torch.float16, torch.float32), torch.bfloat16, torch.float32)


def convert(value: Any, old: torch.dtype, new: torch.dtype) -> Any:
    """Nested tensors of one dtype as another."""
    if isinstance(value, Tensor):
        return value.to(new) if value.dtype == old else value
    if isinstance(value, list | tuple):
        made = [convert(one, old, new) for one in value]
        return made if isinstance(value, list) else tuple(made)
    if isinstance(value, dict):
        return {name: convert(one, old, new) for name, one in value.items()}
    return value


# -- what a tensor says of itself ------------------------------------------------------------------


def device(func: Any, owner: DoorFrameOwner, args: Any, kwargs: Any) -> Any:
    card = card_of(args[0])
    if card == HOST:
        return func(*args)
    return cards.shown(card) if owner is DoorFrameOwner.PROGRAM else cards.inner(card)


def is_cuda(func: Any, owner: DoorFrameOwner, args: Any, kwargs: Any) -> Any:
    return card_of(args[0]) != HOST if owner is DoorFrameOwner.PROGRAM else func(*args)


def is_cpu(func: Any, owner: DoorFrameOwner, args: Any, kwargs: Any) -> Any:
    return card_of(args[0]) == HOST if owner is DoorFrameOwner.PROGRAM else func(*args)


def get_device(func: Any, owner: DoorFrameOwner, args: Any, kwargs: Any) -> Any:
    return card_of(args[0])


def grad(func: Any, owner: DoorFrameOwner, args: Any, kwargs: Any) -> Any:
    found = func(*args)
    if found is not None:
        card = find_card(args[0])
        if card is not None:
            mark(found, card)
    return found


# -- calls that move -------------------------------------------------------------------------------


def move(value: Tensor, card: int, clone: bool, **more: Any) -> Tensor:
    """A tensor on a card or the host; itself where it lies there already."""
    if card_of(value) == card:  # a guess that it lies on the host is not kept
        return value if card == HOST else mark(value, card)
    made = value.clone(**more) if clone else value
    put(holder(made), card)
    return made


def to(func: Any, owner: DoorFrameOwner, args: Any, kwargs: Any) -> Any:
    value = args[0]
    args = (value, *map(name_number, args[1:2]), *args[2:])
    if "device" in kwargs:
        kwargs = {**kwargs, "device": name_number(kwargs["device"])}
    other = args[1] if len(args) > 1 else kwargs.get("other")
    args, kwargs, named = translate(func, args, kwargs)
    if isinstance(other, Tensor):
        named = card_of(other)
    made = compute(func, "to", args, kwargs)
    card = find_card(value) if named is None else named
    if card is None:
        return made
    if made is value or holder(made) is holder(value):
        return move(made, card, clone=True)
    return mark(made, card)


def cuda(func: Any, owner: DoorFrameOwner, args: Any, kwargs: Any) -> Any:
    notes.word("cuda")
    card = cards.named(args[1] if len(args) > 1 else kwargs.get("device"))
    cards.checked(card)
    layout = {k: v for k, v in kwargs.items() if k == "memory_format"}
    return move(args[0], card, clone=True, **layout)


def cpu(func: Any, owner: DoorFrameOwner, args: Any, kwargs: Any) -> Any:
    return move(args[0], HOST, clone=True, **kwargs)


def type_(func: Any, owner: DoorFrameOwner, args: Any, kwargs: Any) -> Any:
    value = args[0]
    wanted = args[1] if len(args) > 1 else kwargs.get("dtype")
    prefix = f"torch.{cards.word}."
    if wanted is None:
        said = func(value)
        here = owner is DoorFrameOwner.PROGRAM and card_of(value) != HOST
        return said.replace("torch.", prefix, 1) if here else said
    name = wanted if isinstance(wanted, str) else getattr(wanted, "typed_name", "")
    if not name.startswith(prefix):
        made = func(*args, **kwargs)
        named_host = name.startswith("torch.") or isinstance(wanted, TYPED)
        return move(made, HOST if named_host else card_of(value), clone=made is value)
    plain = func(value, "torch." + name[len(prefix) :])
    card = card_of(value)
    return move(plain, cards.current if card == HOST else card, clone=plain is value)


def type_as(func: Any, owner: DoorFrameOwner, args: Any, kwargs: Any) -> Any:
    made = func(*args, **kwargs)
    return move(made, card_of(args[1]), clone=made is args[0])


def to_numpy(func: Any, owner: DoorFrameOwner, args: Any, kwargs: Any) -> Any:
    card = card_of(args[0])
    if card != HOST and owner is DoorFrameOwner.PROGRAM:
        refusals.refuse_numpy(f"{cards.word}:{card}")
    return func(*args, **kwargs)


def pin(func: Any, owner: DoorFrameOwner, args: Any, kwargs: Any) -> Any:
    setattr(holder(args[0]), PINNED, True)
    return args[0]


def is_pinned(func: Any, owner: DoorFrameOwner, args: Any, kwargs: Any) -> Any:
    return getattr(holder(args[0]), PINNED, False)


def nothing(func: Any, owner: DoorFrameOwner, args: Any, kwargs: Any) -> None:
    return None


def parse_to(func: Any, owner: DoorFrameOwner, args: Any, kwargs: Any) -> Any:
    """What a module's `to` reads: a device is named, and nothing moves."""
    if "device" in kwargs:
        kwargs = {**kwargs, "device": name_number(kwargs["device"])}
    return func(*map(name_number, args[:1]), *args[1:], **kwargs)


SPECIAL: dict[Any, Callable[[Any, DoorFrameOwner, Any, Any], Any]] = {
    Tensor.device.__get__: device,
    Tensor.is_cuda.__get__: is_cuda,  # type: ignore[attr-defined]
    Tensor.is_cpu.__get__: is_cpu,  # type: ignore[attr-defined]
    Tensor.grad.__get__: grad,  # type: ignore[union-attr]
    Tensor.get_device: get_device,
    Tensor.to: to,
    Tensor.cuda: cuda,
    Tensor.cpu: cpu,
    Tensor.type: type_,
    Tensor.type_as: type_as,
    Tensor.numpy: to_numpy,
    Tensor.__array__: to_numpy,
    Tensor.pin_memory: pin,
    Tensor.is_pinned: is_pinned,
    Tensor.record_stream: nothing,
    torch._C._nn._parse_to: parse_to,
}
