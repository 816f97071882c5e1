"""Recordings that end before their program: a failing write, a kill, a program of fewer steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate.verify.bundle import open_bundle
from joymigrate.verify.compare import compare
from joymigrate.verify.model import Outcome
from joymigrate.verify.tolerance import Tolerance
from tests.verify.harness import record, replay

PROGRAM = """
import os, resource, signal, threading, torch
torch.manual_seed(0); torch.set_num_threads(1)
net = torch.nn.Linear(3, 2); optimiser = torch.optim.SGD(net.parameters(), 0.1)
FOLDER = os.path.dirname(os.path.abspath(__file__))
limit, real, count = os.environ.get("LIMIT"), os.replace, [0]
def replace(*given):
    count[0] += 1
    if count[0] == int(os.environ.get("KILL", "0")):
        os.kill(os.getpid(), signal.SIGKILL)
    real(*given)
    commits = str(given[1]).endswith(os.path.join("rank-0", "manifest.json"))  # a step is there
    with open(f"{FOLDER}/writes-{os.environ.get('KILL', '')}", "a") as file:
        file.write("1" if commits else "0")
os.replace = replace
for step in range(int(os.environ.get("STEPS", "3"))):
    if limit and step == 2:  # no file of this process grows beyond: writes fail, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    net(torch.ones(2, 3)).sum().backward(); optimiser.step(); optimiser.zero_grad()
    aside = threading.Thread(target=net, args=(torch.ones(2, 3),)); aside.start(); aside.join()
print("ran to its end")
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cut")
    (folder / "train.py").write_text(PROGRAM)
    record(folder / "train.py", folder / "base.jmb")
    return folder


def joy(base: Path, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "joymigrate", "verify", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=base,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **environment},
    )


def test_a_write_that_fails_ends_the_recording_and_not_the_program(base: Path) -> None:
    made = joy(base, "record", "-o", "cut.jmb", "--", "python", "train.py", LIMIT="100")
    assert (made.returncode, made.stdout) == (0, "ran to its end\n")
    assert made.stderr.count("recording ends at step") == 1
    assert "Traceback" not in made.stderr
    cut = open_bundle(base / "cut.jmb")
    assert (cut.ranks[0].steps, cut.complete) == ([0], False)
    assert cut.manifest["stopped"] == {"step": 1, "why": "File too large"}
    verdict = compare(open_bundle(base / "base.jmb"), cut, Tolerance.of(None))
    assert verdict.verdict is Outcome.INCONCLUSIVE
    assert verdict.reason == "the target recorded 1 of the baseline's 3 steps (File too large)"
    shown = joy(base, "show", "cut.jmb")
    assert "cut short at step 1: File too large" in shown.stdout


def test_a_target_that_ends_earlier_does_not_pass(base: Path, tmp_path: Path) -> None:
    verdict = replay(base / "base.jmb", base / "train.py", tmp_path / "t.jmb", {"STEPS": "2"})
    assert verdict.verdict is Outcome.INCONCLUSIVE
    assert verdict.reason == "the target recorded 2 of the baseline's 3 steps"


def test_steps_that_the_target_was_not_to_record_are_not_missed(base: Path, tmp_path: Path) -> None:
    record(base / "train.py", tmp_path / "two.jmb", last=1)
    verdict = compare(
        open_bundle(base / "base.jmb"), open_bundle(tmp_path / "two.jmb"), Tolerance.of(None)
    )
    assert verdict.verdict is Outcome.PASS, verdict.reason


def test_a_target_may_go_on_where_its_baseline_was_cut_short(base: Path, tmp_path: Path) -> None:
    """Calls that the baseline did not come to are no other number of calls."""
    (tmp_path / "two.py").write_text(PROGRAM.replace('"STEPS", "3"', '"STEPS", "2"'))
    record(tmp_path / "two.py", tmp_path / "two.jmb")
    replay(tmp_path / "two.jmb", base / "train.py", tmp_path / "three.jmb", last=1)
    whole, target = open_bundle(tmp_path / "two.jmb"), open_bundle(tmp_path / "three.jmb")
    assert compare(whole, target, Tolerance.of(None)).verdict is Outcome.FAIL
    whole.ranks[0].cut = True
    verdict = compare(whole, target, Tolerance.of(None))
    assert verdict.verdict is Outcome.PASS, verdict.reason
    left = [str(item["reason"]) for item in verdict.uncovered]
    assert any("cut short before them" in reason for reason in left)
    assert "2 calls of modules in other threads are not recorded" in left
    verdict = compare(target, whole, Tolerance.of(None))
    assert verdict.verdict is Outcome.INCONCLUSIVE
    assert verdict.reason == "the target ended after 2 of the baseline's 3 updates"


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.8, 1.0])
def test_killed_at_any_write_whole_steps_remain(share: float, base: Path) -> None:
    """`writes-N` of a run that is killed at write N has a 1 for each write after which a step more
    is there."""
    if not (base / "writes--1").exists():
        joy(base, "record", "--force", "-o", "whole.jmb", "--", "python", "train.py", KILL="-1")
    write = max(1, round(share * len((base / "writes--1").read_text())))
    words = ("record", "--force", "-o", f"{write}.jmb", "--", "python", "train.py")
    made = joy(base, *words, KILL=str(write))
    assert made.returncode == 137
    written = base / f"writes-{write}"
    steps = written.read_text().count("1") if written.exists() else 0
    assert steps or share < 0.7
    if not steps:
        assert "exit code 137; nothing was recorded" in made.stderr
        return
    bundle = open_bundle(base / f"{write}.jmb")
    assert (bundle.complete, bundle.ranks[0].steps) == (False, list(range(steps)))
    assert all(len(bundle.ranks[0].table(step)) for step in range(steps))
