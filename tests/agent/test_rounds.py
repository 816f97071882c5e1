"""`migrate --agent`: tasks, rounds, judges; what a command may do and what comes of it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from joymigrate.agent.patches import rounds
from joymigrate.agent.patches.item import find_item
from joymigrate.agent.patches.judges import (
    Before,
    compare_refusals,
    compare_work,
    differing,
    is_no_further,
    judge_verdict,
)
from joymigrate.agent.patches.rounds import AgentOrder, read_files, run_command, solve
from joymigrate.errors import JoyError
from joymigrate.journey.gates import Gates
from joymigrate.journey.model import Journey, JourneyRequest, StepOutcome, StepStatus, to_json
from joymigrate.ledger import Ledger
from tests.cli.joy import joy_with

HERE = Path(__file__).parent
PROGRAM = "import torch\n\n\ndef ask():\n    return torch.cuda.get_device_capability()\n\n\nask()\n"
STOP = {
    "line": "train.py:5", "message": "AssertionError: no CUDA", "whose": "rewrite",
    "how_known": "", "next": "say it in the chip's words", "edits": {},
    "frames": ["train.py:8 ask()", "/usr/lib/python3/site.py:3 x", "tests/test_a.py:1 y"],
}  # fmt: skip


@pytest.fixture
def stopped(tmp_path: Path) -> Journey:
    """A journey that stopped at a line of the program, with what judges on disk."""
    (tmp_path / "joymigrate.toml").write_text("")
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text("assert 1\n")
    folder = tmp_path / ".joymigrate/journey"
    recording = folder / "baseline/baseline.jmb"
    recording.mkdir(parents=True)
    (recording / "manifest.json").write_text('{"files": {}}')
    (folder / "rehearse").mkdir()
    (folder / "rehearse/log.txt").write_text("what the chip said\n")
    figures = {"of": "original", "recorded": True}
    base = StepOutcome("baseline", StepStatus.DONE, "", figures, verdict="pass")
    stop = StepOutcome("rehearse", StepStatus.STOPPED, "", {"stop": STOP}, verdict="fail")
    request = JourneyRequest(tmp_path, ("python", "train.py"), "ascend")
    return Journey(request, folder, "rehearsed", (base, stop))


def try_code(
    stopped: Journey, code: str, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> list[rounds.PatchRound]:
    """Rounds of a command that runs some Python; the judges that run programs agree."""
    monkeypatch.setattr(rounds, "judge_run", lambda *words: iter(()))
    asked = AgentOrder(shlex.join([sys.executable, "-c", code]), **{"rounds": 1, **more})
    return solve(stopped, Gates(), asked, 1, lambda line: None)


GOOD = """
import pathlib
path = pathlib.Path("train.py")
new = "    if not torch.cuda.is_available():\\n        return (8, 0)\\n    return torch"
path.write_text(path.read_text().replace("    return torch", new))
"""


def test_an_item_is_the_stop_with_the_files_that_may_change(stopped: Journey) -> None:
    item = find_item(to_json(stopped), stopped.request.project, (), 1)
    assert item is not None
    assert (item.place, dict(item.files)) == ("train.py:5", {"train.py": ("ask",)})


def test_a_call_that_the_chip_would_refuse_is_an_item_too(stopped: Journey) -> None:
    project = stopped.request.project
    call = {"kernel": "aclnnInplaceCopy", "message": "at most 8 dimensions", "calls": 4,
            "where": f"{project}/train.py:5"}  # fmt: skip
    held = replace(stopped.outcomes[1], held="refused calls: 4",
                   figures={"stop": None, "refused": [call]})  # fmt: skip
    item = find_item(to_json(replace(stopped, outcomes=(held,))), project, (), 1)
    assert item is not None
    assert (item.place, item.message) == ("train.py:5", "at most 8 dimensions")
    assert dict(item.files) == {"train.py": ("ask",)}


def test_refused_calls_have_to_become_fewer_and_their_kernel_may_go() -> None:
    row = {"kernel": "aclnnCopy", "message": "9 dimensions", "calls": 4, "where": "train.py:5"}
    before = {"refusals": [row], "kernels": {"aclnnCopy": 4}}
    assert [one.name for one in compare_refusals(before, before)] == ["no-further"]
    assert list(compare_refusals(before, {"refusals": []})) == []
    assert list(compare_work(before, {"kernels": {}})) == []


def test_a_patch_is_taken_as_one_step_and_rolled_back(
    stopped: Journey, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = stopped.request.project
    (made,) = try_code(stopped, GOOD, monkeypatch)
    assert made.taken
    assert "return (8, 0)" in (project / "train.py").read_text()
    ledger = Ledger.of(project)
    step = ledger.find(made.step)
    assert step.details["judges"]
    assert b"+        return (8, 0)" in (ledger.folder(step.id) / "agent.diff").read_bytes()
    ledger.rollback()
    assert (project / "train.py").read_text() == PROGRAM


def test_the_task_says_what_may_change_and_how_it_is_judged(
    stopped: Journey, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os, shutil; shutil.copy(os.environ['JOYMIGRATE_TASK'], 'TASK-SEEN.md')"
    (made,) = try_code(stopped, code, monkeypatch)
    assert [one.name for one in made.refused] == ["outside-files"]
    task = (stopped.folder / "tasks/1/1/TASK.md").read_text()
    for part in ("train.py:5", "what the chip said", "its functions `ask`", "moved-to-host",
                 "   5     return torch.cuda.get_device_capability()"):  # fmt: skip
        assert part in task


RECORDING = ".joymigrate/journey/baseline/baseline.jmb/manifest.json"
CHEATS = [
    ("no-diff", "print('done, all tests pass')"),
    ("outside-files", "import os; os.remove('train.py'); os.symlink('/etc/passwd', 'train.py')"),
    ("outside-files", "import os; os.remove('train.py')"),
    ("outside-files", "open('tests/test_a.py', 'w').write('')"),
    ("outside-files", "open('conftest.py', 'w').write('import torch')"),
    ("touched-judge", "open('{project}/' + {recording!r}, 'w').write('{{}}')"),
    ("touched-judge", "open('{project}/train.py', 'a').write('x = 1\\n')"),
    ("touched-judge", "open('{project}/tests/test_b.py', 'w').write('')"),
    ("touched-judge", "import os; os.remove('{project}/tests/test_a.py')"),
    ("broken-code", "open('train.py', 'w').write('def (')"),
    ("broken-code", "open('train.py', 'wb').write(b'\\xff\\xfe')"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "code"), CHEATS)
def test_what_is_done_beside_the_task_is_refused(
    stopped: Journey, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    project = stopped.request.project
    (made,) = try_code(stopped, code.format(project=project, recording=RECORDING), monkeypatch)
    assert name in {one.name for one in made.refused}
    assert Ledger.of(project).latest() is None
    step = Ledger.of(project).find(made.step)
    assert (step.kind, step.verdict) == ("patch", "fail")
    assert step.details["refused"][0]["why"]


def test_a_refusal_goes_back_with_its_reason_and_rounds_are_bounded(
    stopped: Journey, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = try_code(stopped, "print('no')", monkeypatch, rounds=2)
    assert [one.taken for one in made] == [False, False]
    second = (stopped.folder / "tasks/1/2/TASK.md").read_text()
    assert "Round 1 was refused" in second
    assert "no-diff" in second


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    command = shlex.join([sys.executable, "-c", "import time; time.sleep(60)"])
    asked = AgentOrder(command, seconds=1)
    assert run_command(asked, tmp_path, tmp_path / "TASK.md", tmp_path / "log.txt") == 124


@pytest.mark.parametrize("command", ["", "no-such-program-at-all"])
def test_a_command_that_can_t_start_is_a_clear_error(tmp_path: Path, command: str) -> None:
    with pytest.raises(JoyError, match=r"names no command|cannot start"):
        run_command(AgentOrder(command), tmp_path, tmp_path / "TASK.md", tmp_path / "log.txt")


def test_without_a_recorded_original_nothing_can_be_proven(stopped: Journey) -> None:
    unrecorded = replace(stopped, outcomes=stopped.outcomes[1:])
    with pytest.raises(JoyError, match="no patch can be proven here"):
        solve(unrecorded, Gates(), AgentOrder("true"), 1, print)
    direct = replace(stopped, request=replace(stopped.request, style="direct"))
    with pytest.raises(JoyError, match="style direct"):
        solve(direct, Gates(), AgentOrder("true"), 1, print)


def test_links_and_folders_of_a_copy_are_seen(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "away").symlink_to("/etc")
    found = read_files(tmp_path)
    assert found["a.py"] == b"1"
    assert found["away"] is None
    assert "away → /etc" in found
    assert not any("passwd" in name for name in found)


def test_less_work_on_the_chip_is_seen() -> None:
    before = {"kernels": {"aclnnMm": 4, "aclnnAdd": 2}}
    assert list(compare_work(before, {"kernels": {"aclnnMm": 4, "aclnnAdd": 9}})) == []
    (one,) = compare_work(before, {"kernels": {"aclnnAdd": 2}})
    assert (one.name, one.why) == (
        "moved-to-host",
        "less runs on the chip than before: aclnnMm 0 of 4",
    )


def test_a_program_that_leaves_the_chip_alone_is_refused() -> None:
    (one,) = compare_work({}, {"exit_code": 0, "calls": 0, "kernels": {}})
    assert one.name == "moved-to-host"
    assert list(compare_work({}, {"exit_code": 0, "calls": 3, "kernels": {"aclnnMm": 3}})) == []
    assert list(compare_work({}, {"exit_code": 1, "calls": 0, "kernels": {}})) == []


def test_another_error_in_the_same_file_is_no_further() -> None:
    before = {"line": "a.py:3", "message": "no CUDA"}
    other = {"line": "a.py:5", "message": "TypeError"}
    assert is_no_further(before, before, more=True)
    assert is_no_further(before, other, more=False)
    assert not is_no_further(before, other, more=True)
    assert not is_no_further(before, {"line": "b.py:1", "message": "TypeError"}, more=False)


def test_a_verdict_that_decides_nothing_proves_no_patch() -> None:
    apart = {"module": "net.0", "metric": "relative"}
    for verdict, more, name, why in [
        ("inconclusive", {"reason": "no loss"}, "not-proven", "no loss"),
        ("fail", {"first_divergence": apart}, "verdict-worse", "net.0 relative"),
        (None, {}, "verdict-worse", "it crashed"),
    ]:
        (one,) = judge_verdict({"verdict": verdict, **more}, "it crashed")
        assert (one.name, why in one.why) == (name, True)
    assert list(judge_verdict({"verdict": "pass"}, "")) == []


def test_recordings_differ_where_a_part_is_missing() -> None:
    assert differing({"a": "1", "b": "2"}, {"a": "1"}) == ["b"]
    assert Before(Path(), {}, {}).stop == {}


@pytest.mark.slow
def test_a_journey_with_an_agent_is_proven_end_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two cheats that only running shows, then an honest patch: the last one is taken."""
    joy = joy_with(capsys)
    project = tmp_path / "sample"
    shutil.copytree(HERE / "programs/sample", project)
    honest = yaml.safe_load((HERE / "honest.yaml").read_text())[0]["edits"][0]
    (tmp_path / "agent.py").write_text(f"""
import os, pathlib
task = pathlib.Path(os.environ["JOYMIGRATE_TASK"]).read_text()
path = pathlib.Path("train.py")
text = path.read_text()
old, new = {honest["old"]!r}, {honest["new"]!r}
if "Round 1 was refused" not in task:
    new = "    major, minor = (9, 0) if jm.device_type() == 'npu' else (6, 0)\\n"
elif "Round 2 was refused" not in task:
    new = old.replace("torch.cuda", "jm.device_module()")
path.write_text(text.replace(old, new))
""")
    agent = shlex.join([sys.executable, str(tmp_path / "agent.py")])
    told = joy("migrate", str(project), "--entry", "python train.py", "--agent", agent, "-q",
               "--format", "json")  # fmt: skip
    assert told.code == 0, told.err
    refused = [
        one.details["refused"][0]["name"]
        for one in Ledger.of(project).steps()
        if one.kind == "patch"
    ]
    assert refused == ["other-values", "no-further"]
    assert json.loads(told.out)["verdict"] == "pass"
    assert sorted(os.listdir(project / ".joymigrate/journey/tasks/1")) == ["1", "2", "3"]
