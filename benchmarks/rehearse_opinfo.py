"""Compare the rehearsal device with the CPU on torch's own operator samples (OpInfo).

    joymigrate rehearse -- python benchmarks/rehearse_opinfo.py [float32|float16|bfloat16] [-o FILE]

Every operator of `torch.testing._internal.common_methods_invocations.op_db` with the dtype:
forward and, where it has one, backward, on up to two samples, each called twice. Operators that
draw random numbers are run, and compared in shape and dtype only. Differences that are known are
named, with their reason, in `benchmarks/rehearse_opinfo_known.json`; the exit code is 1 when
another one appears.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

KNOWN = Path(__file__).with_name("rehearse_opinfo_known.json")
# Their results are random; only form is compared.
RANDOM = {
    "bernoulli", "multinomial", "normal", "uniform", "randn", "rand_like", "randn_like", "randint",
    "randint_like", "rand", "cauchy", "exponential", "geometric", "log_normal", "poisson",
    "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout", "nn.functional.rrelu",
    "nn.functional.multi_head_attention_forward",
    "svd_lowrank", "pca_lowrank", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "randperm", "torch.ops.aten.rand",
}  # fmt: skip
# Their results are uninitialised memory.
EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
SAMPLES = 2
CALLS = 2  # the device remembers combinations: the first call takes another way than the later ones
SECONDS_PER_OPERATOR = 60


class Mover:
    """Copies arguments to the device; the same tensor stays the same tensor."""

    def __init__(self, operator: str) -> None:
        self.made: dict[int, Tensor] = {}
        self.keep: list[Tensor] = []
        self.stay_on_host = operator == "tensor_split"  # its indices must be on the CPU
        self.first = True

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("npu")
        if not isinstance(value, Tensor):
            return value
        if self.stay_on_host and not self.first:
            return value
        self.first = False
        if id(value) not in self.made:
            self.keep.append(value)
            self.made[id(value)] = self.move(value)
        return self.made[id(value)]

    def move(self, value: Tensor) -> Tensor:
        storage = torch.empty(0, dtype=value.dtype)
        if value.layout is torch.strided and not value.is_conj() and not value.is_neg():
            count = value.untyped_storage().nbytes() // max(value.element_size(), 1)
            flat = storage.set_(value.untyped_storage(), 0, (count,), (1,)).detach().npu()
            moved = flat.as_strided(value.size(), value.stride(), value.storage_offset())
        else:
            moved = value.detach().npu()
        return moved.detach().requires_grad_(value.requires_grad)


def leaves(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def compare(ours: Tensor, theirs: Tensor, tolerance: float, values: bool) -> None:
    """`AssertionError` when the device's tensor differs from the CPU's."""
    host = ours.detach().cpu()
    if host.dtype is not theirs.dtype:
        raise TypeError(f"{theirs.dtype} on the CPU, {host.dtype} on the device")
    if not values:
        assert host.shape == theirs.shape
        return
    torch.testing.assert_close(
        host, theirs.detach(), rtol=tolerance, atol=tolerance, equal_nan=True, check_device=False
    )


def check(operator: Any, sample: Any, tolerance: float) -> int:
    """Compare one sample forward and backward; returns how many tensors were compared."""
    mover = Mover(operator.name)
    values = operator.name not in RANDOM
    moved = pytree.tree_map(mover, (sample.input, sample.args, sample.kwargs))
    expected = operator(sample.input, *sample.args, **sample.kwargs)
    result = operator(moved[0], *moved[1], **moved[2])
    wanted, got = leaves(expected), leaves(result)
    for ours, theirs in zip(got, wanted, strict=True):
        compare(ours, theirs, tolerance, values)
    compared = len(wanted)
    if not (operator.supports_autograd and wanted and wanted[0].requires_grad and values):
        return compared
    if not wanted[0].is_floating_point():
        return compared
    sources = [t for t in mover.keep if t.requires_grad]
    for source in sources:
        source.grad = None  # samples share tensors
    try:
        wanted[0].sum().backward()
    except NotImplementedError:  # the CPU has no such backward: nothing to compare with
        return compared
    got[0].sum().backward()
    for source in sources:
        grad = mover.made[id(source)].grad
        if source.grad is not None and grad is not None:
            compare(grad, source.grad, 10 * tolerance, True)
            compared += 1
    return compared


def sweep(dtype: torch.dtype, only: str | None) -> dict[str, Any]:
    """Outcome of every operator."""
    from torch.testing._internal.common_methods_invocations import op_db

    tolerance = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 2e-2}[dtype]
    outcomes: dict[str, str] = {}
    compared = 0
    signal.signal(signal.SIGALRM, out_of_time)
    for operator in op_db:
        if dtype not in operator.dtypes or operator.name in EMPTY:
            continue
        variant = operator.variant_test_name
        key = operator.name + (f".{variant}" if variant else "")
        if key.startswith("jiterator") or (only and only not in key):
            continue  # jiterator is CUDA's own
        signal.alarm(SECONDS_PER_OPERATOR)
        torch.manual_seed(0)
        try:
            grad = operator.supports_autograd
            samples = operator.sample_inputs("cpu", dtype, requires_grad=grad)
            for sample in itertools.islice(samples, SAMPLES):
                for _ in range(CALLS):
                    compared += check(operator, sample, tolerance)
            outcomes[key] = "pass"
        except AssertionError as error:
            outcomes[key] = "differs: " + " ".join(str(error).split())[:160]
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            outcomes[key] = f"{type(error).__name__}: {first[:200]}"
        signal.alarm(0)
    return {"outcomes": outcomes, "compared": compared}


def out_of_time(number: int, frame: Any) -> None:
    raise TimeoutError(f"more than {SECONDS_PER_OPERATOR} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dtype", nargs="?", default="float32")
    parser.add_argument("--only", help="only operators whose name contains this")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start = time.time()
    found = sweep(getattr(torch, options.dtype), options.only)
    known = json.loads(KNOWN.read_text()).get(options.dtype, {}) if KNOWN.is_file() else {}
    failures = {key: text for key, text in found["outcomes"].items() if text != "pass"}
    new = {key: text for key, text in failures.items() if key not in known}
    total = len(found["outcomes"])
    print(
        f"{options.dtype}: {total - len(failures)} of {total} operators agree with the CPU "
        f"({found['compared']} tensors compared, {time.time() - start:.0f} s); "
        f"{len(failures) - len(new)} known differences, {len(new)} new"
    )
    for key, text in new.items():
        print(f"  {key}: {text}")
    if options.output:
        options.output.write_text(json.dumps(found, indent=1))
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
