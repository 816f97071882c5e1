"""What a door is told: the cards it shows, where its processes leave their notes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

ENVIRONMENT = "JOYMIGRATE_DOOR"
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class ChipWords:
    """What the origin and a chip call their device, their collective backend and their module below
    torch; `renamed` are names in the modules that differ."""

    origin: str
    origin_backend: str
    device: str
    backend: str
    module: str
    renamed: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """`cards` is how many the machine has that is stood in for, of `model`; `notes` a folder for
    what each process saw, none for no notes. `chip`: the door leads to that, not to the CPU."""

    cards: int = 1
    model: str = "A100"
    notes: str = ""
    chip: ChipWords | None = None

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with the door for every Python below it.

        Where `base` hides all cards (`CUDA_VISIBLE_DEVICES=""`), it means those of this machine:
        the program gets stand-ins in their place.
        """
        shown = dict(base)
        if self.chip is None and shown.get(VISIBLE, "0").strip() in ("", "-1"):
            del shown[VISIBLE]
        return {**shown, ENVIRONMENT: json.dumps(asdict(self))}


def read_settings() -> DoorSettings | None:
    """The settings of this process; None where no door was asked for."""
    text = os.environ.get(ENVIRONMENT)
    if not text:
        return None
    found: dict[str, Any] = json.loads(text)
    chip = found.pop("chip", None)
    return DoorSettings(**found, chip=ChipWords(**chip) if chip else None)
