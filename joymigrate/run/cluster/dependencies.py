"""Jobs that come after other jobs, and arrays of which only so many run at once.

The conditions are Slurm's: `afterok` (ended well), `afternotok` (failed or was cancelled),
`afterany` (is over), `after` (has started). A name may be that of an array: then all its members
are meant (`afternotok`: at least one of them, when all are over).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from joymigrate.errors import JoyError
from joymigrate.run.cluster.entries import Entry
from joymigrate.run.cluster.jobs import Job
from joymigrate.run.cluster.notation import split_after
from joymigrate.run.cluster.reasons import Refusal

KEPT = 5000  # ended jobs whose outcome is remembered
DONE = {"afterok": "ended well", "afternotok": "failed", "afterany": "ended", "after": "started"}
DOES = {"afterok": "ends well", "afternotok": "fails", "afterany": "ends", "after": "starts"}
StateOf = Callable[[str], str]  # running, waiting, kept, refused; "" for an unknown name


class Gate:
    """Jobs that may not wait for cards yet, and what is known of those before them."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.elsewhere: set[str] = set()  # live jobs that the scheduler does not have: held ones
        self.over: dict[str, bool] = {}  # ended jobs, and whether they ended well
        self.members: dict[str, dict[str, None]] = {}  # of arrays, the last to join last
        self.changed = False

    def join(self, job: Job) -> None:
        """A job is submitted, for the first time or again."""
        self.over.pop(job.name, None)
        self.elsewhere.discard(job.name)
        if job.array:
            members = self.members.setdefault(job.array, {})
            members.pop(job.name, None)
            members[job.name] = None
            # Submitted again with fewer members, it is the new ones that others wait for.
            while 0 < job.array_size < len(members):
                del members[next(iter(members))]

    def hold_back(self, entry: Entry) -> bool:
        """Keep a job that others come before; False for one that may wait for cards at once."""
        if not (entry.job.after or entry.job.array_most):
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
            needed |= {one for name in needed for one in self.members.get(name, ())}
            for old in [one for one in self.over if one not in needed][: len(self.over) - KEPT]:
                del self.over[old]

    def opened(self, state_of: StateOf) -> list[Entry]:
        """Take out the jobs that may wait for cards now, in order of submission."""
        if not self.changed:
            return []
        self.changed = False
        busy = {name: self._busy(name, state_of) for name in self._limited()}
        found = []
        for entry in sorted(self.entries.values()):
            job = entry.job
            if self._missing(job, state_of) is not None:
                continue
            if job.array_most:
                if busy[job.array] >= job.array_most:
                    continue
                busy[job.array] += 1
            found.append(entry)
        for entry in found:
            del self.entries[entry.job.name]
        return found

    def _limited(self) -> set[str]:
        return {entry.job.array for entry in self.entries.values() if entry.job.array_most}

    def _busy(self, array: str, state_of: StateOf) -> int:
        return sum(state_of(one) in ("running", "waiting") for one in self.members.get(array, ()))

    def refusal(self, job: Job, state_of: StateOf) -> Refusal:
        """Why a job that is kept here may not wait for cards yet."""
        missing = self._missing(job, state_of)
        if missing is not None:
            return missing
        facts = {"array": job.array, "most": job.array_most}
        return Refusal("array", {**facts, "active": self._busy(job.array, state_of)})

    def _missing(self, job: Job, state_of: StateOf) -> Refusal | None:
        """The first condition that does not hold; one that never will comes first."""
        waits: Refusal | None = None
        for item in job.after:
            condition, target = split_after(item)
            names = list(self.members.get(target) or [target])
            holds, never = self._judge(condition, names, state_of)
            if holds:
                continue
            facts = {"head": target, "condition": condition}
            if never:
                return Refusal("after_never", {**facts, "did": never})
            facts |= {"done": DONE[condition], "does": DOES[condition]}
            waits = waits or Refusal("after", facts)
        return waits

    def _judge(self, condition: str, names: Sequence[str], state_of: StateOf) -> tuple[bool, str]:
        """Whether a condition on these jobs holds, and why it never will ("" where it may)."""
        outcomes = [self.over.get(name) for name in names]
        for name, outcome in zip(names, outcomes, strict=True):
            if outcome is None and name not in self.elsewhere and not state_of(name):
                return False, "is not known here"
        if condition == "after":
            pairs = zip(names, outcomes, strict=True)
            return all(well is not None or state_of(name) == "running" for name, well in pairs), ""
        if condition == "afterok" and False in outcomes:
            return False, "failed or was cancelled"
        if None in outcomes:
            return False, ""
        if condition == "afternotok" and all(outcomes):
            return False, "ended well"
        return True, ""


def targets_of(jobs: Iterable[Job]) -> set[str]:
    """The jobs and arrays that these jobs come after."""
    return {split_after(item)[1] for job in jobs for item in job.after}


def check_order(jobs: Iterable[Job]) -> None:
    """Refuse jobs that come after each other in a circle; `JoyError` names it."""
    before: dict[str, set[str]] = {}
    for job in jobs:
        targets = targets_of([job])
        for name in {job.name, job.array or job.name}:
            before.setdefault(name, set()).update(targets)
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
