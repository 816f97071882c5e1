"""What chips were measured to do, by case: read by rehearsals, coverage, tolerances and kits.

One file per chip, `calibration/CHIP.json` in joymigrate's cache, or the file that the environment
variable JOYMIGRATE_CALIBRATION names; below it `calibration.json` in the chip's folder, which comes
with joymigrate: what the scores that people contributed say (`scores/` beside it).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.files import write_output

SCHEMA = "joymigrate.calibration/1"
SHIPPED = "calibration.json"
ENVIRONMENT = "JOYMIGRATE_CALIBRATION"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured rows: `{"id", "op", "dtype", "layout", "inputs", "found", "deviations",
    "sources"}`; `inputs` are the shapes of its tensors."""

    chip: str
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def prediction(self, case: Mapping[str, Any]) -> dict[str, Any] | None:
        """What was measured for a case, as its next prediction."""
        row = self.rows.get(str(case["id"]))
        if row is None:
            return None
        return {**row["found"], "grade": row["grade"], "sources": row["sources"]}

    def of_call(self, op: str, dtype: str) -> list[Mapping[str, Any]]:
        """Rows of an operator in a dtype (`aten::gelu`, `float16`), whatever the layout."""
        key = (base(op), dtype)
        return [row for row in self.rows.values() if (base(str(row["op"])), row["dtype"]) == key]

    @property
    def memory_bytes(self) -> int | None:
        """The memory of a card as it was measured; None where no chip was asked."""
        row = self.rows.get("memory") or {}
        total = row.get("found", {}).get("total_bytes") if row.get("grade") == "measured" else None
        return int(total) if total else None

    def rates(self) -> dict[str, tuple[float, str]]:
        """Measured TFLOP/s of matrix products by dtype, with where they come from."""
        rows = (row for row in self.rows.values() if row["grade"] == "measured")
        return {
            str(row["dtype"]): (float(row["found"]["rate"]), provenance(row))
            for row in rows
            if row["op"] == "matmul" and row["found"].get("unit") == "TFLOP/s"
        }

    def of_operators(self, names: Iterable[str]) -> list[Mapping[str, Any]]:
        """Deviating rows of the operators that a program called (`aten::gelu`)."""
        wanted = {name for called in names for name in functions_of(called)}
        return [
            row for row in self.rows.values()
            if row["deviations"] and base(str(row["op"])) in wanted
        ]  # fmt: skip


# torch's functions (as the kit calls them) that end in an operator of another name.
FUNCTIONS = {
    "convolution": ("conv1d", "conv2d"), "convolution_overrideable": ("conv1d", "conv2d"),
    "addmm": ("linear",), "max_pool2d_with_indices": ("max_pool2d",),
    "nll_loss_forward": ("cross_entropy",), "mm": ("matmul",),
}  # fmt: skip


def functions_of(operator: str) -> set[str]:
    """The names under which a kit may know an operator that a program called: `aten::_softmax` is
    `softmax` there, `aten::upsample_nearest2d` `interpolate`."""
    name = operator.partition("::")[2].partition(".")[0].rstrip("_")
    plain = name.lstrip("_").removeprefix("native_")
    more = ("interpolate",) if plain.startswith("upsample_") else FUNCTIONS.get(plain, ())
    return {name, plain, *more}


def lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """What chips were seen to do with operators that a program calls, one line each."""
    found = []
    for row in rows:
        names, where = ", ".join(row["deviations"]), provenance(row)
        shapes = f" {words}" if (words := shape_words(row)) else ""
        said = f"{row['op']} {row['dtype']} {row['layout']}{shapes}: {names}"
        found.append(f"on a chip: {said} ({where})")
    return found


def shape_words(row: Mapping[str, Any]) -> str:
    """The shapes that a row was seen with, `8x64 64`; empty where they were not kept."""
    return " ".join("x".join(map(str, shape)) or "()" for shape in row.get("inputs") or ())


def provenance(row: Mapping[str, Any]) -> str:
    """Where a row comes from: `measured: Ascend910B3, 2026-05-01`."""
    source = row["sources"][-1]
    return f"{row['grade']}: {source['device']}, {source['date']}"


def seen_with(row: Mapping[str, Any], package: str | None, version: str) -> bool:
    """Whether a row was seen with this version (`2.13`) of the chip's torch package."""
    known = (str(one["versions"].get(package, "")) for one in row["sources"])
    return any(f"{one}.".startswith(f"{version}.") for one in known)


def base(op: str) -> str:
    """`torch.nn.functional.gelu` and `aten::gelu.default` → `gelu`."""
    name = op.partition("[")[0]
    plain = name.partition("::")[2].partition(".")[0] if "::" in name else name.rpartition(".")[2]
    return plain.rstrip("_")


def place(chip: str) -> Path:
    """The file of a chip."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        return Path(named)
    cache = os.environ.get("JOYMIGRATE_CACHE") or os.environ.get("XDG_CACHE_HOME")
    root = Path(cache) if cache else Path.home() / ".cache"
    return (root if os.environ.get("JOYMIGRATE_CACHE") else root / "joymigrate") / (
        f"calibration/{chip}.json"
    )


def load(chip: str) -> Calibration:
    """What is known of a chip, from joymigrate's own file and from the user's, whose rows come
    first unless only they are rehearsed. JoyError for a file that is none."""
    from joymigrate.chips.load import all_chips

    known = all_chips().get(chip)
    rows = read(known.folder / SHIPPED, chip) if known is not None else {}
    for name, row in read(place(chip), chip).items():
        if name not in rows or not rows[name]["grade"] == "measured" != row["grade"]:
            rows[name] = row
    return Calibration(chip, rows)


def read(path: Path, chip: str) -> dict[str, Mapping[str, Any]]:
    """The rows of a calibration by their case; none without a file, and none of another chip."""
    if not path.is_file():
        return {}
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise JoyError(f"cannot read the calibration: {error}", where=str(path)) from None
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise JoyError("not a calibration", where=str(path), help="joymigrate kit score SCORE")
    return {row["id"]: row for row in raw["rows"]} if raw["chip"] == chip else {}


def save(calibration: Calibration, path: Path) -> None:
    """Write it, whole or not at all."""
    rows = [calibration.rows[name] for name in sorted(calibration.rows)]
    document = {"schema": SCHEMA, "chip": calibration.chip, "rows": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_output(path, (json.dumps(document, ensure_ascii=False, indent=1) + "\n").encode())
