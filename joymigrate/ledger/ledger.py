"""The ledger of one project: what joymigrate did there, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.ledger import disk, log, place, rollback, transaction
from joymigrate.ledger.current import CurrentVerdicts, standing
from joymigrate.ledger.entry import read_manifest
from joymigrate.ledger.lock import hold_lock
from joymigrate.ledger.recovery import Recovered, is_pending, recover
from joymigrate.ledger.step import Step, Subject
from joymigrate.ledger.tree import Change, hash_of


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What a rollback did: the steps taken back, newest first, and their records."""

    target: Step | None
    undone: tuple[Step, ...] = ()
    records: tuple[Step, ...] = ()
    recovered: Recovered | None = None
    overwritten: tuple[str, ...] = ()  # foreign edits, kept in the records' `before/`


@dataclass(frozen=True, slots=True)
class StepState:
    """How the tree stands to one step that changed it."""

    step: Step
    writes: bool
    rolled_back_by: str | None
    edited: tuple[str, ...] = ()  # neither as this step nor as a later one left it
    superseded_by: str | None = None

    @property
    def tree(self) -> str:
        """One word for a column."""
        if not self.writes:
            return "no change"
        if self.rolled_back_by:
            return "rolled back"
        if self.step.undoes:
            return "took back"
        if self.edited:
            return "edited"
        return "superseded" if self.superseded_by else "matches"


class Ledger:
    """`.joymigrate/` of one project. Reading needs neither lock nor write access."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.home = place.home_of(self.root)

    @classmethod
    def of(cls, path: Path) -> Ledger:
        """The ledger of the project that `path` belongs to."""
        return cls(place.project_root(path))

    def exists(self) -> bool:
        """Whether anything was ever recorded here."""
        return (self.home / log.NAME).is_file() or is_pending(self.root)

    def steps(self) -> list[Step]:
        """All steps, oldest first."""
        return log.read_log(self.home)

    def folder(self, step_id: str) -> Path:
        """Where the artefacts of a step lie."""
        return self.home / "steps" / step_id

    def find(self, name: str) -> Step:
        """The step with this id, or the latest of this stage."""
        return rollback.find(self.steps(), name)

    def latest(self) -> Step | None:
        """The latest change of the tree that is not rolled back."""
        return rollback.latest(self.root, self.steps())

    def verdict(self, subject: Subject, chip: str) -> CurrentVerdicts:
        """What is known about `subject` on `chip`; verdicts on undone changes don't count."""
        steps = self.steps()
        gone = rollback.find_undone(steps).keys() | rollback.void(self.root, steps)
        return standing([step for step in steps if step.id not in gone], subject, chip)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock; an interrupted change is ended first."""
        place.make_home(self.root)
        with hold_lock(self.home):
            recover(self.root)
            yield

    def recover(self) -> Recovered | None:
        """End an interrupted change; None when there is none."""
        if not is_pending(self.root):
            return None
        place.make_home(self.root)
        with hold_lock(self.home):
            return recover(self.root)

    def record(self, step: Step, artefacts: Mapping[str, bytes] | None = None) -> Step:
        """Record a step that changed no file of the tree; returns it with id and time."""
        with self.writing():
            step = transaction.number_step(self.home, step)
            folder = self.folder(step.id)
            try:
                transaction.fresh(folder)
                for name, data in (artefacts or {}).items():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    disk.write_durably(folder / name, data)
            except OSError as error:
                raise place.unwritable(folder, error) from None
            log.append(self.home, step)
        return step

    def apply(
        self,
        changes: Sequence[Change],
        step: Step,
        artefacts: Mapping[str, bytes] | None = None,
    ) -> Step | None:
        """Change the tree as one step, all or nothing; no changes, no step."""
        if not changes:
            return None
        with self.writing():
            return transaction.commit(self.root, changes, step, artefacts)

    def rollback(
        self, name: str | None = None, *, force: bool = False, command: str = ""
    ) -> RolledBack:
        """Take back the step called `name` (id or stage) and every change after it.

        Without a name: the latest change that holds. Refuses when files were edited since, unless
        `force`: then the edits are overwritten, and rolling the rollback back returns them.
        """
        place.make_home(self.root)
        with hold_lock(self.home):
            recovered = recover(self.root, self.keep_edits() if force else None)
            steps = self.steps()
            target = rollback.find(steps, name) if name else rollback.latest(self.root, steps)
            if target is None or (recovered and not recovered.completed and name is None):
                return RolledBack(None, recovered=recovered)
            todo = rollback.plan(self.root, steps, target)
            edits = rollback.foreign(self.root, todo)
            if edits and not force:
                raise refusal(self.root, edits)
            records = [self.take_back(step, command) for step in todo]
        overwritten = tuple(dict.fromkeys(edit.path for edit in edits))
        return RolledBack(target, tuple(todo), tuple(records), recovered, overwritten)

    def take_back(self, step: Step, command: str) -> Step:
        """Undo one step; the caller holds the lock."""
        record = Step(
            kind=rollback.KIND,
            command=command,
            chip=step.chip,
            subject=step.subject,
            stage=None,
            undoes=step.id,
        )
        return transaction.commit(self.root, rollback.changes_of(self.root, step), record)

    def keep_edits(self) -> Callable[[str, bytes], None]:
        """A function that saves a file which was edited after an interruption."""

        def keep(path: str, data: bytes) -> None:
            target = self.home / "edits" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            disk.write_durably(target, data)

        return keep

    def states(self) -> list[StepState]:
        """How the tree stands to every step, oldest first."""
        steps = self.steps()
        gone = rollback.find_undone(steps)
        last: dict[str, str] = {}  # path → the step whose content it should have
        for step in rollback.writers(self.root, steps):
            if step.id in gone or step.kind == rollback.KIND:
                continue
            for item in read_manifest(self.home, step.id) or ():
                last[item.path] = step.id
        return [self.state_of(step, gone.get(step.id), last) for step in steps]

    def state_of(self, step: Step, gone: str | None, last: Mapping[str, str]) -> StepState:
        """How the tree stands to one step."""
        manifest = read_manifest(self.home, step.id)
        if manifest is None or gone or step.kind == rollback.KIND:
            return StepState(step, manifest is not None, gone)
        mine = [item for item in manifest if last[item.path] == step.id]
        later = [last[item.path] for item in manifest if last[item.path] != step.id]
        edited = tuple(i.path for i in mine if hash_of(self.root / i.path) != i.after)
        return StepState(step, True, None, edited, max(later) if later and not mine else None)


def refusal(root: Path, edits: Sequence[rollback.ForeignEdit]) -> JoyError:
    """The error that names every foreign edit."""
    lines = "\n".join(f"  {e.path}: {e.happened} after step {e.step}" for e in edits)
    return JoyError(
        f"{len(edits)} file{'s' * (len(edits) > 1)} changed since joymigrate wrote "
        f"{'them' if len(edits) > 1 else 'it'}; nothing was rolled back\n{lines}",
        where=str(root),
        help="undo or commit these edits, or use --force: it keeps a copy of them "
        "in the rollback's own step",
    )
