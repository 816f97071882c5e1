"""Writes one recording: `joymigrate.trace/1` as JSON lines, whole or not at all.

Lines: the header; `op` per distinct signature; `accelerator_op` for what the optimiser would call
on an accelerator, where torch takes another way there; `stream` with the order of calls and which
earlier calls made their inputs. `calls` and times are those of one step.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from joymigrate.files import replace_file
from joymigrate.profile.recorder import arguments, loading, timing
from joymigrate.profile.recorder.files import claim
from joymigrate.profile.recorder.operators import RecordedCall, Recording, as_line

SCHEMA = "joymigrate.trace/1"
STREAM_LINE = 500  # calls per line


def write(controller: Any, recording: Recording) -> Path:
    """Write the trace of this process; its path."""
    jsonl, chrome = controller.paths or claim(controller.settings)
    mode = recording.mode
    signatures = list(mode.signatures.values())
    spans: dict[str, float] = {}
    steps = len(controller.timer.step_us) if controller.timer else 0
    if controller.timed and chrome.exists() and steps:
        spans = timing.join(chrome, signatures, steps)
    elif controller.settings.timing:
        for signature in signatures:
            signature.self_us = signature.cpu_us = signature.spent_us
    lines = [header(controller, recording, signatures, spans, chrome if steps else None)]
    lines += [as_line(s, "op") for s in signatures]
    lines += [as_line(s, "accelerator_op") for s in controller.shadow]
    lines += stream(mode.stream)
    save(jsonl, lines)
    return jsonl


def header(
    controller: Any,
    recording: Recording,
    signatures: list[RecordedCall],
    spans: dict[str, float],
    chrome: Path | None,
) -> dict[str, Any]:
    """The first line."""
    import torch

    settings, timer = controller.settings, controller.timer
    steps = len(timer.step_us) if timer else 0
    return {
        "schema": SCHEMA,
        "device": device_of(signatures),
        "torch": str(torch.__version__),
        "chip": settings.chip,
        "rehearsal": settings.rehearsal,
        "steps": steps,
        "steps_seen": controller.steps.done,
        "complete": recording is controller.exact and controller.reached,
        "step_us": [round(us, 1) for us in timer.step_us] if timer else [],
        "spans": {name: round(us, 1) for name, us in spans.items()},
        "samples": round(controller.facts.get("samples", 0) / steps, 3) if steps else 0,
        "imports": loading.find_imported(),
        "gc_us": round(controller.gc_us / max(1, steps), 1),
        "chrome": chrome.name if chrome else None,
        "optimisers": [
            {name: value for name, value in entry.items() if name != "identity"}
            for entry in controller.facts["optimisers"]
        ],
        "autocast": controller.facts["autocast"],
        "calls": controller.facts["calls"],
        "truncated_stream": len(recording.mode.stream)
        < sum(signature.calls for signature in signatures),
        "environment": environment(settings.variables),
    }


def device_of(signatures: list[RecordedCall]) -> str:
    """The device type that most calls ran on; the host's only where there is no other."""
    counts: dict[str, int] = {}
    for signature in signatures:
        for value in (*signature.args, *signature.outputs):
            if isinstance(value, arguments.TensorKey):
                counts[value[3].type] = counts.get(value[3].type, 0) + signature.calls
    others = {name: n for name, n in counts.items() if name not in ("cpu", "meta")}
    chosen = others or counts
    return max(chosen, key=lambda name: chosen[name]) if chosen else "cpu"


def environment(variables: tuple[str, ...]) -> dict[str, Any]:
    """What may matter for times and kernels: versions, threads, switches, named variables."""
    import torch

    return {
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "rank": int(os.environ.get("RANK", "0")),
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "variables": {name: os.environ[name] for name in variables if name in os.environ},
    }


def stream(calls: list[tuple[int, tuple[int, ...]]]) -> Iterator[dict[str, Any]]:
    """The order of calls: [signature, [call that made each tensor input, -1 where unknown]]."""
    for first in range(0, len(calls), STREAM_LINE):
        part = calls[first : first + STREAM_LINE]
        yield {"kind": "stream", "first": first, "calls": [[n, list(made)] for n, made in part]}


def save(path: Path, lines: list[dict[str, Any]]) -> None:
    """Write the lines into a file beside, then give it its name."""
    text = io.StringIO()
    for line in lines:
        text.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False))
        text.write("\n")
    data = text.getvalue().encode("utf-8", "backslashreplace")
    if path.suffix == ".gz":
        data = gzip.compress(data, 6)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data)
