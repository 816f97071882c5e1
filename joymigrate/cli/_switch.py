"""The runtime switch around a command: `run`, and `rehearse --migrate`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from joymigrate.chips import Chip
from joymigrate.errors import JoyError
from joymigrate.extras import install
from joymigrate.launching import resolve

SWITCHES = ("rules", "vendor")
HOOK = "joymigrate.rewrite.switch.load:start"


@contextmanager
def switch_to(
    command: Sequence[str],
    base: Mapping[str, str],
    *,
    chip: Chip,
    kind: str = "rules",
    follow_imports: Sequence[str] = (),
    leave: Sequence[str] = (),
    quiet: bool = False,
    notes: str = "",
) -> Iterator[dict[str, str]]:
    """The environment in which `command` and its children run on `chip`, unchanged.

    `kind` is `rules` (joymigrate's own rewriting, in memory, and below it a net for the words that
    only show while the program runs, noted in the folder `notes`) or `vendor` (the vendor's shim).
    """
    made = dict(base)
    if kind not in SWITCHES:
        raise JoyError(f"--switch cannot be '{kind}'", help=f"--switch takes {', '.join(SWITCHES)}")
    if kind == "vendor":
        name, _, value = str(chip.shim.get("switch") or "").partition("=")
        if not name:
            raise JoyError(f"no run-time shim is known for {chip.name}", help="--switch rules")
        made[name] = value or "1"
        yield made
        return
    from joymigrate import chips
    from joymigrate.chips import relate
    from joymigrate.model import Tier
    from joymigrate.rewrite.switch import plan
    from joymigrate.run.door.settings import ChipWords, DoorSettings

    origin = chips.origin()
    made_plan = plan.make(
        command, chip=chip, origin=origin, follow_imports=follow_imports, leave=leave
    )
    path = plan.save(made_plan)
    if not quiet:
        edits = sum(len(file["edits"]) for file in made_plan["files"].values())
        print(
            f"switch: {edits} edits in {len(made_plan['files'])} files, made in memory "
            f"({origin.device} → {chip.device})",
            file=sys.stderr,
            flush=True,
        )
        for hint in plan.hints(command, origin, chip):
            print(f"switch: {hint}", file=sys.stderr, flush=True)
    try:
        hooks = [hook for hook in made.get("JOYMIGRATE_SWITCH", "").split(",") if hook]
        made["JOYMIGRATE_SWITCH"] = ",".join([*hooks, HOOK])
        made[plan.ENVIRONMENT] = str(path)
        words = ChipWords(
            origin=origin.device,
            origin_backend=origin.backend,
            device=chip.device,
            backend=chip.backend,
            module=chip.module,
            renamed={
                name: one.to
                for name, one in relate(origin, chip).renamed.items()
                if one.tier is Tier.SAFE and one.to
            },
        )
        same = (chip.device, chip.backend) == (origin.device, origin.backend)
        yield made if same else DoorSettings(chip=words, notes=notes).environment(made)
    finally:
        path.unlink(missing_ok=True)


def no_chip(chip: Chip, command: Sequence[str]) -> list[str]:
    """What to say after a program failed on a machine that has none of the chip's device files.

    Nothing where one is there, or where they are not known: then the failure is the program's.
    Our own Python without torch comes first: no chip would help there.
    """
    if command and resolve(command)[0] == sys.executable and find_spec("torch") is None:
        return ["switch: this Python has no torch", f"  help: {install('torch')}"]
    nodes = [str(node) for node in chip.launch.get("device_nodes") or ()]
    if not nodes or any(os.path.exists(node) for node in nodes):
        return []
    said = [f"switch: no {chip.title} is present on this machine (there is no {nodes[0]})"]
    if chip.distribution:
        again = shlex.join(["joymigrate", "rehearse", "--migrate", "--", *command])
        said.append(f"  help: on a simulated one: {again}")
    return said
