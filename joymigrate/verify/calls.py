"""Calls of torch as both sides made them: which differ in operator, argument, type or order.

A call is `[name, {argument: value}, line]`, as the documents hold it. Tensors are told by kind and
shape; devices, copies and casts that change nothing are left out. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from joymigrate.language import Text
from joymigrate.verify.cause import REDUCED

Call = Sequence[Any]  # name, arguments, line
Run = tuple[str, int, int, int, int]  # equal, replace, insert or delete; begin and end on each side
CLOSE = 1e-5  # relative: numbers that were computed in floating point
MOST = 8  # lines that differ, of which the first can be told as the cause
NARROW = ("half", "bfloat16", "float16")
CONVERSIONS = ("to", "type", "type_as", "float", "double", *NARROW)
NAMED = 3  # calls in words
SAME = {
    "truediv": "div",
    "true_divide": "div",
    "divide": "div",
    "multiply": "mul",
    "subtract": "sub",
}
SAME |= {"negative": "neg", "matmul": "mm", "bmm": "mm", "absolute": "abs", "addmm": "linear"}


@dataclass(frozen=True, slots=True)
class OtherCall:
    """One difference: what kind it is, words for it, and the line on each side."""

    cause: str
    words: Any
    lines: tuple[str, str]


def plain_name(name: str) -> str:
    """An operator's name without how it is written: `__rmul__`, `mul_` and `mul` are one."""
    word = name.strip("_")
    for mark in ("r", "i"):
        rest = word[1:]
        if name.startswith("__") and word.startswith(mark) and (rest in SAME or rest in BINARY):
            word = rest
    return SAME.get(word, word)


BINARY = ("add", "sub", "mul", "div", "pow", "matmul", "floordiv", "mod", "and", "or", "xor")


def differences(ours: Sequence[Call], theirs: Sequence[Call]) -> list[OtherCall]:
    """Every difference of two recordings of the same code, in order; by the alignment that needs
    fewer: of operators alone, or first of those with equal plain arguments."""
    by_operator = align(ours, theirs, operator_of)
    by_both: list[Run] = []
    for tag, a, a_end, b, b_end in align(ours, theirs, call_words):
        inner: Sequence[Run] = [(tag, 0, a_end - a, 0, b_end - b)]
        if tag == "replace":
            inner = align(ours[a:a_end], theirs[b:b_end], operator_of)
        by_both += [(how, a + i, a + j, b + k, b + m) for how, i, j, k, m in inner]
    return min((differences_of(ours, theirs, runs) for runs in (by_operator, by_both)), key=len)


def align(
    ours: Sequence[Call], theirs: Sequence[Call], key: Callable[[Call], str]
) -> Sequence[Run]:
    """Runs of calls as difflib's `get_opcodes` tells them."""
    mine, other = ([key(call) for call in side] for side in (ours, theirs))
    return SequenceMatcher(None, mine, other, autojunk=False).get_opcodes()


def operator_of(call: Call) -> str:
    """Which operator a call is of."""
    return plain_name(call[0])


def differences_of(
    ours: Sequence[Call], theirs: Sequence[Call], runs: Sequence[Run]
) -> list[OtherCall]:
    """What differs in two recordings that are aligned so."""
    found: list[OtherCall] = []
    for tag, a, a_end, b, b_end in runs:
        if tag == "equal":
            pairs = zip(ours[a:a_end], theirs[b:b_end], strict=True)
            found += [one for mine, other in pairs for one in arguments(mine, other)]
            continue
        near = line_near(ours, a), line_near(theirs, b)
        if tag == "replace" and a_end - a == b_end - b == 1:
            words = Text(
                "`{have}`, `{want}` in the baseline",
                have=call_words(theirs[b]),
                want=call_words(ours[a]),
            )
            found.append(OtherCall("another operator", words, (ours[a][2], theirs[b][2])))
            continue
        if b_end > b:
            added = all_words(theirs[b:b_end])
            words = Text("{calls} added", calls=added)
            kind = "an operator added" if tag == "insert" else "other operators"
            if tag == "replace":
                gone = all_words(ours[a:a_end])
                words = Text("{have}, {want} in the baseline", have=added, want=gone)
            kind = REDUCED if is_shortening(theirs[b:b_end]) else kind
            found.append(OtherCall(kind, words, (near[0], theirs[b][2])))
        else:
            gone = all_words(ours[a:a_end])
            words = Text("{calls} left out", calls=gone)
            found.append(OtherCall("an operator left out", words, (ours[a][2], near[1])))
    values = [one for one in found if one.cause != "another shape"]
    return values or found  # shapes follow from what is computed otherwise before


def arguments(mine: Call, other: Call) -> list[OtherCall]:
    """Arguments of one call that differ, as one difference."""
    mine, other = (
        [one[0], name_positions(one[1], two[1]), one[2]]
        for one, two in ((mine, other), (other, mine))
    )
    keys = [k for k in {**mine[1], **other[1]} if not same_value(mine[1].get(k), other[1].get(k))]
    if not keys:
        return []
    tensors = [is_shape(mine[1].get(k)) and is_shape(other[1].get(k)) for k in keys]
    lines = mine[2], other[2]
    key = next((k for k, t in zip(keys, tensors, strict=True) if not t), keys[0])
    have, want = (value(side[1].get(key)) for side in (other, mine))
    name = plain_name(mine[0])
    call = f"{name}({have})" if key.isdigit() else f"{name}({key}={have})"
    words = Text("`{call}`, {want} in the baseline", call=call, want=want)
    if all(tensors):
        kinds = [str(side[1].get(key)).partition("[")[0] for side in (mine, other)]
        cause = "another shape" if kinds[0] == kinds[1] else "another type"
        return [OtherCall(cause, words, lines)]
    return [OtherCall("another argument", words, lines)]


def name_positions(given: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, where the other side names what this one has by position: a function that
    a vendor's package has put in the place of torch's tells no names."""
    names = list(other)
    return {
        names[int(key)] if key.isdigit() and int(key) < len(names) else key: argument
        for key, argument in given.items()
    }


def is_shortening(calls: Sequence[Call]) -> bool:
    """Whether calls do nothing but convert, to 16 bits and perhaps back."""
    narrow = [c for c in calls if c[0] in NARROW or c[1].get("dtype") in NARROW]
    return bool(narrow) and all(c in narrow or c[0] in CONVERSIONS for c in calls)


def is_shape(value: Any) -> bool:
    """Whether an argument is a tensor, told by kind and shape."""
    return isinstance(value, str) and value.endswith("]") and "[" in value


def same_value(mine: Any, other: Any, within: float = CLOSE) -> bool:
    """Whether two plain values are the same, numbers but for a relative distance."""
    if isinstance(mine, list) and isinstance(other, list):
        pairs = zip(mine, other, strict=False)
        return len(mine) == len(other) and all(same_value(*pair, within) for pair in pairs)
    if not isinstance(mine, int | float) or not isinstance(other, int | float):
        return bool(mine == other)
    both = math.isnan(mine) and math.isnan(other)
    return both or math.isclose(mine, other, rel_tol=within, abs_tol=1e-30)


def value(argument: Any) -> str:
    """An argument in words."""
    return (
        f"{argument:.6g}"
        if isinstance(argument, float)
        else "none"
        if argument is None
        else str(argument)
    )


def call_words(call: Call) -> str:
    """A call with its plain arguments."""
    given: Mapping[str, Any] = call[1]
    parts = [
        value(v) if k.isdigit() else f"{k}={value(v)}"
        for k, v in given.items()
        if not is_shape(v) and v is not None
    ]
    return f"{plain_name(call[0])}({', '.join(parts[:4])})"


def all_words(calls: Sequence[Call]) -> str:
    """Some calls in words, each once."""
    words = dict.fromkeys(f"`{call_words(call)}`" for call in calls)
    return ", ".join(list(words)[:NAMED])


def line_near(calls: Sequence[Call], at: int) -> str:
    """The line of the call at a place where the other side has one more."""
    if not calls:
        return ""
    return str(calls[min(at, len(calls) - 1)][2])


def cause_of(
    ours: Sequence[Call] | None, theirs: Sequence[Call] | None, most: int = MOST
) -> OtherCall | None:
    """The difference that is the cause of a wrong value; None where the calls are the same, or
    differ in more than `most` places, of which none can be told to be it."""
    if ours is None or theirs is None:
        return None
    found = differences(ours, theirs)
    return found[0] if 0 < len({one.lines for one in found}) <= most else None
