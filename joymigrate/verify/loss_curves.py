"""Curves of losses and norms, read from JSONL, CSV and TensorBoard's event files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.extras import how_to_get

STEP_NAMES = ("step", "steps", "iteration", "iter", "global_step", "it")


LOSS_NAMES = ("loss", "train_loss", "train/loss", "lm loss", "lm_loss", "training_loss")


NORM_NAMES = ("grad_norm", "gnorm", "grad-norm", "gradient_norm", "train/grad_norm")


Values = dict[float, float]


@dataclass(frozen=True, slots=True)
class LossColumns:
    """All numeric columns of one run: name → step → value. NaN stays NaN."""

    path: Path
    columns: Mapping[str, Values]

    def column(self, wanted: str | None, names: Sequence[str]) -> tuple[str, Values] | None:
        """The column called `wanted`, else the first of the usual names."""
        if wanted is not None:
            if wanted not in self.columns:
                raise JoyError(
                    f"there is no column '{wanted}'.{did_you_mean(wanted, self.columns)}",
                    where=str(self.path),
                    help=f"it has {', '.join(self.columns)}",
                )
            return wanted, self.columns[wanted]
        lower = {name.lower(): name for name in self.columns}
        found = next((lower[name] for name in names if name in lower), None)
        return None if found is None else (found, self.columns[found])


def read_curves(path: Path) -> LossColumns:
    """The curves of one run; `JoyError` for what holds none."""
    if not path.exists():
        raise JoyError("there is no such file", where=str(path), help="name a metrics file")
    if path.is_dir() and (path / "metrics.jsonl").is_file():
        path = path / "metrics.jsonl"
    if path.is_dir() or "tfevents" in path.name:
        rows = from_tensorboard(path)
    elif path.suffix.lower() in (".csv", ".tsv"):
        rows = from_csv(path)
    else:
        rows = from_jsonl(path)
    columns: dict[str, Values] = {}
    for step, values in rows:
        for name, value in values.items():
            columns.setdefault(name, {})[step] = value  # a resumed run's later line counts
    if not columns:
        raise JoyError(
            "there is no curve in this file",
            where=str(path),
            help='lines such as {"step": 1, "loss": 2.31}, or CSV with a head line',
        )
    return LossColumns(path, columns)


def from_jsonl(path: Path) -> Iterator[tuple[float, dict[str, float]]]:
    """One JSON object per line; lines without a step count from 0."""
    with path.open(encoding="utf-8-sig") as file:
        for index, line in enumerate(line for line in file if line.strip()):
            try:
                raw = json.loads(line)
            except ValueError as error:
                where = f"{path}:{index + 1}"
                raise JoyError(f"not a JSON line: {error}", where=where) from None
            if isinstance(raw, dict):
                yield row(raw, index)
            elif isinstance(raw, int | float):
                yield float(index), {"loss": float(raw)}


def from_csv(path: Path) -> Iterator[tuple[float, dict[str, float]]]:
    """CSV or TSV with a head line."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
        for index, raw in enumerate(csv.DictReader(file, delimiter=delimiter)):
            yield row(raw, index)


def row(raw: Mapping[str, Any], index: int) -> tuple[float, dict[str, float]]:
    """(step, numbers) of one line."""
    lower = {str(name).lower().strip(): name for name in raw if name is not None}
    place = next((lower[name] for name in STEP_NAMES if name in lower), None)
    step = real(raw[place]) if place is not None else None
    values = {str(name): real(value) for name, value in raw.items() if name != place}
    found = {name.strip(): value for name, value in values.items() if value is not None}
    return float(index) if step is None else step, found


def real(value: Any) -> float | None:
    """A number, also as text (`nan`, `1e-3`); None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def from_tensorboard(path: Path) -> Iterator[tuple[float, dict[str, float]]]:
    """All scalars of an event file or folder."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise JoyError(
            "reading TensorBoard files needs tensorboard",
            where=str(path),
            help=how_to_get("tensorboard"),
        ) from None
    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    for tag in tags.get("scalars", ()):
        for event in events.Scalars(tag):
            yield float(event.step), {tag: float(event.value)}
    for tag in tags.get("tensors", ()):
        from tensorboard.util.tensor_util import make_ndarray

        for event in events.Tensors(tag):
            values = make_ndarray(event.tensor_proto)
            if values.size == 1:
                yield float(event.step), {tag: float(values.reshape(()))}
