"""Whole runs: killed, stopped, rolled back, continued, refused, exported."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from joymigrate.device import Device
from joymigrate.errors import JoyError
from joymigrate.ledger import Ledger, Step, Subject
from joymigrate.run.train import assemble, data_state, digests, gate, job, launch, worker
from joymigrate.run.train.checkpoint_store import CheckpointStore
from joymigrate.run.train.loop import Loop
from joymigrate.run.train.records import Portion
from joymigrate.run.train.run_folder import RunFolder
from joymigrate.run.train.status import status
from tests.run.train import jobs

NEAR = 1e-6  # equal layouts add up in the same order; what remains is the way through text


def run(path: Path, *sets: str, fresh: bool = False) -> int:
    """One run in this process."""
    start = launch.LaunchOptions(quiet=True, fresh=fresh, project=path.parent)
    return launch.launch(job.load(path, sets), start, lambda line: None)


def begin(path: Path, *options: str, **more: Any) -> subprocess.Popen[str]:
    """One run as a process group of its own."""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "joymigrate", "train", str(path), "-q", *options]
    return subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **more,
    )


def until(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    """Wait for something that the process does."""
    while process.poll() is None and not reached():
        time.sleep(0.002)
    assert process.poll() is None, process.communicate()[0][-3000:]


def lines(folder: Path) -> int:
    """Steps that a run has told of."""
    try:
        return (folder / "metrics.jsonl").read_text().count("\n")
    except OSError:
        return 0


def kill(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return jobs.write(tmp_path)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    assert run(jobs.write(folder)) == 0
    return jobs.losses(folder / "runs/job")


def same(folder: Path, expected: list[float]) -> bool:
    found = jobs.losses(folder)
    assert len(found) == len(expected)
    return max(abs(a - b) for a, b in zip(found, expected, strict=True)) < NEAR


@pytest.mark.slow
def test_killed_during_a_save_it_continues_from_the_one_before(
    path: Path, expected: list[float]
) -> None:
    folder = path.parent / "runs/job"
    process = begin(path, "--set", "checkpoint.every=2")
    until(process, lambda: lines(folder) > 4 and any(folder.glob("checkpoints/*.partial")))
    kill(process)
    assert CheckpointStore(folder / "checkpoints").newest() is not None
    assert run(path) == 0
    assert same(folder, expected)


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 1, 3, 6, 9, 14, 19])
def test_killed_at_any_point_it_continues(path: Path, expected: list[float], after: int) -> None:
    folder = path.parent / "runs/job"
    process = begin(path, "--set", "checkpoint.every=2", "--set", "checkpoint.keep=1")
    until(process, lambda: lines(folder) >= after)
    kill(process)
    assert run(path) == 0
    assert same(folder, expected)


def test_asked_to_stop_it_saves_and_the_next_start_continues(
    path: Path, expected: list[float]
) -> None:
    folder = path.parent / "runs/job"
    process = begin(path)
    until(process, lambda: lines(folder) >= 3)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 130
    stopped = status(folder)
    assert stopped.state == "stopped"
    assert stopped.checkpoints[-1] == stopped.document["step"] < 20
    assert run(path) == 0
    assert same(folder, expected)


@pytest.mark.slow
def test_a_worker_that_dies_is_started_again(path: Path, expected: list[float]) -> None:
    psutil = pytest.importorskip("psutil")
    folder = path.parent / "runs/job"
    options = ("--set", "layout.dp=2", "--set", "checkpoint.every=2", "--max-restarts", "2")
    process = begin(path, *options)
    until(process, lambda: lines(folder) >= 7)
    workers = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "joymigrate.run.train.worker" in child.cmdline()
    ]
    assert len(workers) == 2
    workers[1].kill()
    told, _ = process.communicate(timeout=200)
    assert process.returncode == 0, told[-3000:]
    found = jobs.losses(folder)
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < 1e-5


@pytest.mark.slow
def test_two_one_and_two_processes_see_every_sample_once(tmp_path: Path) -> None:
    path = jobs.write(tmp_path, steps=24)
    folder = tmp_path / "runs/job"
    options = ("--set", "checkpoint.every=1", "--set", "logging.samples=true")
    for processes, stop in ((2, 6), (1, 13), (2, 24)):
        process = begin(path, "--nproc", str(processes), *options)
        while process.poll() is None:
            if lines(folder) >= stop and stop < 24:
                RunFolder(folder).ask_to_stop()
        assert process.returncode in (0, 130), process.communicate()[0][-3000:]
    files = [*(folder / "samples").glob("rank*.jsonl")]
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    seen = [sample for line in found for sample in line["samples"]]
    rows = status(folder).document["samples_in_all"]
    assert len(files) == 2
    assert 24 * 8 == len(seen) < rows  # within the first epoch, so
    assert len(set(seen)) == len(seen)  # nothing comes twice
    whole = jobs.write(tmp_path, "whole", steps=24)
    assert run(whole) == 0
    pairs = zip(jobs.losses(folder), jobs.losses(tmp_path / "runs/whole"), strict=True)
    assert max(abs(a - b) for a, b in pairs) < 1e-5


def test_a_loss_that_is_no_number_rolls_back_and_leaves_its_samples_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Loop.look
    asked: list[int] = []

    def poisoned(self: Loop, *arguments: Any) -> Any:
        seen = look(self, *arguments)
        asked.append(self.state.position)
        if self.state.position == 9 * 8:  # the ninth batch, whenever it comes
            with torch.no_grad():
                next(self.parts.laid.model.parameters()).fill_(float("nan"))
            return replace(seen, loss=float("nan"))
        return seen

    monkeypatch.setattr(Loop, "look", poisoned)
    assert run(path) == 0
    folder = path.parent / "runs/job"
    found = jobs.losses(folder)
    assert len(found) == 20
    assert all(loss == loss and loss < 6 for loss in found)
    assert status(folder).document["rolled_back_to"] == 5
    assert asked.count(72) == 1
    positions = [line["samples"] for line in RunFolder(folder).metrics()]
    assert positions == [n * 8 for n in range(1, 22) if n != 9]
    (left,) = (folder / "left_out.jsonl").read_text().splitlines()
    assert json.loads(left)["position"] == 64
    assert len(json.loads(left)["samples"]) == 8


def test_without_a_checkpoint_to_go_back_to_it_fails_and_says_what_to_do(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    look = Loop.look
    monkeypatch.setattr(Loop, "look", lambda self, *a: replace(look(self, *a), loss=float("nan")))
    assert run(path) == 2
    said = capsys.readouterr().err
    assert "the loss of step 1 is nan; no checkpoint to go back to" in said
    assert "help: lower optimiser.lr" in said
    assert status(path.parent / "runs/job").state == "failed"


def test_memory_that_runs_out_says_what_to_change(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: Loop) -> None:
        raise torch.OutOfMemoryError("tried to allocate 20.00 GiB")

    monkeypatch.setattr(Loop, "step", full)
    assert run(path) == 2
    said = capsys.readouterr().err
    assert "out of memory on cpu: tried to allocate 20.00 GiB" in said
    assert "batch.micro: 4" in said


def test_another_job_does_not_continue_this_run(path: Path) -> None:
    assert run(path, "steps=5") == 0
    with pytest.raises(JoyError, match="started with another 'seed'"):
        run(path, "seed=1")
    assert run(path, "seed=1", "steps=5", fresh=True) == 0


def test_a_run_of_an_older_version_goes_on(path: Path) -> None:
    """Its job.json lacks keys that came later: they count as their defaults."""
    assert run(path, "steps=5") == 0
    place = path.parent / "runs/job/job.json"
    known = json.loads(place.read_text())
    del known["data"]["weights"], known["data"]["until"], known["eval"]
    place.write_text(json.dumps(known))
    assert run(path, "steps=8") == 0


def test_a_finished_run_is_left_alone_and_more_steps_continue_it(path: Path) -> None:
    assert run(path, "steps=5") == 0
    before = (path.parent / "runs/job/status.json").read_text()
    assert run(path, "steps=5") == 0
    assert (path.parent / "runs/job/status.json").read_text() == before
    assert run(path, "steps=8") == 0
    assert len(jobs.losses(path.parent / "runs/job")) == 8


def test_the_exported_model_is_one_of_transformers(path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert run(path, "steps=6", "checkpoint.export=true") == 0
    folder = path.parent / "runs/job/model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokens = AutoTokenizer.from_pretrained(folder)("the cat sat on", return_tensors="pt")
    loss = model(**tokens, labels=tokens["input_ids"]).loss
    loaded = job.load(path)
    untrained = assemble.model_of(loaded, assemble.task_of(loaded))
    assert loss < untrained(**tokens, labels=tokens["input_ids"]).loss - 0.1
    known = AutoTokenizer.from_pretrained(folder)
    ends = model.generation_config.eos_token_id  # an answer ends where its turn does
    assert known.convert_tokens_to_ids("<|im_end|>") in ends
    assert known.eos_token_id in ends


def test_every_place_gets_the_figures(path: Path) -> None:
    pytest.importorskip("tensorboard")
    assert run(path, "steps=3", "logging.tensorboard=true", "logging.prometheus=0") == 0
    folder = path.parent / "runs/job"
    assert any((folder / "tensorboard").iterdir())
    (line, *_) = RunFolder(folder).metrics()
    assert set(line) >= {"step", "loss", "tokens", "samples", "lr", "grad_norm", "tokens_per_s"}
    assert line["mfu"] is None  # a CPU has no known peak


def test_a_tracker_that_is_not_there_is_named(path: Path, capsys: Any) -> None:
    if importlib.util.find_spec("clearml") is not None:
        pytest.skip("clearml is there")
    assert run(path, "steps=3", "logging.trackers=clearml") == 2
    assert "logging to clearml needs the package clearml" in capsys.readouterr().err


@pytest.mark.parametrize(("form", "scale"), [("dora", 2), ("rslora", 4)])
def test_forms_of_lora_are_those_of_peft(path: Path, form: str, scale: float) -> None:
    made = ("method.name=lora", "method.rank=4", "method.alpha=8", f"method.{form}=true")
    loaded = job.load(path, made)
    model = assemble.model_of(loaded, assemble.task_of(loaded))
    layer = model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    assert layer.scaling == {"default": scale}
    assert layer.use_dora == {"default": form == "dora"}
    assert run(path, "steps=6", *made) == 0
    assert run(path, "steps=6", "run=runs/plain", *made[:3]) == 0
    folder = path.parent / "runs"
    assert jobs.losses(folder / "job") != jobs.losses(folder / "plain")


def test_a_run_whose_process_is_gone_has_died(path: Path) -> None:
    assert run(path, "steps=2") == 0
    folder = RunFolder(path.parent / "runs/job")
    document = {**folder.status(), "state": "running", "pid": 2**22 + 1}
    (folder.path / "status.json").write_text(json.dumps(document))
    assert status(folder.path).state == "died"


# -- the gate ---------------------------------------------------------------------------------

CHIP = Device("npu", "ascend", "hccl")


def verdict(project: Path, result: str, grade: str) -> None:
    Ledger.of(project).record(
        Step(
            kind="verify",
            command="verify replay",
            chip="ascend",
            subject=Subject("job"),
            verdict=result,
            stage="S4",
            grade=grade,
        )
    )


def test_a_chip_wants_a_passing_verdict_of_its_own(path: Path) -> None:
    made = job.load(path)
    with pytest.raises(JoyError, match="'job' has no verdict on ascend") as caught:
        gate.check(made, CHIP, path.parent, unverified=False)
    assert "--unverified" in (caught.value.help or "")
    assert gate.check(made, CHIP, path.parent, unverified=True) is not None
    for free in (Device("cpu"), Device("cuda", "nvidia", "nccl")):
        assert gate.check(made, free, path.parent, unverified=False) is None


@pytest.mark.parametrize(
    ("result", "grade", "rehearsal", "opens"),
    [
        ("pass", "measured", False, True),
        ("fail", "measured", False, False),
        ("pass", "rehearsed", False, False),
        ("pass", "rehearsed", True, True),
    ],
)
def test_a_rehearsed_pass_opens_the_gate_of_a_rehearsal_only(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    result: str,
    grade: str,
    rehearsal: bool,
    opens: bool,
) -> None:
    if rehearsal:
        monkeypatch.setenv("JOYMIGRATE_REHEARSE", "1")
    verdict(path.parent, result, grade)
    assert (gate.refusal(job.load(path), CHIP, path.parent) is None) is opens


def test_worker_reports_an_error_of_the_user_once(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path.parent / "text.jsonl").unlink()
    assert run(path) == 2
    assert capsys.readouterr().err.count("no such data file") == 1
    assert worker.QUIET not in os.environ


def test_two_runs_never_write_to_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill of the command alone, whose processes train on."""
    from joymigrate.run.train import run_folder, worker

    folder, said = RunFolder(tmp_path), []
    monkeypatch.setattr(run_folder, "HELD_S", 0.3)
    monkeypatch.setattr(worker, "print_error", said.append)
    with folder.held():
        before = sorted(tmp_path.iterdir())
        assert worker.main(tmp_path, said.append) == 2
        assert f"process {os.getpid()} of" in said[-1]
        assert "trains in this run" in said[-1]
        assert sorted(tmp_path.iterdir()) == before  # nothing was reported there
    with folder.held():
        pass


def test_what_a_run_forks_does_not_hold_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that user code forks, and that outlives the run."""
    from joymigrate.run.train import run_folder

    folder = RunFolder(tmp_path)
    monkeypatch.setattr(run_folder, "HELD_S", 0.3)
    ends, tells = os.pipe()
    with folder.held():
        child = os.fork()
        if child == 0:
            os.close(tells)
            os.read(ends, 1)  # until the test lets go
            os._exit(0)
        with pytest.raises(run_folder.RunHeldError), folder.held():
            pass
    try:
        with folder.held():
            pass
    finally:
        os.close(tells)
        os.close(ends)
        os.waitpid(child, 0)


def test_a_worker_ends_when_its_launcher_is_killed() -> None:
    code = (
        "import os, time; from joymigrate.run.train import worker; worker.follow_launcher(); "
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    launcher = subprocess.Popen(
        [sys.executable, "-c", start], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline()  # it follows
    launcher.kill()
    _, err = launcher.communicate(timeout=40)  # the pipes end with the child
    assert f"the launcher (process {launcher.pid}) is gone: saving and stopping" in err


def test_a_run_goes_on_with_other_data_only_when_it_is_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = jobs.write(tmp_path, steps=5)
    assert run(first) == 0
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "one more line"}\n' * 12 + text.read_text())
    more = job.load(jobs.write(tmp_path, steps=10))
    assert launch.launch(more, launch.LaunchOptions(), print) == 2
    said = capsys.readouterr().err
    assert "the data changed since the last checkpoint: text.jsonl" in said
    assert "--accept-data goes on" in said
    assert launch.launch(more, launch.LaunchOptions(accept_data=True), print) == 0
    assert "going on in another order" in capsys.readouterr().out
    assert len(jobs.losses(tmp_path / "runs/job")) == 10


def write_records(path: Path, records: list[dict[str, Any]]) -> None:
    """JSON lines, one JSON array, or Parquet, by the name."""
    if path.suffix == ".parquet":
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(
            pa.Table.from_pylist(records), path, row_group_size=len(records) // 2
        )
    elif path.suffix == ".json":
        path.write_text(json.dumps(records, indent=len(records) % 2))
    else:
        path.write_text("".join(json.dumps(one) + "\n" for one in records))


@pytest.mark.parametrize(
    ("name", "packing"),
    [("a.jsonl", False), ("a.jsonl", True), ("a.parquet", False), ("a.json", False)],
)
def test_a_file_that_grew_is_gone_on_with_its_new_rows_once_each(
    tmp_path: Path, name: str, packing: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / name
    lines = [{"text": f"line {number} " * 3} for number in range(34)]
    settings = {
        "data": {"train": name, "max_length": 32, "packing": packing},
        "logging": {"samples": True},
        "steps": None,
    }
    for count in (19, 30, 34):  # a pass of 19 lines ends inside its last step
        write_records(text, lines[:count])
        made = job.load(jobs.write(tmp_path, **settings))
        assert launch.launch(made, launch.LaunchOptions(), print) == 0
    assert f"{name} grew since the last checkpoint" in capsys.readouterr().out
    consumed = (tmp_path / "runs/job/samples/rank0.jsonl").read_text().splitlines()
    seen = [sample for line in consumed for sample in json.loads(line)["samples"]]
    rows = RunFolder(tmp_path / "runs/job").status()["samples_in_all"]
    assert set(seen) == set(range(rows))
    assert rows == 34 or packing
    assert len(seen) - rows < 3 * made.batch.size  # what fills the last steps
    write_records(text, [{"text": "another"}, *lines[1:]])
    assert launch.launch(dataclasses.replace(made, steps=30), launch.LaunchOptions(), print) == 2
    assert f"the data changed since the last checkpoint: {name}" in capsys.readouterr().err


def test_a_checkpoint_that_knew_the_bytes_of_parquet_is_gone_on_from(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_records(path, [{"text": f"line {number}"} for number in range(20)])
    old = data_state.DataPiece(
        0, (Portion(path, 0, path.stat().st_size),), (digests.of_file(path),)
    )
    assert data_state.find_changes([path], [old], "auto", None) == ["a.parquet"]
    found = data_state.renew(old, "auto", None)
    assert found.portions == (Portion(path, 0, 20),)
    assert data_state.find_changes([path], [found], "auto", None) == []


def test_a_process_that_is_faster_waits_for_the_first_one(tmp_path: Path) -> None:
    made = job.load(jobs.write(tmp_path))
    folder = RunFolder(made.run_folder)
    other = job.load(jobs.write(tmp_path, "other"))
    folder.begin(dataclasses.replace(other, name="job"), fresh=True)  # an older one lies there
    late = threading.Timer(0.5, lambda: folder.begin(made, fresh=True))
    late.start()
    began = time.monotonic()
    folder.wait_for(made)
    late.join()
    assert time.monotonic() - began >= 0.4
    assert folder.job() == made
