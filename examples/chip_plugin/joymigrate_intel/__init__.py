"""The chip intel for joymigrate: data only."""

from pathlib import Path


def folder() -> Path:
    """The folder with chip.yaml; the entry point of joymigrate."""
    return Path(__file__).parent / "rules"
