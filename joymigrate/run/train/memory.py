"""Turns "out of memory" into what to change in the job, the cheapest change first."""

from __future__ import annotations

from joymigrate.device import Device
from joymigrate.errors import JoyError
from joymigrate.run.train.job import Job, micro_size


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that a card's or the host's memory ran out."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    signs = ("out of memory", "can't allocate memory", "cannot allocate memory")
    return isinstance(error, RuntimeError) and any(sign in text for sign in signs)


def advice(job: Job) -> list[str]:
    """Changes that lower the memory, the ones that cost least first."""
    found = []
    micro = micro_size(job)
    if micro > 1:
        half = next(n for n in range(micro // 2, 0, -1) if micro % n == 0)
        found.append(f"batch.micro: {half} (now {micro}; same result, more passes)")
    if not job.model.recompute:
        found.append("model.recompute: true (about a third more time)")
    if job.dtype == "float32":
        found.append("dtype: bfloat16")
    if job.layout.fsdp * job.layout.tp == 1 and job.layout.world > 1:
        found.append(f"layout: {{fsdp: {job.layout.world}}} instead of {job.layout.name}")
    elif job.layout.world == 1:
        found.append("layout: {fsdp: 2} or more, on as many cards")
    if job.method.name == "full":
        found.append("method: lora (gradients and optimiser of the adapters only)")
    if job.data.max_length > 1024:
        found.append(f"data.max_length: {job.data.max_length // 2}")
    return found


def explain_memory(error: BaseException, job: Job, device: Device) -> JoyError:
    """The error for the user."""
    memory = device.memory()
    told = ""
    if memory.total:
        used = memory.peak or memory.allocated or 0
        told = f" ({used / 2**30:.1f} of {memory.total / 2**30:.1f} GiB held by tensors)"
    first = str(error).strip().splitlines()[0][:160] if str(error).strip() else "no detail"
    return JoyError(
        f"out of memory on {device.type}{told}: {first}",
        help="change the job, one at a time: " + "; ".join(advice(job)),
    )
