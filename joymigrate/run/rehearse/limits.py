"""What a chip kernel takes, from the vendor's documents: the wheel does not hold these limits.

A warning from here is a documented fact, never a measurement. It is silent where it can't know: a
dtype is only called refused when no parameter of the kernel is documented to take it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from joymigrate.chips import rules_root
from joymigrate.language import Text

TABLE = Path("ascend") / "ops" / "kernel_dtypes.csv"
DOCUMENTS = "ops-nn e5c3fa9, ops-math c419332, ops-transformer c29bc10, ops-cv 6ae8765 (2025-11)"
# Chip models whose every kernel lacks a dtype, by the beginning of the model's name.
MODELS: Mapping[str, Mapping[str, str]] = {
    "Ascend910A": {"bfloat16": "Atlas training series has no BFLOAT16 (kernel documents)"},
    "Ascend910Pro": {"bfloat16": "Atlas training series has no BFLOAT16 (kernel documents)"},
    "Ascend310P": {"bfloat16": "Atlas inference series has no BFLOAT16 (kernel documents)"},
    "Ascend310B": {"bfloat16": "Atlas 200I/500 A2 has no BFLOAT16 (kernel documents)"},
}
# These make or move bytes, or are refused by the package itself. A dropout mask is drawn by shape
# alone, and is packed bits (uint8) on the chip, where ours is one bool per element.
SILENT = (
    *("aclnnInplaceCopy", "aclnnCast", "aclnnInplaceZero", "aclnnInplaceFillScalar"),
    *("aclnnDropoutGenMask", "aclnnDropoutGenMaskV2", "aclnnDropoutDoMask"),
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One dtype that a kernel is documented not to take."""

    kernel: str
    dtype: str
    source: str

    @property
    def message(self) -> Text:
        """What is refused, in one clause."""
        return Text("{kernel} takes no {dtype}", kernel=self.kernel, dtype=self.dtype)


class Limits:
    """The table of one chip model. `dtypes` maps a kernel to the dtypes it takes."""

    def __init__(self, soc: str, path: Path | None = None) -> None:
        with (path or rules_root() / TABLE).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        self.dtypes = {row["kernel"]: frozenset(row["dtypes"].split()) for row in rows}
        self.sources = {row["kernel"]: row["source"] for row in rows}
        self.model: dict[str, str] = {}
        for beginning, lacking in MODELS.items():
            if soc.startswith(beginning):
                self.model.update(lacking)

    def judges(self, kernels: Sequence[str]) -> bool:
        """Whether the documents say anything about one of these kernels."""
        return any(k in self.dtypes and k not in SILENT for k in kernels)

    def refused(self, kernels: Sequence[str], dtypes: Iterable[str]) -> list[Refusal]:
        """What the kernels of one operator would refuse among its inputs' dtypes."""
        found = []
        for dtype in sorted(set(dtypes)):
            if dtype in self.model and kernels:
                found.append(Refusal(kernels[0], dtype, self.model[dtype]))
                continue
            # One of several kernels may take it after a cast; refused is what none of them takes.
            known = [k for k in kernels if k in self.dtypes and k not in SILENT]
            if known and not any(dtype in self.dtypes[kernel] for kernel in known):
                source = f"{self.sources[known[0]]}, {DOCUMENTS}"
                found.append(Refusal(known[0], dtype, source))
        return found
