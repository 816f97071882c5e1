"""The options with which a training starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from joymigrate.errors import JoyError

if TYPE_CHECKING:
    from joymigrate.run.train.launch import LaunchOptions


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Changes to the job, where it runs, and how it goes on."""

    sets: Annotated[list[str], Option("--set", help="Override one key: optimiser.lr=1e-4.")] = (
        field(default_factory=list)
    )
    processes: Annotated[
        int | None,
        Option("--nproc", min=1, help="Processes of this machine (default: as the layout says)."),
    ] = None
    nodes: Annotated[int, Option("--nodes", min=1, help="Machines.")] = 1
    meeting: Annotated[
        str | None, Option("--meeting", help="host:port where several machines meet.")
    ] = None
    restarts: Annotated[
        int | None,
        Option("--max-restarts", min=0, help="How often workers that died are started again."),
    ] = None
    run: Annotated[Path | None, Option("--run", help="The run folder.")] = None
    device: Annotated[str | None, Option("--device", help="auto, cpu, cuda or a chip.")] = None
    fresh: Annotated[bool, Option("--fresh", help="Start anew in the run folder.")] = False
    accept_data: Annotated[
        bool, Option("--accept-data", help="Continue although the data files changed.")
    ] = False
    unverified: Annotated[
        bool, Option("--unverified", help="Train on a chip without a passing verdict.")
    ] = False
    quiet: Annotated[bool, Option("-q", "--quiet")] = False

    def wishes(self) -> list[str]:
        """The overridden keys of the job. Raises `JoyError` for machines that can't meet."""
        if self.nodes > 1 and self.meeting is None:
            raise JoyError("several machines need a place to meet", help="--meeting HOST:PORT")
        run = [] if self.run is None else [f"run={self.run.resolve()}"]
        device = [] if self.device is None else [f"device={self.device}"]
        return [*self.sets, *run, *device]

    def launch_options(self, project: Path) -> LaunchOptions:
        """What the launcher reads."""
        from joymigrate.run.train.launch import LaunchOptions

        return LaunchOptions(
            processes=self.processes,
            nodes=self.nodes,
            meeting=self.meeting,
            restarts=self.restarts,
            fresh=self.fresh,
            accept_data=self.accept_data,
            unverified=self.unverified,
            quiet=self.quiet,
            project=project,
        )
