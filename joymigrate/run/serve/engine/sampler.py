"""The next tokens of all rows of a step: biases, penalties, filters and draws, row by row the same
whatever else is in the step.

A draw takes one number in [0, 1) that depends on the seed, the index of the text and the position
alone, and looks it up in the cumulated probabilities: no generator's state to keep, and a sequence
that starts over draws the same again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import torch
from torch import Tensor

from joymigrate.run.serve.engine.faults import of_device
from joymigrate.run.serve.engine.types import Guide, Sampling, TokenLogprob

FEW = 1024  # candidates looked at before the whole vocabulary is sorted
MASK = (1 << 64) - 1
NEVER = float("-inf")
NO_NUMBERS = "the model's scores are not numbers: its weights, or a kernel, are broken"
log = logging.getLogger("joymigrate.serve.engine")


@dataclass(slots=True)
class Choosing:
    """What the sampler keeps with one text. `ends` are the tokens that end it."""

    sampling: Sampling
    seed: int
    index: int
    prompt: list[int]
    ends: tuple[int, ...] = ()
    guide: Guide | None = None
    made: int = 0  # tokens so far
    resumed: tuple[int, ...] = ()  # of these, those that another engine made
    counts: Tensor | None = None  # of the output, by token
    seen: Tensor | None = None  # in prompt or output
    bias: tuple[Tensor, Tensor] | None = None
    allowed: Tensor | None = None  # the guide's mask for the next token

    def accept(self, token: int) -> None:
        """Record the token that was chosen."""
        self.made += 1
        if self.counts is not None:
            self.counts[token] += 1
        if self.seen is not None:
            self.seen[token] = True
        if self.guide is not None:
            self.guide.accept(token)


@dataclass(slots=True)
class SampledTokens:
    """The tokens of a step's rows, and log-probabilities where they were asked for. `broken` rows
    have none, for the reason given."""

    ids: list[int]
    broken: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)


def choose(logits: Tensor, rows: Many[Choosing]) -> SampledTokens:
    """A token for every row of `logits` [R, V], float32; a row that fails is no other's concern.

    Raises what the device says when that fails.
    """
    try:
        return choose_together(logits, rows)
    except Exception as error:
        if of_device(error):
            raise
        if len(rows) == 1:
            log.warning("a token cannot be chosen", exc_info=True)
            return SampledTokens(
                [0], {0: f"a token cannot be chosen: {type(error).__name__}: {error}"}
            )
    chosen = SampledTokens([])
    for i, row in enumerate(rows):
        alone = choose(logits[i : i + 1], [row])
        chosen.ids += alone.ids
        if 0 in alone.broken:
            chosen.broken[i] = alone.broken[0]
        if 0 in alone.logprobs:
            chosen.logprobs[i] = alone.logprobs[0]
    return chosen


def choose_together(logits: Tensor, rows: Many[Choosing]) -> SampledTokens:
    """As `choose`, all rows at once."""
    asked = [i for i, row in enumerate(rows) if row.sampling.logprobs is not None]
    raw = logits[asked] if asked else None
    if any(is_shaped(row) for row in rows):
        logits = logits.clone()
        for i, row in enumerate(rows):
            if is_shaped(row):
                logits[i] = shape(logits[i], row)
    drawn = [i for i, row in enumerate(rows) if not row.sampling.greedy]
    if len(drawn) == len(rows):
        ids = draw(logits, rows)
    else:
        ids = logits.argmax(-1).tolist()
        if drawn:
            picked = draw(logits[drawn], [rows[i] for i in drawn])
            for i, token in zip(drawn, picked, strict=True):
                ids[i] = token
    best = logits.gather(1, torch.tensor(ids, device=logits.device).clamp(0)[:, None])
    fine = best.isfinite()[:, 0].tolist()  # to argmax, what is no number is the greatest
    broken = {i: NO_NUMBERS for i, token in enumerate(ids) if token < 0 or not fine[i]}
    ids = [max(0, token) for token in ids]
    chosen = SampledTokens(ids, broken)
    if raw is not None:
        tops = [rows[i].sampling.logprobs or 0 for i in asked]
        found = logprobs(raw, [ids[i] for i in asked], tops)
        chosen.logprobs = dict(zip(asked, found, strict=True))
    return chosen


def is_shaped(row: Choosing) -> bool:
    """Whether a row's scores are changed before a token is taken."""
    s = row.sampling
    return bool(
        row.guide is not None
        or s.logit_bias
        or s.repetition_penalty != 1
        or s.presence_penalty
        or s.frequency_penalty
        or row.made < s.min_tokens
    )


def shape(scores: Tensor, row: Choosing) -> Tensor:
    """One row's scores with penalties, bias, and what may not come masked."""
    s = row.sampling
    scores = penalise(scores, row)
    if s.logit_bias:
        if row.bias is None:
            ids = torch.tensor(list(s.logit_bias), device=scores.device)
            values = torch.tensor(list(s.logit_bias.values()), device=scores.device)
            row.bias = (ids, values.to(scores.dtype))
        scores = scores.index_add(0, *row.bias)
    if row.made < s.min_tokens and row.ends:
        scores = scores.index_fill(0, torch.tensor(row.ends, device=scores.device), NEVER)
    if row.guide is not None:
        words = row.guide.mask() if row.allowed is None else row.allowed
        row.allowed = None
        scores = scores.masked_fill(~unpack(words, scores.shape[0]).to(scores.device), NEVER)
    return scores


def unpack(words: Tensor, count: int) -> Tensor:
    """The first `count` bits of int32 words, as booleans; bits that are not there are unset."""
    bits = (words[:, None] >> torch.arange(32, dtype=torch.int32)) & 1
    flat = bits.flatten()[:count].bool()
    return flat if flat.numel() == count else torch.nn.functional.pad(flat, (0, count - len(flat)))


def penalise(scores: Tensor, row: Choosing) -> Tensor:
    """Scores with the penalties for tokens that were used."""
    s = row.sampling
    if s.repetition_penalty != 1:
        if row.seen is None:
            row.seen = torch.zeros(scores.shape[0], dtype=torch.bool, device=scores.device)
            row.seen[torch.tensor([*row.prompt, *row.resumed], device=scores.device)] = True
        worse = torch.where(
            scores < 0, scores * s.repetition_penalty, scores / s.repetition_penalty
        )
        scores = torch.where(row.seen, worse, scores)
    if s.presence_penalty or s.frequency_penalty:
        if row.counts is None:
            row.counts = torch.zeros(scores.shape[0], device=scores.device)
            for token in row.resumed:
                row.counts[token] += 1
        scores = scores - row.counts * s.frequency_penalty
        scores = scores - (row.counts > 0) * s.presence_penalty
    return scores


def draw(scores: Tensor, rows: Many[Choosing]) -> list[int]:
    """One token a row, from the distributions after temperature and filters; -1 where there is
    none."""
    device = scores.device
    temperatures = torch.tensor([row.sampling.temperature for row in rows], device=device)
    shares = torch.softmax(scores / temperatures[:, None], -1)
    lost = shares[:, 0].isnan()  # one score that is no number makes all shares none
    shares = torch.where(lost[:, None], 1.0, shares) if lost.any() else shares
    numbers = [uniform(row.seed, row.index, row.made) for row in rows]
    filtered = [i for i, row in enumerate(rows) if is_narrowed(row.sampling)]
    plain = [i for i, row in enumerate(rows) if not is_narrowed(row.sampling)]
    ids = [0] * len(rows)
    if plain:
        for i, token in zip(
            plain, from_all(shares[plain], [numbers[i] for i in plain]), strict=True
        ):
            ids[i] = token
    if filtered:
        picked = from_best(
            shares[filtered], [rows[i].sampling for i in filtered], [numbers[i] for i in filtered]
        )
        for i, token in zip(filtered, picked, strict=True):
            ids[i] = token
    return [-1 if gone else token for token, gone in zip(ids, lost.tolist(), strict=True)]


def is_narrowed(s: Sampling) -> bool:
    """Whether some tokens are left out."""
    return s.top_k > 0 or s.top_p < 1 or s.min_p > 0


def from_all(shares: Tensor, numbers: Many[float]) -> list[int]:
    """Draws from whole distributions [R, V], on the CPU: not every device has float64."""
    total = shares.cpu().double().cumsum(-1)
    return locate(total, total[:, -1:], numbers)


def from_best(shares: Tensor, wanted: Many[Sampling], numbers: Many[float]) -> list[int]:
    """Draws from the best tokens of each row, as top_k, top_p and min_p leave them."""
    vocabulary = shares.shape[-1]
    count = min(FEW, vocabulary)
    best, order = (t.cpu() for t in shares.topk(count))
    tops = torch.tensor([s.top_k if s.top_k > 0 else vocabulary for s in wanted])
    least = torch.tensor([s.top_p for s in wanted], dtype=torch.float64)[:, None]
    ratio = torch.tensor([s.min_p for s in wanted])[:, None]
    if count < vocabulary and not enough(best, tops, least, ratio):
        best, order = (t.cpu() for t in shares.sort(descending=True))
        count = vocabulary
    inside = torch.arange(count)[None] < tops[:, None]
    kept = (best * inside).double()
    before = kept.cumsum(-1) - kept
    inside &= before < least * kept.sum(-1, keepdim=True)
    inside &= best >= ratio * best[:, :1]
    inside[:, 0] = True
    total = (best * inside).double().cumsum(-1)
    places = locate(total, total[:, -1:], numbers)
    return order[torch.arange(len(places)), places].tolist()


def enough(best: Tensor, tops: Tensor, least: Tensor, ratio: Tensor) -> bool:
    """Whether the candidates hold everything that any row may draw."""
    by_count = tops <= best.shape[-1]
    by_share = (best.double().sum(-1) >= least[:, 0]) & (tops > best.shape[-1])
    by_ratio = best[:, -1] < ratio[:, 0] * best[:, 0]
    return bool((by_count | by_share | by_ratio).all())


def locate(cumulated: Tensor, total: Tensor, numbers: Many[float]) -> list[int]:
    """The first place whose cumulated share is above number · total."""
    u = torch.tensor(numbers, dtype=torch.float64)[:, None] * total
    places = torch.searchsorted(cumulated, u, right=True)[:, 0]
    last = (cumulated < total).sum(-1)  # the last token with a share: u may round up to the total
    return torch.minimum(places, last).tolist()


def uniform(seed: int, index: int, position: int) -> float:
    """A number in [0, 1) from three integers (splitmix64's finaliser, twice)."""
    mixed = mix((seed & MASK) ^ mix(index + 0x9E3779B97F4A7C15))
    return (mix(mixed + (position + 1) * 0x9E3779B97F4A7C15) >> 11) / (1 << 53)


def mix(x: int) -> int:
    """Spread the bits of a 64-bit number."""
    x &= MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def logprobs(scores: Tensor, ids: Many[int], tops: Many[int]) -> list[TokenLogprob]:
    """Log-probability, rank and best tokens of each row."""
    logs = torch.log_softmax(scores, -1)
    own = logs.gather(1, torch.tensor(ids, device=scores.device)[:, None])
    ranks = ((logs > own).sum(-1) + 1).tolist()
    most = max(tops, default=0)
    values, places = logs.topk(min(most, logs.shape[-1])) if most else (own[:, :0], own[:, :0])
    listed = [
        tuple(zip(map(int, place), value, strict=True))
        for place, value in zip(places.tolist(), values.tolist(), strict=True)
    ]
    return [
        TokenLogprob(token, value, rank, row[:top])
        for token, value, rank, row, top in zip(
            ids, own[:, 0].tolist(), ranks, listed, tops, strict=True
        )
    ]
