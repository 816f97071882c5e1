"""Typed tensors of the origin (`torch.cuda.FloatTensor`), default types and default devices."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from joymigrate.run.door.marks import HOST, card_of, mark

if TYPE_CHECKING:
    from joymigrate.run.door.cards import DoorCards

NAMES = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")


class Typed(type):
    """The class of such classes: made from sizes, data or nothing; `isinstance` asks dtype and
    card."""

    kind: Any
    typed_name: str
    cards: DoorCards

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return mark(cls.kind(*args, **kwargs), cls.cards.checked(cls.cards.current))

    def __instancecheck__(cls, one: object) -> bool:
        here = isinstance(one, torch.Tensor) and one.dtype == cls.kind.dtype
        return here and card_of(one) != HOST  # type: ignore[arg-type]


def kinds(cards: DoorCards) -> dict[str, Any]:
    """The typed tensors by name."""
    found = {}
    for name in (f"{one}Tensor" for one in NAMES):
        kind = getattr(torch, name)
        said = f"torch.{cards.word}.{name}"
        more = {"kind": kind, "dtype": kind.dtype, "typed_name": said, "cards": cards}
        found[name] = Typed(name, (), {**more, "__module__": f"torch.{cards.word}"})
    return found


def install(cards: DoorCards) -> None:
    """Default tensor types and default devices that name a card."""
    plain_type, plain_device = torch.set_default_tensor_type, torch.set_default_device
    asked = torch.get_default_device
    prefix = f"torch.{cards.word}."

    @functools.wraps(plain_type)
    def set_default_tensor_type(t: Any, /) -> None:
        name = t if isinstance(t, str) else getattr(t, "typed_name", "")
        if name.startswith(prefix):
            cards.default = cards.current
            t = "torch." + name[len(prefix) :]
        else:
            cards.default = None
        plain_type(t)

    @functools.wraps(plain_device)
    def set_default_device(device: Any) -> None:
        card = None if device is None else cards.read(device)
        cards.default = None if card is None or card == HOST else card
        plain_device(None if cards.default is not None else device)

    @functools.wraps(asked)
    def get_default_device() -> torch.device:
        return asked() if cards.default is None else cards.shown(cards.default)

    torch.set_default_tensor_type = set_default_tensor_type
    torch.set_default_device = set_default_device
    torch.get_default_device = get_default_device
