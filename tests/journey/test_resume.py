"""A journey goes on where it stood: what still holds is kept, what rests on a change is redone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.journey.context import StepContext
from joymigrate.journey.gates import Gates
from joymigrate.journey.lock import hold_journey
from joymigrate.journey.model import JourneyRequest, StepOutcome, StepStatus
from joymigrate.journey.plan import NAMES, plan
from joymigrate.journey.runner import run_journey
from joymigrate.journey.steps import baseline
from joymigrate.ledger import Change, Ledger, Step

REPOSITORY = Path(__file__).parents[2]
PROGRAM = """\
import torch

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
model = model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.ones(4, 8, device=device)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    (folder / "pyproject.toml").write_text("[tool.joymigrate]\n")
    return folder


@pytest.fixture
def request_(project: Path) -> JourneyRequest:
    return JourneyRequest(project, ("python", "train.py"), "ascend")


def leaves_a_file(name: str, ran: list[str]) -> Any:
    """A step that notes that it ran and leaves evidence."""

    def run(at: StepContext) -> StepOutcome:
        ran.append(name)
        at.path(f"{name}.txt").write_text(name)
        figures = {"exit_code": 0, "fallbacks": 1, "calls_pct": 90.0, "automatic_pct": 50.0}
        return StepOutcome(name, StepStatus.DONE, name, figures, (f"{name}.txt",), verdict="pass")

    return run


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the steps that were taken; what they would do is left out."""
    names: list[str] = []

    def planned(request: JourneyRequest) -> list[Any]:
        return [replace(one, run=leaves_a_file(one.name, names)) for one in plan(request)]

    monkeypatch.setattr(import_module("joymigrate.journey.runner"), "plan", planned)
    return names


AFTER_REWRITE = {"rehearse", "coverage", "advice", "verify", "train", "serve"}
CHANGES: list[tuple[str, Any, set[str]]] = [
    ("nothing", {}, set()),
    (
        "entry",
        {"entry": ("python", "train.py", "--x")},
        {"baseline", "rehearse", "coverage", "advice", "verify", "train"},
    ),
    ("steps", {"steps": "0-1"}, {"baseline", "verify", "train"}),
    ("map", {"map": Path("map.json")}, {"verify"}),
    ("train", {"train": ("python", "train.py", "--long")}, {"train"}),
    ("serve", {"serve": Path("model")}, {"serve"}),
    ("unsafe", {"unsafe": True}, {"scan", "rewrite"} | AFTER_REWRITE),
    ("chip", {"chip": "cambricon"}, {"scan", "rewrite"} | AFTER_REWRITE - {"serve"} | {"serve"}),
]


@pytest.mark.parametrize(("what", "change", "again"), CHANGES, ids=[c[0] for c in CHANGES])
def test_a_change_of_the_request_redoes_what_rests_on_it(
    what: str, change: dict[str, Any], again: set[str], request_: JourneyRequest, ran: list[str]
) -> None:
    run_journey(request_, Gates())
    assert ran == list(NAMES)
    ran.clear()
    run_journey(replace(request_, **change), Gates())
    assert set(ran) == again


def test_evidence_that_was_changed_or_is_gone_is_made_again(
    request_: JourneyRequest, ran: list[str]
) -> None:
    folder = run_journey(request_, Gates()).folder
    ran.clear()
    (folder / "coverage.txt").write_text("forged")
    (folder / "serve.txt").unlink()
    run_journey(request_, Gates())
    assert ran == ["coverage", "advice", "serve"]


def test_a_tighter_gate_asks_again_and_a_looser_one_lets_pass_what_was_held(
    request_: JourneyRequest, ran: list[str]
) -> None:
    assert run_journey(request_, Gates()).verdict == "pass"
    ran.clear()
    held = run_journey(request_, Gates(coverage=95))
    assert ran == ["coverage"]
    assert held.verdict == "fail"
    assert [one.status.value for one in held.outcomes if one.name in ("coverage", "advice")] == [
        "stopped",
        "pending",
    ]
    ran.clear()
    freed = run_journey(request_, Gates(coverage=90))
    assert ran == ["advice"]  # what came after does not rest on it, and was kept
    outcome = freed.outcome("coverage")
    assert outcome is not None
    assert (outcome.status, outcome.held) == (StepStatus.DONE, "")
    assert "held" not in outcome.figures


def test_the_users_edit_begins_anew_and_a_programs_output_does_not(
    request_: JourneyRequest, ran: list[str]
) -> None:
    run_journey(request_, Gates())
    ran.clear()
    (request_.project / "results.json").write_text("{}")
    run_journey(request_, Gates())
    assert ran == []
    (request_.project / "train.py").write_text(PROGRAM.replace("0.1", "0.2"))
    run_journey(request_, Gates())
    assert ran == list(NAMES)


def test_an_edit_of_the_rewritten_side_keeps_the_recorded_original(
    request_: JourneyRequest, ran: list[str]
) -> None:
    script, ledger = request_.project / "train.py", Ledger.of(request_.project)
    labels = request_.project / "data" / "labels.json"  # a copy of the project links its folder
    labels.parent.mkdir()
    labels.write_text("{}")
    folder = run_journey(request_, Gates()).folder
    baseline.sources(request_, folder)
    baseline.note_files(folder / baseline.FILES, request_.project, request_.project)
    change = Change("train.py", script.read_bytes(), PROGRAM.replace("cuda", "npu").encode())
    ledger.apply([change], Step(kind="rewrite", chip="ascend"), {})
    run_journey(request_, Gates())
    ran.clear()
    script.write_text(script.read_text().replace("0.1", "0.2"))
    run_journey(request_, Gates())
    assert ran == [name for name in NAMES if name != "baseline"]
    copy, _ = baseline.sources(request_, folder)
    baseline.note_files(folder / baseline.FILES, copy, request_.project)
    ran.clear()
    labels.write_text("[]")  # both sides read it
    run_journey(request_, Gates())
    assert ran == list(NAMES)
    ran.clear()
    script.write_text(script.read_text().replace("0.2", "0.3"))
    (request_.project / "extra.py").write_text("x = 1\n")  # the original may import it
    run_journey(request_, Gates())
    assert ran == list(NAMES)


def test_fresh_takes_every_step_and_until_stops_behind_one(
    request_: JourneyRequest, ran: list[str]
) -> None:
    stopped = run_journey(request_, Gates(), until="coverage")
    assert ran == list(NAMES[: NAMES.index("coverage") + 1])
    assert {one.status for one in stopped.outcomes[5:]} == {StepStatus.PENDING}
    ran.clear()
    run_journey(request_, Gates())
    assert ran == list(NAMES[NAMES.index("coverage") + 1 :])
    ran.clear()
    run_journey(request_, Gates(), fresh=True)
    assert ran == list(NAMES)


def test_a_second_journey_in_the_same_project_is_refused(
    request_: JourneyRequest, ran: list[str]
) -> None:
    folder = run_journey(request_, Gates(), until="scan").folder
    with hold_journey(folder), pytest.raises(JoyError, match=f"process {os.getpid()}"):
        run_journey(request_, Gates())
    run_journey(request_, Gates(), until="scan")


# From here on the steps are the real ones.


def command(project: Path, *words: str) -> list[str]:
    entry = ("--entry", "python train.py")
    return [sys.executable, "-m", "joymigrate", "migrate", str(project), *entry, *words]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}


def migrate(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(project, *words), capture_output=True, text=True, env=environment()
    )


def states(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return {one["name"]: one["status"] for one in json.loads(done.stdout)["journey"]}


@pytest.mark.slow
def test_a_rewrite_that_its_journey_did_not_live_to_note_is_taken_over(project: Path) -> None:
    done = migrate(project, "--until", "baseline", "--format", "json")
    assert done.returncode == 0, done.stderr
    ours = ["rewrite", ".", "--to", "ascend", "--style", "agnostic", "-q"]
    subprocess.run([sys.executable, "-m", "joymigrate", *ours], cwd=project, check=True)
    done = migrate(project, "--until", "rewrite", "--format", "json")
    document = json.loads(done.stdout)
    scan, baseline, rewrite = document["journey"][:3]
    first = done.stderr.splitlines()
    assert [line.split()[0] for line in first[:3]] == ["kept", "kept", "ok"]
    assert baseline["figures"]["of"] == "original"
    assert rewrite["figures"]["edits"] == scan["figures"]["safe"] > 0
    assert document["rewrite_step"] == rewrite["figures"]["step"]
    assert "taken before" in rewrite["found"]
    direct = migrate(project, "--style", "direct")
    assert direct.returncode == 2
    assert f"joymigrate rollback {document['rewrite_step']}" in direct.stderr


def running(project: Path) -> str | None:
    """The step that a journey is at, as it says itself."""
    try:
        text = (project / ".joymigrate/journey/running.json").read_text()
        return str(json.loads(text)["step"])
    except (OSError, ValueError):
        return None


def until_at(project: Path, process: subprocess.Popen[str], step: str) -> bool:
    """Wait until a journey is at `step`; False when it ended before."""
    while process.poll() is None:
        if running(project) == step:
            return True
        time.sleep(0.01)  # nothing can be waited for: the file is another process's
    return False


def left_running(project: Path) -> list[str]:
    """Processes that work in the project."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").resolve() == project.resolve():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_killed_in_every_step_it_goes_on_and_nothing_is_half_done(project: Path) -> None:
    for step in NAMES[:-1]:
        process = subprocess.Popen(
            command(project, "-q"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert until_at(project, process, step), process.stderr and process.stderr.read()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        deadline = time.monotonic() + 30
        while left_running(project) and time.monotonic() < deadline:
            time.sleep(0.05)  # the kernel ends the children of the killed one
        assert left_running(project) == []
        path = project / ".joymigrate/journey/journey.json"
        if path.exists():
            done = [one["name"] for one in json.loads(path.read_text())["journey"]]
            assert step not in [n for n, s in zip(done, done, strict=True) if s == "done"]
    done = migrate(project, "--format", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"] == "pass", done.stderr
    assert set(states(done).values()) == {"done", "skipped"}
    assert document["journey"][0]["figures"]["rewritten"] in (
        0,
        document["journey"][2]["figures"]["edits"],
    )
    kept = [line for line in done.stderr.splitlines() if line.startswith("  kept")]
    assert len(kept) == len(NAMES) - 2  # all but the last two: killed in train, serve left out
    back = [sys.executable, "-m", "joymigrate", "rollback", document["rewrite_step"]]
    subprocess.run(back, cwd=project, check=True, capture_output=True)
    assert (project / "train.py").read_text() == PROGRAM


def test_an_interrupted_journey_says_what_is_kept(project: Path) -> None:
    process = subprocess.Popen(
        command(project),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert until_at(project, process, "baseline")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "interrupted in 'baseline'; done and kept: scan" in said
    assert "Traceback" not in said
    done = migrate(project, "--until", "scan")
    assert done.stderr.startswith("  kept  scan")


def git(project: Path, *words: str) -> None:
    name = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
    subprocess.run(["git", *name, *words], cwd=project, check=True, capture_output=True)


def test_uncommitted_changes_are_refused_before_anything_runs(project: Path) -> None:
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    (project / "train.py").write_text(PROGRAM + "# changed\n")
    done = migrate(project)
    assert done.returncode == 2
    assert "uncommitted changes in train.py" in done.stderr
    assert "--allow-dirty" in done.stderr
    assert not (project / ".joymigrate" / "ledger.jsonl").exists()


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_can_not_be_written_is_one_clear_error(project: Path) -> None:
    project.chmod(0o555)
    try:
        done = migrate(project)
    finally:
        project.chmod(0o755)
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr
