"""The door to a chip: what reaches torch with the origin's word although the rules were applied.

A word that no reader of the source sees (a template's text, a name made at run time, a value from a
file) is translated where torch takes it, and its line is noted. A question, such as whether a card
is there, is answered for the chip only where the program's own line does not spell it: a line that
does was read by the rules, or is one that the user keeps from them.
"""

from __future__ import annotations

import functools
import linecache
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily

from joymigrate.blame.program import STANDARD, package_of
from joymigrate.run.door.frames import DoorFrameOwner, owner_of
from joymigrate.run.door.notes import notes
from joymigrate.run.door.processes import enter_in_backward, enter_in_threads
from joymigrate.run.door.settings import ChipWords

Tensor = torch.Tensor
IS_ORIGIN = Tensor.is_cuda.__get__  # type: ignore[attr-defined]
NAMING = ("device", "map_location", "device_type", "pin_memory_device")  # keywords
PLACES = ("init_method", "group_name", "group_desc")  # texts that name no device
BASE = 1 << 10  # Python's flag of a class that can be inherited from
FIRST = 1  # before the packages of torch's own that restore storages
# Functions and classes in Python that are handed a device, below torch.
TAKING = (
    "set_default_device", "is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype",
    "set_autocast_dtype", "random.fork_rng", "amp.autocast_mode.autocast.__init__",
    "amp.grad_scaler.GradScaler.__init__", "distributed.init_process_group",
    "distributed.new_group", "distributed.init_device_mesh",
    "distributed.device_mesh.DeviceMesh.__init__",
)  # fmt: skip


class Translation:
    """The origin's words in those of the chip."""

    def __init__(self, words: ChipWords) -> None:
        self.words = words
        word = re.escape(words.origin)
        self.device = re.compile(rf"{word}(:\d+)?")
        self.backends = re.compile(r"\w+(:\w+)?(,\w+(:\w+)?)*")
        self.part = re.compile(rf"\b({word}|{re.escape(words.origin_backend)})\b")
        self.typed = f"torch.{words.origin}."
        self.spelled = re.compile(rf"torch\.{word}\b|\.is_{word}\b|joymigrate: ?ignore")

    def names(self, value: Any) -> bool:
        """Whether a value is a device of the origin, or names one."""
        if type(value) is str:
            return self.device.fullmatch(value) is not None
        return type(value) is torch.device and value.type == self.words.origin

    def say(self, value: Any) -> Any:
        """A device as the chip calls it; what is none as it is."""
        if not self.names(value):
            return value
        if type(value) is str:
            return self.words.device + value[len(self.words.origin) :]
        return torch.device(self.words.device, *([] if value.index is None else [value.index]))

    def say_backend(self, value: Any) -> Any:
        """Backends and devices in a text such as `cpu:gloo,cuda:nccl`; a path or a host is none."""
        if type(value) is not str or self.backends.fullmatch(value) is None:
            return self.say(value)
        known = {self.words.origin: self.words.device}
        known[self.words.origin_backend] = self.words.backend
        return self.part.sub(lambda found: known[found[1]], value)

    def is_unread(self, frame: types.FrameType) -> bool:
        """Whether a frame is at a line of the program's own that spells no name of the origin."""
        file = frame.f_code.co_filename
        if owner_of(file) is not DoorFrameOwner.PROGRAM or file.startswith(("<frozen", *STANDARD)):
            return False
        text = linecache.getline(file, frame.f_lineno)
        return not package_of(file) and self.spelled.search(text) is None


class ChipDoor(TorchFunctionMode):
    """Translates the devices that calls of torch's functions name."""

    def __init__(self, said: Translation) -> None:
        super().__init__()
        self.said = said

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.cuda:
            return self.move(*args, **kwargs)
        if func == IS_ORIGIN:
            if self.said.is_unread(sys._getframe(1)):
                notes.word(f"is_{self.said.words.origin}")
                return args[0].device.type == self.said.words.device
            return func(*args)
        named = False
        for value in args:
            named = named or self.said.names(value)
        for name in NAMING:
            named = named or self.said.names(kwargs.get(name))
        if named and not (func is torch.device and self.is_torchs(sys._getframe(1))):
            notes.word(getattr(func, "__name__", "?"))
            args = [self.said.say(value) for value in args]
            kwargs = {n: self.said.say(v) if n in NAMING else v for n, v in kwargs.items()}
        if func is Tensor.type:
            kind = next(iter((*args[1:], *kwargs.values())), None)  # none given: it is asked for
            if str(kind).startswith(self.said.typed):
                return self.cast(kind, args[0])
        return func(*args, **kwargs)

    @staticmethod
    def is_torchs(frame: types.FrameType) -> bool:
        """Whether torch itself makes a device, to compare others with it."""
        return owner_of(frame.f_code.co_filename) is not DoorFrameOwner.PROGRAM

    def move(self, value: Tensor, device: Any = None, *waits: bool, **how: Any) -> Any:
        """`Tensor.cuda`: a number is a card."""
        notes.word(self.said.words.origin)
        if device is None or type(device) is int:
            place = torch.device(self.said.words.device, *([] if device is None else [device]))
        else:
            place = self.said.say(device)
        if waits:
            how["non_blocking"] = waits[0]
        return value.to(place, **how)

    def cast(self, kind: Any, value: Tensor) -> Tensor:
        """`Tensor.type("torch.cuda.FloatTensor")`."""
        notes.word(str(kind))
        plain = getattr(torch, str(kind).removeprefix(self.said.typed))
        return value.to(self.said.words.device, plain.dtype)


def install(words: ChipWords) -> None:
    """Open the door in this process, to its end."""
    said = Translation(words)
    for path in TAKING:
        replace(path, functools.partial(hand_on, said))
    replace("set_default_tensor_type", functools.partial(default_type, said))
    for name in ("Generator", "Stream", "Event"):
        replace(name, functools.partial(make_on, said))
    replace("overrides.has_torch_function", keep_fast_paths)
    for name, answer in answers(words):
        replace(f"{words.origin}.{name}", functools.partial(answer_unread, said, answer))
    torch.serialization.register_package(FIRST, lambda storage: None, restore(said))
    make = functools.partial(ChipDoor, said)
    enter_in_threads(make)
    enter_in_backward(make)
    make().__enter__()  # type: ignore[no-untyped-call]


def replace(path: str, wrap: Callable[[Any], Any]) -> None:
    """Put what `wrap` makes of a name below torch in its place, also where torch repeats it."""
    *parents, last = path.split(".")
    owner: Any = torch
    for name in parents:
        owner = getattr(owner, name, None)
    real = getattr(owner, last, None)
    if real is None:
        return
    home = sys.modules.get(getattr(real, "__module__", None) or "")
    made = wrap(real)
    for one in (owner, home):
        if one is not None and getattr(one, last, None) is real:
            setattr(one, last, made)


def hand_on(said: Translation, real: Any) -> Any:
    """A function that is handed devices or backends."""

    @functools.wraps(real)
    def take(*args: Any, **kwargs: Any) -> Any:
        new = [said.say_backend(value) for value in args]
        more = {n: v if n in PLACES else said.say_backend(v) for n, v in kwargs.items()}
        if (new, more) != ([*args], kwargs):
            notes.word(real.__qualname__.removesuffix(".__init__"))
        return real(*new, **more)

    return take


def default_type(said: Translation, real: Any) -> Any:
    """A default tensor type of the origin is the chip as the default device."""

    @functools.wraps(real)
    def set_default_tensor_type(t: Any, /) -> None:
        if not isinstance(t, str) or not t.startswith(said.typed):
            real(t)
            return
        notes.word("set_default_tensor_type")
        torch.set_default_dtype(getattr(torch, t.removeprefix(said.typed)).dtype)
        torch.set_default_device(said.words.device)

    return set_default_tensor_type


def make_on(said: Translation, real: Any) -> Any:
    """A class of torch's own whose objects are made for a device."""

    class Kind(type(real)):  # type: ignore[misc]
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if any(map(said.names, (*args, kwargs.get("device")))):
                notes.word(real.__name__)
            kind = real if cls is made else cls
            more = {name: said.say(value) for name, value in kwargs.items()}
            return type.__call__(kind, *map(said.say, args), **more)

        def __instancecheck__(cls, one: object) -> bool:
            return isinstance(one, real) if cls is made else super().__instancecheck__(one)

    made = Kind(real.__name__, (real,), {"__module__": real.__module__})
    return made


def answers(words: ChipWords) -> Iterator[tuple[str, Any]]:
    """Names of the origin's module that the chip's has too, with the chip's answer."""
    module: Any = functools.reduce(getattr, words.module.split(".")[1:], torch)
    for name in dir(getattr(torch, words.origin)):
        found = getattr(module, words.renamed.get(name, name), None)
        if not name.startswith("_") and isinstance(found, type | types.FunctionType):
            yield name, found


def answer_unread(said: Translation, answer: Any, real: Any) -> Any:
    """What the origin's module answers, or the chip's where an unread line asks."""

    def ask(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not said.is_unread(sys._getframe(1)):
            return real(*args, **kwargs)
        notes.word(f"{said.typed}{real.__name__}")
        more = {name: said.say(value) for name, value in kwargs.items()}
        return answer(*map(said.say, args), **more)

    if isinstance(real, types.FunctionType):
        return functools.wraps(real)(ask)
    if not isinstance(real, type) or issubclass(real, BaseException) or not real.__flags__ & BASE:
        return real  # the typed tensors of the origin are no classes that others can be made of
    kind = type("Asked", (type(real),), {"__call__": lambda cls, *a, **k: ask_class(cls, a, k)})

    def ask_class(cls: Any, args: Any, kwargs: Any) -> Any:
        if cls is not made or not said.is_unread(sys._getframe(2)):
            return type.__call__(real if cls is made else cls, *args, **kwargs)
        notes.word(f"{said.typed}{real.__name__}")
        more = {name: said.say(value) for name, value in kwargs.items()}
        return answer(*map(said.say, args), **more)

    made = kind(real.__name__, (real,), {"__module__": real.__module__})
    return made


def restore(said: Translation) -> Callable[[Any, str], Any]:
    """A reader of storages that were saved on a card of the origin."""

    def put(storage: Any, location: str) -> Any:
        if not said.names(location):
            return None
        notes.word("load")
        put_back: Any = torch.serialization.default_restore_location
        return put_back(storage, said.say(location))

    return put


def keep_fast_paths(real: Any) -> Any:
    """Layers of torch's ask whether a mode is on, and take a slower way then: not for this one."""

    @functools.wraps(real)
    def has_torch_function(given: Any) -> bool:
        if torch.compiler.is_compiling() or torch._C._len_torch_function_stack() != 1:
            return bool(real(given))
        if not isinstance(torch._C._get_function_stack_at(0), ChipDoor):
            return bool(real(given))
        with _pop_mode_temporarily():
            return bool(real(given))

    return has_torch_function
