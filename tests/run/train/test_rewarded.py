"""Reinforcement learning on a recommender that writes ids: its policy, a toy, killed runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

torch = pytest.importorskip("torch")
pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

from joymigrate.errors import JoyError  # noqa: E402
from joymigrate.run.beam import Trie  # noqa: E402
from joymigrate.run.train import job as jobs  # noqa: E402
from joymigrate.run.train import launch  # noqa: E402
from joymigrate.run.train.recommendation.inputs import InputShape  # noqa: E402
from joymigrate.run.train.recommendation.onerec import DecoderCache, OneRec  # noqa: E402
from joymigrate.run.train.reinforcement import policy  # noqa: E402
from joymigrate.run.train.samples import assemble, generated_ids  # noqa: E402
from joymigrate.run.train.semantic_ids.codes import SemanticIds  # noqa: E402

ITEMS, LENGTH = 24, 8
REWARD = """
def even(item):
    return float(item % 2 == 0)

def near(history, item, codes, target, label):
    assert len(codes) == 2 and label == 1.0 and isinstance(target, int)
    return -abs(item - history[-1])

def broken(item):
    return None
"""


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("walks")
    draw = np.random.default_rng(0)
    seen = [draw.integers(ITEMS, size=int(draw.integers(1, LENGTH + 1))) for _ in range(128)]
    rows = {"item": draw.integers(ITEMS, size=128).tolist(), "seen": [one.tolist() for one in seen],
            "click": [1] * 128}  # fmt: skip
    parquet.write_table(pa.table(rows), folder / "walks.parquet", row_group_size=32)
    schema = {
        "label": "click", "dim": 16,
        "features": {"item": {"type": "id", "rows": ITEMS},
                     "seen": {"type": "sequence", "table": "item", "length": LENGTH}},
    }  # fmt: skip
    (folder / "features.yaml").write_text(yaml.safe_dump(schema))
    (folder / "reward.py").write_text(REWARD)
    ids = torch.arange(ITEMS)
    SemanticIds(ids, torch.stack([ids // 5, ids % 5], 1), (5, 5)).write(folder / "c.safetensors")
    return folder


def job_of(walks: Path, run: Path, task: dict[str, Any], **changes: Any) -> jobs.Job:
    learns = {} if task["name"] == "generative" else {"reward": "reward.py:even"}
    raw = {
        "model": {"from_config": {"model_type": "onerec", "layers": 1, "decoder_layers": 1}},
        "task": {"codes": "c.safetensors", **learns, **task},
        "data": {"train": "walks.parquet", "schema": "features.yaml"},
        "batch": {"size": 32},
        "optimiser": {"lr": 0.01},
        "schedule": "constant",
        "guard": {"spike": 0},
        "device": "cpu",
        "checkpoint": {"export": False, "every": 3},
        "run": str(run),
        **changes,
    }
    path = walks / f"{run.parent.name}-{run.name}.yaml"
    path.write_text(yaml.safe_dump(raw))
    return jobs.load(path)


def path_of(walks: Path, job: jobs.Job) -> str:
    return str(walks / f"{job.name}.yaml")


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def train(job: jobs.Job) -> list[dict[str, Any]]:
    start = launch.LaunchOptions(quiet=True, unverified=True)
    assert launch.launch(job, start, lambda line: None) == 0
    return lines(job.run_folder)


def small(rows: int = 3) -> tuple[Any, DecoderCache, Trie]:
    """A model, what it remembers of some rows, and a trie with branches of different widths."""
    torch.manual_seed(0)
    model = OneRec(InputShape(0, 0, 8, (4,), 1, (3, 4)), 1, 1, 2, 2, 0.0).eval()
    kept = tuple(tuple(torch.randn(rows, 4, 2, 4) for _ in range(2)) for _ in range(1))
    seen = torch.arange(4) < torch.tensor([4, 2, 1][:rows])[:, None]
    ids = torch.tensor([[0, 1], [0, 3], [1, 2], [2, 0], [2, 1], [2, 2], [2, 3]])
    return model, DecoderCache(kept, seen), Trie.of(ids, torch.arange(7) + 100)  # type: ignore[arg-type]


def test_the_probabilities_of_all_items_are_one_together() -> None:
    model, memory, trie = small()
    ids = torch.tensor([[0, 1], [0, 3], [1, 2], [2, 0], [2, 1], [2, 2], [2, 3]])
    for row in range(3):
        logits = model.write(memory.row(row).repeated(7), ids)
        logs = generated_ids.log_probabilities(logits, ids, trie, 0.7)
        assert float(logs.detach().sum(1).exp().sum()) == pytest.approx(1, abs=1e-6)
        assert logs.requires_grad


def test_items_are_drawn_as_often_as_they_are_probable() -> None:
    model, memory, trie = small(1)
    ids = torch.tensor([[0, 1], [0, 3], [1, 2], [2, 0], [2, 1], [2, 2], [2, 3]])
    torch.manual_seed(1)
    codes, leaves = generated_ids.draw_ids(model, memory.each(5_000), trie, 1.0)
    items = trie.items_of(leaves)
    assert torch.equal(ids[items - 100], codes)
    logits = model.write(memory.row(0).repeated(7), ids)
    shares = generated_ids.log_probabilities(logits, ids, trie, 1.0).sum(1).exp()
    found = (items - 100).bincount(minlength=7) / 5_000
    assert torch.allclose(found, shares.detach(), atol=0.03)


def test_beams_are_the_likeliest_items_best_first() -> None:
    model, memory, trie = small()
    found = generated_ids.best_ids(model, memory, trie, 4)
    ids = torch.tensor([[0, 1], [0, 3], [1, 2], [2, 0], [2, 1], [2, 2], [2, 3]])
    for row, (codes, _) in enumerate(found):
        logits = model.write(memory.row(row).repeated(7), ids)
        scores = sum(one.log_softmax(-1).gather(1, ids[:, k, None])[:, 0]
                     for k, one in enumerate(logits))  # fmt: skip
        assert codes.tolist() == ids[scores.topk(4).indices].tolist()


def test_fewer_items_than_beams_are_all_of_them() -> None:
    model, memory, trie = small(1)
    ((codes, _),) = generated_ids.best_ids(model, memory, trie, 50)
    assert len(codes) == 7


def test_losses_of_pairs() -> None:
    margin = torch.tensor([0.0, 2.0])
    log2 = float(np.log(2))
    assert policy.pair_losses(margin, "sigmoid", 0.5).tolist() == pytest.approx(
        [log2, float(np.log1p(np.exp(-1)))]
    )
    assert policy.pair_losses(margin, "ipo", 0.5).tolist() == [1, 1]
    assert policy.pair_losses(margin, "hinge", 0.5).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"name": "grpo", "codes": None}, "names none"),
        ({"name": "grpo", "reward": None}, "needs a reward"),
        ({"name": "dpo", "group": 1}, "group is 2 or more, got 1"),
        ({"name": "dpo", "loss": "x"}, "unknown loss 'x'"),
        ({"name": "grpo", "temperature": 0}, "temperature is above 0"),
        ({"name": "grpo", "negatives": 5}, "unknown key 'negatives'"),
    ],
)
def test_bad_jobs_are_named(walks: Path, tmp_path: Path, task: dict[str, Any], said: str) -> None:
    job = job_of(walks, tmp_path / "run", task)
    with pytest.raises(JoyError, match=said):
        assemble.task_of(job)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "dpo"])
def test_even_items_become_the_only_ones(walks: Path, tmp_path: Path, name: str) -> None:
    """An even item earns 1: at random half of them are."""
    found = [
        line["reward"] for line in train(job_of(walks, tmp_path / "run", {"name": name}, steps=40))
    ]
    assert found[0] < 0.75
    assert max(found[-5:]) > 0.97


@pytest.mark.slow
def test_training_goes_on_from_an_export_and_stays_close_with_beta(
    walks: Path, tmp_path: Path
) -> None:
    first = job_of(
        walks, tmp_path / "first", {"name": "generative"}, steps=20, checkpoint={"export": True}
    )
    train(first)
    start = {"model": {"path": str(tmp_path / "first" / "model")}, "steps": 25}
    wish = {"name": "grpo", "reward": "reward.py:near"}
    free = train(job_of(walks, tmp_path / "free", wish, **start))
    held = train(job_of(walks, tmp_path / "held", {**wish, "beta": 5.0}, **start))
    assert free[0]["reward"] == held[0]["reward"]  # the same draws of the same model
    assert free[-1]["reward"] > held[-1]["reward"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "tables"), [("grpo", {}), ("dpo", {"optimiser": "adagrad"})])
def test_a_killed_run_goes_on_to_the_same_losses(
    walks: Path, tmp_path: Path, name: str, tables: dict[str, Any]
) -> None:
    wish = {"name": name, "beta": 0.1}
    whole = job_of(walks, tmp_path / "whole", wish, steps=14, tables=tables)
    cut = job_of(walks, tmp_path / "cut", wish, steps=14, tables=tables)
    command = [sys.executable, "-m", "joymigrate", "train", "-q"]
    subprocess.run([*command, path_of(walks, whole)], check=True, timeout=300)
    for stop in (5, 10):
        process = subprocess.Popen([*command, path_of(walks, cut)])
        deadline = time.monotonic() + 200
        metrics = tmp_path / "cut" / "metrics.jsonl"
        while time.monotonic() < deadline and process.poll() is None:
            if metrics.is_file() and metrics.read_text().count("\n") >= stop:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run([*command, path_of(walks, cut)], check=True, timeout=300)
    one, other = lines(tmp_path / "whole"), lines(tmp_path / "cut")
    for key in ("loss", "reward"):
        assert [line[key] for line in one] == [line[key] for line in other]


def test_who_writes_and_how_rows_are_spread_changes_no_draw(walks: Path, tmp_path: Path) -> None:
    """What Ray's writers do, without Ray: two of them have the rows of one."""
    from joymigrate.device import open_device
    from joymigrate.run.train.assemble import model_of
    from joymigrate.run.train.reinforcement.engine_writer import whole_weights
    from joymigrate.run.train.samples import item_writer
    from joymigrate.run.train.samples.open_rows import open_rows
    from joymigrate.run.train.samples.position import RowGroupPiece

    job = job_of(walks, tmp_path / "run", {"name": "grpo", "group": 3, "rollouts": "engine"})
    task: Any = assemble.task_of(job)
    model = model_of(job, task)
    rows = open_rows([walks / "walks.parquet"], task.schema, 0)
    batch = task.samples_of(rows.read(RowGroupPiece(0, 0, 8, 0)))
    prompts = item_writer.prompts_of(model.look_up(batch))
    prompts.append((prompts[0][0][:0], prompts[0][1][:0]))  # a history without events
    writers = [task.engine_writer(task.config, open_device(None)) for _ in range(2)]
    for writer in writers:
        writer.load(whole_weights(model.dense))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    alone = task.written(writers[0], {"prompts": prompts}, 7)
    parts = [
        *task.written(writers[1], {"prompts": prompts[:3]}, 7),
        *task.written(writers[0], {"prompts": prompts[3:]}, 7, 3),
    ]
    assert torch.equal(before, torch.get_rng_state())
    assert [[one.tokens for one in group] for group in alone] == [
        [one.tokens for one in group] for group in parts
    ]
    assert len({tuple(one.tokens) for group in alone for one in group}) > 3
    loss = task.loss(model, batch)
    loss.backward()
    assert model.dense.start.grad is not None
    assert 0 <= task.figures()["reward"] <= 1


def test_a_click_model_may_be_the_reward(walks: Path, tmp_path: Path) -> None:
    from joymigrate.run.train import recommendation
    from joymigrate.run.train.samples.job import TableSettings
    from joymigrate.run.train.samples.lookup import Recommender

    job = job_of(walks, tmp_path / "run", {"name": "dpo", "group": 3})
    schema = assemble.task_of(job).schema
    clicks = Recommender(schema, recommendation.sizes_of({"model_type": "din"}), TableSettings(), 0)
    clicks.eval().save_pretrained(tmp_path / "clicks")
    wish = {"name": "dpo", "group": 3, "reward": [str(tmp_path / "clicks"), "reward.py:even"]}
    task: Any = assemble.task_of(job_of(walks, tmp_path / "both", wish))
    task.load_rewards()
    from joymigrate.run.train.reinforcement.rollouts import SampledAnswer
    from joymigrate.run.train.samples.open_rows import open_rows
    from joymigrate.run.train.samples.position import RowGroupPiece

    rows = open_rows([walks / "walks.parquet"], schema, 0)
    batch = task.samples_of(rows.read(RowGroupPiece(0, 0, 2, 0)))
    items = [[4, 7, 1], [2, 2, 9]]
    known = {item: list(codes) for codes, item in task.item_of.items()}
    found = [[SampledAnswer(known[item]) for item in group] for group in items]
    values = task.rewarded({"records": task.records(batch)}, found)
    wanted = []
    for row, group in enumerate(items):
        for item in group:
            one = {name: tensor[row : row + 1].clone() for name, tensor in batch.items()}
            one["item.ids"][:] = item
            wanted.append(float(clicks(one).sigmoid()[0, 0].detach()) + float(item % 2 == 0))
    assert values == pytest.approx(wanted, abs=1e-6)
    other = {"label": "click", "dim": 8, "features": {"item": {"type": "id", "rows": 9}}}
    (walks / "other.yaml").write_text(yaml.safe_dump(other))
    from joymigrate.run.train.samples import schema as schemas

    narrow = schemas.load(walks / "other.yaml")
    sizes = recommendation.sizes_of({"model_type": "deepfm"})
    Recommender(narrow, sizes, TableSettings(), 0).save_pretrained(tmp_path / "narrow")
    wrong: Any = assemble.task_of(
        job_of(walks, tmp_path / "wrong", {"name": "dpo", "reward": str(tmp_path / "narrow")})
    )
    with pytest.raises(JoyError, match="the reward model reads the feature 'item' as"):
        wrong.load_rewards()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "dpo"])
def test_writers_in_actors_of_their_own_give_the_losses_of_one_process(
    walks: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as many in each process: sums are rounded alike
    task = {"name": name, "group": 4}
    tables = {"optimiser": "adagrad"}  # the writers have none of them
    alone = job_of(
        walks, tmp_path / "alone", {**task, "rollouts": "engine"}, steps=5, tables=tables
    )
    spread = {**task, "rollouts": "actors", "writers": 2}
    other = job_of(walks, tmp_path / "spread", spread, steps=5, tables=tables)
    kept = ("loss", "reward")
    found, wanted = train(other), train(alone)
    assert [[line[k] for k in kept] for line in found] == [
        [line[k] for k in kept] for line in wanted
    ]
