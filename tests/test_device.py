"""One door to every device: on the CPU for real, on a chip's module as torch registers it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest

from joymigrate.chips import all_chips
from joymigrate.device import CPU, Device, open_device, why_not
from joymigrate.errors import JoyError


@dataclass(frozen=True)
class Named:
    name: str = "chip"
    title: str = "A chip"
    device: str = "xyz"
    backend: str = "xccl"
    package: str | None = None
    distribution: str | None = None


def test_the_cpu_answers_every_question() -> None:
    import torch

    device = open_device(None)
    device.seed_all(3)
    first = torch.rand(2)
    device.seed_all(3)
    assert torch.equal(first, torch.rand(2))
    assert device.at() == torch.device("cpu")
    assert (device.type, device.backend, device.count(), device.current()) == (CPU, "gloo", 1, 0)
    assert device.capability() is None
    assert device.memory().allocated is None
    device.use(0)
    device.synchronise()
    device.reset_peak()
    device.empty_cache()
    assert not device.rehearsal
    assert device.module is torch.cpu


def test_autocast_lowers_the_type_of_a_product() -> None:
    import torch

    device = open_device(None)
    x = torch.ones(2, 2)
    with device.autocast(torch.bfloat16):
        assert (x @ x).dtype is torch.bfloat16
    with device.autocast(None):
        assert (x @ x).dtype is torch.float32
    with device.autocast(torch.bfloat16, enabled=False):
        assert (x @ x).dtype is torch.float32


def test_a_missing_device_falls_back_with_one_line() -> None:
    said: list[str] = []
    device = open_device(
        Named(package="surely_absent", distribution="surely-absent"), tell=said.append
    )
    assert device.is_cpu
    assert device.fallback == "surely_absent is not installed (pip install surely-absent)"
    assert len(said) == 1
    assert "running on the CPU instead" in said[0]


def test_a_required_device_is_never_replaced() -> None:
    with pytest.raises(JoyError, match="no A chip here") as error:
        open_device(Named(), required=True)
    assert "doctor --to chip" in str(error.value)


def test_a_package_that_is_hidden_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    chip = next(chip for chip in all_chips().values() if chip.package)
    monkeypatch.setitem(sys.modules, str(chip.package), None)
    assert why_not(chip) == f"{chip.package} is installed, but its driver does not load"


def test_every_known_chip_opens_or_says_why_not() -> None:
    """In a process of its own: loading a vendor's package changes torch for good."""
    program = """
from joymigrate.chips import all_chips
from joymigrate.device import open_device
for chip in all_chips().values():
    device = open_device(chip, tell=lambda line: None)
    assert device.type == chip.device or device.fallback, chip.name
    assert "\\n" not in (device.fallback or "")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_registered_module_is_used_for_everything() -> None:
    """torch's own slot for outside devices, with a module that records what it is asked."""
    program = """
import torch, types
asked = []
class Fake(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        values = {"device_count": 2, "current_device": 1, "is_available": True,
                  "memory_allocated": 5, "memory_reserved": 6, "max_memory_allocated": 7,
                  "get_device_name": "Chip X", "get_device_capability": None,
                  "get_device_properties": types.SimpleNamespace(total_memory=8)}
        def answer(*args):
            asked.append((name, *map(str, args)))
            return values.get(name)
        return answer
torch.utils.rename_privateuse1_backend("xyz")
torch._register_device_module("xyz", Fake("xyz"))
from joymigrate.device import open_device
from tests.test_device import Named
device = open_device(Named(), required=True)
assert (device.type, device.chip, device.backend, device.count()) == ("xyz", "chip", "xccl", 2)
assert str(device.at()) == "xyz:1" and str(device.at(0)) == "xyz:0"
m = device.memory(0)
assert (m.allocated, m.reserved, m.peak, m.total) == (5, 6, 7, 8)
assert device.name(0) == "Chip X" and device.capability() is None
device.seed_all(7); device.synchronise(0); device.use(1); device.reset_peak(0); device.empty_cache()
for call in [("manual_seed_all", "7"), ("synchronize", "xyz:0"), ("set_device", "1"),
             ("reset_peak_memory_stats", "xyz:0"), ("empty_cache",)]:
    assert call in asked, call
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_reason_names_what_torch_says() -> None:
    assert "xyz" in (why_not(Named()) or "")


def test_importing_the_door_imports_no_torch() -> None:
    program = "import sys, joymigrate.device; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_chips_fit_through_the_door() -> None:
    for chip in all_chips().values():
        assert isinstance(Device(chip.device, chip.name, chip.backend).type, str)


ENDS = """
import ctypes, sys
import torch
import torch.distributed as dist
from joymigrate.device import leave_group

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
kept = dist.group.WORLD  # as a DDP model in a global variable keeps it
sys.setswitchinterval(1)
value = torch.ones(3)
work = dist.all_reduce(value, async_op=True)
del value, work
ctypes.PyDLL(None).usleep(300_000)  # meanwhile gloo's thread waits for Python, to free the tensor
leave_group()
"""


def test_no_thread_of_the_group_meets_the_end_of_python() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
