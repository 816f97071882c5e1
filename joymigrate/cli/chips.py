"""Show, check and create chips: the data behind --to."""

from __future__ import annotations

from joymigrate.cli._groups import group

app = group("Show, check and create chips: the data behind --to.")


@app.command("list")
def list_chips() -> None:
    """Name every chip that --to accepts."""
    from joymigrate.chips import all_chips

    for chip in all_chips().values():
        print(f"{chip.name:<18} {chip.device:<6} {chip.backend:<6} {chip.title}")
