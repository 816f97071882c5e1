"""What a rehearsal watches in a process besides operators: memory over time, peaks, kernels."""

from __future__ import annotations

import threading
import time
from typing import Any

from joymigrate.run.rehearse.record import SAVE_EVERY_S, RehearsalRecord
from joymigrate.run.rehearse.settings import RehearsalSettings
from joymigrate.run.rehearse.shim import Shim

SAMPLE_EVERY_S = 0.1


def install(settings: RehearsalSettings, shim: Shim, record: RehearsalRecord) -> None:
    """Fill the record with what only the runtime and the allocator know."""
    record.sources.append(lambda made: made.kernels.update(new_kernels(made, shim)))
    record.sources.append(lambda made: note_memory(made, settings, shim))
    if settings.mode == "dry":
        record.sources.append(lambda made: note_sequence(made, shim))
    watch_resets(record, settings, shim)
    thread = threading.Thread(
        target=sample, args=(record, settings, shim), name="joymigrate-rehearsal", daemon=True
    )
    thread.start()


def new_kernels(record: RehearsalRecord, shim: Shim) -> dict[str, int]:
    """Kernels that were asked for since the last time."""
    counted = shim.kernels()
    return {name: counted[name] - record.kernels[name] for name in counted}


def note_sequence(record: RehearsalRecord, shim: Shim) -> None:
    """The order of the first chip kernels."""
    record.kernel_sequence = shim.sequence()[0][:20000]


def allocator() -> Any:
    """torch.npu, once it was initialised (before that there is nothing to ask)."""
    import torch_npu

    return torch_npu.npu if torch_npu.npu.is_initialized() else None


def note_memory(record: RehearsalRecord, settings: RehearsalSettings, shim: Shim) -> None:
    """The allocator's own peaks, per device."""
    npu = allocator()
    if npu is None:
        return
    for index in range(settings.devices):
        if not shim.memory(index)[1]:
            continue  # asking the allocator would initialise the device
        name = f"npu:{index}"
        held, reserved = npu.max_memory_allocated(index), npu.max_memory_reserved(index)
        if held or reserved:
            record.peak_bytes[name] = max(held, record.peak_bytes.get(name, 0))
            record.reserved_bytes[name] = max(reserved, record.reserved_bytes.get(name, 0))


def watch_resets(record: RehearsalRecord, settings: RehearsalSettings, shim: Shim) -> None:
    """A program that resets its peak must not hide the real one from the report."""
    import torch_npu

    for name in ("reset_peak_memory_stats", "reset_max_memory_allocated"):
        real = getattr(torch_npu.npu, name, None)
        if real is None:
            continue

        def reset(*args: Any, _real: Any = real, **kwargs: Any) -> Any:
            note_memory(record, settings, shim)
            return _real(*args, **kwargs)

        setattr(torch_npu.npu, name, reset)


def sample(record: RehearsalRecord, settings: RehearsalSettings, shim: Shim) -> None:
    """Memory over time, and a record on disk should the process be killed."""
    saved = time.monotonic()
    while True:
        time.sleep(SAMPLE_EVERY_S)
        npu = allocator()
        if npu is None:
            continue
        used = [i for i in range(settings.devices) if shim.memory(i)[1]]
        record.sample(sum(npu.memory_allocated(i) for i in used))
        if time.monotonic() - saved > SAVE_EVERY_S:
            record.save()
            saved = time.monotonic()
