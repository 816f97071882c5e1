"""HSTU trained on MovieLens-100K beside its published code, at equal settings: NDCG@10 and HR@10.

    PYTHON benchmarks/hstu_learning.py ours --ratings FILE --seed 1 --keep DIR
    PYTHON benchmarks/hstu_learning.py theirs --ratings FILE --seed 1 --keep DIR --checkout DIR
    PYTHON benchmarks/hstu_learning.py show --keep DIR

FILE is `dataset/ml-100k/ml-100k.inter` of github.com/RUCAIBox/RecBole (7b02be5 was used); its
licence forbids handing it on. Settings are those of
`configs/ml-1m/hstu-sampled-softmax-n128-final.gin` of github.com/facebookresearch/
generative-recommenders (2e81fab), with batches of 32 of the 943 users: 2 layers, 1 head, 50
columns, dropout 0.2, 128 negatives, temperature 0.05, AdamW, lr 1e-3, betas 0.9 and 0.98, the
newest 200 events (`--length 50`: fewer, for a machine without a card). A user's last item is
predicted, all before it are learned from; it is ranked among all items, and (as the published
evaluation does) among those that the user has not seen.

`ours` is a job of `joymigrate train`; `theirs` are the published model, loss and sampler of
negatives in a loop as that of their `train.py`, which wants NCCL. PYTHON has fbgemm-gpu-cpu and
torchrec.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

SIZE, LAYERS, ROWS, NEGATIVES, TEMPERATURE, RATE = 50, 2, 32, 128, 0.05, 1e-3
BETAS, DROPOUT, FIRST = (0.9, 0.98), 0.2, 0.02  # FIRST: the deviation of first rows
User = tuple[list[int], list[int]]  # items and times, the oldest first


def read_users(path: Path) -> tuple[list[User], int]:
    """Every user's items by time, and the number of items with 0, which nobody saw."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for number, line in enumerate(path.read_text().splitlines()[1:]):
        user, item, _, when = line.split("\t")
        found.setdefault(int(user), []).append((int(float(when)), number, int(item)))
    users = []
    for user in sorted(found):
        events = sorted(found[user])
        users.append(([item for _, _, item in events], [when for when, _, _ in events]))
    return users, 1 + max(item for items, _ in users for item in items)


def ranks(scores: np.ndarray[Any, Any], users: list[User]) -> dict[str, float]:
    """Where every user's last item stands among all items but 0, and among those not seen."""
    found: dict[str, float] = {}
    for name in ("all", "unseen"):
        places = []
        for row, (items, _) in zip(scores, users, strict=True):
            mine = row.copy()
            mine[0] = -np.inf
            if name == "unseen":
                mine[items[:-1]] = -np.inf
            places.append(int((mine > row[items[-1]]).sum()))
        gains = [1 / math.log2(place + 2) if place < 10 else 0.0 for place in places]
        found[f"ndcg@10 {name}"] = statistics.mean(gains)
        found[f"hr@10 {name}"] = statistics.mean(place < 10 for place in places)
    return found


# -- ours ---------------------------------------------------------------------------------------


def write_job(
    users: list[User], count: int, steps: int, seed: int, length: int, folder: Path,
    dropout: float = DROPOUT,
) -> Path:  # fmt: skip
    """A job of `joymigrate train` with the published settings, its data beside it."""
    import pyarrow as pa
    import yaml
    from pyarrow import parquet

    folder.mkdir(parents=True)
    for name, last in (("train", -2), ("eval", -1)):
        rows = {
            "item": [items[last] for items, _ in users],
            "seen": [items[:last] for items, _ in users],
            "when": [times[:last] for _, times in users],
            "asked": [times[last] for _, times in users],
            "click": [1] * len(users),
        }
        parquet.write_table(pa.table(rows), folder / f"{name}.parquet")
    seen = {"type": "sequence", "table": "item", "length": length, "times": "when"}
    schema = {"label": "click", "dim": SIZE, "time": "asked",
              "features": {"item": {"type": "id", "rows": count}, "seen": seen}}  # fmt: skip
    (folder / "features.yaml").write_text(yaml.safe_dump(schema))
    sizes = {"model_type": "hstu", "layers": LAYERS, "heads": 1, "dropout": dropout}
    raw = {
        "model": {"from_config": sizes},
        "task": {
            **{"name": "generative", "negatives": NEGATIVES, "temperature": TEMPERATURE},
            **{"negatives_for": "event", "mean_over": "events"},
        },
        "data": {"train": str(folder / "train.parquet"), "schema": str(folder / "features.yaml")},
        "batch": {"size": ROWS},
        "optimiser": {"lr": RATE, "betas": list(BETAS), "weight_decay": 0.0, "clip": 0},
        "schedule": {"name": "constant"},
        "tables": {"optimiser": "none", "first": FIRST * 3**0.5},  # uniform, of that deviation
        "guard": {"spike": 0},
        "seed": seed,
        "device": "cpu",
        "checkpoint": {"export": False},
        "steps": steps,
        "run": str(folder / "run"),
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(raw))
    return folder / "job.yaml"


def ours(
    users: list[User], count: int, steps: int, seed: int, length: int, folder: Path
) -> dict[str, Any]:
    """A job of `joymigrate train`, and its newest checkpoint's scores."""
    from joymigrate.run.train import job as jobs
    from joymigrate.run.train import launch
    from joymigrate.run.train.evaluate import EvaluateOptions, open_target

    job = jobs.load(write_job(users, count, steps, seed, length, folder))
    start = time.process_time()
    quiet = launch.LaunchOptions(quiet=True, unverified=True)
    if launch.launch(job, quiet, lambda line: None):
        raise SystemExit("the job failed")
    spent = time.process_time() - start
    _, task, model = open_target(job.run_folder, job, EvaluateOptions(), lambda line: None)
    model.eval()
    from joymigrate.run.train.samples.open_rows import open_rows
    from joymigrate.run.train.samples.readers import start_readers

    data = open_rows([folder / "eval.parquet"], task.schema, shuffle=False)
    readers = start_readers("threads", 1)
    with torch.no_grad():
        parts = [
            task.compared(model, task.samples_of(batch.part(at, min(batch.read, at + 64))))
            for batch in readers.stream(data, data.order.pieces([(0, len(users))], 0))
            for at in range(0, batch.read, 64)
        ]
    readers.close()
    return {**ranks(torch.cat(parts).numpy(), users), "cpu_s": spent}


# -- theirs -------------------------------------------------------------------------------------


def their_model(count: int, length: int, dropout: float = DROPOUT) -> Any:
    """The published model."""
    import fbgemm_gpu  # noqa: F401
    from generative_recommenders.research.modeling.sequential import (
        embedding_modules,
        hstu,
        input_features_preprocessors,
        output_postprocessors,
    )
    from generative_recommenders.research.rails.similarities import dot_product_similarity_fn

    return hstu.HSTU(
        max_sequence_len=length, max_output_len=2, embedding_dim=SIZE, num_blocks=LAYERS,
        num_heads=1, linear_dim=SIZE, attention_dim=SIZE, normalization="rel_bias",
        linear_config="uvqk", linear_activation="silu", linear_dropout_rate=dropout,
        attn_dropout_rate=0.0,
        embedding_module=embedding_modules.LocalEmbeddingModule(count - 1, SIZE),
        similarity_module=dot_product_similarity_fn.DotProductSimilarity(),
        input_features_preproc_module=
        input_features_preprocessors.LearnablePositionalEmbeddingInputFeaturesPreprocessor(
            max_sequence_len=length + 2, embedding_dim=SIZE, dropout_rate=dropout),
        output_postproc_module=output_postprocessors.L2NormEmbeddingPostprocessor(SIZE),
        verbose=False,
    )  # fmt: skip


def theirs(users: list[User], count: int, steps: int, seed: int, length: int) -> dict[str, Any]:
    """The published model, loss and sampler."""
    from generative_recommenders.research.modeling.sequential import autoregressive_losses
    from generative_recommenders.research.modeling.sequential.losses import sampled_softmax

    torch.manual_seed(seed)
    places = length + 2
    model = their_model(count, length)
    loss_of = sampled_softmax.SampledSoftmaxLoss(NEGATIVES, TEMPERATURE, model)
    sampler = autoregressive_losses.LocalNegativesSampler(
        count - 1, model._embedding_module._item_emb, list(range(1, count)), True, 1e-6
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, weight_decay=0.0)
    # The last event of a row is learned, and none comes behind it.
    rows = [padded([items[:-1], times[:-1]], places) for items, times in users]
    draw, done = np.random.default_rng(seed), 0
    start = time.process_time()
    while done < steps:
        order = draw.permutation(len(users))
        for at in range(0, len(users), ROWS):
            ids, times, lengths = (torch.stack(one) for one in zip(
                *(rows[row] for row in order[at : at + ROWS]), strict=True))  # fmt: skip
            optimiser.zero_grad()
            vectors = model.get_item_embeddings(ids)
            states = model(lengths, ids, vectors, {"timestamps": times})
            right = (ids[:, 1:] != 0).float()
            loss, _ = loss_of(lengths, states[:, :-1], ids[:, 1:], vectors[:, 1:], right, sampler)
            loss.backward()
            optimiser.step()
            done += 1
            if done == steps:
                break
    spent = time.process_time() - start
    return {**ranks(their_scores(model, users, count, places), users), "cpu_s": spent}


def their_scores(model: Any, users: list[User], count: int, places: int) -> np.ndarray[Any, Any]:
    """Of all items for every user's last event but one."""
    model.eval()
    parts = []
    with torch.no_grad():
        every = torch.nn.functional.normalize(model.get_item_embeddings(torch.arange(count)), dim=1)
        for at in range(0, len(users), 64):
            part = [padded([items[:-1], times[:-1]], places, times[-1])
                    for items, times in users[at : at + 64]]  # fmt: skip
            ids, times, lengths = (torch.stack(one) for one in zip(*part, strict=True))
            found = model.encode(
                lengths, ids, model.get_item_embeddings(ids), {"timestamps": times}
            )
            parts.append(found @ every.T)
    return torch.cat(parts).numpy()


def padded(
    lists: list[list[int]], places: int, following: int | None = None
) -> tuple[torch.Tensor, ...]:
    """The newest events, 0 behind them; `following` is the time behind the last one."""
    kept = [one[2 - places :] for one in lists]
    ids, times = (torch.tensor(one + [0] * (places - len(one))) for one in kept)
    if following is not None:
        times[len(kept[0])] = following
    return ids, times, torch.tensor(len(kept[0]))


# -- both ---------------------------------------------------------------------------------------


def show(folder: Path) -> None:
    """The mean and the spread over seeds."""
    for side in ("ours", "theirs"):
        runs = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{side}-*.json"))]
        for name in runs[0] if runs else ():
            values = [run[name] for run in runs]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            print(f"{side:7} {name:16} {statistics.mean(values):8.4f} ± {spread:.4f}, "
                  f"{len(values)} seeds")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=["ours", "theirs", "show"])
    parser.add_argument("--ratings", type=Path)
    parser.add_argument("--checkout", type=Path)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--length", type=int, default=200)
    options = parser.parse_args()
    if options.side == "show":
        return show(options.keep)
    torch.set_num_threads(1)
    users, count = read_users(options.ratings)
    options.keep.mkdir(parents=True, exist_ok=True)
    if options.side == "ours":
        folder = options.keep / f"run-{options.seed}"
        found = ours(users, count, options.steps, options.seed, options.length, folder)
    else:
        sys.path.insert(0, str(options.checkout))
        found = theirs(users, count, options.steps, options.seed, options.length)
    (options.keep / f"{options.side}-{options.seed}.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))
    return None


if __name__ == "__main__":
    main()
