"""Files of a recording: each step as it ends, and what is known of the whole program."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import numpy as np
from safetensors.numpy import save

from joymigrate.language import Text
from joymigrate.verify.bundle.table import index_bytes
from joymigrate.verify.bundle.write import RankWriter
from joymigrate.verify.environment import environment
from joymigrate.verify.inventory import tensor_hash
from joymigrate.verify.ranks import mesh, rank_and_world


class StepFiles:
    """Writes what a process has recorded. Every method that writes raises OSError."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.writer: RankWriter | None = None

    def flush(self) -> None:
        """Write the step: records, facts, and what was taught in it."""
        recorder, values = self.recorder, self.recorder.values
        with recorder.own_work():
            writer = self.open_writer()
            meta, stats, sketches = values.log.take()
            index = np.frombuffer(index_bytes(meta), np.uint8)
            arrays: dict[str, Any] = {"stats": stats, "sketch": sketches, "index": index}
            writer.add(f"step-{recorder.step}.safetensors", save(arrays))
            values.facts["inputs"] = [
                {"place": p, "call": c, "leaf": leaf, "derived": derived, **tensor_hash(tensor)}
                for p, c, leaf, tensor, derived in values.inputs
            ]
            writer.add_json(f"step-{recorder.step}.json", values.facts)
            writer.facts["steps"] = [*writer.facts.get("steps", []), recorder.step]
        self.flush_rest(values.inputs)

    def flush_rest(self, inputs: Sequence[Any] = ()) -> None:
        """Write what was seen beside the records. `inputs` of the step's top-level calls."""
        recorder = self.recorder
        with recorder.own_work():
            writer = self.open_writer()
            recorder.replay_session.write(writer, recorder.step, inputs)
            recorder.tape.write(writer, recorder.step)
            for part in (recorder.arguments, recorder.batch_keeper):
                if part is not None:
                    part.write(writer)
            writer.add_json("log.json", recorder.log_of_program.to_json())
            writer.add_json("watch.json", self.watched())
            writer.add_json("printed.json", recorder.printing.to_json())
            writer.add_json("program.json", self.program())
            writer.commit()

    def watched(self) -> dict[str, Any]:
        """What was seen of every step, and which batches were the baseline's."""
        giver = self.recorder.batch_giver
        given = giver.given if giver is not None else {}
        return {**self.recorder.run_watch.to_json(), "given": given}

    def program(self) -> dict[str, Any]:
        """Everything that is known once."""
        recorder = self.recorder
        parts = (recorder.arguments, recorder.batch_keeper)
        kept = [note for part in parts if part is not None for note in part.notes()]
        if recorder.missed:
            text = "{number} calls of modules in other threads are not recorded"
            kept.append(Text(text, number=recorder.missed))
        return {
            **recorder.inventory.to_json(recorder.module_names),
            "lines": recorder.lines,
            "environment": environment(),
            "optimisers": recorder.optimisers,
            "recorder_errors": recorder.recorder_errors,
            "notes": [*recorder.notes, *recorder.replay_session.notes, *kept],
        }

    def open_writer(self) -> RankWriter:
        """The writer of this process, once its rank is known."""
        if self.writer is None:
            rank, world = rank_and_world()
            folder = self.recorder.settings.path / f"rank-{rank}"
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                raise OSError(
                    errno.EEXIST, "another process of the program records as this rank"
                ) from None
            self.writer = RankWriter(folder, {"rank": rank, "world": world, "mesh": mesh()})
        return self.writer
