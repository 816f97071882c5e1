"""HSTU trained beside its published code step by step: the same weights, rows and negatives.

    PYTHON benchmarks/hstu_steps.py --ratings FILE --checkout DIR [--steps 300]

What `hstu_learning.py` compares over seeds, without chance: our model starts from the published
one's first weights, both get the same users in the same order and the negatives that the published
sampler draws, and there is no dropout. Adam divides each gradient by its own size, so that the last
bit of a small one becomes a step of its own; a third run shows how much that is: the published
model again, with the last bits of its first weights changed. With `--sgd` it is not there.
Printed are the largest differences of the loss so far, and NDCG@10 of all three at the end.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import torch
from hstu_learning import (
    BETAS,
    NEGATIVES,
    RATE,
    ROWS,
    TEMPERATURE,
    User,
    padded,
    ranks,
    read_users,
    their_model,
    their_scores,
    write_job,
)
from hstu_peer import pairs

Tensors = dict[str, torch.Tensor]


def our_batch(rows: list[tuple[torch.Tensor, ...]], places: int) -> Tensors:
    """The same rows as ours takes them: the last event is the row's item."""
    ids, times, lengths = (torch.stack(one) for one in zip(*rows, strict=True))
    last = (lengths - 1)[:, None]
    return {
        "labels": torch.ones(len(ids), 1),
        "numbers": torch.zeros(len(ids), 0),
        "item.ids": ids.gather(1, last)[:, 0],
        "seen.ids": ids.scatter(1, last, 0),
        "seen.mask": torch.arange(places) < last,
        "seen.times": times,
        "asked": times.gather(1, last)[:, 0],
    }


def own_negatives(drawn: torch.Tensor, lengths: list[int], places: int) -> torch.Tensor:
    """Theirs are packed, event by event [T, N]; ours [B, L, N]."""
    found = torch.ones(len(lengths), places, drawn.shape[1], dtype=torch.int64)
    for row, part in enumerate(drawn.split(lengths)):
        found[row, : len(part)] = part
    return found


class Published:
    """The published model with its loss and sampler, and what the sampler drew."""

    def __init__(self, model: Any, count: int) -> None:
        from generative_recommenders.research.modeling.sequential import autoregressive_losses
        from generative_recommenders.research.modeling.sequential.losses import sampled_softmax

        published = self
        published.fixed = None

        class Sampler(autoregressive_losses.LocalNegativesSampler):  # type: ignore[misc]
            def forward(self, *args: Any, **kwargs: Any) -> Any:
                published.drawn, rows = super().forward(*args, **kwargs)
                if published.fixed is not None:
                    published.drawn = published.fixed
                    rows = self.normalize_embeddings(self._item_emb(published.drawn))
                return published.drawn, rows

        self.model = model
        rows = model._embedding_module._item_emb
        self.sampler = Sampler(count - 1, rows, list(range(1, count)), True, 1e-6)
        self.loss_of = sampled_softmax.SampledSoftmaxLoss(NEGATIVES, TEMPERATURE, model)
        self.drawn: torch.Tensor
        self.fixed: torch.Tensor | None

    def loss(self, ids: Any, times: Any, lengths: Any, drawn: Any = None) -> torch.Tensor:
        """As in their train.py; with the negatives `drawn`, where they are given."""
        self.fixed = drawn
        vectors = self.model.get_item_embeddings(ids)
        states = self.model(lengths, ids, vectors, {"timestamps": times})
        right = (ids[:, 1:] != 0).float()
        found: torch.Tensor = self.loss_of(
            lengths, states[:, :-1], ids[:, 1:], vectors[:, 1:], right, self.sampler
        )[0]
        return found


def train(
    mine: Any, task: Any, published: list[Published], users: list[User], steps: int, places: int,
    sgd: bool,
) -> None:  # fmt: skip
    """All three, step by step."""
    first, again = published
    every = [mine, first.model, again.model]
    if sgd:
        optimisers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in every]
    else:
        optimisers = [
            torch.optim.AdamW(one.parameters(), lr=RATE, betas=BETAS, weight_decay=0.0)
            for one in every
        ]  # fmt: skip
    rows = [padded([items[:-1], times[:-1]], places) for items, times in users]
    worst, noise, done = 0.0, 0.0, 0
    while done < steps:
        for some in torch.randperm(len(users)).split(ROWS):
            part = [rows[row] for row in some.tolist()]
            ids, times, lengths = (torch.stack(one) for one in zip(*part, strict=True))
            wanted = first.loss(ids, times, lengths)
            other = again.loss(ids, times, lengths, first.drawn)
            batch = our_batch(part, places)
            batch["negatives"] = own_negatives(first.drawn, lengths.tolist(), places)
            own = task.objective(mine(batch), batch) / len(ids)
            for optimiser, loss in zip(optimisers, (own, wanted, other), strict=True):
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            worst = max(worst, abs(own.item() - wanted.item()))
            noise = max(noise, abs(other.item() - wanted.item()))
            done += 1
            if done in (1, 10, 30, 100) or done % 300 == 0 or done == steps:
                print(f"step {done}: loss {own.item():.6f}, published {wanted.item():.6f}; "
                      f"largest difference so far {worst:.1e}, "
                      f"of the published one to itself {noise:.1e}", flush=True)  # fmt: skip
            if done == steps:
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ratings", type=Path, required=True)
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--sgd", action="store_true", help="plain SGD, which lets rounding be")
    options = parser.parse_args()
    sys.path.insert(0, str(options.checkout))
    from joymigrate.run.train import job as jobs
    from joymigrate.run.train.assemble import model_of, task_of

    torch.set_num_threads(1)
    torch.manual_seed(0)
    users, count = read_users(options.ratings)
    places = options.length + 2
    other = their_model(count, options.length, dropout=0.0)
    with tempfile.TemporaryDirectory() as folder:
        path = write_job(users, count, 1, 0, places, Path(folder) / "job", dropout=0.0)
        job = jobs.load(path)
        task: Any = task_of(job)
        mine: Any = model_of(job, task)
    rows = mine.rows.collections[0].plain["item"].weight
    every = [("rows", rows, other._embedding_module._item_emb.weight, False)]
    every += pairs(mine.dense, other)
    with torch.no_grad():
        for _, own, one, turned in every:
            own.copy_((one.T if turned else one).reshape(own.shape))
    moved = copy.deepcopy(other)
    with torch.no_grad():
        for weight in moved.parameters():
            weight *= 1 + 1e-7 * torch.randn(weight.shape)
    published = [Published(one, count) for one in (other, moved)]
    train(mine, task, published, users, options.steps, places, options.sgd)
    mine.eval()
    found = []
    with torch.no_grad():
        for at in range(0, len(users), 64):
            part = [
                (ids[:places], times[:places], length)
                for ids, times, length in (
                    padded([*user], places + 1) for user in users[at : at + 64]
                )
            ]  # one event more
            found.append(task.compared(mine, our_batch(part, places)))
    for name, scores in (
        ("ours", torch.cat(found).numpy()),
        ("published", their_scores(other, users, count, places)),
        ("published, last bits changed", their_scores(moved, users, count, places)),
    ):
        print(name, " ".join(f"{key} {value:.4f}" for key, value in ranks(scores, users).items()))


if __name__ == "__main__":
    main()
