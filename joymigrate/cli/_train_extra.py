"""What every command of `train` needs to be installed."""

from __future__ import annotations


def need_extra() -> None:
    """The libraries of the `train` extra, or which command installs them."""
    from joymigrate.extras import need

    need("train", "transformers", "peft", "pyarrow", what="training")
