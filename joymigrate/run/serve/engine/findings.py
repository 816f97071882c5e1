"""What a forward pass says about each of its texts, before any of them is told."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from joymigrate.run.serve.engine.batch import Batch
from joymigrate.run.serve.engine.live import LiveText
from joymigrate.run.serve.engine.models.model import CausalModel
from joymigrate.run.serve.engine.sampler import SampledTokens, choose, logprobs
from joymigrate.run.serve.engine.scheduler import Chunk
from joymigrate.run.serve.engine.types import FinishReason, Stuck, TokenLogprob


@dataclass(slots=True)
class ForwardResult:
    """What a forward pass says about each of its texts, before any of them is told. `drafts` are
    (place in `sampled`, tokens that were tried, the scores behind each [K, V])."""

    states: list[tuple[Chunk, LiveText, Tensor]] = field(default_factory=list)
    prompts: list[tuple[LiveText, list[TokenLogprob]]] = field(default_factory=list)
    ended: list[tuple[LiveText, FinishReason, str | Stuck | None]] = field(default_factory=list)
    sampled: list[LiveText] = field(default_factory=list)
    chosen: SampledTokens = field(default_factory=lambda: SampledTokens([]))
    drafts: list[tuple[int, tuple[int, ...], Tensor]] = field(default_factory=list)


def read(model: CausalModel, chunks: list[Chunk], batch: Batch, hidden: Tensor) -> ForwardResult:
    """Sample for the chunks that reach their newest token; take the others' states."""
    found = ForwardResult()
    rows: list[int] = []
    behind: list[int] = []
    tried: list[tuple[int, Chunk]] = []
    for chunk, (first, last) in zip(chunks, batch.ranges, strict=True):
        state = chunk.sequence.state
        if state.request.pooling is not None:
            found.states.append((chunk, state, pool_states(chunk, state, hidden[first:last])))
            continue
        if chunk.sequence.every and chunk.start < chunk.sequence.prompt:
            found.prompts.append((state, score_prompt(model, chunk, state, hidden[first:last])))
        if not chunk.last:
            continue
        if len(chunk.sequence.ids) >= chunk.sequence.limit:  # only the prompt was wanted
            found.ended.append((state, "length", None))
            continue
        refusal = ask_guide(state)
        if refusal is not None:
            found.ended.append((state, "error", refusal))
            continue
        if chunk.drafts:
            tried.append((len(rows), chunk))
            behind += range(last - len(chunk.drafts), last)
        found.sampled.append(state)
        rows.append(last - 1 - len(chunk.drafts))
    if found.sampled:
        wanted = rows + behind
        whole = wanted == list(range(hidden.shape[0]))
        logits = model.logits(hidden if whole else hidden[wanted])
        found.chosen = choose(logits[: len(rows)], [text.choosing for text in found.sampled])
        scores = torch.split(logits[len(rows) :], [len(chunk.drafts) for _, chunk in tried])
        found.drafts = [
            (place, chunk.drafts, part) for (place, chunk), part in zip(tried, scores, strict=True)
        ]
    return found


def score_prompt(
    model: CausalModel, chunk: Chunk, text: LiveText, hidden: Tensor
) -> list[TokenLogprob]:
    """Log-probabilities of the prompt's tokens that follow those of a chunk, but for those
    that are known already."""
    assert text.prompt_logprobs is not None
    done = len(text.prompt_logprobs) - 1  # after a preemption some are known already
    ids = text.sequence.ids[chunk.start + 1 : min(chunk.start + chunk.count + 1,
                                                  text.sequence.prompt)]  # fmt: skip
    skip = max(0, done - chunk.start)
    wanted = ids[skip:]
    if not wanted:
        return []
    scores = model.logits(hidden[skip : skip + len(wanted)])
    most = text.request.sampling.prompt_logprobs or 0
    return logprobs(scores, wanted, [most] * len(wanted))


def pool_states(chunk: Chunk, text: LiveText, hidden: Tensor) -> Tensor:
    """The states of a text to embed so far, or at its end what is made of them, on the CPU."""
    if text.request.pooling == "last":
        return hidden[-1].float().cpu() if chunk.last else hidden.new_empty(0)
    total = hidden.float().sum(0).cpu()
    if chunk.start and text.pooled is not None:
        total = total + text.pooled
    return total / len(chunk.sequence.ids) if chunk.last else total


def ask_guide(text: LiveText) -> str | Stuck | None:
    """Get what a text's guide allows next. Why the text cannot go on, where the guide fails: that
    is no reason to end the others."""
    guide = text.choosing.guide
    if guide is None:
        return None
    try:
        text.choosing.allowed = guide.mask()
    except Stuck as end:
        return end
    except Exception as error:
        return f"the grammar cannot be followed: {error}"
    return None
