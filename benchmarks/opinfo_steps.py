"""One call, forward and backward, of each operator of torch's own test samples, in float32.

    DEVICE=cpu python -m benchmarks.opinfo_steps PART PARTS

A program for `benchmarks.predicted_fallbacks` (models `opinfo_PART_PARTS`): it holds every operator
that torch describes, not only what public models happen to call.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import torch


def main(part: int, parts: int) -> None:
    """Call the operators of one part; what raises is passed over."""
    device = os.environ.get("DEVICE", "cpu")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if device == "cpu":
        sys.modules["torch_npu"] = None  # type: ignore[assignment]  # its import needs a driver
    else:
        __import__(f"torch_{device}")
    from torch.testing._internal.common_methods_invocations import op_db

    done = failed = 0
    for op in [one for one in op_db if torch.float32 in one.dtypes][part::parts]:
        differentiable = op.supports_autograd
        try:
            samples = op.sample_inputs("cpu", torch.float32, requires_grad=differentiable)
            sample = next(iter(samples)).transform(lambda value: moved(value, device))
            result = op(sample.input, *sample.args, **sample.kwargs)
            leaves = torch.utils._pytree.tree_leaves(result)
            ends = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
            if differentiable and ends:
                torch.autograd.backward([end.abs().sum() for end in ends])
            done += 1
        except Exception:
            failed += 1
    print(f"{done} called, {failed} refused")


def moved(value: Any, device: str) -> Any:
    """A sample's tensor on the device, and still a leaf."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to(device).requires_grad_(value.requires_grad)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
