"""Notes which files a Python program loaded, as it ends.

A copy of this file lies as `sitecustomize.py` in a folder of its own: Python starts it before any
program (see `prove_run`). It imports nothing of joymigrate, and runs under old Pythons.
"""

import atexit
import importlib
import os
import sys

FOLDER, HERE = os.path.dirname(os.path.abspath(__file__)), os.getcwd()


def tell() -> None:
    """Write the loaded files, one a line, to a file of this process."""
    names = [getattr(each, "__file__", None) for each in list(sys.modules.values())]
    names += sys.argv[:1]  # the program itself has no name any more
    found = {os.path.realpath(os.path.join(HERE, name)) for name in names if name}
    with open(os.path.join(FOLDER, f"{os.getpid()}.loaded"), "a") as file:
        file.write("".join(f"{name}\n" for name in sorted(found)))


def give_way() -> None:
    """Load the `sitecustomize` that this one stands before, if there is one."""
    mine = sys.modules.pop("sitecustomize")
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != FOLDER]
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        sys.modules["sitecustomize"] = mine


if __name__ == "sitecustomize":
    atexit.register(tell)
    give_way()
