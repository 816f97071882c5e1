"""Planted programs that need a device beside the host; run under a rehearsal.

python slow_on_device.py FOLDER records `RULE.slow.jsonl` and `RULE.clean.jsonl` there.
"""

import sys
from pathlib import Path

import torch

from joymigrate.profile.recorder.in_process import record_step
from joymigrate.profile.recorder.settings import RecorderSettings

DEVICE = "npu"


def down():
    x = torch.rand(8, 8, device=DEVICE)
    return lambda: (x + 1).cpu()


def stays():
    x = torch.rand(8, 8, device=DEVICE)
    return lambda: x + 1


def up():
    x = torch.rand(8, 8)
    return lambda: x.to(DEVICE) + 1


def up_asynchronously():
    x = torch.rand(8, 8)
    return lambda: x.to(DEVICE, non_blocking=True) + 1


def made_on_host():
    return lambda: torch.ones(8, 8).to(DEVICE, non_blocking=True) + 1


def made_on_device():
    return lambda: torch.ones(8, 8, device=DEVICE) + 1


def synchronised():
    x = torch.rand(8, device=DEVICE)

    def step():
        x + 1
        torch.npu.synchronize()

    return step


def many_synchronised_norms():
    x, ones = torch.rand(2, 4, 4, device=DEVICE), torch.ones(4, device=DEVICE)

    def step():
        for _ in range(25):
            torch.batch_norm_elemt(x, ones, ones, ones, ones, 1e-5)

    return step


def many_uploads():
    parts = [torch.rand(16) for _ in range(12)]
    return lambda: [part.to(DEVICE, non_blocking=True) for part in parts]


PROGRAMS = {
    "D2H": (down, stays),
    "H2D": (up, up_asynchronously),
    "SMALL-UPLOADS": (many_uploads, up_asynchronously),
    "HOST-MADE": (made_on_host, made_on_device),
    "SYNC-CALL": (synchronised, stays),
    "SYNC-BN": (many_synchronised_norms, stays),
}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    settings = RecorderSettings(folder, folder, timing=False, device=DEVICE, rehearsal=True)
    for rule, pair in PROGRAMS.items():
        for kind, make in zip(("slow", "clean"), pair, strict=True):
            record_step(make(), folder / f"{rule}.{kind}.jsonl", settings)
