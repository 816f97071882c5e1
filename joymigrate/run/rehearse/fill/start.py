"""Installs the fills in every process of a program, as soon as the chip's package was imported.

`JOYMIGRATE_SWITCH` names `start` (see run/rehearse/start/sitecustomize.py), `JOYMIGRATE_FILL` the
chip.
"""

from __future__ import annotations

import os

from joymigrate import attach

ENVIRONMENT = "JOYMIGRATE_FILL"
HOOK = "joymigrate.run.rehearse.fill.start:start"
WHO = "fill"


def start() -> None:
    """Wait for the chip's package in this process. Calling it twice changes nothing."""
    chip = os.environ.get(ENVIRONMENT)
    if not chip or attach.waits(WHO):
        return
    from joymigrate import chips

    package = chips.target(chip).package
    if not package:
        return

    def install() -> None:
        from joymigrate.run.rehearse import fill

        fill.install(chip)

    attach.after_import(package, install, who=WHO)
