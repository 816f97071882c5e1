"""The scheduler as a state machine: `on(event) -> [action]`, without clock, socket or thread.

One cycle looks at the waiting jobs in order: claims inside MIN, jobs that wait too long, priority,
the queue that has least of its share, the wait measured by the run time, submission. A job that
does not fit is skipped; the first ones that fit nowhere get the cards they will need held for them
(from the moment the running jobs' stated ends make room), and later jobs may use those only if they
end before. `Settings.holds` says for how many jobs of the same nodes. Waiting jobs that are alike
are one group: when one of them cannot start, none of them is tried again until something has been
given back.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from joymigrate.errors import JoyError
from joymigrate.run.cluster import (
    cards,
    eviction,
    policies,
    quota,
    reservation,
)
from joymigrate.run.cluster.admission import Admission
from joymigrate.run.cluster.adoption import adopt
from joymigrate.run.cluster.allocations import Allocations
from joymigrate.run.cluster.dependencies import DependencyGate
from joymigrate.run.cluster.elastic import Resizing
from joymigrate.run.cluster.entries import NEVER, CardHold, ClusterSettings, RunningJob, WaitingJob
from joymigrate.run.cluster.events import (
    Action,
    Cancelled,
    CardsFailed,
    ClusterTick,
    Ended,
    Event,
    Evict,
    JobStop,
    NodeBack,
    NodeLost,
    Past,
    Start,
    Submitted,
)
from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.line import WaitingLine
from joymigrate.run.cluster.place import Placer
from joymigrate.run.cluster.policies import Policy
from joymigrate.run.cluster.preemption import Preemption
from joymigrate.run.cluster.queues import Queue
from joymigrate.run.cluster.reasons import PlacementRefusal
from joymigrate.run.cluster.shape import TaskShape
from joymigrate.run.cluster.state import ClusterState, Ints, Placement

# Mended by jobs that end.
PHYSICAL = ("none", "superpod")
KEPT = ("held",)  # there are cards, for somebody else
CYCLES = 8  # rounds of offering what evictions left over
DEPTH = 64  # jobs of one group that are tried behind the one whose turn it is


class Scheduler(Resizing):
    """Queues, placement, eviction and reservation over one cluster."""

    def __init__(
        self,
        inventory: Inventory,
        queues: Sequence[Queue] = (),
        policy: Policy | None = None,
        weights: Mapping[str, float] | None = None,
        settings: ClusterSettings | None = None,
    ) -> None:
        self.inventory = inventory
        self.state = ClusterState(inventory)
        chosen = policy or policies.get(policies.DEFAULT)
        self.placer = Placer(self.state, chosen)
        # Questions of the kind "and if these ended?" look at states that never were; they must not
        # reach what a policy remembers.
        self.guess = Placer(self.state, policies.get(policies.DEFAULT))
        self.allocations = Allocations()
        kinds = {node.kind.name: node.kind for node in inventory.nodes}
        counts = inventory.count()
        self.settings = settings or ClusterSettings()
        sizes = [(kind, counts[name]) for name, kind in kinds.items()]
        self.quotas = quota.Quotas(queues, sizes, weights, self.settings.overcommit)
        super().__init__(self.quotas, self.settings)
        self.admission = Admission(self.state, self.quotas, self.placer, self.settings)
        self.claims = Preemption(
            self.state, self.quotas, self.allocations, self.guess, self.running, self.by_queue
        )
        self.refused: dict[str, PlacementRefusal] = {}  # jobs that can never start
        self.elastic = {}
        self.gate = DependencyGate()
        self.opened: list[
            str
        ] = []  # jobs that nobody comes before any more, for who writes it down
        self.decisions = 0
        self._released: list[CardHold] = []  # holds that have ended and whose cards are not offered
        self._eased = False  # jobs may be asked again whose turn has gone by
        self._unheld: set[int] = set()  # groups that are asked again only for a hold of their own
        self._numbers = itertools.count()

    # -- events ---------------------------------------------------------------------------------

    def on(self, event: Event) -> list[Action]:
        """Take in one event and say what to do."""
        return self.on_all([event])

    def on_all(self, events: Iterable[Event]) -> list[Action]:
        """Take in events that happened together, then decide once."""
        actions: list[Action] = []
        for event in events:
            before, self._now = self._now, max(self._now, event.at)
            match event:
                case Submitted():
                    self._submitted(event.job, event.past)
                case Ended():
                    if event.job in self.running:
                        self._learn(self.running[event.job], event)
                        self.gate.ended(event.job, event.well)
                    self._end(event.job)
                case Cancelled():
                    actions += self._cancelled(event.job)
                case NodeLost():
                    actions += self._lost(event.node, None)
                case CardsFailed():
                    actions += self._lost(event.node, event.cards)
                case NodeBack():
                    self._back(event)
                case ClusterTick():
                    if self._due(before):
                        self._reopen()
        self._open()
        self._end_holds()
        self._drop_holds()
        for _ in range(CYCLES):
            decided = self._cycle()
            actions += decided
            self._drop_holds()
            # What an eviction freed beyond the claim's need is offered at once, and so are cards
            # that are no longer held.
            again = self._released or self._eased
            again = again or any(isinstance(action, Evict) for action in decided)
            if not self._open() and not again:
                break
        self._grow(actions)
        return actions

    def _due(self, before: float) -> bool:
        """Whether time alone has changed since then who may start, who may be stopped, who is late.

        So that the ticks of an idle cluster ask nothing anew.
        """
        settings = self.settings
        waits = (settings.patience, settings.hold_blind_after)
        times = [entry.since + wait for entry in self.waiting.values() for wait in waits]
        times += [hold.until for hold in self.admission.holds]
        for queue, runs in self.by_queue.items() if self.waiting else ():
            young = self.quotas.account(queue).queue.min_runtime * 60
            times += [run.started + young for run in runs.values()]
            times += [run.started + run.entry.job.resize_after * 60 for run in runs.values()]
            times += [run.expected for run in runs.values()]
        return any(before < at <= self._now for at in times)

    def _submitted(self, job: GangJob, past: Past | None) -> None:
        if self.entry(job.name) is not None:
            raise JoyError(f"a job called '{job.name}' is already there", help="use another name")
        self.refused.pop(job.name, None)
        self.gate.join(job)
        entry = WaitingJob(next(self._numbers), job, self._now, self._group(job), self._now)
        if past is not None:
            entry.number, entry.promised = past.number, past.promised
            entry.since, entry.submitted, entry.whole = past.since, past.submitted, past.whole
            self._numbers = itertools.count(max(next(self._numbers), past.number + 1))
        if job.running:
            self._adopt(entry, known=past is not None)
            return
        if not self.gate.hold_back(entry):
            self._line_up(entry)

    def entry(self, name: str) -> WaitingJob | None:
        """A job that runs, waits for cards, or waits for another job."""
        run = self.running.get(name)
        return run.entry if run else self.waiting.get(name) or self.gate.entries.get(name)

    def state_of(self, name: str) -> str:
        """What a job does: running, waiting, kept (others come before it), refused; else ""."""
        where = (("running", self.running), ("waiting", self.waiting),
                 ("kept", self.gate.entries), ("refused", self.refused))  # fmt: skip
        return next((state for state, jobs in where if name in jobs), "")

    def _open(self) -> bool:
        """Let jobs wait for cards that nobody comes before any more; whether there were any."""
        found = self.gate.opened(self.state_of)
        for entry in found:
            entry.job = replace(entry.job, after=())
            entry.since = entry.submitted = self._now
            self.opened.append(entry.job.name)
            self._line_up(entry)
        return bool(found)

    def _line_up(self, entry: WaitingJob) -> None:
        """A job begins to wait for cards."""
        self._wait(entry)
        task = self._first(self._groups[entry.group]).job.tasks[0]
        if task.cpu_milli or task.memory_mib or self.admission.fills_a_gap(entry, self._now):
            self._failed.discard(entry.group)  # those before it may ask for more, or run too long
            self._unheld.discard(entry.group)

    def _release(self, holds: Sequence[CardHold]) -> None:
        """Let go of held cards."""
        if not holds:
            return
        self.admission.holds = tuple(one for one in self.admission.holds if one not in holds)
        self._released += holds

    def _offer(self) -> None:
        """Let those failed groups try again that the cards of ended holds may help, and those for
        which cards may be held now; of these only as many are asked as there are holds to give."""
        holds, self._released = self._released, []
        if not holds:
            return
        lost = {hold.entry.group for hold in holds} & self._failed & self._groups.keys()
        # Those in use as well: jobs that may be stopped, or shrunk, may hold them.
        offered = np.bitwise_or.reduce([hold.mask for hold in holds])
        self._wake({int(node) for node in offered.nonzero()[0]}, set())
        for number in self._failed & self._groups.keys():
            self._let_hold(number, self._first(self._groups[number]))
        # A job that lost its hold because its queue's limits keep it back is not helped by cards,
        # only by an end in its queue: then it is not among those that have failed any more.
        lost = {number for number in lost if self._why[number].code in ("max", "min")}
        self._failed |= lost
        self._unheld -= lost

    def _let_hold(self, number: int, entry: WaitingJob) -> None:
        """Ask a failed group again if cards may be held for it."""
        if self.settings.hold and not self.admission.covered(entry):
            self._failed.discard(number)
            if not self._strict(entry.job.queue):
                self._unheld.add(number)

    def _reopen(self) -> None:
        """Something was given back: what has failed may fit now."""
        self._failed.clear()
        self._unheld.clear()

    def _adopt(self, entry: WaitingJob, known: bool) -> None:
        """Take over a job that already runs where its `running` says.

        One that was `known` may run on cards that nobody else would be granted any more.
        """
        grants = adopt(entry.job, self.state, self.state.idle if known else self.state.free)
        self._start(entry, grants, self._now - entry.job.ran_minutes * 60)

    def _end(self, name: str) -> None:
        """Give a running job's cards back."""
        run = self.running.pop(name, None)
        if run is None:
            return
        self.elastic.pop(name, None)
        job = run.entry.job
        del self.by_queue[job.queue][name]
        self.claims.count(job, -1)
        self.state.give(run.placement)
        self.allocations.drop(name)
        self._note_ends(run.placement)
        self.quotas.add(run.entry.job.queue, run.use, -1)
        nodes = {grant.node for grant in run.placement}
        self._wake(nodes, set(self.quotas.chain(run.entry.job.queue)))

    def _wake(self, nodes: set[int], chain: set[str]) -> None:
        """Let those failed groups try again that these nodes or these queues' smaller use may help.

        A job that found no room can only find some where something was given back, and only if at
        least one of its pods fits there. Looking at a handful of nodes spares looking at all.
        """
        hopeless: dict[int, bool] = {}
        free = {node for node in nodes if self.state.free[node]}
        for number in self._failed | self._unheld:
            group = self._groups.get(number)
            if group is None or self._may_start_now(group, nodes, free, chain, hopeless):
                self._failed.discard(number)
                self._unheld.discard(number)
                continue
            entry = self._first(group)
            if self._now - entry.since >= self.settings.hold_blind_after:
                self._let_hold(number, entry)

    def _may_start_now(
        self, group: WaitingLine, nodes: set[int], free: set[int], chain: set[str],
        hopeless: dict[int, bool],
    ) -> bool:  # fmt: skip
        entry = self._first(group)
        job, code = entry.job, self._why[entry.group].code
        if code not in ("none", "held") or len(job.tasks) > 1 or not job.tasks[0].cards:
            return True
        if job.queue in chain and self.quotas.account(job.queue).declared:
            return True
        if job.elastic:
            entry = self._sized(entry, job.min_pods)
            job = entry.job
        shapes = self.placer.shapes(job, job.tasks[0])
        if isinstance(shapes, PlacementRefusal):
            return True
        others = self._cards_of_others(entry, nodes)
        if others:
            return self._fits_on(shapes, nodes, None, others)
        if id(shapes) not in hopeless:  # the same for all that ask for such pods
            hopeless[id(shapes)] = not self._fits_on(shapes, free, None)
        if hopeless[id(shapes)]:
            return False
        if self._fits_on(shapes, free, self.admission.hold_for(entry, self._now)):
            return True
        # The one that ends first of the group may pass held cards that its first one must respect.
        least = group.shortest()
        return self.admission.fills_a_gap(least, self._now) and self._fits_on(
            shapes, free, self.admission.hold_for(least, self._now)
        )

    def _cards_of_others(self, entry: WaitingJob, nodes: set[int]) -> dict[int, int]:
        """The cards on these nodes that running jobs would have to give to this one: masks."""
        queues = self._stoppable(entry)
        if not (queues or self.elastic):
            return {}
        return {node: self.claims.cards_on(node, entry.job, queues, self._now) for node in nodes}

    def _stoppable(self, entry: WaitingJob) -> dict[str, bool]:
        """The queues of which a job may stop others, see `Preemption.stoppable`."""
        use = self.admission.expected_use(entry)
        return {} if use is None else self.claims.stoppable(entry.job, use)

    def _fits_on(
        self, shapes: Sequence[TaskShape], nodes: set[int], hold: Ints | None,
        others: Mapping[int, int] | None = None,
    ) -> bool:  # fmt: skip
        """Whether the free cards of one of these nodes, and those of `others`, hold a pod."""
        for node in nodes:
            free = int(self.state.free[node]) | (others or {}).get(node, 0)
            free &= ~int(hold[node]) if hold is not None else -1
            if any(free < len(shape.choice.fits) and shape.choice.fits[free] for shape in shapes):
                return True
        return False

    def _cancelled(self, name: str) -> list[Action]:
        self.gate.ended(name, False)
        if name in self.waiting:
            self._unwait(self.waiting[name])
        if name in self.running:
            job = self.running[name].entry.job
            self._end(name)
            return [JobStop(job)]
        self.refused.pop(name, None)
        return []

    # -- the cycle ------------------------------------------------------------------------------

    def _cycle(self) -> list[Action]:
        actions: list[Action] = []
        self._eased = False
        self._offer()
        heap = [
            (self._order(self._first(group)), number)
            for number, group in self._groups.items()
            if number not in self._failed
        ]
        heapq.heapify(heap)
        while heap:
            order, number = heapq.heappop(heap)
            group = self._groups.get(number)
            if group is None or number in self._failed:
                continue
            entry = self._first(group)
            queue = entry.job.queue
            if heap and self.quotas.account(queue).declared:
                fresh = self._order(entry)
                if fresh > order and fresh > heap[0][0]:
                    heapq.heappush(heap, (fresh, number))  # the queue's share has grown meanwhile
                    continue
            if number in self._unheld:
                self._unheld.discard(number)
                if self.admission.covered(entry):
                    self._failed.add(number)
                    continue
            if self._try_group(number, group, actions):
                if number in self._groups:
                    heapq.heappush(heap, (self._order(self._first(group)), number))
                if self._strict(queue) and self._lines[queue]:
                    head = self._lines[queue][0][1]  # tried before, when another was the first
                    heapq.heappush(heap, (self._order(head), head.group))
            else:
                self._failed.add(number)
        return actions

    def _try_group(self, number: int, group: WaitingLine, actions: list[Action]) -> bool:
        """Start the job whose turn it is, or one behind it that asks for less. False: none can."""
        entry = self._first(group)
        behind = self._behind(entry)
        if behind is not None:
            self._why[number] = behind
            return False
        refused = self._try(entry, actions)
        if refused is None:
            return True
        self._why[number] = refused
        if refused.code in (*PHYSICAL, "held") and self.settings.hold:
            self._make_hold(entry)
        elif refused.code not in KEPT:  # no card helps it: others may have those that it held
            self._release([hold for hold in self.admission.holds if hold.entry is entry])
        if self._strict(entry.job.queue) or refused.code not in (*KEPT, *PHYSICAL):
            return False
        return self._try_others(entry, group, actions)

    def _try_others(self, first: WaitingJob, group: WaitingLine, actions: list[Action]) -> bool:
        """A job behind the first one that ends before held cards are needed, or needs less CPU."""
        admission, now = self.admission, self._now
        if not (group.elastic or self.claims.found) and admission.too_few(first, ()):
            return False  # no other one needs fewer cards
        cards_there, longest = admission.cards_suffice(first, now), admission.longest_gap(now)
        if not (cards_there or longest):
            return False
        needed = sorted(hold.until for hold in admission.holds if hold.until != NEVER)
        others = group.others(first, now, needed, cards_there)
        return any(self._try(entry, actions) is None for entry in itertools.islice(others, DEPTH))

    def _try(self, entry: WaitingJob, actions: list[Action]) -> PlacementRefusal | None:
        """Start a job, stop others for it, or refuse it for good (None); else why it waits."""
        self.decisions += 1
        outcome = self.admission.admit(entry, self._now)
        if not isinstance(outcome, PlacementRefusal):
            self._unwait(entry)
            actions.append(self._start(entry, outcome))
            return None
        if outcome.permanent:
            self._unwait(entry)
            self.refused[entry.job.name] = outcome
            return None
        if outcome.code in ("max", *KEPT, *PHYSICAL):
            if self._start_smaller(entry, actions):
                return None
            if outcome.code != "max" and self._start_by_shrinking(entry, actions):
                return None
            deal = self.claims.deal(
                entry, self.admission.expected_use(entry), outcome, self._now,
                lambda: self.admission.hold_for(entry, self._now),
            )  # fmt: skip
            if deal is not None:
                self._close(entry, deal, actions)
                return None
        return outcome

    def _start(
        self, entry: WaitingJob, placement: Placement, started: float | None = None
    ) -> Start:
        job = entry.job
        began = self._now if started is None else started
        use = self.admission.use(job, placement)
        self.state.take(placement)
        self.quotas.add(job.queue, use)
        ends = NEVER if job.minutes is None else began + job.minutes * 60
        expected = self._expected_end(entry, began) if ends == NEVER else ends
        run = RunningJob(entry, placement, use, began, ends, expected)
        self.running[job.name] = run
        if (entry.whole or job).elastic:
            self.elastic[job.name] = run
        self.by_queue.setdefault(job.queue, {})[job.name] = run
        self.claims.count(job, 1)
        self._note_use(job)
        self.allocations.add(job.name, placement, ends, expected)
        self._note_ends(placement)
        self.gate.changed = True  # `after` asks for starts
        self._release(self.admission.broken(entry, placement, self._now))
        return Start(job, placement, self._now - entry.since)

    def _note_use(self, job: GangJob) -> None:
        """A queue uses more: less of its MIN is kept from others, and its lesser jobs may lie
        outside of it now."""
        accounts = [self.quotas.account(name) for name in self.quotas.chain(job.queue)]
        limited = {one.queue.name for one in accounts if one.min or one.deserved}
        if not limited:
            return
        lesser = {
            queue
            for queue, ranks in self.claims.ranks.items()
            if min(ranks, default=job.priority) < job.priority
            and limited & {*self.quotas.chain(queue)}
        }
        eased = {
            number
            for number in self._failed & self._groups.keys()
            if self._why[number].code == "min"
            or (lesser and lesser & self._stoppable(self._first(self._groups[number])).keys())
        }
        self._failed -= eased
        self._eased |= bool(eased)

    # -- eviction ---------------------------------------------------------------------------------

    def _close(self, entry: WaitingJob, deal: eviction.EvictionPlan, actions: list[Action]) -> None:
        for victim in deal.victims:
            run = self.running[victim.job.name]
            self._end(victim.job.name)
            self._requeue(run)
            why = f"job {entry.job.name} of queue {entry.job.queue} is entitled to its cards"
            actions.append(Evict(victim.job, entry.job.name, why))
        self._unwait(entry)
        actions.append(self._start(entry, deal.placement))

    # -- nodes that go and come -------------------------------------------------------------------

    def _lost(self, node: str, failed: tuple[int, ...] | None) -> list[Action]:
        """A node or some of its cards are gone: the gangs on them wait again, in their place."""
        number = self.node_number(node)
        mask = (1 << 16) - 1 if failed is None else cards.bits(failed)
        actions: list[Action] = []
        for run in list(self.running.values()):
            if any(g.node == number and (failed is None or g.mask & mask) for g in run.placement):
                self._end(run.entry.job.name)
                self._requeue(run)
                why = f"node {node} is lost" if failed is None else f"cards of {node} failed"
                actions.append(Evict(run.entry.job, "", why))
        kept = int(self.state.usable[number]) & ~mask
        self.state.set_usable(number, kept, failed is not None and bool(self.state.ready[number]))
        self._reopen()
        self.admission.holds = ()
        return actions

    def _back(self, event: NodeBack) -> None:
        number = self.node_number(event.node)
        node = self.state.nodes[number]
        broken = cards.bits(list(event.unhealthy)) | cards.bits(list(node.used))
        self.state.set_usable(number, int(self.state.present[number]) & ~broken, True)
        self._release(self.admission.holds)
        self._reopen()

    def node_number(self, name: str) -> int:
        """Index of a node; an unknown one raises `JoyError`."""
        if name not in self.state.number:
            raise JoyError(f"no node '{name}' in the inventory", help="check the name")
        return self.state.number[name]

    def _requeue(self, run: RunningJob) -> None:
        """Wait again with the old number: at the head of its class."""
        run.entry.since = self._now
        run.entry.job, run.entry.whole = run.entry.whole or run.entry.job, None
        self._wait(run.entry)

    # -- cards that are kept for jobs that fit nowhere --------------------------------------------

    def _end_holds(self) -> None:
        """Let go of holds whose time has come without their job having started."""
        self._release([hold for hold in self.admission.holds if self._now >= hold.until])

    def _drop_holds(self) -> None:
        """Let go of the cards of jobs that the limits of their queues keep back."""
        holds = self.admission.holds
        self._release([hold for hold in holds if self.admission.kept_back(hold.entry)])

    def _note_ends(self, placement: Placement) -> None:
        """Something has started, ended, or is expected to end later on these nodes."""
        for node in {grant.node for grant in placement}:
            self.state.until[node] = self.allocations.last_end(node)

    def _make_hold(self, entry: WaitingJob) -> None:
        """Hold the cards that a job will get at the earliest time that expected ends make room.

        When the ends that are known do not suffice, all running jobs are thought away and the
        cards are held until it starts. Where cards are held for as many jobs as may be on its
        nodes, none are; cards that are held for another job are never held twice.
        """
        holds = self.admission.holds
        if any(hold.entry is entry for hold in holds) or self.admission.covered(entry):
            return
        for name in self.allocations.overdue(self._now):
            run = self.running[name]
            run.expected = self._expected_end(run.entry, run.started)
            self.allocations.expect(name, run.expected)
            self._note_ends(run.placement)
        parts = (self.state, self.allocations, self.guess, entry.job)
        room = reservation.earliest(*parts, self.admission.together(holds))
        if room is None:
            return
        if not room.stated and self._now - entry.since < self.settings.hold_blind_after:
            return
        mask = room.mask(len(self.state.nodes))
        nodes = self.placer.nodes_for(entry.job)
        if room.until == NEVER and self.admission.holds_on(nodes):
            return  # beside others only for a time that is known
        self._groups[entry.group].promise(entry)
        self.admission.holds = (*holds, CardHold(entry, mask, room.until, nodes))

    # -- questions --------------------------------------------------------------------------------

    def why(self, name: str) -> PlacementRefusal | None:
        """Why a job does not run, with figures of this moment; None when it does or is unknown."""
        if name in self.refused:
            return self.refused[name]
        if name in self.gate.entries:
            kept = self.gate.entries[name]
            return self.admission.never(kept) or self.gate.refusal(kept.job, self.state_of)
        entry = self.waiting.get(name)
        if entry is None:
            return None
        found = self.admission.why(entry, self._now)
        if found is not None and found.permanent:
            return found
        return self._behind(entry) or found or PlacementRefusal("next")
