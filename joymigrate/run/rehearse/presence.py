"""Whether this machine has a real chip or its software: then a rehearsal would be a lie."""

from __future__ import annotations

import os
from pathlib import Path

from joymigrate.errors import JoyError

HOME_NAMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
USUAL_HOMES = ("/usr/local/Ascend/ascend-toolkit", "/usr/local/Ascend/cann")
RUNTIME = "libascendcl.so"


def real_chip() -> str | None:
    """What shows that the real thing is here, or None."""
    devices = sorted(path for path in Path("/dev").glob("davinci[0-9]*"))
    if devices:
        return str(devices[0])
    for name in HOME_NAMES:
        home = os.environ.get(name)
        if home and Path(home).is_dir():
            return f"{name}={home}"
    for home in USUAL_HOMES:
        if Path(home).is_dir():
            return home
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if folder and (Path(folder) / RUNTIME).is_file():
            return str(Path(folder) / RUNTIME)
    return None


def refuse_real_chip() -> None:
    """`JoyError` where the program could run on the real chip, or would load its real software."""
    found = real_chip()
    if found:
        raise JoyError(
            "this machine has the chip or its software, so there is nothing to rehearse",
            where=found,
            help="run the program itself here, or rehearse on a machine without the chip",
        )
