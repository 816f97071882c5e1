"""How many processes a run has and what each holds: dp, fsdp, cp, tp, pp and their combinations.

Ranks are numbered with tp fastest, then fsdp, cp, dp and pp, so that the ranks of a tensor-parallel
group are neighbours (the fastest links of a machine).
"""

from __future__ import annotations

from dataclasses import dataclass

from joymigrate.errors import JoyError
from joymigrate.schema import setting

AXES = ("pp", "dp", "cp", "fsdp", "tp")  # slowest first


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where one rank stands on every axis."""

    pp: int
    dp: int
    fsdp: int
    tp: int
    cp: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the parallel axes; their product is the number of processes."""

    dp: int = setting(1, "copies of the model that see different samples (DDP)", least=1)
    fsdp: int = setting(1, "processes that share one copy's parameters (FSDP2)", least=1)
    tp: int = setting(1, "processes that share every layer (tensor parallel)", least=1)
    pp: int = setting(1, "stages of consecutive layers (pipeline parallel, 1F1B)", least=1)
    cp: int = setting(1, "processes that share every sequence (context parallel)", least=1)

    @property
    def world(self) -> int:
        """Number of processes."""
        return self.dp * self.fsdp * self.tp * self.pp * self.cp

    @property
    def data_ranks(self) -> int:
        """Number of processes that see different samples."""
        return self.dp * self.fsdp

    @property
    def gradient_ranks(self) -> int:
        """Number of processes whose gradients are averaged."""
        return self.data_ranks * self.cp

    @property
    def name(self) -> str:
        """`fsdp2 x tp2`, or `single`."""
        parts = [f"{axis}{getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1]
        return " x ".join(parts) or "single"

    def place(self, rank: int) -> RankPlace:
        """The coordinates of a rank."""
        rank, tp = divmod(rank, self.tp)
        rank, fsdp = divmod(rank, self.fsdp)
        rank, cp = divmod(rank, self.cp)
        pp, dp = divmod(rank, self.dp)
        return RankPlace(pp, dp, fsdp, tp, cp)

    def data_rank(self, rank: int) -> int:
        """Which share of every batch a rank sees: 0 … data_ranks - 1."""
        place = self.place(rank)
        return place.dp * self.fsdp + place.fsdp

    def check(self) -> None:
        """Refuse combinations that nothing here runs, with the reason."""
        if self.pp > 1 and self.fsdp > 1:
            raise JoyError(
                f"layout {self.name}: pipeline stages are not sharded further",
                help="use pp with dp or tp, or fsdp with dp or tp",
            )
        if self.cp > 1 and (self.tp > 1 or self.pp > 1 or (self.dp > 1 and self.fsdp > 1)):
            raise JoyError(
                f"layout {self.name}: sequences are cut beside copies or shards of the model alone",
                help="use cp with dp, or cp with fsdp",
            )

    def spread(self, processes: int) -> Layout:
        """This layout on another number of processes: the data axis takes what is over.

        Used when `--nproc` says how many processes there are.
        """
        fixed = self.tp * self.pp * self.cp * (1 if self.fsdp > 1 else self.fsdp)
        if processes % fixed:
            raise JoyError(
                f"{processes} processes cannot hold layout {self.name}: tp x pp x cp takes {fixed}",
                help=f"use a multiple of {fixed}",
            )
        share = processes // fixed
        if self.fsdp > 1:
            dp = self.dp if share % self.dp == 0 and share // self.dp > 1 else 1
            return Layout(dp, share // dp, self.tp, self.pp, self.cp)
        return Layout(share, 1, self.tp, self.pp, self.cp)
