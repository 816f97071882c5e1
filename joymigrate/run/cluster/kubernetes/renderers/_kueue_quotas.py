"""MIN and MAX as Kueue's quotas: by server kind, in a tree of cohorts, adding up to the inventory.

Kueue admits a job against the nominal quotas of its cohort alone. So what no queue is sure of is
the root cohort's own quota: without it every card beyond the MINs could never be used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.kinds import ServerKind
from joymigrate.run.cluster.kubernetes.renderers import RenderedObjects, dns, matches, resource
from joymigrate.run.cluster.queues import Queue

API = "kueue.x-k8s.io/v1beta2"
COHORT = "joymigrate"
Cards = dict[str, float]  # by kind


def make(kind: str, name: str, spec: Any) -> dict[str, Any]:
    """One Kueue object."""
    return {"apiVersion": API, "kind": kind, "metadata": {"name": dns(name)}, "spec": spec}


class CohortQuotas:
    """The quotas of all queues: `nominal` (MIN) and `most` (MAX) by queue and kind."""

    def __init__(
        self,
        queues: Sequence[Queue],
        known: Sequence[ServerKind],
        inventory: Inventory | None,
        out: RenderedObjects,
    ) -> None:
        self.queues, self.known, self.out = queues, known, out
        self.parents = {queue.parent for queue in queues if queue.parent}
        self.whole: Cards = {}
        for node in inventory.nodes if inventory else ():
            if node.kind.cards:
                cards = node.kind.cards - len(node.absent)
                self.whole[node.kind.name] = self.whole.get(node.kind.name, 0.0) + cards
        if inventory is None:
            out.note("without --inventory the cohort holds the MINs alone: a queue can borrow "
                     "nothing but the unused MINs of others")  # fmt: skip
        self.left = dict(self.whole)
        self.most = {queue.name: self._maximum(queue) for queue in queues}
        self.nominal: dict[str, Cards] = {}
        for queue in sorted(queues, key=lambda queue: -self._depth(queue)):
            self.nominal[queue.name] = self._minimum(queue)

    def _depth(self, queue: Queue) -> int:
        above = next((one for one in self.queues if one.name == queue.parent), None)
        return 0 if above is None else 1 + self._depth(above)

    def _matching(self, key: str) -> list[ServerKind]:
        return [kind for kind in self.known if key == "cards" or matches(kind, key)]

    def _minimum(self, queue: Queue) -> Cards:
        """What a queue is sure of beyond its parts, on the kinds that its MIN may mean."""
        found: Cards = {}
        for key, bound in queue.min.items():
            kinds = self._matching(key)
            inside = sum(
                self.nominal[part.name].get(kind.name, 0.0)
                for part in self._below(queue)
                for kind in kinds
            )
            wanted = max(0.0, bound - inside)
            for kind in kinds:
                share = min(wanted, max(0.0, self.left.get(kind.name, wanted)))
                found[kind.name] = found.get(kind.name, 0.0) + share
                self.left[kind.name] = self.left.get(kind.name, 0.0) - share
                wanted -= share
            if len(kinds) > 1:
                where = ", ".join(f"{found[kind.name]:g} on {kind.name}" for kind in kinds)
                self.out.note(f"queue {queue.name}: its MIN of {bound:g} {key} is {where}")
            if wanted:
                self.out.note(f"queue {queue.name}: {wanted:g} of its MIN {key} are not there")
        return {name: cards for name, cards in found.items() if cards}

    def _maximum(self, queue: Queue) -> Cards:
        """How far a queue may grow, on each kind that its MAX may mean."""
        found: Cards = {}
        for key, bound in queue.max.items():
            kinds = self._matching(key)
            if len(kinds) > 1:
                names = ", ".join(kind.name for kind in kinds)
                self.out.note(
                    f"queue {queue.name}: its MAX of {bound:g} {key} is said of each of {names}, "
                    "their sum is not expressible"
                )
            for kind in kinds:
                found[kind.name] = min(found.get(kind.name, bound), bound)
        return found

    def _below(self, queue: Queue) -> list[Queue]:
        """All queues inside this one, at any depth."""
        found = [one for one in self.queues if one.parent == queue.name]
        return found + [deeper for one in found for deeper in self._below(one)]

    def cohort_of(self, queue: Queue) -> str:
        """The cohort that a queue's jobs borrow from."""
        if queue.name in self.parents:
            return dns(queue.name)
        return dns(queue.parent) if queue.parent else COHORT

    def cohorts(self) -> list[dict[str, Any]]:
        """The root, with what is nobody's; a cohort for every queue that has parts."""
        rest = {name: cards for name, cards in self.left.items() if cards > 0}
        found = [make("Cohort", COHORT, {"resourceGroups": self.groups(rest, {})} if rest else {})]
        for queue in self.queues:
            if queue.name in self.parents:
                inside = {
                    kind.name: sum(
                        self.nominal[one.name].get(kind.name, 0.0)
                        for one in [queue, *self._below(queue)]
                    )
                    for kind in self.known
                }
                own = self.nominal[queue.name]
                most = {
                    name: own.get(name, 0.0) + max(0.0, bound - inside[name])
                    for name, bound in self.most[queue.name].items()
                }
                spec = {
                    "parentName": dns(queue.parent) if queue.parent else COHORT,
                    "resourceGroups": self.groups(own, most),
                }
                found.append(make("Cohort", queue.name, spec))
        return found

    def groups(self, nominal: Mapping[str, float], most: Mapping[str, float]) -> list[Any]:
        """Resource groups: a flavor per kind, what it is sure of, and what it may borrow."""
        found: dict[str, list[dict[str, Any]]] = {}
        for kind in self.known:
            own = nominal.get(kind.name, 0.0)
            quota = {"name": resource(kind), "nominalQuota": f"{own:g}"}
            if kind.name in most:
                quota["borrowingLimit"] = f"{max(0.0, most[kind.name] - own):g}"
            flavor = {"name": dns(kind.name), "resources": [quota]}
            found.setdefault(resource(kind), []).append(flavor)
        return [{"coveredResources": [name], "flavors": all_} for name, all_ in found.items()]
