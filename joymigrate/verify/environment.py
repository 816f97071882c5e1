"""What may make two runs differ before a single number is computed: versions, flags, variables."""

from __future__ import annotations

import functools
import os
import platform
import sys
from importlib import metadata
from typing import Any

PACKAGES = (
    *("torch", "numpy", "transformers", "triton", "diffusers", "peft"),
    *("accelerate", "deepspeed", "safetensors", "tokenizers"),
)
DRAWN = ("JOYMIGRATE_SEED", "JOYMIGRATE_DRAWS")  # a replay takes the recording's
VARIABLES = (
    *("PYTHONHASHSEED", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NVIDIA_TF32_OVERRIDE"),
    *DRAWN,
)
ALLOCATIONS = "allocation.all.allocated"  # counted from the start, whatever is freed or reset
PATTERNS = ("CUBLAS", "CUDNN", "_DETERMINISTIC", "TORCH_ALLOW", "PYTORCH_", "ALLOW_HF32")


def environment() -> dict[str, Any]:
    """Facts of this process; torch is loaded."""
    import torch

    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "packages": {name: found for name in PACKAGES if (found := version(name))},
        "argv": sys.argv,
        "variables": variables(),
        "threads": torch.get_num_threads(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "tf32": {
            "matmul": torch.backends.cuda.matmul.allow_tf32,
            "convolution": torch.backends.cudnn.allow_tf32,
        },
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "seed": torch.initial_seed(),
        "devices": devices(),
        "rehearsal": bool(os.environ.get("JOYMIGRATE_REHEARSE")),
    }


def version(name: str) -> str | None:
    """The installed version of a package, for those that are loaded."""
    return installed_version(name) if name in sys.modules else None


@functools.cache
def installed_version(name: str) -> str:
    """The version of a package that is loaded."""
    try:
        return metadata.version(name.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return str(getattr(sys.modules[name], "__version__", "unknown"))


def variables() -> dict[str, str]:
    """Environment variables that change numbers."""
    found = {k: v for k, v in os.environ.items() if k in VARIABLES or any(p in k for p in PATTERNS)}
    return dict(sorted(found.items()))


def devices() -> dict[str, str]:
    """Accelerators in use and what their drivers call them; one on which nothing was ever
    allocated is not in use."""
    from joymigrate.verify.isolated_pass import accelerators

    found = {}
    for module in accelerators():
        if not was_used(module):
            continue
        kind = module.__name__.split(".")[-1]
        try:
            found[kind] = str(module.get_device_name(module.current_device()))
        except (RuntimeError, AttributeError, AssertionError):
            found[kind] = "unknown"
    return found


def was_used(module: Any) -> bool:
    """Whether any memory of an accelerator's devices was ever allocated; where it keeps no count,
    it was."""
    try:
        stats = [module.memory_stats(number) for number in range(module.device_count())]
    except (RuntimeError, AttributeError, AssertionError):
        return True
    return any(one.get(ALLOCATIONS, 1) for one in stats)
