"""What the origin's module answers where its device is stood in for: `rules/<origin>/door.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from joymigrate import chips
from joymigrate.chips import Chip
from joymigrate.errors import JoyError, did_you_mean


@dataclass(frozen=True, slots=True)
class DoorTable:
    """The file's keys; each is explained there."""

    constants: Mapping[str, Any]
    version: str
    silent: tuple[str, ...]
    memory: Mapping[str, str]
    accelerator: Mapping[str, str]
    missing: Mapping[str, str]
    capability: Mapping[str, tuple[int, int]]
    processors: Mapping[str, int]
    one_device: frozenset[str]
    float32: tuple[str, ...]
    narrow: tuple[str, ...]
    widest: tuple[str, ...]
    products: tuple[str, ...]


@cache
def table() -> DoorTable:
    """The origin's table."""
    import yaml

    path = chips.origin().folder / "door.yaml"
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    tuples = {n: tuple(raw[n]) for n in ("silent", "float32", "narrow", "widest", "products")}
    return DoorTable(**{**raw, **tuples, "one_device": frozenset(raw["one_device"])})


def properties(model: str, origin: Chip) -> dict[str, Any]:
    """Name, memory, capability and processors of a model of card; unknown models are refused."""
    found = origin.sku(model)
    if found is None:
        known = [sku.name for sku in origin.skus]
        raise JoyError(
            f"no model of card is called '{model}'.{did_you_mean(model, known)}",
            where="--model",
            help=f"the models: {', '.join(known)}",
        )
    given = table()
    return {
        "name": f"{origin.title.split()[0]} {(found.match or (found.name,))[0]} (stand-in)",
        "total_memory": int((found.memory_gib or 0) * 2**30),
        "capability": tuple(given.capability[found.name]),
        "multi_processor_count": given.processors[found.name],
    }
