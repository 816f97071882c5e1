"""Job files: what they may say, and the one error that each mistake gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from joymigrate.errors import JoyError
from joymigrate.run.train import job, template
from joymigrate.run.train.layout import Layout
from joymigrate.run.train.memory import advice
from tests.run.train import jobs

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"stepz": 3}, "unknown key 'stepz'. Did you mean 'steps'?"),
    ({"steps": "many"}, "'steps' takes a whole number, got 'many'"),
    ({"steps": 0}, "'steps' is 0, the least is 1"),
    ({"dtype": "bf16"}, "'dtype' does not know 'bf16'"),
    ({"optimiser": {"learning_rate": 1}}, "unknown key 'learning_rate'"),
    ({"optimiser": {"betas": [0.9]}}, "betas are two numbers"),
    ({"batch": 8}, "expected keys with values, got 8"),
    ({"batch": {"size": 8, "micro": 3}}, "batch.micro 3 does not divide the 8 samples"),
    ({"batch": {"size": 3}, "layout": {"dp": 2}}, "batch.size 3 does not divide over 2 processes"),
    ({"layout": {"pp": 2, "fsdp": 2}}, "pipeline stages are not sharded further"),
    ({"model": {"path": "m", "from_config": {"model_type": "qwen2"}}}, "either a path or"),
    ({"model": {}}, "either a path or a from_config"),
    ({"steps": 1, "epochs": 1.0}, "both steps and epochs"),
    ({"data": {"max_length": 8}}, "no data file is named"),
    ({"kernels": 3}, "'kernels' takes auto, off or operators"),
]


@pytest.mark.parametrize(("changes", "expected"), MISTAKES, ids=lambda v: str(v)[:40])
def test_a_mistake_gives_one_clear_error(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    path = jobs.write(tmp_path, **changes)
    with pytest.raises(JoyError) as caught:
        job.load(path)
    assert expected in caught.value.what
    assert str(path) in (caught.value.where or "")


def test_no_yaml_and_no_file_are_the_users_mistakes(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("model: [")
    for name in ("bad.yaml", "none.yaml"):
        with pytest.raises(JoyError):
            job.load(tmp_path / name)


def test_flags_override_keys_at_any_depth(tmp_path: Path) -> None:
    path = jobs.write(tmp_path)
    made = job.load(path, ["optimiser.lr=1e-4", "task.name=sft", "task.learn=all", "layout.dp=2"])
    assert made.optimiser.lr == 1e-4
    assert (made.task.name, made.task.options) == ("sft", {"learn": "all"})
    assert made.layout == Layout(dp=2)
    with pytest.raises(JoyError, match="--set takes key=value"):
        job.load(path, ["optimiser.lr"])


def test_the_written_job_file_is_a_job(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(template.render({"model": {"path": "m"}, "data": {"train": "d.jsonl"}}))
    made = job.load(path)
    assert made.model.path == "m"
    assert made.name == "job"


def test_every_commented_line_of_the_written_job_file_holds_a_default(tmp_path: Path) -> None:
    lines = template.render({"model": {"path": "m"}}).splitlines()
    uncommented = [
        line.replace("# ", "", 1) if line.lstrip().startswith("# ") and ":" in line else line
        for line in lines[1:]
        if "from_config" not in line and "epochs" not in line
    ]
    path = tmp_path / "job.yaml"
    path.write_text("\n".join(uncommented))
    written, plain = job.load(path), tmp_path / "plain.yaml"
    plain.write_text(yaml.safe_dump({"model": {"path": "m"}, "data": {"train": "data.jsonl"}}))
    expected = job.load(plain)
    for name in ("batch", "layout", "checkpoint", "guard", "logging", "method", "seed", "dtype"):
        assert getattr(written, name) == getattr(expected, name), name


def test_ranks_of_a_tensor_parallel_group_are_neighbours() -> None:
    layout = Layout(dp=2, fsdp=2, tp=2)
    assert [layout.data_rank(rank) for rank in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [layout.place(rank).tp for rank in range(4)] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("layout", "processes", "expected"),
    [
        (Layout(), 4, Layout(dp=4)),
        (Layout(fsdp=2), 4, Layout(fsdp=4)),
        (Layout(fsdp=2, tp=2), 8, Layout(fsdp=4, tp=2)),
        (Layout(dp=2, fsdp=2), 8, Layout(dp=2, fsdp=4)),
        (Layout(tp=2), 2, Layout(tp=2)),
        (Layout(dp=2), 1, Layout()),
    ],
)
def test_a_layout_spreads_over_other_numbers_of_processes(
    layout: Layout, processes: int, expected: Layout
) -> None:
    assert layout.spread(processes) == expected
    assert expected.world == processes


def test_too_few_processes_for_a_layout_is_an_error() -> None:
    with pytest.raises(JoyError, match="cannot hold layout tp4"):
        Layout(tp=4).spread(2)


def test_out_of_memory_advice_starts_with_what_changes_no_result(tmp_path: Path) -> None:
    path = jobs.write(tmp_path)
    found = advice(job.load(path))
    assert found[0].startswith("batch.micro: 4 (now 8")
    smallest = job.load(path, ["batch.micro=1", "model.recompute=true", "dtype=bfloat16"])
    assert not any("micro" in line or "recompute" in line for line in advice(smallest))


@pytest.mark.parametrize(
    ("sets", "named"),
    [
        (["epochs=0"], "epochs"),
        (["steps=2", "schedule.warmup=50"], "warmup of 50 steps is not shorter"),
        (["schedule.floor=3"], "floor"),
        (["optimiser.momentum=0.9"], "'momentum' counts with name: sgd alone"),
        (["optimiser.name=sgd", "optimiser.betas=[0.8, 0.9]"], "'betas' counts with name: adamw"),
        (["method.rank=4"], "'rank' counts with name: lora alone"),
    ],
)
def test_a_key_that_would_change_nothing_is_refused(
    tmp_path: Path, sets: list[str], named: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: {path: m}\ndata: d.jsonl\n")
    with pytest.raises(JoyError, match=named):
        job.load(path, sets)
    job.load(path, ["optimiser.momentum=0", "method.rank=8"])  # the defaults, as a run writes them
