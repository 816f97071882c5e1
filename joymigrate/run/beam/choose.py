"""One round: of all continuations that the rules allow, the best `width`.

A continuation's score is its beam's score plus the logarithm of its probability over the *whole*
vocabulary: rules hide continuations, they don't make the others likelier (as constrained search in
transformers does). `top_k` looks at the best continuations of each beam only; from `width` on that
loses nothing, because no more of one beam can be chosen.

Beams are looked at in portions of at most PLACES continuations, which join a running best: what is
held does not grow with beams × codes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.beam.trie import CodeTrie

PLACES = 1 << 18  # 512 beams of 512 continuations: a few arrays of 1 to 2 MB each


@dataclass(frozen=True, slots=True, eq=False)
class BeamChoice:
    """The new beams, best first: all [W']. `gains` are the logarithms of the last step."""

    scores: Tensor
    gains: Tensor
    parents: Tensor
    tokens: Tensor
    nodes: Tensor


def choose(
    scores: Tensor,
    logits: Tensor,
    nodes: Tensor,
    rules: CodeTrie,
    width: int,
    top_k: int | None = None,
    places: int = PLACES,
) -> BeamChoice:
    """The best continuations of beams with `scores` [W] and `logits` [W, V] at `nodes` [W].

    Fewer than `width` come out where the rules allow fewer, or the model gives them probability 0.
    Raises `JoyError` for logits that are not a number.
    """
    counts = rules.widths(nodes)
    best: BeamChoice | None = None
    for rows in portions(counts, logits.shape[-1], places):
        part = continuations(scores, logits, nodes, rules, rows, width, top_k)
        best = part if best is None else join(best, part)
        best = top(best, width)
    assert best is not None
    return best


def portions(counts: Tensor, vocabulary: int, places: int) -> list[slice]:
    """Runs of beams whose continuations, padded to the most of a run, fit into `places`.

    A beam's whole row of logits is normalised, so a run has at most places / vocabulary beams too.
    """
    runs, start, widest = [], 0, 1
    most = max(1, places // max(1, vocabulary))
    for at, count in enumerate(counts.tolist()):
        wider = max(widest, count)
        if at > start and ((at + 1 - start) * wider > places or at - start >= most):
            runs.append(slice(start, at))
            start, wider = at, max(1, count)
        widest = wider
    runs.append(slice(start, len(counts)))
    return runs


def continuations(
    scores: Tensor,
    logits: Tensor,
    nodes: Tensor,
    rules: CodeTrie,
    rows: slice,
    width: int,
    top_k: int | None,
) -> BeamChoice:
    """The best `top_k` of each beam of a run."""
    mine = logits[rows]
    kind = torch.float64 if mine.dtype is torch.float64 else torch.float32
    mine = mine.to(kind)
    total = mine.logsumexp(-1, keepdim=True)
    if bool(total.isnan().any()) or bool(total.isposinf().any()):
        raise JoyError(
            "the model gave logits that are not finite", help="check the weights and their dtype"
        )
    here = nodes[rows]
    most = max(1, int(rules.widths(here).max())) if len(here) else 1
    tokens, following, real = rules.children(here, most)
    gains = mine.gather(1, tokens) - total
    gains = gains.masked_fill(~real, -torch.inf)
    kept = min(most, width if top_k is None else min(top_k, width))
    if kept < most:
        gains, at = gains.topk(kept, dim=1)
        tokens, following = tokens.gather(1, at), following.gather(1, at)
    parents = torch.arange(rows.start, rows.stop, device=here.device)[:, None].expand_as(tokens)
    sums = scores[rows, None].to(kind) + gains
    flat = (t.flatten() for t in (sums, gains, parents, tokens, following))
    return top(BeamChoice(*flat), width)


def join(one: BeamChoice, other: BeamChoice) -> BeamChoice:
    """Both."""
    names = ("scores", "gains", "parents", "tokens", "nodes")
    pairs = ((getattr(one, name), getattr(other, name)) for name in names)
    return BeamChoice(*(torch.cat(pair) for pair in pairs))


def top(found: BeamChoice, width: int) -> BeamChoice:
    """The best `width` that are possible, best first."""
    scores, at = found.scores.topk(min(width, len(found.scores)))
    at = at[scores > -torch.inf]
    rest = (t[at] for t in (found.gains, found.parents, found.tokens, found.nodes))
    return BeamChoice(found.scores[at], *rest)
