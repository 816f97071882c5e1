"""Five rules about the host: for each ten steps that must stay silent and ten that must speak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from joymigrate import chips
from joymigrate.profile.advice import AdviceSubject, advise, load_rules
from joymigrate.profile.capture import Capture, CapturedOperator
from joymigrate.profile.table import DeviceKernel

CHIP = chips.target("ascend")
RULES = load_rules(CHIP)


def tensor(device: str, *shape: int, dtype: str = "float32") -> dict[str, Any]:
    return {"shape": list(shape), "stride": [], "dtype": dtype, "device": device}


def call(
    op: str, *args: Any, calls: int = 1, phase: str = "forward", to: str = "", out: Any = None,
    **words: Any,
) -> CapturedOperator:  # fmt: skip
    """One operator of a step; `to` is the device that it is asked for."""
    kwargs = words | ({"device": {"torch": to}} if to else {})
    outputs = () if out is None else (out,)
    return CapturedOperator(f"aten::{op}", "", args, kwargs, outputs, calls, 0.0, phase,
                            "train.py:7", "Model")  # fmt: skip


def moved(source: str, target: str, *shape: int, **words: Any) -> CapturedOperator:
    """`x.to(target)`."""
    return call("_to_copy", tensor(source, *shape), to=target, **words)


def filled(source: str, target: str, *shape: int, **words: Any) -> CapturedOperator:
    """`buffer.copy_(x)`."""
    return call("copy_", tensor(target, *shape), tensor(source, *shape), **words)


def work(name: str, us: float, of: float = 1000.0) -> dict[str, Any]:
    """A piece of the device's own work, and the device's time of the step."""
    return {"copies": (DeviceKernel(name, "", 1, us, "copy"),), "device_us": of}


def read(calls: int = 1, phase: str = "forward", op: str = "_local_scalar_dense") -> Any:
    """`x.item()`."""
    return call(op, tensor("npu:0"), calls=calls, phase=phase)


def steps(gap: float, *, busy: float = 4000.0, **spans: float) -> dict[str, Any]:
    """A timed step: operators for `busy` µs, and `gap` µs beside them."""
    one = CapturedOperator("aten::mm", "", (), {}, (), 1, busy, "forward", None, None)
    header = {"step_us": [busy + gap + sum(spans.values())]}
    header |= {"gc_us": spans.get("gc", 0.0), "spans": {"loader_us": spans.get("loader", 0.0)}}
    return {"operators": (one,), "header": header}


SILENT = {
    "D2H": [
        moved("npu:0", "npu:1", 64, 64), moved("cpu", "npu:0", 64, 64), moved("cpu", "cpu", 64, 64),
        filled("npu:0", "npu:0", 64), filled("cpu", "npu:0", 64), call("add", tensor("npu:0", 8)),
        call("_to_copy", tensor("npu:0", 8), dtype="bfloat16"),
        work("Memcpy DtoD (Device -> Device)", 900.0), work("Memcpy DtoH (Device -> Pinned)", 20.0),
        work("Memset (Device)", 900.0),
    ],
    "H2D": [
        moved("cpu", "npu:0", 64, 64, non_blocking=True), moved("cpu", "npu:0"),
        filled("cpu", "npu:0"), moved("npu:0", "cpu", 64), moved("npu:0", "npu:0", 64),
        filled("npu:0", "npu:0", 64), call("_to_copy", tensor("cpu", 8), dtype="float16"),
        call("copy_", tensor("npu:0", 8), tensor("cpu", 8), True),
        work("Memcpy HtoD (Pinned -> Device)", 30.0), work("[CUDA memcpy Device-to-Device]", 900.0),
    ],
    "SMALL-UPLOADS": [
        moved("cpu", "npu:0", 8, calls=7), moved("cpu", "npu:0", 1024, 1024, calls=9),
        moved("npu:0", "cpu", 8, calls=20), moved("npu:0", "npu:1", 8, calls=20),
        moved("cpu", "cpu", 8, calls=20), filled("npu:0", "npu:0", 8, calls=20),
        filled("npu:0", "cpu", 8, calls=20), call("add", tensor("cpu", 8), calls=20),
        filled("cpu", "npu:0", 512, 512, calls=20),
        [moved("cpu", "npu:0", 8, calls=4), moved("npu:0", "cpu", 8, calls=9)],
    ],
    "SYNC": [
        read(), read(phase="optimiser", calls=40), read(phase="optimiser", op="is_nonzero"),
        [read(), read(phase="optimiser", calls=9)], read(phase="backward"), read(op="equal"),
        call("max", tensor("npu:0", 8), calls=9), call("detach", tensor("npu:0"), calls=9),
        read(phase="other"), call("where", tensor("npu:0", 8), calls=9),
    ],
    "HOST-GAP": [
        steps(4000.0), steps(3900.0, busy=1.0), steps(100.0), steps(0.0, loader=90000.0),
        steps(0.0, gc=90000.0), steps(6000.0, busy=7000.0), steps(4999.0, busy=1000.0),
        steps(20000.0, busy=30000.0), steps(10.0, busy=1.0), steps(4000.0, loader=5000.0),
    ],
}  # fmt: skip
SPEAKS = {
    "D2H": [
        moved("npu:0", "cpu", 64, 64), moved("npu:0", "cpu", 64, calls=30),
        moved("npu:1", "cpu", 1, phase="backward"), filled("npu:0", "cpu", 64),
        call("_copy_from", tensor("npu:0", 8), tensor("cpu", 8), out=tensor("cpu", 8)),
        moved("npu:0", "cpu", 8, phase="other"), filled("npu:0", "cpu", 8, phase="optimiser"),
        work("Memcpy DtoH (Device -> Pageable)", 400.0), work("MEMORY_COPY_DEVICE_TO_HOST", 90.0),
        work("[CUDA memcpy Device-to-Host]", 60.0),
    ],
    "H2D": [
        moved("cpu", "npu:0", 64, 64), moved("cpu", "npu:0", 64, 64, non_blocking=False),
        filled("cpu", "npu:0", 64), moved("cpu", "npu:1", 1), moved("cpu", "npu:0", 8, calls=50),
        call("_copy_from", tensor("cpu", 8), tensor("npu:0", 8), out=tensor("npu:0", 8)),
        filled("cpu", "npu:0", 8, phase="optimiser"), work("CopyHostToDevice", 300.0),
        work("Memcpy HtoD (Pageable -> Device)", 60.0), work("MEMORY_COPY_HOST_TO_DEVICE", 900.0),
    ],
    "SMALL-UPLOADS": [
        moved("cpu", "npu:0", 8, calls=8), moved("cpu", "npu:0", calls=9),
        filled("cpu", "npu:0", 8, calls=12), moved("cpu", "npu:0", 128, 128, calls=8),
        moved("cpu", "npu:1", 8, calls=90, non_blocking=True),
        [moved("cpu", "npu:0", n, calls=1) for n in range(1, 9)],
        [moved("cpu", "npu:0", 8, calls=4), filled("cpu", "npu:0", 8, calls=4)],
        moved("cpu", "npu:0", 8, calls=8, phase="backward"),
        [moved("cpu", "npu:0", 8, calls=8), moved("cpu", "npu:0", 4096, 4096)],
        [call("_copy_from", tensor("cpu", 8), tensor("npu:0", 8), out=tensor("npu:0", 8), calls=8)],
    ],
    "SYNC": [
        read(2), read(38), [read(), read(phase="backward")], read(2, op="is_nonzero"),
        read(3, phase="other"), [read(), read(op="equal")], read(2, phase="backward"),
        [read(), read(op="is_nonzero")], [read(phase="optimiser", calls=9), read(2)],
        [read(phase="other"), read(phase="forward")],
    ],
    "HOST-GAP": [
        steps(6000.0), steps(90000.0), steps(5000.0, busy=1.0), steps(5001.0, busy=5000.0),
        steps(60000.0, loader=9000.0), steps(60000.0, gc=9000.0), steps(7000.0, busy=6999.0),
        steps(5000.0, busy=100.0), steps(1e6, busy=1e5), steps(2e4, busy=1e3, loader=1e3, gc=1e3),
    ],
}  # fmt: skip


def told(case: Any) -> set[str]:
    """The rules that speak of one step."""
    if not isinstance(case, dict):
        case = {"operators": tuple(case if isinstance(case, list) else [case])}
    fields = {"header": {"device": "npu"}, "operators": ()} | case
    made = Capture(Path("own.jsonl"), **fields)
    rules = [rule for rule in RULES if rule.id in SPEAKS]
    return {one.rule.id for one in advise(AdviceSubject(made, CHIP), rules)}


@pytest.mark.parametrize("rule", SILENT)
def test_ten_clean_steps_stay_silent(rule: str) -> None:
    assert len(SILENT[rule]) == 10
    assert [at for at, case in enumerate(SILENT[rule]) if rule in told(case)] == []


@pytest.mark.parametrize("rule", SPEAKS)
def test_ten_slow_steps_speak(rule: str) -> None:
    assert len(SPEAKS[rule]) == 10
    assert [at for at, case in enumerate(SPEAKS[rule]) if rule not in told(case)] == []
