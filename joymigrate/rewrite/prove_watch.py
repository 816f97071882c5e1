"""Notes which files a Python program runs and reads, at once.

A copy of this file lies as `sitecustomize.py` in a folder of its own: Python starts it before any
program (see `prove_run`). It imports nothing of joymigrate, and runs under old Pythons, where only
modules are noted, at the program's end.
"""

import atexit
import importlib
import os
import sys

FOLDER, HERE = os.path.dirname(os.path.abspath(__file__)), os.getcwd()
TOP = os.path.dirname(FOLDER)  # holds the copy
WRITES = os.O_WRONLY | os.O_RDWR
REPORT = os.path.join(FOLDER, "loaded")
seen: "set[str]" = set()  # quoted, as old Pythons evaluate it


def tell(name: str) -> None:
    """Write a file's name, once for a process."""
    if name in seen or name.startswith("<"):
        return
    seen.add(name)
    try:
        with open(REPORT, "a") as file:
            file.write(f"{os.path.realpath(os.path.join(HERE, name))}\n")
    except OSError:  # of a program that gave up its rights
        return


def hear(event: str, given: "tuple[object, ...]") -> None:
    """Hear of code that is run, and of other files below TOP that are opened to be read."""
    try:
        if event == "exec":
            tell(getattr(given[0], "co_filename", "<"))
        elif event == "cpython.run_file":
            tell(str(given[0]))
        elif event == "open" and isinstance(given[0], str):
            name = os.path.abspath(given[0])
            if not name.startswith(TOP + os.sep) or name.endswith((".py", ".pyc", REPORT)):
                return
            if not isinstance(given[2], int) or not given[2] & WRITES:
                tell(name)
    except Exception:  # never the program's own trouble
        return


def tell_modules() -> None:
    """Tell the loaded modules, and the program itself, which has no name any more."""
    names = [getattr(each, "__file__", None) for each in list(sys.modules.values())]
    for name in (*names, *sys.argv[:1]):
        if name:
            tell(name)


def give_way() -> None:
    """Load the `sitecustomize` that this one stands before, if there is one."""
    mine = sys.modules.pop("sitecustomize")
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != FOLDER]
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        sys.modules["sitecustomize"] = mine


if __name__ == "sitecustomize":
    atexit.register(tell_modules)
    if hasattr(sys, "addaudithook"):
        sys.addaudithook(hear)
    give_way()
