"""Byte tensors in files that run collectives: older collective libraries refuse uint8."""

from __future__ import annotations

from collections.abc import Iterator

from joymigrate.model import Finding, Tier
from joymigrate.rewrite.module import Module

COLLECTIVES = (
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single",
    "broadcast", "gather", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
)  # fmt: skip
BYTES = ("torch.uint8", "torch.ByteTensor")


def find(module: Module) -> Iterator[Finding]:
    """Findings for one-byte types in a file that calls a collective."""
    if "distributed" not in module.source.text:
        return
    chains = list(module.names.imported_chains())
    wanted = {f"torch.distributed.{name}" for name in COLLECTIVES}
    if not any(dotted in wanted for _, dotted in chains):
        return
    for top, dotted in chains:
        if dotted in BYTES:
            yield module.find(
                "JM210",
                top,
                tier=Tier.REPORT,
                message="a one-byte type in a file that runs collectives",
                reason="if it goes through a collective: one-byte types are not carried by every "
                "version of the chip's collective library; int8 or int32 are",
            )
