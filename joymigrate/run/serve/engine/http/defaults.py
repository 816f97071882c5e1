"""What a request gets that does not say how to sample: the model folder's generation_config.json.

As vLLM does it (`--generation-config`, `--override-generation-config`): the file's values stand in
for what a request leaves out, `do_sample` is ignored, and `max_new_tokens` is the length of an
answer that asks for none. From a folder or a value given by the operator it limits longer wishes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.files import parse_object
from joymigrate.run.serve.engine.tokens import ids_in
from joymigrate.run.serve.engine.types import Sampling

AUTO = "auto"
NONE = ("none", "vllm")  # vllm: how vLLM spells it
FILE = "generation_config.json"


@dataclass(frozen=True, slots=True)
class Defaults:
    """Sampling of a request that says nothing. `max_tokens` is of requests without a limit of
    their own, `most` is the limit of all, `ends` are further tokens that end a text."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int | None = None
    most: int | None = None
    ends: tuple[int, ...] = ()

    def limit(self, wanted: int | None, room: int) -> int:
        """How many tokens an answer has at most, where `room` is left."""
        length = min(room, self.max_tokens or room) if wanted is None else wanted
        return length if self.most is None else min(length, self.most)

    def told(self) -> str:
        """What differs from neutral sampling, for the log; empty where nothing does."""
        return ", ".join(
            f"{one.name} {getattr(self, one.name)}"
            for one in fields(self)
            if getattr(self, one.name) != one.default
        )


NEUTRAL = Defaults()
NAMES = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty",
)  # fmt: skip
LENGTH = "max_new_tokens"


def load(folder: Path, source: str = AUTO, override: str = "") -> Defaults:
    """The defaults for a model folder.

    `source` is `auto` (the folder's own file, where there is one), `none`, or another folder;
    `override` a JSON object of single values. Raises `JoyError`.
    """
    given: dict[str, Any] = {}
    most: list[int] = []
    ends: tuple[int, ...] = ()
    path = folder / FILE
    if source not in (AUTO, *NONE):
        path = Path(source) / FILE
        if not path.is_file():
            raise JoyError(
                f"there is no {FILE} in '{source}'", where="--generation-config",
                help="auto (the model folder's own), none, or a folder that has one",
            )  # fmt: skip
    if source not in NONE and path.is_file():
        given = parse_object(path.read_bytes(), str(path))
        if source != AUTO:
            ends = tuple(ids_in(given, str(path)))
            most = [given[LENGTH]] if given.get(LENGTH) is not None else []
    if override:
        more = parse_object(override, "--override-generation-config")
        for name in more:
            if name not in (*NAMES, LENGTH):
                raise JoyError(
                    f"'{name}' cannot be overridden.{did_you_mean(name, (*NAMES, LENGTH))}",
                    where="--override-generation-config", help=", ".join((*NAMES, LENGTH)),
                )  # fmt: skip
        given |= more
        most = [more[LENGTH]] if more.get(LENGTH) is not None else most
    return check_defaults(given, most, ends, str(path) if not override else "generation config")


def check_defaults(
    given: Mapping[str, Any], most: list[int], ends: tuple[int, ...], where: str
) -> Defaults:
    """Values that requests may have, too; raises `JoyError` for others."""
    found: dict[str, Any] = {}
    for name in NAMES:
        value = given.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise JoyError(f"{name} is {value!r}, but must be a number", where=where)
        found[name] = max(0, int(value)) if name == "top_k" else float(value)
    length = given.get(LENGTH)
    if length is not None and (
        isinstance(length, bool) or not isinstance(length, int) or length < 1
    ):
        raise JoyError(f"{LENGTH} is {length!r}, but must be a whole number ≥ 1", where=where)
    try:
        Sampling(**found)
    except JoyError as error:
        raise JoyError(error.what, where=where, help="--generation-config none") from None
    return Defaults(**found, max_tokens=length, most=most[0] if most else None, ends=ends)
