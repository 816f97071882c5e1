"""Runs the user's program: finds it, starts it with an environment, passes signals and exit code.

Used by every command that takes `-- COMMAND`, and by a journey for its entry. The program of a
command keeps our stdin, stdout and stderr.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from joymigrate.errors import JoyError
from joymigrate.orphans import end_with

# `python`, or with this version: the interpreter that joymigrate runs in, which has its torch.
PYTHON = re.compile(r"python(\d(\.\d+)?)?$")
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
SWITCH = "JOYMIGRATE_SWITCH"
REHEARSAL = "JOYMIGRATE_REHEARSE"  # the simulated chip brings the driver's libraries itself
START = Path(__file__).parent / "run" / "rehearse" / "start"  # the sitecustomize of our runs
START_PATH = "JOYMIGRATE_START"  # for Pythons without our PYTHONPATH: scripts/joymigrate.pth
STARTED = "JOYMIGRATE_STARTED"  # a file that the first Python with our hooks makes
NOT_STARTED = "no Python of this command loaded joymigrate's hooks"
START_SO = "start it without `env -i` and without -S, by a Python that joymigrate is installed in"
HIDE = "joymigrate.chips.presence:hide_driverless"
CALLER_AUTOLOAD = "JOYMIGRATE_CALLER_AUTOLOAD"
PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def resolve(command: Sequence[str], folder: Path = Path()) -> list[str]:
    """The command with its program found, seen from the folder that it is started in.

    `python` means this interpreter; `-m module` and `script.py` are run by it; `torchrun`,
    `pytest` and other installed scripts come from its environment before PATH is asked.
    """
    if not command:
        raise JoyError(
            "no program to run", help="put it after two dashes: joymigrate … -- python train.py"
        )
    first, *rest = command
    if first == "-m":
        return [sys.executable, *command]
    python = PYTHON.match(first)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python and f"{version}.".startswith(f"{python.group(1) or version}."):
        return [sys.executable, *rest]
    file = folder / first
    if (
        first.endswith(".py")
        and file.is_file()
        and not (os.sep in first and os.access(file, os.X_OK))
    ):
        return [sys.executable, *command]
    if os.sep in first:
        if file.is_file():
            return [first, *rest]
        raise JoyError(
            f"there is no program '{first}'", help="name it from the folder it starts in"
        )
    beside = Path(sys.executable).parent / first
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(first)
    if found is None:
        raise JoyError(
            f"there is no program '{first}' in this environment or on PATH",
            help="write it as you would start it in this folder, or install it",
        )
    return [found, *rest]


def environment(**changes: str) -> dict[str, str]:
    """The caller's own environment, with `changes`.

    The command line switched torch's backend loading off for itself; the program gets back what
    the caller had. Scripts that ask PATH for python find this interpreter first. A vendor's
    package without its driver counts as not installed, where a program starts through our hooks.
    """
    from joymigrate.chips import driverless

    made = dict(os.environ)
    callers = made.pop(CALLER_AUTOLOAD, "")
    made.pop(AUTOLOAD, None)
    if callers:
        made[AUTOLOAD] = callers
    beside = str(Path(sys.executable).parent)
    path = made.get("PATH", os.defpath)
    if path.split(os.pathsep)[0] != beside:
        made["PATH"] = os.pathsep.join([beside, path])
    if not made.get(REHEARSAL) and driverless():
        made[AUTOLOAD] = "0"
        made[SWITCH] = ",".join(filter(None, (HIDE, made.get(SWITCH))))
    made.update(changes)
    return made


def with_start(environment: Mapping[str, str], *behind: Path) -> dict[str, str]:
    """The environment in which each Python calls our hooks first: their folder, and those `behind`
    it, stand in front of PYTHONPATH once, and in a variable that our installed .pth file reads."""
    made = dict(environment)
    before = filter(None, made.get(START_PATH, "").split(os.pathsep))
    first = [*dict.fromkeys([str(START), *map(str, behind), *before])]
    entries = [e for e in made.get("PYTHONPATH", "").split(os.pathsep) if e and e not in first]
    made["PYTHONPATH"] = os.pathsep.join([*first, *entries])
    made[START_PATH] = os.pathsep.join(first)
    return made


def run_with_hooks(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a resolved command whose Pythons call our hooks first; say on stderr where none did."""
    with tempfile.TemporaryDirectory(prefix="joymigrate-start-") as folder:
        made = {STARTED: os.path.join(folder, "started"), **with_start(environment)}
        code = run(command, made)
        if not os.path.exists(made[STARTED]):
            print(f"error: {NOT_STARTED}", file=sys.stderr)
            print(f"  at {shlex.join(command)}", file=sys.stderr)
            print(f"  help: {START_SO}", file=sys.stderr)
        return code


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a resolved command to its end. A program killed by signal n gives 128 + n."""
    try:
        child = subprocess.Popen(
            list(command), env=dict(environment), preexec_fn=end_with(os.getpid())
        )
    except OSError as error:
        raise JoyError(
            f"cannot start '{command[0]}': {error.strerror}",
            help="a script needs `#!` in its first line and `chmod +x`, or run it with python",
        ) from None

    def pass_on(number: int, frame: FrameType | None) -> None:
        if child.poll() is None:
            child.send_signal(number)

    def interrupted(number: int, frame: FrameType | None) -> None:
        # Ctrl-C on a terminal reaches the program by itself; twice would cut its clean-up short.
        if not sys.stdin.isatty():
            pass_on(number, frame)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupted)
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code
