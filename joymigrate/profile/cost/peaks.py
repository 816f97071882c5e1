"""Documented peaks of a chip's models: its `peaks.yaml`, else the figures in `chip.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from joymigrate.chips import Chip
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.schema import document, read_file, setting

FILE = "peaks.yaml"


@dataclass(frozen=True, slots=True)
class Link:
    """One level of the network: cards that it joins, GB/s of one card in one direction."""

    cards: int
    gb_s: float
    latency_us: float = 0.0


@dataclass(frozen=True, slots=True)
class ChipModel:
    """One model of a chip as the file says it."""

    name: str
    tflops: Mapping[str, float] = setting(help="dense TFLOP/s by dtype")
    gb_s: float | None = setting(None, "memory bandwidth, GB/s")
    match: tuple[str, ...] = setting((), "other names of the model")
    links: tuple[Link, ...] = setting((), "the network, from the inside out")
    note: str = ""


@dataclass(frozen=True, slots=True)
class Formula:
    """How a chip's own operator counts: `kind` matmul or attention; places of its arguments."""

    kind: str = setting(help="matmul or attention")
    a: int = 0
    b: int = 1
    query: int = 0
    key: int = 1
    heads: int | None = None
    layout: int | None = None
    backward: bool = False


@document("peaks", "Documented peaks of a chip's models: `peaks.yaml` in its folder.")
@dataclass(frozen=True, slots=True)
class PeaksFile:
    """The file. A name that stands for several models has the figures of the fastest."""

    source: str
    models: tuple[ChipModel, ...]
    formulas: Mapping[str, Formula] = setting(make=dict, help="the chip's own operators")


@dataclass(frozen=True, slots=True)
class Peaks:
    """One model of a chip. `tflops` by dtype, dense; `links` from the inside out."""

    name: str
    tflops: Mapping[str, float]
    gb_s: float | None = None
    links: tuple[Link, ...] = ()
    source: str = ""
    note: str = ""
    formulas: Mapping[str, Formula] = field(default_factory=dict)

    def rate(self, dtype: str) -> tuple[float, bool]:
        """FLOP/s for a dtype. One without a figure gets the fastest, so that a bound stays one."""
        known = dtype in self.tflops
        value = self.tflops[dtype] if known else max(self.tflops.values())
        if dtype == "float32":  # a program may let products be rounded
            value = max(value, self.tflops.get("tf32", 0.0))
        return value * 1e12, known


def peaks_of(chip: Chip, sku: str | None = None) -> Peaks:
    """The peaks of a model by its name, or of the fastest, whose bound holds for every other.

    Raises JoyError for an unknown name, and for a chip whose figures nobody documented.
    """
    known: dict[str, Peaks] = {}
    names: dict[str, str] = {}
    path = chip.folder / FILE
    if path.is_file():
        file: PeaksFile = read_file(PeaksFile, path)
        for one in file.models:
            known[one.name] = Peaks(one.name, one.tflops, one.gb_s, one.links, file.source,
                                    one.note, file.formulas)  # fmt: skip
            names |= dict.fromkeys((one.name, *one.match), one.name)
    for item in chip.skus:
        if item.peak_tflops and item.name not in names:
            known[item.name] = Peaks(item.name, item.peak_tflops, item.bandwidth_gb_s, (),
                                     item.source, item.note)  # fmt: skip
            names = {**dict.fromkeys((item.name, *item.match), item.name), **names}
    if not known:
        raise JoyError(
            f"no peaks of {chip.name} are documented here",
            where=str(chip.folder / "chip.yaml"),
            help="write `peak_tflops` of its models, or choose another chip with --to",
        )
    if sku is None:
        return max(known.values(), key=lambda one: max(one.tflops.values()))
    if sku not in names:
        raise JoyError(
            f"no peaks are documented for '{sku}'.{did_you_mean(sku, names)}",
            where=str(path),
            help=f"one of: {', '.join(sorted(known))}",
        )
    return known[names[sku]]
