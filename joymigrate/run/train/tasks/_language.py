"""What tasks of language models share when they are evaluated: scores of targets, free text.

Shapes: B samples, L tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from joymigrate.run.train.columns import Array, Batch
from joymigrate.run.train.tokenizer import end_of_turn

if TYPE_CHECKING:
    import torch


def target_scores(
    logits_BLV: torch.Tensor, labels_BL: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of every target [B, L-1] (0 elsewhere), and which are targets."""
    import torch

    wanted = labels_BL[:, 1:] != -100
    chosen = labels_BL[:, 1:].clamp(min=0)
    found = torch.log_softmax(logits_BLV[:, :-1].float(), -1)
    return found.gather(-1, chosen.unsqueeze(-1)).squeeze(-1) * wanted, wanted


def teacher_forced(logits_BLV: torch.Tensor, batch: Batch, tokenizer: Any) -> list[dict[str, Any]]:
    """Per sample: the most likely tokens at its targets, the true ones, their mean log-prob."""
    labels_BL = batch["labels"]
    scores, wanted = target_scores(logits_BLV, labels_BL)
    best = logits_BLV[:, :-1].argmax(-1)
    found = []
    for row in range(len(labels_BL)):
        mask = wanted[row]
        guess, truth = best[row][mask].tolist(), labels_BL[row, 1:][mask].tolist()
        found.append(
            {
                "prediction": tokenizer.decode(guess),
                "reference": tokenizer.decode(truth),
                "score": float(scores[row].sum()) / max(1, len(truth)),
                "tokens": guess,
                "targets": len(truth),
                "correct": sum(a == b for a, b in zip(guess, truth, strict=True)),
            }
        )
    return found


def likely_tokens(logits_BLV: torch.Tensor, batch: Batch, tokenizer: Any) -> list[dict[str, Any]]:
    """The most likely tokens, where logits stand on their own target and not one place before."""
    import torch

    ahead = torch.cat([logits_BLV, logits_BLV[:, -1:]], 1)
    labels = torch.nn.functional.pad(batch["labels"], (1, 0), value=-100)
    return teacher_forced(ahead, {"labels": labels}, tokenizer)


def token_metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Perplexity and accuracy over all targets."""
    scored = [row for row in rows if row.get("targets")]
    targets = sum(row["targets"] for row in scored)
    if not targets:
        return {}
    nll = -sum(row["score"] * row["targets"] for row in scored) / targets
    return {
        "loss": nll,
        "perplexity": math.exp(min(nll, 700.0)),  # beyond that a float ends
        "token_accuracy": sum(row["correct"] for row in scored) / targets,
    }


def document(tokens: Array, ranges: Array) -> dict[str, Array]:
    """Tokens as one row: which are targets, and their places."""
    import numpy as np

    wanted = np.zeros(len(tokens), dtype=bool)
    for begin, end in ranges.reshape(-1, 2):
        wanted[begin:end] = True
    wanted[:1] = False
    places = np.arange(len(tokens), dtype=np.int64)
    return {"tokens": tokens.astype(np.int64), "targets": wanted, "positions": places}


def sequence_scores(model: Any, rows: Sequence[Sequence[int]], heads: Sequence[int]) -> list[float]:
    """Log-probability of each row's tokens behind its first `heads` tokens."""
    import torch

    device = next(model.parameters()).device
    longest = max(len(row) for row in rows)
    ids_BL = torch.zeros((len(rows), longest), dtype=torch.long)
    labels_BL = torch.full((len(rows), longest), -100)
    for index, (row, head) in enumerate(zip(rows, heads, strict=True)):
        ids_BL[index, : len(row)] = torch.tensor(row)
        labels_BL[index, head : len(row)] = torch.tensor(row[head:])
    logits_BLV = model(input_ids=ids_BL.to(device), use_cache=False).logits
    scores, _ = target_scores(logits_BLV, labels_BL.to(device))
    found: list[float] = scores.sum(-1).tolist()
    return found


def generate(model: Any, tokens: Sequence[int], tokenizer: Any, limit: int) -> list[int]:
    """The most likely continuation, up to an end sign or `limit` tokens."""
    import torch

    prompt_1L = torch.tensor([list(tokens)], device=next(model.parameters()).device)
    made = model.generate(
        input_ids=prompt_1L,
        attention_mask=torch.ones_like(prompt_1L),
        max_new_tokens=limit,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=stops(tokenizer),
    )
    found: list[int] = made[0, len(tokens) :].tolist()
    return found


def stops(tokenizer: Any) -> list[int]:
    """Tokens that end a text: the end sign, and the end of a turn where there is one."""
    ends = [tokenizer.eos_token_id, end_of_turn(tokenizer)]
    return [token for token in dict.fromkeys(ends) if token is not None]
