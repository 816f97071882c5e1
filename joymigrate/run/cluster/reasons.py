"""Why a job waits, and what would free it. Text is made only when somebody reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PERMANENT = (
    "kind", "size", "share", "shares_total", "never", "block", "size_total", "leaf_never",
    "numa_never", "after_never", "beside_never",
)  # fmt: skip
# code → (reason, what would free it); the fields are filled from `Refusal.facts`.
TEXTS: dict[str, tuple[str, str]] = {
    "none": ("there is no room", "room"),
    "next": ("its cards have just become free", "the next decision"),
    "kind": (
        "no node offers {wanted}",
        "add a node that does, or accept another kind: {have}",
    ),
    "size": (
        "{cards} cards per pod is not a legal request on {kind}{note}: legal are {legal}",
        "ask for {nearest} cards per pod",
    ),
    "share": (
        "a card of {kind} cannot be shared",
        "ask for whole cards, or for a kind whose cards can be shared",
    ),
    "cards": (
        "needs {need} cards of {kind}, {free} are free{besides}",
        "at least {missing} more free cards of {kind}",
    ),
    "open": (
        "needs {share} of one card of {kind}, the emptiest card has {most}{besides}",
        "{share} of one card of {kind}",
    ),
    "shares": (
        "{fits} of {pods} pods fit that ask for {share} of one card of {kind} each{besides}",
        "{share} of one card of {kind} for each of the {lacking} missing pods",
    ),
    "shares_total": (
        "{pods} pods ask for {share} of one card of {kind} each, all of its cards hold {fits}",
        "fewer pods, a smaller share, or more nodes of {kind}",
    ),
    "beside_never": (
        "nodes of {kind} have {beside} for {fits} of {pods} pods, were they empty",
        "a smaller request, fewer pods, or larger nodes",
    ),
    "together": (
        "its {tasks} tasks fit one by one; together no place was found in {tries} tries",
        "room for all of them at once",
    ),
    "leaf_never": (
        "no leaf switch can hold {pods} pods of {cards} cards, were it empty (most: {fits})",
        "`leaf: prefer` or `leaf: fill`, or fewer pods",
    ),
    "shape": (
        "{free} cards of {kind} are free{besides} but {shape}: {fits} of {pods} pods fit{also}",
        "{unit} free for each of the {lacking} missing pods",
    ),
    "cpu": (
        "cards are free, but not beside {beside} on one node: {fits} of {pods} pods fit{besides}",
        "CPU or memory on nodes with free cards, or a smaller request",
    ),
    "leaf": (
        "no leaf switch has room for all {pods} pods of {cards} cards (most: {fits}){besides}",
        "{lacking} more pods' room under one leaf, or `leaf: prefer`",
    ),
    "leaf_tasks": (
        "no leaf switch has room for all tasks, {need:g} cards (most free: {most}){besides}",
        "more room under one leaf, or `leaf: prefer`",
    ),
    "numa": (
        "{free} cards of {kind} are free{besides} but not {cards} inside one NUMA node for every "
        "pod: "
        "{fits} of {pods} pods fit{also}",
        "{cards} cards of one NUMA node for each of the {lacking} missing pods",
    ),
    "numa_never": (
        "no node of {kind} is known to hold {cards} cards inside one NUMA node",
        "`numa` of the nodes in the inventory, `numa: prefer`, or fewer cards per pod",
    ),
    "superpod": (
        "required {need} blocks of {block} nodes inside one super-pod each, total {have}",
        "{block} free nodes in one super-pod for each missing block",
    ),
    "block": ("sp_block {block} {problem}", "{remedy}"),
    "held": (
        "the free cards are held for job {head}, which comes first",
        "job {head} starts, or this job states that it ends before that ({until})",
    ),
    "max": (
        "queue {queue} would use {after} of its MAX {limit} ({what}); {used} are in use",
        "jobs of queue {queue} with at least {over} cards end, or a higher `max`",
    ),
    "never": (
        "asks for {need} ({what}), more than the MAX {limit} of queue {queue}",
        "a higher `max` of queue {queue}, or a smaller job",
    ),
    "min": (
        "{free} cards are free, {kept} of them are kept for the MIN of queue {others}, because "
        "jobs of queue {queue} are never stopped",
        "queue {others} uses its MIN, or `eviction: over-deserved` for queue {queue}",
    ),
    "priority": (
        "queue {queue} works in strict order and job {head} is before it",
        "job {head} starts",
    ),
    "after": (
        "comes after job {head} ({condition}), which has not {done} yet",
        "job {head} {does}",
    ),
    "after_never": (
        "comes after job {head} ({condition}), which {did}",
        "submit job {head} again, or cancel this job",
    ),
    "size_total": (
        "needs {need} cards of {kind}, the cluster has {have}{sick}",
        "fewer pods, or more nodes of {kind}{healed}",
    ),
}


@dataclass(frozen=True, slots=True)
class PlacementRefusal:
    """One reason, with the numbers it speaks of. `hint` names the jobs that would free it."""

    code: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    hint: str = ""
    others: tuple[
        PlacementRefusal, ...
    ] = ()  # where several kinds would do: why none of the others does

    @property
    def reason(self) -> str:
        """Why the job waits, in one line."""
        own = TEXTS[self.code][0].format(besides=besides(self.facts), **self.facts)
        return "; ".join([own, *(other.reason for other in self.others)])

    @property
    def frees(self) -> str:
        """What would let it start."""
        own = TEXTS[self.code][1].format(**self.facts)
        text = "; or ".join([own, *(other.frees for other in self.others)])
        return f"{text} ({self.hint})" if self.hint else text

    @property
    def permanent(self) -> bool:
        """Whether no job's end can ever mend it."""
        return self.code in PERMANENT


def besides(facts: Mapping[str, Any]) -> str:
    """The idle cards that a reason's figures leave out: kept for others, or out of use."""
    text = ""
    if facts.get("kept_cards"):
        text += f", {facts['kept_cards']} more are kept for {facts.get('whose', 'others')}"
    if facts.get("out_cards"):
        text += f", {facts['out_cards']} more are out of use"
    return text
