"""Generative recommendation: ids of items, the task on the sample engine, balanced steps."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from joymigrate.errors import JoyError
from joymigrate.run.train import job as jobs
from joymigrate.run.train import launch
from joymigrate.run.train.evaluate import EvaluateOptions, evaluate
from joymigrate.run.train.samples import balance
from joymigrate.run.train.samples.batch import JaggedIds, SampleBatch

torch = pytest.importorskip("torch")
pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

from joymigrate.run.train.semantic_ids import codes, quantise  # noqa: E402
from joymigrate.run.train.semantic_ids.vectors import read_vectors  # noqa: E402

ITEMS, LENGTH = 24, 12


@pytest.fixture(scope="module")
def rings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users walk around a ring of 24 items, most in steps of one; histories of Zipf lengths."""
    folder: Path = tmp_path_factory.mktemp("rings")
    draw = np.random.default_rng(0)
    rows: dict[str, list[Any]] = {"item": [], "seen": [], "when": [], "click": []}
    for _ in range(320):
        count = min(LENGTH, int(draw.zipf(1.5)))
        steps = np.where(draw.random(count + 1) < 0.95, 1, 5)
        walk = (draw.integers(ITEMS) + np.cumsum(steps)) % ITEMS
        rows["seen"].append(walk[:-1].tolist())
        rows["when"].append((1_700_000_000 + np.cumsum(draw.integers(1, 900, count))).tolist())
        rows["item"].append(int(walk[-1]))
        rows["click"].append(1)
    table = pa.table(rows)
    parquet.write_table(table.slice(0, 256), folder / "walks.parquet", row_group_size=64)
    parquet.write_table(table.slice(256), folder / "eval.parquet")
    schema = {
        "label": "click",
        "dim": 16,
        "features": {
            "item": {"type": "id", "rows": ITEMS},
            "seen": {"type": "sequence", "table": "item", "length": LENGTH, "times": "when"},
        },
    }
    (folder / "features.yaml").write_text(yaml.safe_dump(schema))
    ids = torch.arange(ITEMS)
    codes.SemanticIds(ids, torch.stack([ids // 5, ids % 5], 1), (5, 5)).write(
        folder / "c.safetensors"
    )
    return folder


def job_of(folder: Path, run: Path, **changes: Any) -> jobs.Job:
    raw = {
        "model": {"from_config": {"model_type": "hstu", "dropout": 0.0}},
        "task": {"name": "generative", "negatives": 0},
        "data": {"train": str(folder / "walks.parquet"), "schema": str(folder / "features.yaml")},
        "batch": {"size": 64},
        "optimiser": {"lr": 0.01},
        "guard": {"spike": 0},
        "device": "cpu",
        "checkpoint": {"export": False},
        "run": str(run),
        **changes,
    }
    path = run.parent / f"{run.name}.yaml"
    path.write_text(yaml.safe_dump(raw))
    return jobs.load(path)


def train(job: jobs.Job) -> list[dict[str, Any]]:
    start = launch.LaunchOptions(quiet=True, unverified=True)
    assert launch.launch(job, start, lambda line: None) == 0
    lines = (job.run_folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def measured(job: jobs.Job, folder: Path) -> dict[str, float]:
    return evaluate(job.run_folder, None, [folder / "eval.parquet"], EvaluateOptions()).metrics


@pytest.mark.slow
def test_hstu_learns_the_walk(rings: Path, tmp_path: Path) -> None:
    job = job_of(rings, tmp_path / "run", steps=40)
    lines = train(job)
    assert lines[0]["loss"] > np.log(ITEMS) * 0.8
    found = measured(job, rings)
    # Nine of ten steps go to the next item; chance is 1/24 for the first place.
    assert found["mrr"] > 0.7
    assert found["ranked_among"] == ITEMS


@pytest.mark.slow
def test_onerec_writes_the_next_items_id(rings: Path, tmp_path: Path) -> None:
    job = job_of(
        rings, tmp_path / "run", steps=60, model={"from_config": {"model_type": "onerec"}},
        task={"name": "generative", "codes": str(rings / "c.safetensors")},
        checkpoint={"export": True},
    )  # fmt: skip
    train(job)
    assert measured(job, rings)["mrr"] > 0.6
    exported = codes.read_codes(tmp_path / "run" / "model" / codes.CODES)
    assert exported.sizes == (5, 5)


@pytest.mark.slow
def test_balanced_steps_have_the_same_losses(rings: Path, tmp_path: Path) -> None:
    """Two processes, rows exchanged by their work: the loss is the same sum over rows."""
    both = {"steps": 4, "layout": {"dp": 2}}
    plain = train(job_of(rings, tmp_path / "plain", **both))
    even = train(job_of(rings, tmp_path / "even", batch={"size": 64, "balance": True}, **both))
    assert "imbalance" not in plain[0]
    for one, other in zip(plain, even, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-6)
        assert other["imbalance"] <= other["imbalance_before"]
        assert other["imbalance"] < 0.02


def test_the_largest_rows_go_first_and_no_place_is_far_behind() -> None:
    draw = np.random.default_rng(1)
    for _ in range(50):
        work = np.minimum(draw.zipf(1.3, 64), 10_000).astype(float) ** 2
        places = balance.assign(work, 8)
        assert sorted(row for rows in places for row in rows) == list(range(64))
        sums = np.array([work[rows].sum() for rows in places])
        best = max(work.sum() / 8, work.max())
        assert sums.max() <= best * 4 / 3


def test_rows_that_are_picked_keep_everything() -> None:
    lists = {"seen": JaggedIds(np.array([1, 2, 3, 4, 5, 6]), np.array([0, 3, 3, 6]))}
    ids, labels = {"item": np.array([7, 8, 9])}, np.array([[1.0], [0.0], [1.0]])
    batch = SampleBatch(ids, lists, np.zeros((3, 0)), labels, read=3)
    made = balance.pick_rows(batch, np.array([2, 0]))
    assert made.ids["item"].tolist() == [9, 7]
    assert made.lists["seen"].values.tolist() == [4, 5, 6, 1, 2, 3]
    assert made.lists["seen"].offsets.tolist() == [0, 3, 6]
    assert len(balance.pick_rows(batch, np.array([], int))) == 0


def test_the_loss_is_the_cross_entropy_among_all_items(rings: Path, tmp_path: Path) -> None:
    from joymigrate.run.train.assemble import model_of, task_of
    from joymigrate.run.train.samples.open_rows import open_rows
    from joymigrate.run.train.samples.position import RowGroupPiece

    job = job_of(rings, tmp_path / "run")
    task: Any = task_of(job)
    model = model_of(job, task).eval()
    rows = open_rows([rings / "walks.parquet"], task.schema, 0)
    batch = task.samples_of(rows.read(RowGroupPiece(0, 0, 8, 0)))
    loss = task.loss(model, batch)
    found = model.look_up(batch)
    events, mask, _ = found.events[0]
    states = model.dense.states(events, mask, batch["seen.times"])
    table = model.rows({"item": torch.arange(ITEMS)})["item"]
    total = 0.0
    for row in range(8):
        count = int(mask[row].sum())
        following = [*batch["seen.ids"][row, 1:count].tolist(), int(batch["item.ids"][row])]
        scores = torch.nn.functional.cosine_similarity(
            states[row, :count, None], table[None], dim=-1
        )
        wanted = torch.tensor(following)
        total += float(torch.nn.functional.cross_entropy(scores.detach() / 0.05, wanted))
    assert float(loss.detach()) == pytest.approx(total, rel=1e-5)


def test_each_event_may_have_negatives_of_its_own_and_count_alike(
    rings: Path, tmp_path: Path
) -> None:
    from joymigrate.run.train.assemble import model_of, task_of
    from joymigrate.run.train.samples.open_rows import open_rows
    from joymigrate.run.train.samples.position import RowGroupPiece

    wish = {"negatives": 5, "negatives_for": "event", "mean_over": "events"}
    job = job_of(rings, tmp_path / "run", task={"name": "generative", **wish})
    task: Any = task_of(job)
    model = model_of(job, task).eval()
    rows = open_rows([rings / "walks.parquet"], task.schema, 0)
    batch = task.samples_of(rows.read(RowGroupPiece(0, 0, 8, 0)))
    torch.manual_seed(3)
    drawn = task.draw(batch)
    torch.manual_seed(3)
    loss = task.loss(model, batch)
    found = model.look_up(batch)
    events, mask, _ = found.events[0]
    assert drawn.shape == (*mask.shape, 5)
    states = model.dense.states(events, mask, batch["seen.times"])
    table = model.rows({"item": torch.arange(ITEMS)})["item"]
    lost = []
    for row in range(8):
        count = int(mask[row].sum())
        following = [*batch["seen.ids"][row, 1:count].tolist(), int(batch["item.ids"][row])]
        for place, item in enumerate(following):
            others = [one for one in drawn[row, place].tolist() if one != item]
            scores = torch.nn.functional.cosine_similarity(
                states[row, place][None], table[[item, *others]], dim=-1
            )
            lost.append(-float((scores.detach() / 0.05).log_softmax(0)[0]))
    # The loop divides by the rows: eight times the mean over all events.
    assert float(loss.detach()) == pytest.approx(8 * sum(lost) / len(lost), rel=1e-5)
    with pytest.raises(JoyError, match="unknown negatives_for 'row'"):
        task_of(job_of(rings, tmp_path / "b", task={"name": "generative", "negatives_for": "row"}))


def test_ranks_leave_out_what_was_seen_and_are_never_kind(
    rings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from joymigrate.run.train.assemble import model_of, task_of
    from joymigrate.run.train.samples.open_rows import open_rows
    from joymigrate.run.train.samples.position import RowGroupPiece

    job = job_of(rings, tmp_path / "run")
    task: Any = task_of(job)
    model = model_of(job, task).eval()
    rows = open_rows([rings / "walks.parquet"], task.schema, shuffle=False)
    batch = task.samples_of(rows.read(RowGroupPiece(0, 0, 8, 0)))
    scores = torch.rand(8, ITEMS, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(task, "compared", lambda *_: scores)
    found = list(task.predict(model, batch))
    table = parquet.read_table(rings / "walks.parquet").slice(0, 8).to_pylist()
    for row, (given, made) in enumerate(zip(table, found, strict=True)):
        better = {n for n in range(ITEMS) if scores[row, n] > scores[row, given["item"]]}
        assert made["prediction"] == len(better)
        assert made["unseen"] == len(better - {*given["seen"]})
    assert task.measure(found)["unseen_mrr"] > task.measure(found)["mrr"]
    for value in (0.5, float("nan")):  # a model that tells no item from another, and a broken one
        scores.fill_(value)
        assert [made["prediction"] for made in task.predict(model, batch)] == [ITEMS - 1] * 8


@pytest.mark.parametrize(
    "model", [{"model_type": "hstu", "dropout": 0.0}, {"model_type": "onerec"}]
)
@pytest.mark.parametrize("rows", [0, 2])
def test_a_pass_without_events_has_gradients_of_zero(
    rings: Path, tmp_path: Path, model: dict[str, Any], rows: int
) -> None:
    """What a process gets that has fewer rows than another; and two users without a history."""
    from joymigrate.run.train.assemble import model_of, task_of

    task_of_ids = {"name": "generative", "codes": str(rings / "c.safetensors")}
    job = job_of(rings, tmp_path / "run", model={"from_config": model}, task=task_of_ids)
    task: Any = task_of(job)
    module = model_of(job, task)
    empty = JaggedIds(np.array([], int), np.zeros(rows + 1, int))
    batch = SampleBatch(
        {"item": np.arange(rows)}, {"seen": empty, "seen.times": empty},
        np.zeros((rows, 0)), np.zeros((rows, 1)), read=rows,
    )  # fmt: skip
    loss = task.loss(module, task.samples_of(batch))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert all(not p.grad.any() for p in module.parameters() if p.grad is not None)


@pytest.mark.parametrize(("task_name", "kind"), [("generative", "hstu"), ("sequence", "sasrec")])
def test_a_model_whose_weights_are_no_numbers_ranks_last(
    rings: Path, tmp_path: Path, task_name: str, kind: str
) -> None:
    from joymigrate.run.train.assemble import model_of, task_of
    from joymigrate.run.train.samples.open_rows import open_rows
    from joymigrate.run.train.samples.position import RowGroupPiece

    changes = {"task": {"name": task_name}, "model": {"from_config": {"model_type": kind}}}
    job = job_of(rings, tmp_path / "run", **changes)
    task: Any = task_of(job)
    model = model_of(job, task).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.fill_(float("nan"))
    rows = open_rows([rings / "walks.parquet"], task.schema, shuffle=False)
    with torch.no_grad():
        found = list(task.predict(model, task.samples_of(rows.read(RowGroupPiece(0, 0, 8, 0)))))
    assert all(made["prediction"] == made["among"] - 1 for made in found)


# -- ids ------------------------------------------------------------------------------------------


def clouds(count: int = 400) -> Any:
    """16 tight clouds in 8 columns: 4 far ones of 4 near ones."""
    draw = np.random.default_rng(0)
    far, near = draw.normal(size=(4, 8)) * 20, draw.normal(size=(4, 8)) * 3
    owner = draw.integers(0, 16, count)
    noise = draw.normal(size=(count, 8)) * 0.05
    return torch.from_numpy((far[owner // 4] + near[owner % 4] + noise).astype("float32")), owner


@pytest.mark.parametrize("method", ["rq-kmeans", "rq-vae"])
def test_items_of_one_cloud_share_codes_and_others_do_not(method: str) -> None:
    x, owner = clouds()
    if method == "rq-kmeans":
        made = quantise.residual_k_means(x, 2, 4)
    else:
        made = quantise.residual_vae(x, 2, 4, steps=150, batch=128)
    pairs = Counter(zip(owner.tolist(), map(tuple, made.codes.tolist()), strict=True))
    clean = sum(max(n for (o, _), n in pairs.items() if o == one) for one in set(owner.tolist()))
    assert clean / len(x) > 0.95
    assert made.left_over < (0.001 if method == "rq-kmeans" else 0.5)
    again = quantise.residual_k_means(x, 2, 4)
    if method == "rq-kmeans":
        assert torch.equal(again.codes, made.codes)


def test_items_of_one_id_are_numbered_by_a_last_level(tmp_path: Path) -> None:
    ids = torch.tensor([30, 10, 20, 5])
    given = torch.tensor([[1, 2], [1, 2], [0, 0], [1, 2]])
    known = codes.distinct(ids, given, (3, 3))
    assert known.ids.tolist() == [5, 10, 20, 30]
    assert known.sizes == (3, 3, 3)
    assert len(known.codes.unique(dim=0)) == 4
    known.write(tmp_path / "c.safetensors")
    back = codes.read_codes(tmp_path / "c.safetensors")
    assert torch.equal(back.codes, known.codes)
    assert back.of(torch.tensor([[20, 6]])).tolist() == [[[0, 0, 0], [-1, -1, -1]]]


def test_fewer_items_than_entries_get_an_entry_each() -> None:
    made = quantise.residual_k_means(torch.eye(3), 2, 8)
    assert len(made.codes[:, 0].unique()) == 3
    assert made.left_over == 0


def test_what_is_no_vector_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="row 1 is not finite"):
        quantise.residual_k_means(torch.tensor([[1.0], [float("nan")]]), 1, 2)
    table = pa.table({"item": [1, 1], "vector": [[1.0, 2.0], [3.0, 4.0]]})
    parquet.write_table(table, tmp_path / "v.parquet")
    with pytest.raises(JoyError, match="occurs twice"):
        read_vectors(tmp_path / "v.parquet", "item")
    with pytest.raises(JoyError, match=r"no column 'itm'.*item"):
        read_vectors(tmp_path / "v.parquet", "itm")
    with pytest.raises(JoyError, match="no file of semantic ids"):
        codes.read_codes(tmp_path / "v.parquet")


def test_a_model_that_writes_needs_ids(rings: Path, tmp_path: Path) -> None:
    from joymigrate.run.train.assemble import model_of, task_of

    job = job_of(rings, tmp_path / "run", model={"from_config": {"model_type": "onerec"}})
    with pytest.raises(JoyError, match="the job names none"):
        model_of(job, task_of(job))


def test_times_that_do_not_fit_their_events_are_refused(rings: Path, tmp_path: Path) -> None:
    table = parquet.read_table(rings / "walks.parquet").slice(0, 8)
    when = [one[:-1] for one in table["when"].to_pylist()]
    broken = table.set_column(
        table.schema.get_field_index("when"), "when", pa.array(when, pa.list_(pa.int64()))
    )
    parquet.write_table(broken, tmp_path / "walks.parquet")
    (tmp_path / "features.yaml").write_text((rings / "features.yaml").read_text())
    from joymigrate.run.train.samples.open_rows import open_rows
    from joymigrate.run.train.samples.position import RowGroupPiece
    from joymigrate.run.train.samples.schema import load

    rows = open_rows([tmp_path / "walks.parquet"], load(tmp_path / "features.yaml"), 0)
    with pytest.raises(JoyError, match="has not one time for each event"):
        rows.read(RowGroupPiece(0, 0, 8, 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "changes"),
    [
        ({"cp": 2}, {}),  # two heads: they change places with events
        ({"cp": 3}, {"tables": {"optimiser": "adagrad"}}),  # keys go round; tables are cut too
        ({"cp": 2, "dp": 2}, {"task": {"negatives": 5, "negatives_for": "event"}}),
        ({"cp": 2, "fsdp": 2}, {"task": {"negatives": 7}}),
    ],
)  # fmt: skip
def test_sequences_cut_over_processes_give_the_same_losses(
    rings: Path, tmp_path: Path, layout: dict[str, int], changes: dict[str, Any]
) -> None:
    wish = {"negatives": 0, **changes.pop("task", {})}
    changes |= {"steps": 4, "task": {"name": "generative", **wish}, "optimiser": {"lr": 0.01}}
    copies = {"dp": layout.get("dp", 1) * layout.get("fsdp", 1)}
    alone = train(job_of(rings, tmp_path / "alone", layout=copies, **changes))
    cut = job_of(rings, tmp_path / "cut", layout=layout, **changes)
    assert [line["loss"] for line in train(cut)] == pytest.approx(
        [line["loss"] for line in alone], rel=2e-5
    )
    assert measured(cut, rings)["ranked_among"] == ITEMS  # opens in one process


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layout": {"cp": 2, "tp": 2}}, "cp2 x tp2: sequences are cut beside copies"),
        ({"layout": {"cp": 2}, "batch": {"size": 64, "balance": True}}, "batch.balance exchanges"),
        ({"layout": {"cp": 2}, "comm": "int8"}, "comm.dtype int8 does not go with layout cp2"),
    ],
)
def test_layouts_that_cut_sequences_say_what_they_do_not_do(
    rings: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(JoyError, match=said):
        job_of(rings, tmp_path / "run", **changes)
