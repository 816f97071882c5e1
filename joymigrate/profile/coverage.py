"""How much of a program a chip covers: every operator judged top-down, and the shares.

Top-down means that an operator which the chip runs as a whole covers what is inside it: what
another backend makes out of `convolution` or `scaled_dot_product_attention` is not asked for. An
operator that is made of others is opened. Time is the device's where the recording has device
work, else the host's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from joymigrate.errors import JoyError
from joymigrate.evidence import count_grades, reaches, weakest
from joymigrate.language import Text
from joymigrate.profile import alternatives
from joymigrate.profile.attribute import NAME, attribute
from joymigrate.profile.callers import Callers
from joymigrate.profile.judge import SupportJudge, hide_composite
from joymigrate.profile.oplist.lists import OpList
from joymigrate.profile.support import OperatorVerdict, Support, SupportStatus
from joymigrate.profile.table import NONE, PHASES, CallSignature, Loose, OpTable, Trace

INSIDE = "inside {name}, which the chip runs as a whole"
KERNELS = "a kernel that ran on the chip"
BY_NAME = "known by a kernel's name alone; the chip has {name}"
BY_NAME_NOT = "known by a kernel's name alone, as {name}: {note}"
RECORDED, NOTHING = "recorded", "nothing"
OWN_PROCESSOR = "ran on the chip's own processor (AI CPU), which is slow"
SUM_ERROR = 1e-6  # of the device's time: sums in another order round otherwise
SITES = 20  # call sites kept per operator
NOTES = 4  # reasons given per operator


@dataclass(frozen=True, slots=True)
class OperatorSite:
    """Where an operator is called from: `train.py:31`, how often, how long (µs)."""

    where: str
    calls: int
    self_us: float


@dataclass(frozen=True, slots=True)
class CoveredOperator:
    """One operator with one status.

    `self_us` is its time without that of the operators listed beside it; what it covers is in.
    `phases` counts calls by phase.
    """

    op: str
    overload: str
    status: SupportStatus
    calls: int
    self_us: float
    device_us: float
    dtypes: tuple[str, ...]
    note: str
    source: str
    alternative: str
    package: str = ""  # has to be installed beside the chip's torch package
    evidence: str = RECORDED  # or "kernel name": nobody was seen to call it
    grade: str = "documented"  # the weakest of its calls: joymigrate.evidence
    sites: tuple[OperatorSite, ...] = ()
    phases: dict[str, int] = field(default_factory=dict)

    @property
    def where(self) -> str | None:
        """The first call site; None where none was recorded."""
        return self.sites[0].where if self.sites else None

    @property
    def name(self) -> str:
        """`aten::scatter.reduce`."""
        return f"{self.op}.{self.overload}" if self.overload else self.op

    @property
    def known_grade(self) -> str | None:
        """How well its status is known; None where nobody knows it."""
        return None if self.status is SupportStatus.UNKNOWN else self.grade


@dataclass(frozen=True, slots=True)
class ChipShare:
    """What part stays on the chip, from 0 to 1; `time` is None where no time was recorded."""

    ops: float
    calls: float
    time: float | None


@dataclass(frozen=True, slots=True)
class PhaseSeen:
    """How much of one phase was seen: operators of the exact recording, and first calls alone."""

    exact: int = 0
    by_name: int = 0
    gaps: int = 0

    @property
    def seen(self) -> str:
        """exactly, by name, or not seen."""
        return "exactly" if self.exact else "by name" if self.by_name else "not seen"


@dataclass(frozen=True, slots=True)
class TimeEvidence:
    """Device time whose operators are known in one way, and how much of it stays on the chip."""

    us: float = 0.0
    kept_us: float = 0.0

    def plus(self, us: float, kept_us: float) -> TimeEvidence:
        """This with more."""
        return TimeEvidence(self.us + us, self.kept_us + kept_us)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The whole statement. `basis` of time: device, host, or none."""

    chip: str
    version: str
    torch: str
    source: str
    ops: tuple[CoveredOperator, ...]
    share: ChipShare
    basis: str
    traces: tuple[str, ...]
    notes: tuple[str, ...]
    loose: tuple[Loose, ...] = ()
    device_us: float = 0.0  # owned, by name and loose together, which `cover` checks per trace
    evidence: dict[str, TimeEvidence] = field(default_factory=dict)  # by class: never added up
    found_by: dict[str, float] = field(default_factory=dict)
    phases: dict[str, PhaseSeen] = field(default_factory=dict)

    @property
    def by_name_us(self) -> float:
        """Device time whose operator is known by the kernel's name alone."""
        return self.found_by.get(NAME, 0.0)

    @property
    def loose_us(self) -> float:
        """Device time that belongs to nobody."""
        return sum(one.device_us for one in self.loose)

    @property
    def owned_us(self) -> float:
        """Device time of operators that were seen to launch it, or the same kernel."""
        return max(0.0, self.device_us - self.by_name_us - self.loose_us)

    @property
    def unattributed_us(self) -> float:
        """Device time that nobody can say anything about; part of what `share.time` divides by."""
        return self.loose_us if self.basis == "device" else 0.0

    def packages(self) -> dict[str, tuple[int, float]]:
        """What has to be installed beside the chip's torch package: operators, µs that need it."""
        found: dict[str, tuple[int, float]] = {}
        for op in self.ops:
            if op.package and op.status.supported:
                count, us = found.get(op.package, (0, 0.0))
                found[op.package] = (count + 1, us + weight(op, self.basis))
        return found

    def grades(self) -> dict[str, int]:
        """How many statements are documented, rehearsed, measured; unknown operators have none."""
        return count_grades(op.grade for op in self.ops if op.status is not SupportStatus.UNKNOWN)

    def known_as(self, grade: str) -> ChipShare:
        """The shares that stay on the chip by statements of at least this grade."""
        ops = [
            op if reaches(op.grade, grade) else replace(op, status=SupportStatus.UNKNOWN)
            for op in self.ops
        ]
        return share_of(ops, self.basis, self.loose_us)

    def gaps(self) -> tuple[CoveredOperator, ...]:
        """Operators that do not stay on the chip, by time, then by calls."""
        return tuple(op for op in self.ops if not op.status.supported)

    def count(self, status: SupportStatus) -> int:
        """Distinct operators of one status."""
        return sum(1 for op in self.ops if op.status is status)


class OperatorTotals:
    """Sums of one operator with one status."""

    def __init__(self, verdict: OperatorVerdict) -> None:
        self.verdict = verdict
        self.calls = 0
        self.self_us = 0.0
        self.device_us = 0.0
        self.dtypes: dict[str, None] = {}
        self.sites: dict[str, list[float]] = {}
        self.phases: dict[str, int] = {}
        self.grades: set[str] = set()
        self.notes: dict[str, None] = {}  # of a gap, which may have several reasons

    def add(self, table: OpTable, row: int) -> None:
        """Count one row as a call of its own."""
        calls = table.calls[row]
        self.calls += calls
        self.dtypes.update(dict.fromkeys(table.signatures[table.signature[row]].tensor_dtypes))
        place = table.places[table.place[row]]
        if place:
            site = self.sites.setdefault(place, [0, 0.0])
            site[0] += calls
            site[1] += table.self_us[row]
        phase = table.phase[row]
        self.phases[PHASE_NAMES[phase]] = self.phases.get(PHASE_NAMES[phase], 0) + calls
        self.take_time(table, row)

    def take_time(self, table: OpTable, row: int) -> None:
        """Count the time of a row that this operator covers."""
        self.self_us += table.self_us[row]
        self.device_us += table.device_us[row]

    def result(self) -> CoveredOperator:
        """The sums as a statement."""
        verdict, support = self.verdict, self.verdict.support
        return CoveredOperator(
            op=verdict.op,
            overload=verdict.overload,
            status=support.status,
            calls=self.calls,
            self_us=self.self_us,
            device_us=self.device_us,
            dtypes=tuple(self.dtypes),
            note=Text.join("; ", list(self.notes)[:NOTES]) if self.notes else support.note,
            source=support.source,
            alternative=support.alternative,
            package=support.package,
            evidence=support.evidence,
            grade=weakest(self.grades or {support.grade}),
            sites=tuple(
                OperatorSite(where, int(calls), us) for where, (calls, us) in self.sites.items()
            )[:SITES],
            phases=self.phases,
        )


PHASE_NAMES = ("unknown", *PHASES[1:])
LOOSE = 50  # unattributed kernels that are named


class CoverageCounter:
    """Judges the rows of one or more traces and adds them up."""

    def __init__(self, oplist: OpList, *, marks: bool = False) -> None:
        self.oplist = oplist
        self.marks = marks
        self.marked: list[tuple[int, Support]] = []  # rows that count, with what is said of them
        self.phases: dict[str, dict[str, set[str]]] = {}
        self.all_totals: dict[tuple[str, str, SupportStatus, str], OperatorTotals] = {}

    def take(self, trace: Trace, evidence: str = RECORDED) -> None:
        """Add one trace, parents before their children. `evidence`: how its rows were found."""
        table = trace.ops
        judge = SupportJudge(self.oplist, overloads=trace.overloads)
        cache: dict[tuple[int, int, bool], tuple[OperatorVerdict, OperatorTotals]] = {}
        callers = Callers(trace)
        backends = [judge.stands_for_another(name) for name in table.names]
        covering: list[OperatorTotals | None] = [None] * len(table)
        leaves = find_leaves(table) if trace.tree else None
        for row in range(len(table)):
            parent = table.parent[row]
            above = covering[parent] if parent != NONE else None
            if above is not None and row not in trace.slow:
                above.take_time(table, row)
                covering[row] = above
                continue
            if not table.operator[row]:
                continue
            called = backends[table.name[row]] and callers.is_program(row)
            key = (table.name[row], table.signature[row], called)
            known = cache.get(key)
            if known is None:
                verdict = self.verdict(judge, trace, row, called)
                known = cache[key] = (verdict, self.totals(verdict))
            verdict, tally = known
            if verdict.opens and parent != NONE and table.name[parent] == table.name[row]:
                # Where overloads have no names: torch calling the out variant of the same name.
                verdict = judge.inner(verdict)
                tally = self.totals(verdict)
            alone = leaves is None or leaves[row] or table.device_us[row]
            if verdict.silent and not alone:
                continue
            if trace.tree and verdict.opens and table.device_us[row] and is_made(verdict):
                verdict = hide_composite(verdict)
                tally = self.totals(verdict)
            if trace.inside.get(row) and not verdict.support.supported:
                tally = self.totals(self.within(judge, verdict, trace.inside[row]))
            if row in trace.slow:
                tally = self.totals(replace(tally.verdict, support=on_own_processor(trace)))
            elif evidence == NAME:
                tally = self.totals(know_by_name(tally.verdict))
            tally.add(table, row)
            self.note_phase(table, row, trace.seen.get(row, "exact"), tally.verdict)
            if self.marks:
                self.marked.append((row, tally.verdict.support))
            covering[row] = None if verdict.opens else tally

    def note_phase(self, table: OpTable, row: int, how: str, verdict: OperatorVerdict) -> None:
        """Remember in which phase an operator was seen, and how."""
        phase = self.phases.setdefault(PHASE_NAMES[table.phase[row]], {})
        phase.setdefault(how, set()).add(verdict.name)
        if not verdict.support.supported:
            phase.setdefault("gap", set()).add(verdict.name)

    def seen(self, recorded: bool) -> dict[str, PhaseSeen]:
        """Phases with how they were seen. A recording of ours names the ones it did not see too."""
        names = PHASE_NAMES[1:] if recorded else tuple(self.phases)
        return {
            name: PhaseSeen(
                len(exact := found.get("exact", set())),
                len(found.get("name", set()) - exact),
                len(found.get("gap", ())),
            )
            for name in names
            for found in (self.phases.get(name, {}),)
        }

    def verdict(self, judge: SupportJudge, trace: Trace, row: int, called: bool) -> OperatorVerdict:
        """The verdict on one row; kernels of a chip's own profile ran, so they are there."""
        table = trace.ops
        name = table.names[table.name[row]]
        if trace.ran:
            source = trace.path.name
            ran = Support(SupportStatus.NATIVE, note=KERNELS, source=source, grade="measured")
            return OperatorVerdict(name, "", ran)
        found = judge.judge(name, table.signatures[table.signature[row]], by_program=called)
        return found if trace.tree else judge.inner(found)

    def within(
        self, judge: SupportJudge, verdict: OperatorVerdict, inside: Sequence[str]
    ) -> OperatorVerdict:
        """The verdict on an operator that the chip never sees: an outer one covers it.

        A dtype that the chip's kernel does not take stays one, whoever asks for it.
        """
        if verdict.support.kernels:
            return verdict
        for name in inside:
            outer = judge.judge(name, EMPTY).support
            if outer.status in (SupportStatus.NATIVE, SupportStatus.FUSED):
                said = Text(INSIDE, name=name)
                covered = Support(SupportStatus.FUSED, note=said, source=outer.source)
                return replace(verdict, support=covered)
        return verdict

    def totals(self, verdict: OperatorVerdict) -> OperatorTotals:
        """The sums that a verdict is added to."""
        support = verdict.support
        key = (verdict.op, verdict.overload, support.status, support.evidence)
        found = self.all_totals.setdefault(key, OperatorTotals(verdict))
        found.grades.add(support.grade)
        if support.note and not support.supported:
            found.notes[support.note] = None
        return found

    def device_us(self, *, kept: bool = False) -> float:
        """Device time of operators so far; `kept`: of those that stay on the chip."""
        totals = [one for one in self.all_totals.values() if one.calls]
        return sum(t.device_us for t in totals if not kept or t.verdict.support.supported)

    def results(self) -> list[CoveredOperator]:
        """What was called at least once."""
        return [tally.result() for tally in self.all_totals.values() if tally.calls]


EMPTY = OpTable().signatures[0]


def is_made(verdict: OperatorVerdict) -> bool:
    """Whether torch makes an operator of others, so that it launches nothing by itself."""
    return verdict.op.startswith("aten::") and verdict.support.status is SupportStatus.COMPOSITE


def find_leaves(table: OpTable) -> list[bool]:
    """Which rows have no operator inside."""
    found = [True] * len(table)
    for row in range(len(table)):
        parent = table.parent[row]
        if table.operator[row]:
            while parent != NONE and found[parent]:
                found[parent] = False
                parent = table.parent[parent]
    return found


def on_own_processor(trace: Trace) -> Support:
    """What a profile of the chip says of work that its own processor did."""
    source = trace.path.name
    return Support(SupportStatus.CPU_FALLBACK, note=OWN_PROCESSOR, source=source, grade="measured")


def know_by_name(verdict: OperatorVerdict) -> OperatorVerdict:
    """A verdict on an operator that only a kernel's name speaks for: nobody was seen to call it."""
    support = verdict.support
    words = BY_NAME if support.supported else BY_NAME_NOT
    said = Text(words, name=verdict.name, note=support.note or support.status.value)
    return replace(
        verdict,
        support=replace(
            support, status=SupportStatus.UNKNOWN, note=said, evidence=NAME, alternative=""
        ),
    )


def cover(traces: Iterable[Trace], oplist: OpList, captures: Sequence[Trace] = ()) -> Coverage:
    """What a chip covers of one or more traces (ranks of one job, or several runs).

    `captures` are traces of the capture of graphs that `traces` replay; they only explain these.
    """
    counter = CoverageCounter(oplist)
    read = list(traces)
    loose: list[Loose] = []
    found_by: dict[str, float] = {}
    evidence: dict[str, TimeEvidence] = {}

    def take(trace: Trace, how: str) -> None:
        before = counter.device_us(kept=True)
        counter.take(trace, how)
        kept = counter.device_us(kept=True) - before
        evidence[how] = evidence.get(how, TimeEvidence()).plus(sum(trace.ops.device_us), kept)

    for trace in read:
        before = counter.device_us()
        take(trace, RECORDED)
        owners = attribute(trace, [*read, *captures])
        loose += owners.loose
        for how, us in owners.by.items():
            found_by[how] = found_by.get(how, 0.0) + us
        for how, joined in owners.rows:
            take(joined, how)
        lost = sum(one.device_us for one in owners.loose)
        check_sum(trace, counter.device_us() - before + lost)
    found = counter.results()
    device_us = sum(trace.device_us for trace in read)
    loose_us = sum(one.device_us for one in loose)
    if not found and not loose_us:
        names = ", ".join(t.path.name for t in read)
        raise JoyError(
            "no operators in this recording: there is nothing to judge",
            where=names,
            help="record with CPU activities, or with joymigrate profile record",
        )
    basis = "device" if device_us else basis_of(found)
    known = alternatives.load(oplist)
    ops = [
        op
        if op.status.supported or op.evidence == NAME
        else replace(op, alternative=known.of(op.op, op.alternative))
        for op in found
    ]
    ops.sort(key=lambda op: (op.status.supported, -weight(op, basis), -op.calls, op.name))
    notes = [Text("{file}: {note}", file=t.path.name, note=note) for t in read for note in t.notes]
    later = oplist.entries.later(oplist.version)
    if later is not None:
        told = "the list is that of {source}; later releases up to {later} register other operators"
        notes.append(Text(told, source=str(oplist.release), later=later))
    return Coverage(
        chip=oplist.chip.name,
        version=oplist.version,
        torch=oplist.torch,
        source=str(oplist.release),
        ops=tuple(ops),
        share=share_of(ops, basis, loose_us),
        basis=basis,
        device_us=device_us,
        evidence={**evidence, NOTHING: TimeEvidence(loose_us)} if device_us else {},
        traces=tuple(str(t.path) for t in read),
        notes=tuple(notes),
        loose=tuple(sorted(loose, key=lambda one: -one.device_us)),
        found_by=found_by,
        phases=counter.seen(any(trace.kind == "recorded" for trace in read)),
    )


def check_sum(trace: Trace, counted_us: float) -> None:
    """Every microsecond of the device is counted once: what a share divides by is all of it."""
    total_us = trace.device_us
    if abs(total_us - counted_us) > SUM_ERROR * total_us + 1e-3:
        said = f"{counted_us} of {total_us} µs of device time are accounted for"
        raise RuntimeError(f"{trace.path}: {said}")


def mark(trace: Trace, oplist: OpList) -> list[tuple[int, Support]]:
    """Rows of one trace that count as operators of their own, with what is said of each."""
    counter = CoverageCounter(oplist, marks=True)
    counter.take(trace)
    return counter.marked


@dataclass(frozen=True, slots=True)
class CoverageCall:
    """One distinct call of a recording: an operator with one signature, and what is said of it."""

    name: str
    signature: CallSignature
    support: Support
    calls: int


def distinct_calls(traces: Iterable[Trace], oplist: OpList) -> list[CoverageCall]:
    """Every distinct call of recordings, the most called first."""
    found: dict[tuple[str, CallSignature], CoverageCall] = {}
    for trace in traces:
        table = trace.ops
        for row, support in mark(trace, oplist):
            key = (table.names[table.name[row]], table.signatures[table.signature[row]])
            before = found[key].calls if key in found else 0
            found[key] = CoverageCall(*key, support, before + table.calls[row])
    return sorted(found.values(), key=lambda one: (-one.calls, one.name))


def basis_of(ops: Sequence[CoveredOperator]) -> str:
    """Which time the shares are made of."""
    if any(op.device_us for op in ops):
        return "device"
    return "host" if any(op.self_us for op in ops) else "none"


def weight(op: CoveredOperator, basis: str) -> float:
    """Time of one operator, µs."""
    return op.device_us if basis == "device" else op.self_us


def share_of(ops: Sequence[CoveredOperator], basis: str, unattributed_us: float = 0.0) -> ChipShare:
    """The shares that stay on the chip; unattributed device time does not."""
    kept = [op for op in ops if op.status.supported]
    calls = sum(op.calls for op in ops)
    total = sum(weight(op, basis) for op in ops)
    total += unattributed_us if basis == "device" else 0.0
    nothing = 0.0 if total else 1.0
    time = None
    if basis != "none":
        time = sum(weight(op, basis) for op in kept) / total if total else 1.0
    return ChipShare(
        ops=len(kept) / len(ops) if ops else nothing,
        calls=sum(op.calls for op in kept) / calls if calls else nothing,
        time=time,
    )
