"""Where a run's figures go: metrics.jsonl, the terminal, TensorBoard, Prometheus."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from joymigrate.errors import JoyError
from joymigrate.extras import how_to_get, need
from joymigrate.run.train.run_folder import BOARD, EVALUATIONS, METRICS

PLAIN_EVERY_S = 10.0  # between lines where the output is not a terminal


class TrainingLog:
    """Writes the figures of one step to every place that was asked for."""

    def __init__(
        self,
        folder: Path,
        steps: int,
        *,
        trackers: Sequence[str] = (),
        port: int | None = None,
        quiet: bool = False,
    ) -> None:
        self.path, self.evaluations = folder / METRICS, folder / EVALUATIONS
        self.line = None if quiet else ProgressLine(steps, sys.stderr)
        self.trackers = [open_tracker(name, folder) for name in trackers]
        self.gauges = Gauges(port, folder.name) if port is not None else None

    def write(self, figures: Mapping[str, Any]) -> None:
        """One line everywhere."""
        safe = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in figures.items()
        }
        with self.path.open("a", encoding="utf-8") as file:  # anew: a rollback replaces the file
            file.write(json.dumps(safe) + "\n")
        if self.line is not None:
            self.line.show(figures)
        self.track("train", safe, figures["step"])
        if self.gauges is not None:
            self.gauges.set(safe)

    def evaluated(self, figures: Mapping[str, Any]) -> None:
        """What held-out data gave behind a step."""
        with self.evaluations.open("a", encoding="utf-8") as file:
            file.write(json.dumps(figures) + "\n")
        known = {key: value for key, value in figures.items() if value is not None}
        step = known.pop("step")
        if self.line is not None:
            shown = (f"{key} {value:.4g}" for key, value in known.items() if key != "seconds")
            self.line.tell(f"held out at step {step}: {'  '.join(shown)}")
        self.track("eval", known, step)

    def track(self, part: str, figures: Mapping[str, Any], step: int) -> None:
        """The numbers of a step to every tracker."""
        numbers = {
            f"{part}/{key}": value
            for key, value in figures.items()
            if isinstance(value, int | float) and key != "step"
        }
        for tracker in self.trackers:
            tracker.log(numbers, step=step)

    def close(self) -> None:
        """Finish the files."""
        if self.line is not None:
            self.line.end()
        for tracker in self.trackers:
            tracker.finish()
        if self.gauges is not None:
            self.gauges.close()


def open_tracker(name: str, folder: Path) -> Any:
    """What sends figures to a service, by accelerate; the run is called as its folder.

    Where and as whom it sends is said by the service's own variables and files. Of `tensorboard`
    the files lie in the run folder.
    """
    if importlib.util.find_spec(name) is None:
        raise JoyError(f"logging to {name} needs the package {name}", help=how_to_get(name))
    need("train", "accelerate", what="logging.trackers")
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    kind: Any = LOGGER_TYPE_TO_CLASS[name]
    own = {"logging_dir": str(folder)} if kind.requires_logging_directory else {}
    made = kind(BOARD if name == "tensorboard" else folder.name, **own)
    made.start()
    return made


class ProgressLine:
    """`step 120/500  loss 1.234  lr 1.0e-04  12,345 tokens/s  MFU unknown  0:12 left`."""

    def __init__(self, steps: int, stream: TextIO) -> None:
        self.steps, self.stream = steps, stream
        self.terminal = stream.isatty()
        self.next = 0.0
        self.shown = False

    def show(self, figures: Mapping[str, Any]) -> None:
        """Ten times a second on a terminal, else a line every ten seconds and the last one."""
        now = time.monotonic()
        if now < self.next and figures["step"] < self.steps:
            return
        self.next = now + (0.1 if self.terminal else PLAIN_EVERY_S)
        text = self.text(figures)
        self.stream.write(f"\r\033[K{text}" if self.terminal else f"{text}\n")
        self.stream.flush()
        self.shown = True

    def tell(self, text: str) -> None:
        """A line that stays."""
        self.stream.write(f"\r\033[K{text}\n" if self.terminal else f"{text}\n")
        self.stream.flush()

    def text(self, figures: Mapping[str, Any]) -> str:
        """The line."""
        mfu = figures.get("mfu")
        shown = "unknown" if mfu is None else f"{mfu:.1%}"
        left = (self.steps - figures["step"]) * figures.get("step_s", 0.0)
        speed = f"{figures['tokens_per_s']:,.0f} tokens/s  MFU {shown}"
        if "rows_per_s" in figures:
            lost = f"  {figures['skipped']:,} skipped" if figures["skipped"] else ""
            speed = f"{figures['rows_per_s']:,.0f} rows/s{lost}"
        if "imbalance" in figures:
            before, after = figures["imbalance_before"], figures["imbalance"]
            speed += f"  imbalance {before:.1%} -> {after:.1%}"
        return (
            f"step {figures['step']}/{self.steps}  loss {figures['loss']:.4f}  "
            f"lr {figures['lr']:.1e}  {speed}  "
            f"{int(left // 60)}:{int(left % 60):02d} left"
        )

    def end(self) -> None:
        """Leave the last line on the terminal."""
        if self.terminal and self.shown:
            self.stream.write("\n")
            self.stream.flush()


class Gauges:
    """Prometheus gauges of a running job, served over HTTP."""

    NAMES = ("step", "loss", "lr", "grad_norm", "tokens", "tokens_per_s", "step_s", "mfu")

    def __init__(self, port: int, run: str) -> None:
        need("train", "prometheus_client", what="logging.prometheus")
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        registry = CollectorRegistry()
        self.gauges = {
            name: Gauge(
                f"joymigrate_train_{name}", f"{name} of the run", ["run"], registry=registry
            )
            for name in self.NAMES
        }
        self.run = run
        try:
            self.server, self.thread = start_http_server(port, registry=registry)
        except OSError as error:
            raise JoyError(
                f"cannot serve metrics on port {port}: {error.strerror}",
                where="logging.prometheus",
                help="choose a free port",
            ) from None

    def set(self, figures: Mapping[str, Any]) -> None:
        """Show the figures of one step."""
        for name, gauge in self.gauges.items():
            if figures.get(name) is not None:
                gauge.labels(run=self.run).set(figures[name])

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
