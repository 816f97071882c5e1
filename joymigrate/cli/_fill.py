"""`--fill` of `run` and `rehearse`: the fills in every process of the program."""

from __future__ import annotations

from collections.abc import Mapping

SWITCH = "JOYMIGRATE_SWITCH"
# The rehearsal waits for the chip's package as well and has to come first, to be done first.
REHEARSAL = "joymigrate.run.rehearse.activate:start"


def fill_environment(
    environment: Mapping[str, str], chip: str, *, rehearsed: bool = False
) -> dict[str, str]:
    """The environment with the hook that installs the fills for `chip`."""
    from joymigrate.run.rehearse.fill.start import ENVIRONMENT, HOOK

    made = dict(environment)
    hooks = [hook for hook in made.get(SWITCH, "").split(",") if hook]
    made[SWITCH] = ",".join([*hooks, *([REHEARSAL] if rehearsed else []), HOOK])
    made[ENVIRONMENT] = chip
    return made
