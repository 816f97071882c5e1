"""Jobs that come after other jobs.

The conditions are Slurm's: `afterok` (ended well), `afternotok` (failed or was cancelled),
`afterany` (is over), `after` (has started).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from joymigrate.errors import JoyError
from joymigrate.run.cluster.entries import WaitingJob
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.notation import split_after
from joymigrate.run.cluster.reasons import PlacementRefusal

KEPT = 5000  # ended jobs whose outcome is remembered
DONE = {"afterok": "ended well", "afternotok": "failed", "afterany": "ended", "after": "started"}
DOES = {"afterok": "ends well", "afternotok": "fails", "afterany": "ends", "after": "starts"}
StateOf = Callable[[str], str]  # running, waiting, kept, refused; "" for an unknown name


class DependencyGate:
    """Jobs that may not wait for cards yet, and what is known of those before them."""

    def __init__(self) -> None:
        self.entries: dict[str, WaitingJob] = {}
        self.elsewhere: set[str] = set()  # live jobs that the scheduler does not have: held ones
        self.over: dict[str, bool] = {}  # ended jobs, and whether they ended well
        self.changed = False

    def join(self, job: GangJob) -> None:
        """A job is submitted, for the first time or again."""
        self.over.pop(job.name, None)
        self.elsewhere.discard(job.name)

    def hold_back(self, entry: WaitingJob) -> bool:
        """Keep a job that others come before; False for one that may wait for cards at once."""
        if not entry.job.after:
            return False
        self.entries[entry.job.name] = entry
        self.changed = True
        return True

    def ended(self, name: str, well: bool) -> None:
        """A job is over."""
        self.over.pop(name, None)
        self.over[name] = well
        self.entries.pop(name, None)
        self.changed = True
        if len(self.over) > 2 * KEPT:
            needed = targets_of(entry.job for entry in self.entries.values())
            for old in [one for one in self.over if one not in needed][: len(self.over) - KEPT]:
                del self.over[old]

    def opened(self, state_of: StateOf) -> list[WaitingJob]:
        """Take out the jobs that may wait for cards now, in order of submission."""
        if not self.changed:
            return []
        self.changed = False
        waiting = sorted(self.entries.values())
        found = [entry for entry in waiting if self.refusal(entry.job, state_of) is None]
        for entry in found:
            del self.entries[entry.job.name]
        return found

    def refusal(self, job: GangJob, state_of: StateOf) -> PlacementRefusal | None:
        """The first condition that does not hold; one that never will comes first."""
        waits: PlacementRefusal | None = None
        for item in job.after:
            condition, target = split_after(item)
            holds, never = self._judge(condition, target, state_of)
            if holds:
                continue
            facts = {"head": target, "condition": condition}
            if never:
                return PlacementRefusal("after_never", {**facts, "did": never})
            facts |= {"done": DONE[condition], "does": DOES[condition]}
            waits = waits or PlacementRefusal("after", facts)
        return waits

    def _judge(self, condition: str, name: str, state_of: StateOf) -> tuple[bool, str]:
        """Whether a condition on a job holds, and why it never will ("" where it may)."""
        well, state = self.over.get(name), state_of(name)
        if well is None and name not in self.elsewhere and not state:
            return False, "is not known here"
        if condition == "after":
            return well is not None or state == "running", ""
        if well is None:
            return False, ""
        if condition == "afterok" and not well:
            return False, "failed or was cancelled"
        if condition == "afternotok" and well:
            return False, "ended well"
        return True, ""


def targets_of(jobs: Iterable[GangJob]) -> set[str]:
    """The jobs that these jobs come after."""
    return {split_after(item)[1] for job in jobs for item in job.after}


def check_order(jobs: Iterable[GangJob]) -> None:
    """Refuse jobs that come after each other in a circle; `JoyError` names it."""
    before: dict[str, set[str]] = {}
    for job in jobs:
        before.setdefault(job.name, set()).update(targets_of([job]))
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            circle = " after ".join([*path[path.index(name) :], name])
            raise JoyError(f"jobs wait for each other: {circle}", help="take one `after` away")
        if name in done:
            return
        for other in sorted(before.get(name, ())):
            visit(other, (*path, name))
        done.add(name)

    for name in sorted(before):
        visit(name, ())
