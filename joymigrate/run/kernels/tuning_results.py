"""What tuning measured: the fastest implementation by (operator, chip, dtype, shape bucket).

One JSON file per card model under `~/.cache/joymigrate/kernels` (JOYMIGRATE_CACHE moves it),
written in one step by `joymigrate kernels bench --tune`. Measurements of another torch version
don't count. A rehearsal has no times, so nothing is looked up or stored there.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from joymigrate import processors
from joymigrate.errors import JoyError
from joymigrate.files import replace_file
from joymigrate.run.kernels.operator import CPU, Call

SCHEMA = "joymigrate.tuned/1"


@dataclass(frozen=True, slots=True)
class TunedEntry:
    """The winner of one bucket, its median time and the reference's, in microseconds."""

    implementation: str
    us: float
    reference_us: float
    shape: tuple[int, ...] = ()

    def reason(self) -> str:
        """One line for people."""
        ratio = self.reference_us / self.us if self.us else 1.0
        return f"tuned here: {self.us:.1f} us, {ratio:.2f} x the reference's speed"


def bucket(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes rounded up to powers of two: calls of one bucket share a measurement."""
    return tuple(1 << (size - 1).bit_length() if size > 1 else size for size in shape)


def key(op: str, call: Call) -> str:
    """The cache's key of a call."""
    sizes = "x".join(map(str, bucket(call.shape)))
    kind = "train" if call.grad else "infer"
    return "|".join((op, call.chip, call.dtype, kind, call.variant, sizes))


def lookup(op: str, call: Call) -> TunedEntry | None:
    """The measured winner for this bucket, if it was tuned on this machine."""
    if os.environ.get("JOYMIGRATE_REHEARSE"):
        return None
    card = card_name(call.device)
    return None if card is None else load(path_of(call.chip, card)).get(key(op, call))


def folder() -> Path:
    """Where measurements lie."""
    named = os.environ.get("JOYMIGRATE_CACHE")
    base = Path(named) if named else Path.home() / ".cache" / "joymigrate"
    return base / "kernels"


@functools.cache
def card_name(device: str) -> str | None:
    """What distinguishes this machine's card: the driver's name, or the processor's model.

    None where the device is not there.
    """
    if device != CPU:
        import torch

        try:
            return str(torch.get_device_module(device).get_device_name())
        except (RuntimeError, AssertionError, AttributeError):
            return None
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"model name\s*:\s*(.+)", text)
    name = found.group(1) if found else "processor"
    return f"{name} {processors.available()} cores"


def path_of(chip: str, card: str) -> Path:
    """The file of one card model."""
    return folder() / f"{chip}-{re.sub(r'[^A-Za-z0-9]+', '-', card).strip('-').lower()}.json"


@functools.cache
def load(path: Path) -> Mapping[str, TunedEntry]:
    """The entries of a file; none when it is not there, or of another torch."""
    import torch

    try:
        if not path.is_file():
            return {}
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA:
            raise KeyError("schema")
        if document["torch"] != torch.__version__:
            return {}
        return {
            name: sound(TunedEntry(**{**raw, "shape": tuple(raw["shape"])}))
            for name, raw in document["entries"].items()
        }
    except (ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError) as error:
        warnings.warn(
            f"the measurements of kernels in {path} are damaged ({error}) and are not used; "
            "the file is written anew, joymigrate kernels bench --tune measures again",
            stacklevel=2,
        )
        rewrite(path)
        return {}


def sound(entry: TunedEntry) -> TunedEntry:
    """The entry, if its values are of their kinds. Raises ValueError."""
    times = (entry.us, entry.reference_us)
    if not isinstance(entry.implementation, str) or not all(
        type(one) in (int, float) and math.isfinite(one) and one >= 0 for one in times
    ):
        raise ValueError(f"no measurement: {entry}")
    return entry


def rewrite(path: Path) -> None:
    """Put an empty file in the place of a damaged one, where that can be written."""
    import torch

    empty = {"schema": SCHEMA, "card": "", "torch": torch.__version__, "entries": {}}
    with contextlib.suppress(OSError):
        replace_file(path, json.dumps(empty, indent=1).encode())


def store(path: Path, card: str, found: Mapping[str, TunedEntry]) -> None:
    """Add entries to a file, in one step; a reader sees the old file or the whole new one."""
    import torch

    entries = {**load(path), **found}
    document = {
        "schema": SCHEMA,
        "card": card,
        "torch": torch.__version__,
        "entries": {name: asdict(entry) for name, entry in sorted(entries.items())},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(document, indent=1).encode())
    except OSError as error:
        raise JoyError(
            f"cannot keep the measurements: {error.strerror}",
            where=str(path),
            help="name a writable folder in JOYMIGRATE_CACHE",
        ) from None
    load.cache_clear()
