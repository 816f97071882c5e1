"""Records what a machine has for a chip: files, versions, devices, a tool's answer, a trial.

Nothing is changed and nothing of the user's is read: names and versions of packages, the variables
that the chip's `doctor.yaml` lists, device files, and the vendor's own tools.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from typing import Any

from joymigrate.chips import Chip
from joymigrate.environment import look
from joymigrate.environment.rules import rules_of
from joymigrate.errors import JoyError

SCHEMA = "joymigrate.environment/1"
TRIAL_S = 180  # loading a vendor's package from a cold disk


def record(chip: Chip, *, trial: bool = True) -> dict[str, Any]:
    """The document `environment/1` of this machine. JoyError where the chip has no doctor.yaml.

    `trial`: also import torch and the chip's package in a process of its own.
    """
    rules = rules_of(chip)
    if rules is None:
        raise JoyError(f"nothing is known about setting up {chip.title}", where=str(chip.folder))
    places = rules.record
    return {
        "schema": SCHEMA,
        "recorded": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "chip": chip.name,
        "machine": look.machine(),
        "packages": {name: look.version_of(name) for name in places.distributions},
        "variables": {name: os.environ[name] for name in places.variables if name in os.environ},
        "sdk": look.sdk(places),
        "driver": look.driver(places),
        "devices": look.devices(places),
        "smi": look.smi(places),
        "network": look.network(places),
        "memory": look.memory(),
        "errors": trial_errors(chip) if trial else [],
    }


def trial_errors(chip: Chip) -> list[str]:
    """The error of importing torch and the chip's package and opening a card; empty when it works.

    In the user's own environment: the package loads itself as it would in their program.
    """
    if chip.package is None or look.version_of(chip.distribution or "") is None:
        return []
    program = (
        f"import torch, {chip.package}\n"
        f"torch.zeros(1).to('{chip.device}').add(1).cpu()\n"
    )  # fmt: skip
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=TRIAL_S,
            check=False, errors="replace", cwd=os.path.expanduser("~"),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return [f"importing {chip.package} took longer than {TRIAL_S} s"]
    if done.returncode == 0:
        return []
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    told = [
        line for line in lines if not line.startswith((" ", "Traceback", "During", "The above"))
    ]
    return ["\n".join(told[-12:]) or f"the process ended with {done.returncode}"]
