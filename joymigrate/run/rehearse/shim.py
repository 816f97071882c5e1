"""The simulated runtime as seen from Python: loaded before torch_npu, asked for what it counted."""

from __future__ import annotations

import ctypes
import functools
import os
from collections import Counter
from collections.abc import Callable

from joymigrate.run.rehearse.build import RUNTIME, SWITCH
from joymigrate.run.rehearse.settings import RehearsalSettings

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
SEQUENCE_LIMIT = 1 << 20  # as in shim/kernels.c


def load_runtime(settings: RehearsalSettings) -> ctypes.CDLL:
    """The simulated runtime, with the chip that was asked for; whoever comes first loads it."""
    runtime = ctypes.CDLL(str(settings.libraries / RUNTIME), mode=ctypes.RTLD_GLOBAL)
    runtime.joy_configure(
        settings.soc.encode(), visible(settings.devices), ctypes.c_uint64(settings.memory_bytes)
    )
    return runtime


class Shim:
    """One loaded runtime. The libraries stay loaded as long as the process lives."""

    def __init__(self, settings: RehearsalSettings) -> None:
        # torch_npu's own libraries find these by name, because they are already loaded.
        self.runtime = load_runtime(settings)
        self.others = [
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            for path in sorted(settings.libraries.glob("*.so"))
            if path.name != SWITCH  # needs torch's libraries; dispatch.py loads it
        ]
        self.runtime.joy_cann(settings.cann.encode())
        self.runtime.joy_set_dry(settings.mode == "dry")
        if settings.mode == "async":
            self.runtime.joy_order_start()
        self.runtime.joy_kernel_name.restype = ctypes.c_char_p
        self.runtime.joy_forms.restype = ctypes.c_void_p
        self.runtime.joy_forms_length.restype = ctypes.c_size_t
        self.runtime.joy_hf32.restype = ctypes.c_char_p
        self.runtime.joy_kernel_counts.restype = ctypes.POINTER(ctypes.c_uint64)
        self.runtime.joy_kernel_sequence.restype = ctypes.POINTER(ctypes.c_uint16)
        self.set_tracing = self.runtime.joy_set_tracing

    @functools.cached_property
    def names(self) -> list[str]:
        """Chip kernels by number."""
        total = self.runtime.joy_kernel_total()
        return [self.runtime.joy_kernel_name(number).decode() for number in range(total)]

    def kernels(self) -> Counter[str]:
        """How often each chip kernel was asked for so far."""
        counts = self.runtime.joy_kernel_counts()
        return Counter({name: counts[i] for i, name in enumerate(self.names) if counts[i]})

    def sequence(self) -> tuple[list[str], int]:
        """The first chip kernels in the order they were asked for, and how many there were."""
        asked = ctypes.c_uint64()
        numbers = self.runtime.joy_kernel_sequence(ctypes.byref(asked))
        kept = min(asked.value, SEQUENCE_LIMIT)
        return [self.names[numbers[i]] for i in range(kept)], asked.value

    def asked(self) -> int:
        """How many chip kernels were asked for so far."""
        length = ctypes.c_uint64()
        self.runtime.joy_kernel_sequence(ctypes.byref(length))
        return length.value

    def since(self, start: int) -> list[str]:
        """The chip kernels asked for after the first `start` ones."""
        length = ctypes.c_uint64()
        numbers = self.runtime.joy_kernel_sequence(ctypes.byref(length))
        return [self.names[numbers[i]] for i in range(start, min(length.value, SEQUENCE_LIMIT))]

    def forms_length(self) -> int:
        """Where the forms of what is asked for next begin, within one pass."""
        return int(self.runtime.joy_forms_length())

    def forms(self, start: int) -> list[str]:
        """`kernel T0/2 …` per kernel since `start`: types and dimensions of its tensors in order
        (see shim/kernels.c)."""
        text = ctypes.string_at(self.runtime.joy_forms()).decode("ascii", "replace")
        return text[start:].splitlines()

    def memory(self, device: int) -> tuple[int, int]:
        """Bytes that the allocator holds on `device` now, and the most it ever held."""
        now, most = ctypes.c_uint64(), ctypes.c_uint64()
        self.runtime.joy_memory(device, ctypes.byref(now), ctypes.byref(most))
        return now.value, most.value

    def matmul_hf32(self) -> bool:
        """Whether the program allows HF32 in matrix products (`matmul.allow_hf32 = True`).

        The switch for convolutions is on by default, so it doesn't say what the program wants.
        """
        if self.runtime.joy_hf32().endswith(b"1"):
            return True
        return bool(self.option("ALLOW_MATMUL_HF32") == b"enable")

    @functools.cached_property
    def option(self) -> Callable[[str], bytes | None]:
        """The package's options: told of a newer CANN, it keeps the switch to itself."""
        import torch_npu

        found: Callable[[str], bytes | None] = torch_npu._C._npu_getOption
        return found


def visible(devices: int) -> int:
    """How many of the devices this process sees: `ASCEND_RT_VISIBLE_DEVICES` lists some by number,
    in ascending order (rules/ascend, JM170). From the first entry on that is none, it counts no
    more; an empty list is taken as none given."""
    asked = os.environ.get(VISIBLE, "").strip()
    if not asked:
        return devices
    count, last = 0, -1
    for part in asked.split(","):
        number = int(part) if part.strip().isdecimal() else -1
        if not last < number < devices:
            break
        count, last = count + 1, number
    return count
