"""Jobs over features: trained from Parquet, stopped and continued, and from streams without end."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from joymigrate.errors import JoyError
from joymigrate.run.train import assemble, launch
from joymigrate.run.train import evaluate as evaluating
from joymigrate.run.train import job as jobs
from joymigrate.run.train.formats import versions
from joymigrate.run.train.held_out import held_out_rows
from joymigrate.run.train.samples import assemble as engine
from joymigrate.run.train.samples import histories
from joymigrate.run.train.samples.generate import Clicks, generate
from joymigrate.run.train.samples.open_rows import open_rows
from joymigrate.run.train.samples.position import RowGroupPiece
from joymigrate.run.train.samples.tasks import LEAST

torch = pytest.importorskip("torch")
from safetensors.torch import load_file  # noqa: E402

pa = pytest.importorskip("pyarrow")
pytest.importorskip("lmdb")
from pyarrow import compute, parquet  # noqa: E402

SMALL = Clicks(rows=700, users=50, items=200, history=20, length=8, row_group=64, files=2)


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("clicks")
    generate(folder, SMALL)
    histories.close_all()
    return folder


def job_of(folder: Path, run: Path, **changes: Any) -> jobs.Job:
    path = run.parent / f"{run.name}.yaml"
    raw = {
        **{"model": {"from_config": {"model_type": "din"}}, "task": "ctr", "device": "cpu"},
        "data": {
            "train": str(folder / "clicks-*.parquet"),
            "schema": str(folder / "features.yaml"),
        },
        **{"batch": {"size": 128}, "optimiser": {"lr": 0.01}, "guard": {"spike": 0}},
        **{"run": str(run), "epochs": 1, **changes},
    }
    path.write_text(yaml.safe_dump(raw))
    return jobs.load(path)


def train(job: jobs.Job, **options: Any) -> list[dict[str, Any]]:
    start = launch.LaunchOptions(quiet=True, unverified=True, **options)
    assert launch.launch(job, start, lambda line: None) == 0
    lines = (job.run_folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_an_epoch_reads_every_row_and_learns(clicks: Path, tmp_path: Path) -> None:
    lines = train(job_of(clicks, tmp_path / "run", epochs=3))
    # 630 rows are 4 steps of 128 and one of 118, three times.
    assert [line["samples"] for line in lines][4] == 630
    assert lines[-1]["samples"] == 3 * 630
    assert lines[0]["rows_per_s"] > 0
    assert np.mean([line["loss"] for line in lines[-5:]]) < lines[0]["loss"]


@pytest.mark.parametrize(
    "name", ["din", *(pytest.param(n, marks=pytest.mark.slow) for n in ("deepfm", "dlrm", "dcn"))]
)
def test_tables_of_different_dims_are_made_equally_wide(
    name: str, clicks: Path, tmp_path: Path
) -> None:
    schema = yaml.safe_load((clicks / "features.yaml").read_text())
    schema["features"]["brand"]["dim"] = 4
    schema["features"]["item_id"]["dim"] = 8
    schema["features"]["hour"]["dim"] = 2
    schema["histories"]["store"] = str(clicks / schema["histories"]["store"])
    (tmp_path / "features.yaml").write_text(yaml.safe_dump(schema))
    data = {"train": str(clicks / "clicks-*.parquet"), "schema": str(tmp_path / "features.yaml")}
    model = {"from_config": {"model_type": name}}
    lines = train(job_of(clicks, tmp_path / "run", epochs=2, data=data, model=model))
    assert lines[-1]["loss"] < lines[0]["loss"]
    exported = tmp_path / "run" / "model"
    assert load_file(exported / "table.item_id.safetensors")["rows"].shape[1] == 8
    widen = {
        n: t.shape for n, t in load_file(exported / "dense.safetensors").items() if "widen" in n
    }
    assert sorted(map(tuple, widen.values())) == [(16, 2), (16, 4), (16, 8)]


def test_a_run_that_was_stopped_goes_on_to_the_same_weights(clicks: Path, tmp_path: Path) -> None:
    train(job_of(clicks, tmp_path / "parts", steps=4, epochs=None, schedule="constant"))
    again = job_of(clicks, tmp_path / "parts", steps=9, epochs=None, schedule="constant")
    constant = train(job_of(clicks, tmp_path / "one", steps=9, epochs=None, schedule="constant"))
    assert [line["loss"] for line in train(again)] == [line["loss"] for line in constant]


@pytest.mark.parametrize(
    ("name", "model", "labels"),
    [
        ("ctr", "dlrm", "click"),
        ("multitask", "ple", ["click", "left"]),
        ("sequence", "sasrec", "click"),
    ],
)
def test_every_task_trains(
    clicks: Path, tmp_path: Path, name: str, model: str, labels: Any
) -> None:
    schema = yaml.safe_load((clicks / "features.yaml").read_text()) | {"label": labels}
    schema["histories"]["store"] = str(clicks / "histories")
    (tmp_path / "features.yaml").write_text(yaml.safe_dump(schema))
    for path in clicks.glob("clicks-*.parquet"):
        rows = parquet.read_table(path)
        left = compute.subtract(pa.scalar(1, rows["click"].type), rows["click"])
        parquet.write_table(rows.append_column("left", left), tmp_path / path.name)
    data = {"train": str(tmp_path / "clicks-*.parquet"), "schema": str(tmp_path / "features.yaml")}
    config = {"from_config": {"model_type": model}}
    job = job_of(clicks, tmp_path / "run", task=name, model=config, data=data, steps=5, epochs=None)
    assert all(np.isfinite(line["loss"]) for line in train(job))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("static", marks=pytest.mark.slow), "dynamic"])
def test_tables_with_their_own_optimiser_train_on_any_number_of_processes(
    clicks: Path, tmp_path: Path, kind: str
) -> None:
    """Two processes, then one on their checkpoint; the export has the rows of both.

    The dense part is copied (DDP) in one case, cut (FSDP2) in the other.
    """
    data = {"train": str(clicks / "clicks-*.parquet"), "schema": str(tmp_path / "features.yaml")}
    schema = yaml.safe_load((clicks / "features.yaml").read_text())
    schema["histories"]["store"] = str(clicks / "histories")
    tables: dict[str, Any] = {"optimiser": "adagrad", "lr": 0.1}
    for feature in schema["features"].values() if kind == "dynamic" else ():
        feature.pop("rows", None)
    if kind == "static":
        tables["cache_rows"] = 600
    (tmp_path / "features.yaml").write_text(yaml.safe_dump(schema))
    settings = {"data": data, "tables": tables, "epochs": None, "schedule": "constant"}
    layout = {"dp": 2} if kind == "static" else {"fsdp": 2}
    both = job_of(clicks, tmp_path / "run", steps=7, layout=layout, **settings)
    lines = train(both)
    assert lines[-1]["samples"] == 630 + 2 * 128
    alone = train(job_of(clicks, tmp_path / "run", steps=14, **settings))
    assert [line["step"] for line in alone] == list(range(1, 15))
    assert np.mean([line["loss"] for line in alone[-4:]]) < lines[0]["loss"]
    saved = {
        one.stem: load_file(one) for one in (tmp_path / "run/model/tables").glob("*.safetensors")
    }
    assert saved
    for name, content in saved.items():
        # What serving reads is what was trained, not first values.
        served = tmp_path / "run" / "model" / f"table.{name}.safetensors"
        assert torch.equal(load_file(served)["rows"], content["weight"])


def test_a_task_of_features_without_a_schema_says_so(clicks: Path, tmp_path: Path) -> None:
    data = {"train": str(clicks / "clicks-000.parquet")}
    job = job_of(clicks, tmp_path / "run", task="sequence", data=data)
    with pytest.raises(JoyError, match="the data have no schema"):
        assemble.task_of(job)


# -- streams --------------------------------------------------------------------------------------

FEATURES = {
    "label": "click",
    "time": "time",
    "dim": 4,
    "features": {"user": {"type": "id"}, "item": {"type": "id"}, "price": {"type": "number"}},
}


def rows(count: int, first: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng(first)
    return {
        "user": draw.integers(0, 40, count),
        "item": np.arange(first, first + count),  # every row has an item of its own
        "price": draw.random(count),
        "time": np.full(count, time.time()),
        "click": draw.integers(0, 2, count).astype(np.int8),
    }


def stream_job(folder: Path, source: str, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "features.yaml").write_text(yaml.safe_dump({**FEATURES, **changes.pop("schema", {})}))
    raw = {
        **{"model": {"from_config": {"model_type": "deepfm", "hidden": [8]}}, "task": "ctr"},
        **{"device": "cpu", "tables": {"optimiser": "adagrad"}, "batch": {"size": 32}},
        "data": {
            "schema": "features.yaml",
            "stream": {"source": source, "idle_s": 0.5, "linger_s": 0.1},
        },
        "publish": {"every_s": 0.5, "snapshot_every": 3},
        **{"run": "run", **changes},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(raw))
    return folder / "job.yaml"


def published(folder: Path) -> dict[str, Any]:
    """The newest version, every file compared with its hash."""
    store = versions.open_versions(folder / "run" / "published")
    links = versions.chain(store)
    versions.verify(store, links)
    return {"last": links[-1], **versions.replay(store, links)}


def write_files(folder: Path, files: int = 4, each: int = 500) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        hidden = folder / f".part-{number:04d}.parquet"
        parquet.write_table(pa.table(rows(each, number * each)), hidden, row_group_size=200)
        hidden.rename(folder / f"part-{number:04d}.parquet")


def test_a_watched_folder_is_learned_once(tmp_path: Path) -> None:
    write_files(tmp_path / "in")
    path = stream_job(tmp_path, "in")
    train(jobs.load(path))
    first = published(tmp_path)
    assert first["last"]["rows"]["to"] == 2000
    assert first["tables"]["item"]["ids"].tolist() == list(range(2000))
    write_files(tmp_path / "more", 1, 100)
    (tmp_path / "more" / "part-0000.parquet").rename(tmp_path / "in" / "part-0009.parquet")
    train(jobs.load(path))
    second = published(tmp_path)
    assert second["last"]["rows"]["to"] == 2100
    assert second["last"]["version"] > first["last"]["version"]


def kill_often(folder: Path, path: Path, kills: int, seed: int) -> int:
    """Start the trainer, kill it at a random moment, again and again; versions that were seen."""
    draw = random.Random(seed)
    command = [sys.executable, "-m", "joymigrate", "train", str(path), "-q", "--unverified"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    latest = folder / "run" / "published" / "latest"
    seen = 0
    for _ in range(kills):
        before = latest.read_bytes() if latest.exists() else b""
        with subprocess.Popen(command, env=environment, start_new_session=True) as process:
            until = time.monotonic() + 60
            while time.monotonic() < until and process.poll() is None:
                if latest.exists() and latest.read_bytes() != before:
                    break
                time.sleep(0.01)
            time.sleep(draw.random() * 0.7)
            os.killpg(process.pid, signal.SIGKILL)
        if latest.exists():
            published(folder)  # whole, whatever moment it was
            seen = json.loads(latest.read_text())["version"]
    assert subprocess.run(command, env=environment, check=False, timeout=300).returncode == 0
    return seen


@pytest.mark.slow
def test_kills_tear_no_version_and_lose_no_row(tmp_path: Path) -> None:
    """The final model is, bit for bit, that of a run that nobody killed: each row counted once."""
    write_files(tmp_path / "in", files=60)
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    kill_often(broken, stream_job(broken, "../in"), 10, seed=1)
    train(jobs.load(stream_job(whole, "../in")))
    one, other = published(broken), published(whole)
    assert one["last"]["rows"]["to"] == other["last"]["rows"]["to"] == 30_000
    for name, table in one["tables"].items():
        for key, value in table.items():
            assert torch.equal(value, other["tables"][name][key]), (name, key)
    for key, value in one["dense"].items():
        assert torch.equal(value, other["dense"][key]), key


def fill(address: str, count: int, first: int = 0, **changes: Any) -> None:
    import redis

    client: Any = redis.Redis.from_url(address)
    columns = rows(count, first)
    with client.pipeline() as step:
        for at in range(count):
            row = {name: values[at].item() for name, values in columns.items()}
            step.xadd("clicks", {"row": json.dumps({**row, **changes})})
        step.execute()


def test_a_redis_stream_is_learned_once(tmp_path: Path, redis_server: str) -> None:
    path = stream_job(tmp_path, f"{redis_server}#clicks")
    fill(redis_server, 300)
    train(jobs.load(path))
    fill(redis_server, 100, 300)
    train(jobs.load(path))
    found = published(tmp_path)
    assert found["last"]["rows"]["to"] == 400
    assert found["tables"]["item"]["ids"].tolist() == list(range(400))


def test_a_redis_that_goes_and_comes_back_loses_no_row(tmp_path: Path) -> None:
    from tests.run.train.tables.test_stores import Server

    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    (tmp_path / "server").mkdir()
    server = Server(tmp_path / "server")
    path = stream_job(tmp_path, f"{server.url}#clicks", schema={})
    raw = yaml.safe_load(path.read_text())
    raw["data"]["stream"]["idle_s"] = 4.0
    path.write_text(yaml.safe_dump(raw))
    fill(server.url, 200)

    def away() -> None:
        metrics = tmp_path / "run" / "metrics.jsonl"
        while not metrics.exists():  # the first version is out
            time.sleep(0.05)
        server.stop()
        time.sleep(1.5)
        server.start()
        fill(server.url, 100, 200)

    outage = threading.Thread(target=away, daemon=True)
    outage.start()
    try:
        train(jobs.load(path))
    finally:
        outage.join(10)
        server.stop()
    found = published(tmp_path)
    assert found["last"]["rows"]["to"] == 300
    assert found["tables"]["item"]["ids"].tolist() == list(range(300))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"item": "shoe"}, "'item' is 'shoe', not int64"),
        ({"click": float("nan")}, "label 'click' is not a number"),
        ({"item": -4}, "negative id: -4"),
    ],
)
def test_an_entry_that_is_no_row_is_one_clear_error(
    tmp_path: Path, redis_server: str, changes: dict[str, Any], message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = stream_job(tmp_path, f"{redis_server}#clicks")
    fill(redis_server, 40)
    fill(redis_server, 1, 40, **changes)
    start = launch.LaunchOptions(quiet=True, unverified=True)
    assert launch.launch(jobs.load(path), start, lambda line: None) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "label", "message"),
    [
        ("ctr", 2, "a label is 2; this task takes 0 to 1"),
        ("ctr", -1, "a label is -1"),
        ("ranking", -1, "a label is -1; this task takes 0 to inf"),
        ("multitask", -2, "a label is -2; this task takes -1 to 1"),
    ],
)
def test_a_label_that_a_task_cannot_learn_is_one_clear_error(
    clicks: Path, tmp_path: Path, task: str, label: int, message: str
) -> None:
    made = job_of(clicks, tmp_path / "run", task=task)
    known: Any = assemble.task_of(made)
    rows = open_rows(sorted(clicks.glob("clicks-*.parquet"))[:1], known.schema, 0)
    batch = rows.read(RowGroupPiece(0, 0, 8, 0))
    batch.labels[3] = label
    with pytest.raises(JoyError) as caught:
        known.samples_of(batch)
    assert message in str(caught.value)


def test_bad_entries_are_skipped_and_counted_by_request(tmp_path: Path, redis_server: str) -> None:
    path = stream_job(tmp_path, f"{redis_server}#clicks", schema={"on_error": "skip"})
    fill(redis_server, 40)
    fill(redis_server, 2, 40, item="shoe")
    fill(redis_server, 3, 42, click=float("nan"))
    fill(redis_server, 5, 45)
    train(jobs.load(path))
    last = published(tmp_path)["last"]
    assert last["rows"]["to"] == 50
    assert sum(last["skipped"].values()) == 5


def test_entries_that_were_trimmed_before_they_were_read_are_said(
    tmp_path: Path, redis_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import redis

    path = stream_job(tmp_path, f"{redis_server}#clicks")
    fill(redis_server, 40)
    train(jobs.load(path))
    fill(redis_server, 40, 40)
    client: Any = redis.Redis.from_url(redis_server)
    client.xtrim("clicks", maxlen=10, approximate=False)
    start = launch.LaunchOptions(quiet=True, unverified=True)
    assert launch.launch(jobs.load(path), start, lambda line: None) == 2
    assert "30 entries behind" in capsys.readouterr().err


def test_a_full_disk_leaves_the_last_version_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk's own error, raised where the file is flushed."""
    import errno

    write_files(tmp_path / "in", 1)
    path = stream_job(tmp_path, "in")
    train(jobs.load(path))
    write_files(tmp_path / "more", 1)
    (tmp_path / "more" / "part-0000.parquet").rename(tmp_path / "in" / "part-0001.parquet")

    def full(place: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(versions, "sync_file", full)
        start = launch.LaunchOptions(quiet=True, unverified=True)
        assert launch.launch(jobs.load(path), start, lambda line: None) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert published(tmp_path)["last"]["rows"]["to"] == 500
    train(jobs.load(path))
    assert published(tmp_path)["last"]["rows"]["to"] == 1000


@pytest.mark.parametrize("dp", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_held_out_rows_are_looked_at_while_training(clicks: Path, tmp_path: Path, dp: int) -> None:
    data = {
        "train": str(clicks / "clicks-*0.parquet"),
        "eval": str(clicks / "clicks-*1.parquet"),
        "schema": str(clicks / "features.yaml"),
    }
    assert len(list(clicks.glob("clicks-*1.parquet"))) == 1
    wish = {"metric": "auc", "batch": 64}
    job = job_of(
        clicks, tmp_path / "run", epochs=2, data=data, eval=wish, layout={"dp": dp},
        checkpoint={"keep": 1},
    )  # fmt: skip
    train(job)
    found = (tmp_path / "run/evaluations.jsonl").read_text().splitlines()
    figures = [json.loads(line) for line in found]
    assert len(figures) == 3  # at the start, and behind two epochs
    known = evaluating.evaluate(tmp_path / "run", None, sorted(clicks.glob("clicks-*1.parquet")))
    for name, value in known.metrics.items():
        assert figures[-1][name] == pytest.approx(value, abs=1e-5)
    best = json.loads((tmp_path / "run/status.json").read_text())["best"]
    assert best["value"] == max(one["auc"] for one in figures[1:])


def test_a_next_item_is_ranked_among_as_many_as_train_evaluate_has(
    clicks: Path, tmp_path: Path
) -> None:
    data = {
        "train": str(clicks / "clicks-*0.parquet"),
        "eval": str(clicks / "clicks-*1.parquet"),
        "schema": str(clicks / "features.yaml"),
    }
    for task, size in (("sequence", LEAST), ("ctr", 8)):
        job = job_of(clicks, tmp_path / "run", data=data, eval={"batch": 8}, task=task)
        assert job.eval is not None
        held = held_out_rows(job, engine.task_of(job), job.eval)
        assert held.size == size
    shutil.copy(next(clicks.glob("clicks-*1.parquet")), tmp_path / "same.parquet")
    data["eval"] = str(tmp_path / "same.parquet")
    job = job_of(clicks, tmp_path / "run", data=data, eval={"batch": 8})
    assert job.eval is not None
    assert held_out_rows(job, engine.task_of(job), job.eval).digest == held.digest
    (tmp_path / "same.parquet").unlink()
    with pytest.raises(JoyError) as caught:
        held_out_rows(job, engine.task_of(job), job.eval)
    assert caught.value.help == "check data.eval"
