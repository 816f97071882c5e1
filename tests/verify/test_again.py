"""What other runs of the original make otherwise is no fault of a target."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from joymigrate import launching
from joymigrate.ledger.stash import restore_stashed
from joymigrate.verify import made_files, session
from joymigrate.verify.bundle import Rank, open_bundle
from joymigrate.verify.findings import Findings
from joymigrate.verify.judge import ErrorSeries, Judge
from joymigrate.verify.model import Outcome, RecordStatus
from joymigrate.verify.repeat_runs import (
    SECONDS,
    ended_at,
    find_unrepeated,
    is_given_anew,
    last_step,
    open_run,
    own_arithmetic,
    share_siblings,
)
from joymigrate.verify.scope import least_share
from joymigrate.verify.settings import RecordingSettings
from joymigrate.verify.tolerance_file import JudgeLimits
from joymigrate.verify.watch_stage import ENDED, UNTOLD, is_untold
from tests.cli.joy import joy_with
from tests.verify.harness import record, replay

LOSS = {"kind": "loss", "step": 0, "number": 0}
EXTERNALS = [("out:net:#0.", "a"), ("other", "b"), ("table", "c"), ("made:tensor", "d")]


def rank(folder: Path, changed: dict[str, str], time: float, number: float) -> Rank:
    """What a process recorded: values that a loss is made of, a model called with a number."""
    folder.mkdir()
    files: dict[str, Any] = {
        "tape.json": {
            "events": [
                LOSS
                | {
                    "externals": [
                        {"role": role, "content": changed.get(content, content)}
                        for role, content in EXTERNALS
                    ],
                    "constants": [0.1, time],
                }
            ]
        },
        "forced.json": {"lessons": [{"root": "net", "path": "", "number": 0}]},
        "program.json": {
            "scalars": {"net:": {"1": number, "2": 3}},
            "weights": {name: {"sha256": changed.get(name, name)} for name in "aw"},
        },
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    return Rank(folder, {"files": dict.fromkeys(files)})


def test_values_of_the_clock_are_told_from_those_that_a_run_repeats(tmp_path: Path) -> None:
    one = rank(tmp_path / "one", {}, 12.25, 7.5)
    two = rank(tmp_path / "two", {"a": "rounded", "c": "later", "d": "later"}, 14.5, 9.0)
    key = repr(("loss", 0, 0, ""))
    assert find_unrepeated(one, two) == {
        "events": {key: {"given": [2], "constants": [1]}},
        "numbers": {repr(("net", "", 0)): ["1"]},
        "weights": ["a"],
    }
    assert find_unrepeated(one, one) == {"events": {}, "numbers": {}, "weights": []}


def test_a_tensor_that_is_made_of_a_time_is_no_value_that_rounding_has_moved() -> None:
    one = {"role": "made:tensor", "content": "a", "norm": 1.5}
    assert not is_given_anew(one, {**one, "content": "b", "norm": 1.5 * (1 + 1e-5)})
    assert is_given_anew(one, {**one, "content": "b", "norm": 1.6})


def test_another_run_begins_as_the_first_and_leaves_what_that_made(tmp_path: Path) -> None:
    bundle = tmp_path / "base.jmb"
    bundle.mkdir()
    (tmp_path / "data.txt").write_text("data")
    before = made_files.list_files(tmp_path, bundle)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "checkpoint.pt").write_text("of the first run")
    (bundle / "manifest.json").write_text("{}")
    first = made_files.list_files(tmp_path, bundle)
    with made_files.begin_again(tmp_path, before, first, bundle):
        assert not (tmp_path / "out" / "checkpoint.pt").exists()  # nothing to resume from
        assert (tmp_path / "data.txt").exists()
        assert (bundle / "manifest.json").exists()
        (tmp_path / "out").mkdir()  # as the first run did
        (tmp_path / "out" / "checkpoint.pt").write_text("of the second")
        (tmp_path / "out" / "mine.txt").write_text("the user's, who works on meanwhile")
        (tmp_path / "notes.txt").write_text("the user's")
    assert (tmp_path / "out" / "checkpoint.pt").read_text() == "of the first run"
    assert names(tmp_path / "out") == ["checkpoint.pt", "mine.txt"]
    assert names(tmp_path) == ["base.jmb", "data.txt", "notes.txt", "out"]
    with made_files.begin_again(tmp_path, before, first, bundle):
        (tmp_path / "notes.txt").write_text("the user's, saved again")
    assert (tmp_path / "notes.txt").read_text() == "the user's, saved again"
    assert names(tmp_path) == ["base.jmb", "data.txt", "notes.txt", "out"]


LONG = """
import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(12):
    loss = net(torch.randn(4, 6)).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    # here
    print(f"step {step} loss {loss.item():.4f}")
"""
SCALED = "if step == {}: net[0].weight.data.mul_(1.1)"


def test_other_runs_of_a_long_program_end_early_and_the_rest_is_not_judged_by_them(
    tmp_path: Path,
) -> None:
    program, bundle = tmp_path / "program.py", tmp_path / "base.jmb"
    program.write_text(LONG)
    made = record(program, bundle, runs=2, until=5)
    assert ended_at(made.ranks[0]) == 6
    runs = json.loads((bundle / "rank-0" / "again.json").read_bytes())["runs"]
    assert [len(run["printed"]) for run in runs] == [6, 6]
    clean = replay(bundle, program, tmp_path / "clean.jmb", noise=1.0, noise_seed=7)
    assert clean.verdict is Outcome.PASS
    assert clean.covered["run"] == {"compared": 6, "of": 6}  # what could be compared
    assert least_share(clean.covered) == 1.0
    assert clean.covered["printed"] == {"compared": 12, "of": 24}
    assert {"what": "run", "count": 6, "reason": ENDED} in clean.uncovered
    assert {"what": "printed", "count": 12, "reason": ENDED} in clean.uncovered
    program.write_text(LONG.replace("# here", SCALED.format(4)))
    assert replay(bundle, program, tmp_path / "fault.jmb").verdict is Outcome.FAIL


@pytest.mark.parametrize(
    ("fault", "stage", "at"),
    [
        ("if step == 10: net[0].weight.data.fill_(torch.nan)", "S5W", 10),
        ("if step == 10: torch.manual_seed(9)", "S5W", 10),
        ("if step == 11: loss = loss * torch.nan", "S5P", None),
    ],
)
def test_what_needs_no_null_is_judged_behind_the_end_of_the_other_runs(
    tmp_path: Path, fault: str, stage: str, at: int | None
) -> None:
    program, bundle = tmp_path / "program.py", tmp_path / "base.jmb"
    program.write_text(LONG)
    record(program, bundle, runs=2, until=5)
    program.write_text(LONG.replace("# here", fault))
    found = replay(bundle, program, tmp_path / "fault.jmb")
    assert found.verdict is Outcome.FAIL
    failed = [row for row in found.records if row.status is RecordStatus.FAIL]
    assert [(row.stage, row.step) for row in failed] == [(stage, at)]


def test_a_number_that_no_other_run_printed_is_left_out_and_is_no_row(tmp_path: Path) -> None:
    program, bundle = tmp_path / "program.py", tmp_path / "base.jmb"
    last = 'print("accuracy {}, hits {}")\n'  # rounding may move either
    program.write_text(LONG + last.format(0.9, 912))
    record(program, bundle, runs=2, until=5)
    program.write_text(LONG + last.format(0.1, 911))
    found = replay(bundle, program, tmp_path / "other.jmb")
    assert found.verdict is Outcome.PASS
    assert {row.op for row in found.records if row.stage == "S5P"} == {"step", "loss"}
    assert {"what": "printed", "count": 12 + 2, "reason": ENDED} in found.uncovered
    program.write_text(LONG + last.format(math.nan, 912))
    found = replay(bundle, program, tmp_path / "nan.jmb")
    assert found.verdict is Outcome.FAIL


HELPED = """
import subprocess, sys
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
try:
    exec(compile(open("long.py").read(), "long.py", "exec"))
finally:
    helper.kill()
    print("ended", helper.wait(), file=open("ended.txt", "a"))
"""


def test_a_run_that_is_ended_early_cleans_up_as_at_any_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "long.py").write_text(LONG)
    (tmp_path / "program.py").write_text(HELPED)
    made = record(tmp_path / "program.py", tmp_path / "base.jmb", runs=2, until=5)
    assert (tmp_path / "ended.txt").read_text() == "ended -9\n" * 3
    assert ended_at(made.ranks[0]) == 6
    assert "crash" not in made.ranks[0].manifest


ALONE = """
import torch, torch.distributed as dist
torch.manual_seed(0); torch.set_num_threads(1)
dist.init_process_group("gloo")
net = torch.nn.Linear(8, 3)
model = torch.nn.parallel.DistributedDataParallel(net)
optimiser = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(12):
    loss = model(torch.randn(8, 8)).square().mean()
    optimiser.zero_grad(); loss.backward(); optimiser.step()
    if dist.get_rank() == 0:
        with torch.no_grad(): net(torch.ones(8, 8))
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_end_together_where_one_of_them_evaluates_alone(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(ALONE)
    command = launching.resolve(["torchrun", "--nproc-per-node", "2", str(tmp_path / "p.py")])
    settings = RecordingSettings(bundle=str(tmp_path / "again.jmb"), quiet=True, until=5)
    with session.recording(settings, command, launching.environment()) as running:
        code = launching.run(command, launching.with_start(running.environment))
    assert code == 0
    steps = [rank.json("watch.json")["steps"] for rank in open_bundle(settings.path).ranks]
    assert steps == [7, 7]  # ended at the next update


def test_a_run_that_broke_off_behind_its_last_step_is_kept(tmp_path: Path) -> None:
    program, bundle = tmp_path / "program.py", tmp_path / "base.jmb"
    program.write_text(LONG)
    made = record(program, bundle)
    assert open_run(bundle, 1, made, 10) is not None
    assert open_run(bundle, 1, made, 11) is None  # nothing tells that the last one is whole
    assert open_run(bundle, 1, made, None) is None
    assert open_run(bundle, 0, made, None) is not None
    assert open_run(tmp_path / "none.jmb", 1, made, 5) is None


def test_what_the_other_runs_change_themselves_is_not_told_as_behind_their_end() -> None:
    moved = ErrorSeries([(0, 0.0), (1, 1.0)], exact=True)
    key, found = ("batch", "loader"), Findings()
    judge = Judge(JudgeLimits(), [{key: moved}], end=6)
    assert is_untold(judge, found, moved, judge.decide(key, moved), "loader")
    assert found.uncovered == [{"what": "loader", "count": 1, "reason": UNTOLD}]


def test_other_runs_go_to_the_end_of_a_short_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LONG)
    first = record(program, tmp_path / "base.jmb")
    assert last_step(first, 2, SECONDS) is None
    assert last_step(first, 2, 2 * SECONDS) == 6
    assert last_step(first, 2, 100 * SECONDS) == 2  # the recorded steps are seen in any case
    assert ended_at(open_bundle(tmp_path / "base.jmb").ranks[0]) == math.inf


def test_what_is_known_of_a_place_holds_behind_the_end_of_the_other_runs(tmp_path: Path) -> None:
    ours, other = (rank(tmp_path / name, {}, time, 7.5) for name, time in (("a", 1.0), ("b", 2.0)))
    tape = json.loads((ours.folder / "tape.json").read_bytes())
    tape["events"].append({**tape["events"][0], "step": 8})
    (ours.folder / "tape.json").write_text(json.dumps(tape))
    known = {"constants": [1]}
    found = find_unrepeated(ours, other, 3)["events"]
    assert found == {repr(("loss", step, 0, "")): known for step in (0, 8)}


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / ".joymigrate" / "made.json"
    path.parent.mkdir()
    return path


def names(folder: Path) -> list[str]:
    """What a user sees in a folder."""
    return sorted(path.name for path in folder.iterdir() if path.name[0] != ".")


def test_every_run_begins_without_what_the_one_before_made(tmp_path: Path, note: Path) -> None:
    (tmp_path / "data.txt").write_text("data")
    for number in range(3):
        with made_files.begin_as_first(tmp_path, note):
            assert names(tmp_path) == ["data.txt"]
            (tmp_path / "runs").mkdir()
            (tmp_path / "runs" / "log.txt").write_text(f"run {number}")
            (tmp_path / f"once-{min(number, 1)}.txt").write_text("kept where nothing replaces it")
    assert (tmp_path / "runs" / "log.txt").read_text() == "run 2"
    assert names(tmp_path) == ["data.txt", "once-0.txt", "once-1.txt", "runs"]
    assert not list((tmp_path / ".joymigrate" / "stash").iterdir())


def test_what_the_user_has_made_or_changed_since_a_run_stays(tmp_path: Path, note: Path) -> None:
    with made_files.begin_as_first(tmp_path, note):
        (tmp_path / "out").mkdir()
        for name in ("log.txt", "config.txt"):
            (tmp_path / "out" / name).write_text("of the run")
    (tmp_path / "out" / "config.txt").write_text("edited")
    (tmp_path / "out" / "mine.txt").write_text("the user's own")
    with made_files.begin_as_first(tmp_path, note):
        assert names(tmp_path / "out") == ["config.txt", "mine.txt"]
    assert names(tmp_path / "out") == ["config.txt", "log.txt", "mine.txt"]
    assert (tmp_path / "out" / "config.txt").read_text() == "edited"


def test_a_folder_with_nothing_but_bytecode_goes_with_its_files(tmp_path: Path, note: Path) -> None:
    for _ in range(2):
        with made_files.begin_as_first(tmp_path, note):
            (tmp_path / "made" / "__pycache__").mkdir(parents=True)  # refuses one that is there
            (tmp_path / "made" / "__pycache__" / "a.pyc").write_bytes(b"")
            (tmp_path / "made" / "a.py").write_text("")
    assert names(tmp_path / "made") == ["__pycache__", "a.py"]


KILLED = """
import os, signal, sys
from pathlib import Path
from joymigrate.verify import made_files

folder, note = map(Path, sys.argv[1:])
with made_files.begin_as_first(folder, note):
    assert not (folder / "out").exists()
    (folder / "out").mkdir()
    (folder / "out" / "log.txt").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_a_killed_run_every_file_is_there_again(
    tmp_path: Path, note: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data.txt").write_text("data")
    with made_files.begin_as_first(tmp_path, note):
        (tmp_path / "out" / "deep").mkdir(parents=True)
        (tmp_path / "out" / "deep" / "model.pt").write_text("trained")
        (tmp_path / "out" / "empty").mkdir()
        (tmp_path / "out" / "log.txt").write_text("whole")
        (tmp_path / "latest").symlink_to("out")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(note)])
    assert killed.returncode == -signal.SIGKILL
    assert names(tmp_path) == ["data.txt", "out"]
    told = joy_with(capsys)("status", str(tmp_path))
    assert told.code == 0
    assert "2 files that a killed run of the program had set aside are back" in told.err
    assert names(tmp_path) == ["data.txt", "latest", "out"]
    assert names(tmp_path / "out") == ["deep", "empty", "log.txt"]
    assert (tmp_path / "latest" / "deep" / "model.pt").read_text() == "trained"
    # Nothing is put over what the killed run has made, and nothing is lost.
    assert (tmp_path / "out" / "log.txt").read_text() == "half"
    (kept,) = (tmp_path / ".joymigrate" / "stash").glob("*/out/log.txt")
    assert kept.read_text() == "whole"
    assert str(kept.parent.parent) in told.err
    (tmp_path / "out" / "log.txt").write_text("the user's own, since")
    with made_files.begin_as_first(tmp_path, note):
        assert names(tmp_path) == ["data.txt"]
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "log.txt").write_text("of the next run")
    texts = {path.read_text() for path in tmp_path.rglob("log.txt")}
    assert texts == {"whole", "the user's own, since", "of the next run"}


def test_what_a_live_run_has_set_aside_is_left_to_it(tmp_path: Path, note: Path) -> None:
    for _ in range(2):
        with made_files.begin_as_first(tmp_path, note):
            assert restore_stashed(tmp_path) == (0, [])
            assert names(tmp_path) == []
            (tmp_path / "out.txt").write_text("")
    assert names(tmp_path) == ["out.txt"]


def test_a_folder_that_was_made_goes_as_a_whole(tmp_path: Path) -> None:
    bundle = tmp_path / "new" / "base.jmb"
    before = made_files.list_files(tmp_path, bundle)
    bundle.mkdir(parents=True)
    (tmp_path / "new" / "out" / "empty").mkdir(parents=True)
    first = made_files.list_files(tmp_path, bundle)
    with made_files.begin_again(tmp_path, before, first, bundle):
        assert bundle.exists()
        (tmp_path / "new" / "out").mkdir()  # a program that refuses a folder that is there
    assert (tmp_path / "new" / "out" / "empty").is_dir()


def test_weights_of_a_model_that_is_called_behind_the_end_of_the_other_runs_are_untold(
    tmp_path: Path,
) -> None:
    """An average that is asked after training: the other runs ended before, and its weights were
    held to the bytes of the first run's."""
    ours, other = (rank(tmp_path / name, {}, 1.0, 7.5) for name in ("a", "b"))
    program = json.loads((other.folder / "program.json").read_bytes())
    del program["weights"]["w"]
    (other.folder / "program.json").write_text(json.dumps(program))
    assert find_unrepeated(ours, other, 3)["weights"] == ["w"]
    assert find_unrepeated(ours, other)["weights"] == []  # it never calls it


def test_siblings_share_the_largest_error_of_each_step_once() -> None:
    """A step of a model with hundreds of experts has one point in each of their series: all points
    of all of them took minutes and gigabytes."""
    series = {
        ("update", f"net:experts.{n}.weight"): ErrorSeries([(0, n / 10), (1, 0.3 - n / 10)])
        for n in range(3)
    }
    shared = share_siblings({**series, ("printed", "loss 1"): ErrorSeries([(0, 0.5)])})
    assert all(tuple(shared[key].points) == ((0, 0.2), (1, 0.3)) for key in series)
    assert shared["printed", "loss 1"].points == [(0, 0.5)]


DATED = """
import os, pathlib, sys, time
import torch
run = pathlib.Path("runs", f"{time.time_ns()}")
run.mkdir(parents=True)
net = torch.nn.Linear(4, 2)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(2):
    loss = net(torch.ones(3, 4)).square().mean()
    loss.backward()
    optimiser.step()
torch.save(net.state_dict(), str(run / "model.pt"))
pathlib.Path(f"log-{run.name}.txt").write_text("done")
print("loss", loss.item())
"""


def test_other_runs_leave_no_folders_with_the_time_in_their_name(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DATED)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "1234").mkdir()  # of the user's own run before
    words = ["verify", "record", "-q", "-o", "base.jmb", "--", "python", "train.py"]
    command = [sys.executable, "-m", "joymigrate", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(names(tmp_path / "runs")) == 2
    assert len([name for name in names(tmp_path) if name.startswith("log-")]) == 1
    (made,) = set(names(tmp_path / "runs")) - {"1234"}
    assert names(tmp_path / "runs" / made) == ["model.pt"]


def test_own_arithmetic_of_other_runs_tells_how_far_cancelling_carries_rounding(
    tmp_path: Path,
) -> None:
    """A loss made by cancelling: exact by luck in the first run, and far off in the noisy ones."""
    twins = [rank(tmp_path / name, {}, 1.0, 7.5) for name in ("a", "b")]
    for one, native in zip(twins, (1e-3, 2e-3), strict=True):
        tape = json.loads((one.folder / "tape.json").read_bytes())
        tape["events"][0]["sinks"] = {"loss": {"native": native}, "other": {}}
        (one.folder / "tape.json").write_text(json.dumps(tape))
    assert own_arithmetic(twins) == {repr(("loss", 0, 0, "")): {"loss": 2e-3}}


MOVES = {  # what another run does with the user's files, beside what it makes
    "a move to a folder of the first run": "os.rename('inbox/b', 'done/b')",
    "a move to a folder of its own": "os.mkdir('t2'); shutil.move('inbox/b', 't2')",
    "a copy in place of it": "os.mkdir('t2'); shutil.copy('inbox/b', 't2/x'); os.remove('inbox/b')",
    "a move to a name of the first run": "os.replace('inbox/b', 'done/a')",
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_a_users_file_that_another_run_moves_is_never_removed(tmp_path: Path, move: str) -> None:
    note, bundle, folder = tmp_path / "made.txt", tmp_path / "base.jmb", tmp_path / "project"
    for name in ("inbox", "done"):
        (folder / name).mkdir(parents=True)
    for name in "ab":
        (folder / "inbox" / name).write_text(f"user {name}")
    before = made_files.list_files(folder)
    (folder / "inbox" / "a").rename(folder / "done" / "a")
    first = made_files.list_files(folder)
    lines = f"""
import os, pathlib, shutil
from joymigrate.verify import made_files
made_files.note_made(pathlib.Path({str(note)!r}))
os.makedirs('done', exist_ok=True)
pathlib.Path('own.txt').write_text('own')
{move}
"""
    with made_files.begin_again(folder, before, first, bundle, note):
        subprocess.run([sys.executable, "-c", lines], cwd=folder, check=True)
    kept = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    assert {"user a", "user b"} <= set(kept)
    assert made_files.read_made(note) >= {str(folder / "own.txt")}


def test_a_note_is_not_written_into_a_file_that_has_its_number(tmp_path: Path) -> None:
    lines = """
import os, pathlib
from joymigrate.verify import made_files
made_files.note_made(pathlib.Path('made.txt'))
os.closerange(3, 100)
handles = [os.open(f'own-{n}.txt', os.O_RDWR | os.O_CREAT) for n in range(5)]
"""
    subprocess.run([sys.executable, "-c", lines], cwd=tmp_path, check=True)
    assert [path.read_text() for path in tmp_path.glob("own-*.txt")] == [""] * 5
