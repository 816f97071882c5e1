"""Runs when any Python of a joymigrate run starts: the hooks first, then the user's own file.

`joymigrate rehearse` and `joymigrate run` put this folder in front of PYTHONPATH; children and
workers inherit it. An installed .pth file does the same where PYTHONPATH is replaced or ignored.
Hooks, in this order, before a line of user code:

- JOYMIGRATE_SEED=number — seeds random, numpy and torch, for programs that set no seed;
- JOYMIGRATE_SWITCH=module:function — called without arguments (the runtime switch: an import
  hook that rewrites modules as they load; a recorder that waits for torch). Several are
  separated by commas, and called in order;
- JOYMIGRATE_MEMORY=folder — notes there what the device's memory holds (run/rehearse/memory);
- JOYMIGRATE_REACH=folder — notes there which lines of the program run (run/rehearse/reach.py);
- JOYMIGRATE_REHEARSE=folder — makes this process part of the rehearsal with that folder;
- JOYMIGRATE_STOPS=folder — notes there what ends the process (blame/watch.py);
- JOYMIGRATE_DRAWS=1 — random numbers that are the same on every device;
- JOYMIGRATE_DOOR={…} — the origin's device words mean another device (run/door).

A Python without joymigrate (a system tool that the program starts) is left as it is.
"""

import contextlib
import os
import sys


def call_switch(name: str) -> None:
    """Import `module:function` and call it."""
    import importlib

    module, _, function = name.partition(":")
    getattr(importlib.import_module(module), function)()


def start() -> None:
    """Call the hooks that the environment names."""
    import importlib.util

    if importlib.util.find_spec("joymigrate") is None:
        return
    if os.environ.get("JOYMIGRATE_STARTED"):
        with contextlib.suppress(OSError):  # the run that asked is over
            open(os.environ["JOYMIGRATE_STARTED"], "w").close()
    if os.environ.get("JOYMIGRATE_STOPS"):
        call_switch("joymigrate.blame.watch:start")
    if os.environ.get("JOYMIGRATE_SEED"):
        call_switch("joymigrate.seeded:start")
    for switch in filter(None, os.environ.get("JOYMIGRATE_SWITCH", "").split(",")):
        call_switch(switch)
    if os.environ.get("JOYMIGRATE_MEMORY"):
        call_switch("joymigrate.run.rehearse.memory.watch:start")
    if os.environ.get("JOYMIGRATE_REHEARSE"):
        from joymigrate.run.rehearse.activate import start as activate

        activate()
    if os.environ.get("JOYMIGRATE_DRAWS"):
        call_switch("joymigrate.verify.shared_draws:start")
    if os.environ.get("JOYMIGRATE_REACH"):
        call_switch("joymigrate.run.rehearse.reach:start")
    if os.environ.get("JOYMIGRATE_DOOR"):  # last: it sees the program's calls before all others
        call_switch("joymigrate.run.door.start:start")


def chain() -> None:
    """Take this folder off the path, and run the sitecustomize that it hid."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    start()
finally:
    chain()
