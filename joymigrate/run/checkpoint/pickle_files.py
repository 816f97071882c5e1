"""Reads what torch.save wrote, without running code unless that is allowed; writes objects of
packages that are not here."""

from __future__ import annotations

import pickle
import struct
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from joymigrate.errors import JoyError

# What torch.load raises on bytes that are cut short or were never written by torch.save.
BROKEN = (RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError,
          AssertionError, OverflowError, struct.error)  # fmt: skip


class Unknown:
    """An object of a package that is not installed here: its arguments and its fields."""

    given: tuple[Any, ...] = ()

    def __new__(cls, *given: Any, **named: Any) -> Unknown:
        """Any class can be made with anything."""
        made = super().__new__(cls)
        made.given = given
        return made

    def __init__(self, *given: Any, **named: Any) -> None:
        """Nothing of it is run."""

    def __setstate__(self, state: Any) -> None:
        fields = state if isinstance(state, dict) else {"state": state}
        self.__dict__.update(fields)

    def __setitem__(self, key: Any, value: Any) -> None:
        """An entry, of a subclass of dict."""
        self.__dict__.setdefault("items", {})[key] = value

    def append(self, value: Any) -> None:
        """An element, of a subclass of list."""
        self.__dict__.setdefault("elements", []).append(value)

    def __int__(self) -> int:
        """The value of an enumeration's member."""
        return int(self.given[0])


class PickleReader(pickle.Unpickler):
    """Unpickles; classes of packages that are not here become `Unknown` ones of their name."""

    def find_class(self, module: str, name: str) -> Any:
        """The class, or one that stands in for it."""
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            return type(name, (Unknown,), {"__module__": module})


PICKLE = SimpleNamespace(Unpickler=PickleReader, load=pickle.load, __name__="pickle")


class PickleWriter(pickle._Pickler):
    """Pickles; a class that stands in for one of a package is written by the name it has there."""

    def save_global(self, obj: Any, name: str | None = None) -> None:
        """A class or function by its module and name."""
        if not (isinstance(obj, type) and issubclass(obj, Unknown)):
            super().save_global(obj, name)  # type: ignore[misc]
            return
        self.write(pickle.GLOBAL + f"{obj.__module__}\n{obj.__qualname__}\n".encode())  # type: ignore[attr-defined]
        self.memoize(obj)  # type: ignore[attr-defined]


WRITE = SimpleNamespace(Pickler=PickleWriter, __name__="pickle")


def make_unknown(module: str, name: str, fields: Mapping[str, Any]) -> Unknown:
    """An object of a package that need not be here, to be written with `WRITE`."""
    made: Unknown = type(name, (Unknown,), {"__module__": module})()
    vars(made).clear()
    made.__setstate__(dict(fields))
    return made


def without_unknown(value: Any, place: str, lost: list[str]) -> Any:
    """A state without objects of packages that are not here, which nobody can write again.

    `lost` gets their places. What holds none of them is the same object as before.
    """
    if isinstance(value, Unknown):
        kind = type(value)
        lost.append(f"{place}: {kind.__module__}.{kind.__qualname__}")
        return None
    before = len(lost)
    if type(value) in (dict, OrderedDict):
        made: Any = type(value)()
        for key, one in value.items():
            if isinstance(key, Unknown):
                without_unknown(key, f"{place}: a key", lost)
            else:
                made[key] = without_unknown(one, f"{place}.{key}", lost)
    elif type(value) in (list, tuple, set):
        made = type(value)(
            without_unknown(one, f"{place}.{number}", lost) for number, one in enumerate(value)
        )
    elif type(value) in (Namespace, SimpleNamespace):
        fields = {
            key: without_unknown(one, f"{place}.{key}", lost) for key, one in vars(value).items()
        }
        made = type(value)(**fields)
    else:
        return value
    return made if len(lost) > before else value


def torch_file(path: Path, trust: bool) -> Any:
    """What torch.save wrote, on the CPU whatever device it names."""
    more: dict[str, Any] = {"pickle_module": PICKLE} if trust else {}
    try:
        return torch.load(path, map_location="cpu", weights_only=not trust, **more)
    except pickle.UnpicklingError as error:
        told = str(error).split("\n")[0]
        if trust or "invalid load key" in str(error):
            raise JoyError(f"not a whole torch file: {told[:200]}", where=str(path)) from None
        raise JoyError(
            f"holds objects that run code when they are read: {told[:200]}", where=str(path),
            help="--trust if you trust where the file comes from",
        ) from None  # fmt: skip
    except BROKEN as error:
        if "process group" in str(error):
            raise JoyError(
                "one process's part of a sharded state (ShardedTensor)", where=str(path),
                help="save with torch.distributed.checkpoint, or the full state of one rank",
            ) from None  # fmt: skip
        raise JoyError(f"not a torch file: {str(error)[:200]}", where=str(path)) from None
