"""What a job file says about tables and readers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joymigrate.schema import setting

if TYPE_CHECKING:
    from joymigrate.run.train.tables.configs import TableOptions
    from joymigrate.run.train.tables.row_optimiser import RowOptimiser

OPTIMISERS = ("adagrad", "rowwise_adagrad", "adam", "sgd", "lamb", "none")


@dataclass(frozen=True, slots=True)
class TableSettings:
    """How rows of tables are kept and trained."""

    optimiser: str = setting(
        "none", "of the rows that a batch touches; none: the job's own", choices=OPTIMISERS
    )
    lr: float = setting(0.05, "learning rate of the rows", above=0)
    first: float = setting(0.05, "rows start uniform between -first and first", least=0)
    cache_rows: int | None = setting(None, "rows on the device (default: all of them)", least=1)
    store: str = setting("memory", "the other rows: memory, file:FOLDER, lmdb:FOLDER, redis://…")
    max_rows: int | None = setting(
        None, "dynamic tables: rows beyond which the least used go", least=1
    )
    admit_after: int = setting(1, "dynamic tables: sightings before an id gets a row", least=1)

    def options(self, rows: int | None, seed: int) -> TableOptions:
        """The options of one table; without `rows` it is a dynamic one."""
        from joymigrate.run.train.tables.configs import AdmissionRule, Eviction, TableOptions

        dynamic = rows is None
        return TableOptions(
            dynamic=dynamic,
            admission=AdmissionRule(count=self.admit_after)
            if dynamic and self.admit_after > 1
            else None,
            eviction=Eviction(max_rows=self.max_rows) if dynamic and self.max_rows else None,
            cache_rows=self.cache_rows,
            store=self.store if self.cache_rows else "memory",
            seed=seed,
        )

    def row_optimiser(self) -> RowOptimiser:
        """The rule of update."""
        from joymigrate.run.train.tables.row_optimiser import RowOptimiser

        return RowOptimiser(self.optimiser, self.lr)


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """Who reads the data."""

    SHORT = "count"

    count: int = setting(2, "readers of every process", least=1)
    engine: str = setting(
        "threads", "threads, processes, or ray", choices=("threads", "processes", "ray")
    )
    ahead: int = setting(2, "row groups that each reader reads ahead", least=1)
