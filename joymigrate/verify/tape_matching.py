"""Which of the baseline's tensors takes the place of which of the target's in an event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from joymigrate.verify.isolated_pass import content_of
from joymigrate.verify.summaries import apart, summary
from joymigrate.verify.tape import Tape
from joymigrate.verify.tape_entries import External


def match_externals(
    session: Any,
    outside: list[External],
    stored: list[dict[str, Any]],
    tape: Tape,
) -> tuple[dict[int, torch.Tensor], list[dict[str, Any]], dict[int, dict[str, Any]]]:
    """The baseline's values for externals: by role, then equal ones, then in their order; facts of
    each; and which of the baseline's each slot took. `tape` is the target's."""
    tensors = session.load()
    free = list(stored)
    roots = {str(root["name"]) for root in session.program.get("roots", [])}
    values: dict[int, torch.Tensor] = {}
    taken: dict[int, dict[str, Any]] = {}
    facts = []

    def take(external: External, item: dict[str, Any], mine: torch.Tensor | None) -> None:
        free.remove(item)
        taken[external.slot.number] = item
        theirs = tensors.get(item["content"] or "")
        fact: dict[str, Any] = {"role": external.role, "dtype": item["dtype"]}
        fact["number"] = next(n for n, one in enumerate(stored) if one is item)
        fact["grown"] = external.tensor.grad_fn is not None
        fact["table"] = external.role == item["role"] == "table"
        fact["short"] = short_of(item["dtype"]) or short_of(str(external.tensor.dtype))
        if fact["table"]:
            own = [tape.tables.rounding(external.tensor), item.get("rounding")]
            known = [one for one in own if one is not None]
            fact["rounding"] = max(known) if len(known) == 2 else None
            # What the program writes is no constant: memory without values may lie there before.
            fact["table"] = len(known) == 2 or external.slot.number not in tape.changed
        fact["alike"] = external.tensor.device.type == "cpu" == item.get("device")
        state = item.get("generator")
        fact["same_state"] = state is not None and state == tape.states.get(external.slot.number)
        fact["drawn_by"] = bool(tape.drawn_by.get(external.slot.number))
        if theirs is not None:
            values[external.slot.number] = theirs
            if mine is not None:
                fact["error"] = apart(summary(mine), summary(theirs))
        else:
            fact["missing"] = True
        facts.append(fact)

    def shaped(item: Mapping[str, Any], external: External) -> bool:
        return bool(item["shape"] == list(external.tensor.shape))

    rest = []
    for external in outside:
        named = external.role.partition(":")[0] not in (
            "other",
            "leaf",
            "draw",
            "made",
            "batch",
            "table",
        )
        item = next(
            (i for i in free if named and i["role"] == external.role and shaped(i, external)),
            None,
        )
        if item is not None:
            take(external, item, None)
        else:
            rest.append((external, external.value()))
    later = []
    contents = [
        content_of(mine.detach().to("cpu").contiguous()) if mine is not None else ""
        for _, mine in rest
    ]
    drawn = [i for i, (external, _) in enumerate(rest) if is_whole_draw(external)]
    there = [i for i in free if i["role"].startswith("draw:") and not is_floating(i["dtype"])]
    if [(rest[i][0].role, list(rest[i][0].tensor.shape)) for i in drawn] == [
        (i["role"], i["shape"]) for i in there
    ] and sorted(contents[i] for i in drawn) != sorted(
        i["content"] or "" for i in there
    ):  # small numbers are often equal by chance: where one is another, they go by their order
        for i, item in zip(drawn, there, strict=True):
            external, mine = rest[i]
            take(external, item, None if contents[i] == item["content"] else mine)
        rest = [one for i, one in enumerate(rest) if i not in drawn]
        contents = [one for i, one in enumerate(contents) if i not in drawn]
    for (external, mine), content in zip(rest, contents, strict=True):
        item = next((i for i in free if i["content"] == content), None)
        if item is not None:
            take(external, item, None)
        else:
            later.append((external, mine))
    for external, mine in later:
        exact = not external.tensor.is_floating_point()
        item = next(
            (
                i
                for i in free
                if shaped(i, external)
                and may_stand_for(i["role"], external.role, roots)
                and is_floating(i["dtype"]) != exact
            ),
            None,
        )
        if item is not None:
            take(external, item, mine)
        else:
            facts.append({"role": external.role, "alone": True})
    return values, facts, taken


def is_floating(dtype: str) -> bool:
    """Whether a type of tensors is none of whole numbers."""
    return not dtype.startswith(("int", "uint", "bool"))


def short_of(dtype: str) -> bool:
    """Whether a type of tensors has 16 bits."""
    return dtype.removeprefix("torch.") in ("float16", "bfloat16")


def is_whole_draw(external: External) -> bool:
    """Whether a tensor is drawn, of whole numbers."""
    return external.role.startswith("draw:") and not external.tensor.is_floating_point()


def may_stand_for(theirs: str, mine: str, roots: set[str]) -> bool:
    """Whether the baseline's tensor of one name may be the target's of another: of the same kind.
    What a model that both know returned, holds or gets as a gradient is no other one's; the same
    output of another call may be."""
    kind, _, place = mine.partition(":")
    if kind != theirs.partition(":")[0]:
        return {mine, theirs} == {"table", "other"}
    if place.partition(":")[0] not in roots:
        return True
    (ours, _, leaf), (other, _, their_leaf) = (r.partition("#") for r in (mine, theirs))
    same = leaf.partition(".")[2] == their_leaf.partition(".")[2]
    return kind == "out" and ours == other and same
