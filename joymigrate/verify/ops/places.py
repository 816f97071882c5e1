"""Opens the device that a replay runs on, by its torch name."""

from __future__ import annotations

from joymigrate.chips import all_chips, get
from joymigrate.device import CPU, Device, open_device
from joymigrate.errors import JoyError, did_you_mean


def find_device(device: str, chip: str | None) -> Device:
    """The device called `device`, as `chip` where several chips share the name."""
    if device == CPU:
        return Device(CPU)
    found = [c for c in all_chips().values() if c.device == device]
    mine = [c for c in found if c.name == chip] or found
    if not mine:
        known = sorted({CPU, *(c.device for c in all_chips().values())})
        raise JoyError(
            f"no chip has a device '{device}'.{did_you_mean(device, known)}",
            help=f"--device {', '.join(known)}",
        )
    return open_device(mine[0], required=True)


def device_of(chip: str) -> str:
    """The torch device of a chip."""
    return get(chip).device
