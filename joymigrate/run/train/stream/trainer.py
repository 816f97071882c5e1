"""Learns from a stream, and publishes a version every few seconds.

A row counts from the version that learned it: a trainer that is killed goes on behind its newest
version, with the model of that version. Rows read since then are read again, and count once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from joymigrate.device import Device
from joymigrate.errors import JoyError
from joymigrate.run.train import optimise
from joymigrate.run.train.feed import move_batch
from joymigrate.run.train.formats import versions
from joymigrate.run.train.job import Job
from joymigrate.run.train.models import ModelSource
from joymigrate.run.train.run_folder import METRICS, PUBLISHED, RunFolder
from joymigrate.run.train.samples.assemble import task_of
from joymigrate.run.train.samples.batch import total
from joymigrate.run.train.samples.encode import Encoder
from joymigrate.run.train.samples.histories import open_histories
from joymigrate.run.train.stream.open import open_source
from joymigrate.run.train.stream.publish import Publisher
from joymigrate.run.train.stream.sources import StreamRows
from joymigrate.run.train.tables.parallel_model import lay_out_tables

Tell = Callable[[str], None]
LOG_EVERY_S = 10.0
POLL_S = 0.5  # longest wait for rows before the clock and the stop file are looked at


def run_stream(
    job: Job, run: RunFolder, device: Device, asked: Callable[[], bool], tell: Tell
) -> str:
    """Train until asked to stop, or until the stream has been idle for long enough."""
    trainer = StreamTrainer(job, run, device, tell)
    try:
        return trainer.run(asked)
    finally:
        trainer.close()


def check(job: Job) -> None:
    """What goes with a stream."""
    if job.data.schema is None:
        raise JoyError(
            "a stream needs a schema of features", where="data.schema", help="schema: features.yaml"
        )
    if job.layout.world > 1:
        raise JoyError(
            f"a stream is learned by one process, not {job.layout.world}", where="layout"
        )
    if job.tables.optimiser == "none":
        raise JoyError(
            "a stream's rows are changed one by one, which needs an optimiser of the rows",
            where="tables.optimiser",
            help="tables: {optimiser: adagrad}",
        )


class StreamTrainer:
    """One model that keeps learning, in one process."""

    def __init__(self, job: Job, run: RunFolder, device: Device, tell: Tell) -> None:
        assert job.data.stream is not None
        check(job)
        self.job, self.folder, self.device, self.tell = job, run, device, tell
        self.task = task_of(job)
        schema = self.task.schema
        source = ModelSource(None, job.model.from_config, seed=job.seed)
        self.model = self.task.build(source).to(device.at())
        lay_out_tables(self.model, device.at(), processes=1, replicas=1)
        self.optimiser = optimise.optimiser(self.model.dense, job.optimiser, device.type)
        store = None if schema.histories is None else open_histories(schema.histories.store)
        self.encoder = Encoder(schema, store)
        self.source = open_source(job.data.stream.source, schema, Path(job.folder), tell)
        self.publisher = self.make_publisher()
        self.position: dict[str, Any] = {}
        self.rows = self.published = 0
        self.skipped: dict[str, int] = {}
        self.newest: float | None = None
        self.away = False  # whether publishing failed the last time
        self.steps = 0

    def make_publisher(self) -> Publisher:
        """Where versions go."""
        wish = self.job.publish
        place = wish.to or str(self.folder.path / PUBLISHED)
        if "://" not in place:
            place = str(self.job.path(place))
        head = {
            "model": self.model.sizes,
            "features": json.loads(json.dumps(self.task.schema.document())),
            "task": {"name": self.job.task.name, **self.job.task.options},
        }
        store = versions.open_versions(place)
        return Publisher(store, self.model, self.optimiser, head, wish.snapshot_every, wish.keep)

    def restore(self) -> None:
        """Go on behind the newest version."""
        last = self.publisher.restore()
        if last is None:
            return
        self.position = dict(last["position"])
        self.rows = self.published = last["rows"]["to"]
        self.skipped = dict(last["skipped"])
        self.tell(f"continuing behind version {last['version']}, row {self.rows}")

    def run(self, asked: Callable[[], bool]) -> str:
        """Read, learn, publish."""
        self.restore()
        wish = self.job.publish
        due = time.monotonic() + wish.every_s
        said, last_row = time.monotonic(), time.monotonic()
        while not asked():
            found = self.read(min(due, time.monotonic() + POLL_S), due)
            now = time.monotonic()
            if found is not None:
                self.learn(found)
                last_row = now
            if now >= due:
                self.publish_if_any()
                # From the end of publishing: where that is slow, rows are learned in between.
                due = time.monotonic() + wish.every_s
            if now - said >= LOG_EVERY_S:
                self.say(now - said)
                said = now
            if self.is_over(now - last_row):
                self.publish_if_any(final=True)
                return "finished"
        self.publish_if_any(final=True)
        return "stopped"

    def is_over(self, idle_s: float) -> bool:
        """Whether the job's steps are done, or nothing came for long enough."""
        assert self.job.data.stream is not None
        limit = self.job.data.stream.idle_s
        done = self.job.steps is not None and self.steps >= self.job.steps
        return done or (limit is not None and idle_s >= limit)

    # -- rows ---------------------------------------------------------------------------------

    def read(self, until: float, due: float) -> list[StreamRows] | None:
        """Rows of one step: a whole batch, or what came within `linger_s` and before `due`."""
        assert self.job.data.stream is not None
        parts: list[StreamRows] = []
        position, wanted = self.position, self.job.batch.size
        end = until
        while wanted > 0:
            wait = max(0.0, end - time.monotonic())
            found = self.source.read(position, wanted, wait)
            if found is None:
                break
            if not parts:
                end = min(due, time.monotonic() + self.job.data.stream.linger_s)
            parts.append(found)
            position, wanted = found.position, wanted - max(1, len(found.table))
        return parts or None

    def learn(self, parts: list[StreamRows]) -> None:
        """One step over rows; they count with the next version."""
        import torch

        from joymigrate.run.train.samples.batch import join_batches

        made = [self.encoder.encode(part.table, part.where) for part in parts]
        batch = join_batches(made)
        self.skipped = total([self.skipped, batch.skipped, *(part.broken for part in parts)])
        self.rows += batch.read + sum(sum(part.broken.values()) for part in parts)
        self.position = parts[-1].position
        if batch.times is not None and len(batch):
            self.newest = max(self.newest or 0.0, float(batch.times.max()))
        if not len(batch):
            return
        self.model.train()
        torch.manual_seed(self.job.seed + self.rows)
        self.optimiser.zero_grad(set_to_none=True)
        inputs = move_batch(self.task.samples_of(batch), self.device.at())
        loss = self.task.loss(self.model, inputs) / len(batch)
        if not bool(torch.isfinite(loss)):
            raise JoyError(
                f"the loss is {float(loss)} after row {self.rows}",
                where=parts[-1].where,
                help="lower tables.lr or optimiser.lr; the published versions are unharmed",
            )
        loss.backward()  # type: ignore[no-untyped-call]
        if self.job.optimiser.clip > 0:
            torch.nn.utils.clip_grad_norm_(self.model.dense.parameters(), self.job.optimiser.clip)
        self.optimiser.step()
        self.loss = float(loss.detach())
        self.steps += 1

    # -- versions -----------------------------------------------------------------------------

    def publish_if_any(self, *, final: bool = False) -> None:
        """Publish what was learned since the last version; wait for a store that is away."""
        if self.rows == self.published and self.publisher.version > 0:
            return
        progress = {
            "rows": {"from": self.published, "to": self.rows},
            "skipped": self.skipped,
            "position": self.position,
            "newest_event": self.newest,
        }
        try:
            manifest = self.publisher.publish(progress)
        except JoyError as error:
            if isinstance(self.publisher.store, versions.FolderVersions) or final:
                raise
            if not self.away:
                self.tell(f"cannot publish: {error.what}; the next version will hold it")
            self.away = True
            return
        self.away = False
        self.published = self.rows
        self.report(manifest)

    def report(self, manifest: versions.Manifest) -> None:
        """Write what was published to the run's files."""
        size = sum(entry["bytes"] for entry in manifest["files"].values())
        figures = {
            "step": self.steps,
            "loss": getattr(self, "loss", None),
            "samples": self.rows,
            "version": manifest["version"],
            "rows_changed": sum(entry["ids"] for entry in manifest["tables"].values()),
            "bytes": size,
            "skipped": sum(self.skipped.values()),
            "freshness_s": None if self.newest is None else manifest["time"] - self.newest,
        }
        with (self.folder.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(figures) + "\n")
        self.folder.report(state="running", **figures)

    def say(self, seconds: float) -> None:
        """A line of progress."""
        speed = (self.rows - getattr(self, "rows_said", 0)) / seconds
        self.rows_said = self.rows
        lost = f", {sum(self.skipped.values()):,} skipped" if self.skipped else ""
        self.tell(
            f"row {self.rows:,}  loss {getattr(self, 'loss', float('nan')):.4f}  "
            f"{speed:,.0f} rows/s  version {self.publisher.version}{lost}"
        )

    def close(self) -> None:
        """Let the source go."""
        self.source.close()
