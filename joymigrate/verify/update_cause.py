"""Causes of a wrong update by experiment: the optimiser's formula with one thing changed, run on
the tensors of the probe, must remove at least 90 % of the error. No torch.

Formulas: Adam (Kingma and Ba 2015, algorithm 1), AdamW (Loshchilov and Hutter 2019, algorithm 2),
SGD with momentum as `torch.optim.SGD` documents it. Of other optimisers only the whole update is
tried: scaled, turned round, or a step late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joymigrate.language import Text
from joymigrate.verify.calls import cause_of
from joymigrate.verify.chance import independent, most_left
from joymigrate.verify.model import Cause
from joymigrate.verify.optimiser_stage import CLOSE, apart, unequal

SEED, STEPS = 20240607, 3  # of `optimisers.probe`
BETAS = (0.0, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)
EPS = (1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
ADAM_NEEDS = ("lr", "beta1", "beta2", "eps")
SGD_NEEDS = ("lr",)
OPTIONAL = ("weight_decay", "momentum", "dampening")  # numbers where a class has them
FACTORS = (0.1, 0.5, 0.9, 1.1, 2.0, 10.0)
Array = NDArray[np.float64]
Settings = Mapping[str, Any]


def cause_of_update(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Cause | None:
    """Why the first update of one optimiser step is wrong, as both sides recorded it: their code
    makes other calls, or an experiment explains it."""
    for mine, other in zip(ours["probe"], theirs["probe"], strict=False):
        keys = mine["settings"].keys() & other["settings"].keys()
        if any(unequal(mine["settings"][key], other["settings"][key]) for key in keys):
            continue
        results = zip(mine["results"], other["results"], strict=False)
        pairs = [(a, b) for a, b in results if "updates" in a and "updates" in b]
        if all(apart(a["updates"], b["updates"]) <= CLOSE for a, b in pairs):
            continue
        diff = cause_of(mine.get("trace"), other.get("trace"))
        if diff is not None:
            return Cause(diff.cause, diff.words, "diff", diff.lines)
        found = explain_update(str(ours["class"]), mine["settings"], pairs)
        return Cause(*found, "experiment") if found is not None else None
    return None


def explain_update(name: str, settings: Settings, pairs: Sequence[Any]) -> tuple[str, Any] | None:
    """The best experiment over all shapes, if it leaves little enough of the error."""
    best: tuple[float, str, str] = (np.inf, "", "")
    tries = list(candidates(name, settings, pairs))
    wrong = [np.asarray(b["updates"], float) - np.asarray(a["updates"], float) for a, b in pairs]
    numbers = sum(map(independent, wrong))
    for cause, words, make in tries:
        left = 0.0
        for a, b in pairs:
            golden, mine = (np.asarray(side["updates"], float) for side in (a, b))
            # A shape that is right has to stay so. Nor does what is far from a small update explain
            # it, though the error may be as large as the right update.
            error = max(float(np.linalg.norm(mine - golden)), 1e-4 * float(np.linalg.norm(golden)))
            error = min(error, float(np.linalg.norm(mine)))
            with np.errstate(all="ignore"):
                value = make(tuple(a["shape"]), golden, mine)
            gone = float(np.linalg.norm(value - mine)) / max(error, 1e-300)
            left = max(left, gone if np.isfinite(gone) else np.inf)
        fitted = 1 if make in (scale_updates,) else 0
        if left < min(best[0], most_left(numbers, fitted, len(tries))):
            best = left, cause, words
    if not best[1]:
        return None
    words = Text(
        "tried: {words}; it removes {removed} of the error",
        words=best[2],
        removed=f"{1 - best[0]:.1%}",
    )
    return best[1], words


Make = Callable[[tuple[int, ...], Array, Array], Array]


def candidates(
    name: str, settings: Settings, pairs: Sequence[Any]
) -> Iterator[tuple[str, str, Make]]:
    """(cause, words, the updates that it would make). A formula is changed where it makes the
    baseline's updates as it is."""
    formula = {"Adam": adam, "AdamW": adam, "SGD": sgd}.get(name)
    decoupled = name == "AdamW" or bool(settings.get("decoupled_weight_decay"))
    given = {**as_torch_names(settings), "decoupled": decoupled}
    if (
        formula is not None
        and can_be_used(given, ADAM_NEEDS if formula is adam else SGD_NEEDS)
        and all(apart(a["updates"], formula(tuple(a["shape"]), given)) <= CLOSE for a, _ in pairs)
    ):
        for cause, words, changed in changes(name, given):

            def make(shape: Any, golden: Any, mine: Any, changed: Settings = changed) -> Array:
                return formula(shape, changed)

            yield cause, words, make
    yield "update scale", "the update times one number", scale_updates
    yield "stale buffer", "the update of the step before", lambda shape, golden, mine: late(golden)


def as_torch_names(settings: Settings) -> Settings:
    """The settings with both betas of Adam as numbers of their own.

    A class that is called Adam need not be torch's: many write `beta1` and `beta2`.
    """
    betas = settings.get("betas")
    if isinstance(betas, Sequence) and len(betas) == 2:
        return {**settings, "beta1": betas[0], "beta2": betas[1]}
    return settings


def can_be_used(given: Settings, needed: Sequence[str]) -> bool:
    """Whether every setting that a formula needs is a number, and every other one or absent."""
    present = (given.get(key) for key in OPTIONAL)
    return all(is_number(given.get(key)) for key in needed) and all(
        value is None or is_number(value) for value in present
    )


def is_number(value: Any) -> bool:
    """Whether a setting is a number that a formula can use: True and False are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def in_place_of(name: str, value: float, given: float) -> Text:
    """The words for a setting with another value."""
    fields = {"value": f"{value:g}", "given": f"{given:g}"}
    return Text("{name} {value} in place of {given}", name=name, **fields)


def changes(name: str, given: Settings) -> Iterator[tuple[str, str, Settings]]:
    """The settings of a formula with one thing changed."""
    decay = float(given.get("weight_decay") or 0.0)
    if decay:
        other = not given["decoupled"]
        beside, added = "weight decay beside the gradient", "weight decay added to the gradient"
        words = beside if other else added
        yield "weight decay", words, {**given, "decoupled": other}
        yield "weight decay", "weight decay left out", {**given, "weight_decay": 0.0}
        yield "weight decay", "weight decay twice", {**given, "weight_decay": 2 * decay}
        yield "weight decay", "weight decay without the rate", {**given, "plain_decay": True}
        yield "weight decay", "weight decay of the other sign", {**given, "weight_decay": -decay}
    for value in (1e-4, 1e-3, 1e-2, 0.05, 0.1):
        if value != decay:
            words = in_place_of("weight decay", value, decay)
            yield "weight decay", words, {**given, "weight_decay": value}
    for factor in FACTORS:
        rate = float(given["lr"]) * factor
        yield "learning rate", in_place_of("rate", rate, given["lr"]), {**given, "lr": rate}
    if name == "SGD":
        for value in BETAS:
            if value != given.get("momentum"):
                words = in_place_of("momentum", value, given.get("momentum") or 0.0)
                yield "momentum", words, {**given, "momentum": value}
        nesterov = not given.get("nesterov")
        yield "momentum", f"nesterov={nesterov}", {**given, "nesterov": nesterov}
        yield "stale buffer", "the buffer before its update", {**given, "stale": True}
        return
    one, two = given["beta1"], given["beta2"]
    for value in BETAS:
        for key, have in (("beta1", one), ("beta2", two)):
            if value != have:
                yield "beta", in_place_of(key, value, have), {**given, key: value}
    yield "beta", "both betas exchanged", {**given, "beta1": two, "beta2": one}
    for value in EPS:
        if value != given["eps"]:
            yield "eps", in_place_of("eps", value, given["eps"]), {**given, "eps": value}
    yield "eps", "eps under the root", {**given, "eps_inside": True}
    for number in (1, 2):
        words = Text("the correction of moment {number} left out", number=number)
        yield "missing term", words, {**given, f"uncorrected{number}": True}
    both = {**given, "uncorrected1": True, "uncorrected2": True}
    yield "missing term", "both corrections left out", both
    yield "stale buffer", "the second moment before its update", {**given, "stale": True}
    largest = not given.get("amsgrad")
    yield "amsgrad", f"amsgrad={largest}", {**given, "amsgrad": largest}


def draw_probe(shape: tuple[int, ...]) -> tuple[Array, list[Array]]:
    """The parameter and the gradients of the probe."""
    random = np.random.Generator(np.random.PCG64(SEED))
    parameter = random.standard_normal(shape)
    return parameter, [random.standard_normal(shape) for _ in range(STEPS)]


def adam(shape: tuple[int, ...], given: Settings) -> Array:
    """Three updates by Adam, as sketches [3, 64]."""
    p, gradients = draw_probe(shape)
    one, two = float(given["beta1"]), float(given["beta2"])
    rate, eps = float(given["lr"]), float(given["eps"])
    decay = float(given.get("weight_decay") or 0.0)
    m, v, most, made = np.zeros(shape), np.zeros(shape), np.zeros(shape), []
    for t, g in enumerate(gradients, 1):
        g = -g if given.get("maximize") else g
        before = p
        if decay and given["decoupled"]:
            p = p * (1 - (decay if given.get("plain_decay") else rate * decay))
        elif decay:
            g = g + decay * p
        m = one * m + (1 - one) * g
        old, v = v, two * v + (1 - two) * g * g
        most = np.maximum(most, v)
        second = most if given.get("amsgrad") else old if given.get("stale") else v
        first = m if given.get("uncorrected1") else m / (1 - one**t)
        second = second if given.get("uncorrected2") else second / (1 - two**t)
        root = np.sqrt(second + eps) if given.get("eps_inside") else np.sqrt(second) + eps
        p = p - rate * first / root
        made.append(fold(p - before))
    return np.stack(made)


def sgd(shape: tuple[int, ...], given: Settings) -> Array:
    """Three updates by gradient descent with momentum, as sketches [3, 64]."""
    p, gradients = draw_probe(shape)
    rate, beta = float(given["lr"]), float(given.get("momentum") or 0.0)
    decay, damp = float(given.get("weight_decay") or 0.0), float(given.get("dampening") or 0.0)
    held: Array | None = None
    made = []
    for g in gradients:
        g = -g if given.get("maximize") else g
        before = p
        if decay and given["decoupled"]:
            p = p * (1 - (decay if given.get("plain_decay") else rate * decay))
        elif decay:
            g = g + decay * p
        if beta:
            old = held if held is not None else np.zeros(shape)
            held = g if held is None else beta * held + (1 - damp) * g
            moment = old if given.get("stale") else held
            g = g + beta * moment if given.get("nesterov") else moment
        p = p - rate * g
        made.append(fold(p - before))
    return np.stack(made)


def fold(update: Array) -> Array:
    """The sketch of an update, as `optimisers.fold` makes it."""
    flat = update.reshape(-1)
    padded = np.zeros(-(-flat.size // 64) * 64)
    padded[: flat.size] = flat
    rows = padded.reshape(-1, 64)
    folded: Array = (1.0 + 0.37 * np.arange(len(rows))) @ rows
    return folded


def scale_updates(shape: tuple[int, ...], golden: Array, mine: Array) -> Array:
    """The baseline's updates times the number that fits the target's best."""
    return golden * (float((golden * mine).sum()) / max(float((golden * golden).sum()), 1e-300))


def late(golden: Array) -> Array:
    """The baseline's updates one step later."""
    return np.concatenate([np.zeros_like(golden[:1]), golden[:-1]])
