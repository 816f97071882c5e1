"""What the live page knows of a project, and which files it shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.journey import NAMES
from joymigrate.journey.losses import losses
from joymigrate.journey.running import mark_running
from joymigrate.language import Language, languages, speaking
from joymigrate.ledger import Change, FileHash, Ledger, Step, Subject
from joymigrate.report.live import LiveProject, files, parts
from joymigrate.report.live.curves import MOST_POINTS, thin
from joymigrate.report.live.look import tail
from joymigrate.report.live.words import WORDS, say


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "joymigrate.toml").touch()
    return root


def document(root: Path, *outcomes: tuple[str, str]) -> None:
    folder = root / ".joymigrate" / "journey"
    folder.mkdir(parents=True, exist_ok=True)
    steps = [
        {"name": name, "status": status, "summary": f"{name} <said>", "figures": {"sites": 3},
         "evidence": [f"{name}/{name}.json"], "commands": [f"joymigrate {name} ."],
         "verdict": "pass", "help": "mend it" if status == "stopped" else "", "seconds": 1.5}
        for name, status in outcomes
    ]  # fmt: skip
    found = {"schema": "joymigrate.journey/1", "verdict": "fail", "grade": "rehearsed",
             "chip": "ascend", "project": str(root), "entry": ["python", "train.py"],
             "style": "agnostic", "rewrite_step": "0002", "journey": steps}  # fmt: skip
    (folder / "journey.json").write_text(json.dumps(found))


def test_an_empty_project_says_so_in_both_languages(project: Path) -> None:
    seen = LiveProject(project, losses).look()
    assert seen.rows == ()
    assert "joymigrate migrate" in parts(seen)["way"]
    with speaking(Language("zh")):
        assert "尚未开始" in parts(seen)["way"]


def test_a_step_shows_verdict_tree_and_evidence(project: Path) -> None:
    ledger = Ledger.of(project)
    (project / "train.py").write_bytes(b"old")
    change = Change("train.py", b"old", b"new")
    assert ledger.apply([change], Step(kind="rewrite", command="joymigrate rewrite ."))
    ledger.record(
        Step(kind="verify", subject=Subject("train"), chip="ascend", verdict="pass", stage="S1"),
        {"verdict.json": b"{}"},
    )
    seen = LiveProject(project, losses).look()
    rewrite, verify = seen.rows
    assert rewrite.tree == "matches"
    assert "train.py" in rewrite.evidence
    assert verify.evidence == (".joymigrate/steps/0002/verdict.json",)
    shown = parts(seen)
    assert "/file/.joymigrate/steps/0002/verdict.json" in shown["judgements"]
    assert 'data-key="0001"' in shown["changes"]
    (project / "train.py").write_bytes(b"mine")
    assert LiveProject(project, losses).look().rows[0].tree == "edited"


def test_the_running_step_hides_what_an_earlier_journey_found_behind_it(project: Path) -> None:
    document(project, ("scan", "done"), ("rewrite", "done"), ("rehearse", "done"))
    folder = project / ".joymigrate" / "journey"
    with mark_running(folder, "rewrite", NAMES):
        (folder / "rewrite").mkdir()
        (folder / "rewrite" / "log.txt").write_text("one\n\x1b[1mtwo\x1b[0m\n")
        way = parts(LiveProject(project, losses).look())["way"]
    assert 'data-step="scan" data-status="done"' in way
    assert 'data-step="rewrite" data-status="running"' in way
    assert 'data-step="rehearse" data-status="to_come"' in way
    assert "<pre>one\ntwo</pre>" in way
    after = parts(LiveProject(project, losses).look())["way"]
    assert 'data-step="rehearse" data-status="done"' in after
    assert "&lt;said&gt;" in after


def test_a_killed_journey_runs_no_more(project: Path) -> None:
    document(project, ("scan", "done"))
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    folder = project / ".joymigrate" / "journey"
    with mark_running(folder, "rewrite", NAMES):
        running = folder / "running.json"
        found = json.loads(running.read_text())
        assert found["pid"] == os.getpid()
        running.write_text(json.dumps({**found, "pid": child.pid}))
        assert LiveProject(project, losses).look().running is None


def test_a_step_that_a_gate_held_is_open_and_says_what_to_do(project: Path) -> None:
    document(project, ("scan", "done"), ("rewrite", "stopped"))
    way = parts(LiveProject(project, losses).look())["way"]
    assert 'data-key="step-rewrite" open' in way
    assert "mend it" in way
    assert "rollback 0002" in way


def test_a_step_that_is_done_and_not_decided_is_not_green(project: Path) -> None:
    document(project, ("scan", "done"), ("train", "done"))
    path = project / ".joymigrate" / "journey" / "journey.json"
    found = json.loads(path.read_text())
    found["journey"][1]["verdict"] = "inconclusive"
    path.write_text(json.dumps(found))
    way = parts(LiveProject(project, losses).look())["way"]
    assert '<li class="safe" data-step="scan"' in way
    assert '<li class="unsafe" data-step="train"' in way


def test_losses_of_both_sides_and_of_runs_grow(project: Path) -> None:
    log = project / ".joymigrate" / "journey" / "train" / "chip-log.txt"
    log.parent.mkdir(parents=True)
    log.write_text("step 0 loss 3.0\nstep 1 loss 2.5\nno such line\n")
    run = project / "runs" / "small"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": NaN}\n{"st')
    (run / "status.json").write_text('{"state": "running", "pid": 4194305}')
    looking = LiveProject(project, losses)
    seen = looking.look()
    assert seen.losses == (("chip", ((0.0, 3.0), (1.0, 2.5))),)
    assert seen.runs[0].name == "runs/small"
    assert len(seen.runs[0].losses) == 2
    assert "<svg" in parts(seen)["training"]
    with open(run / "metrics.jsonl", "a") as file:
        file.write('ep": 3, "loss": 1.0}\n')
    assert looking.look().runs[0].losses[-1] == (3.0, 1.0)


def test_a_damaged_ledger_is_shown_as_trouble(project: Path) -> None:
    Ledger.of(project).record(Step(kind="note"))
    log = project / ".joymigrate" / "ledger.jsonl"
    log.write_text("nonsense\n" + log.read_text())
    seen = LiveProject(project, losses).look()
    assert "a damaged line" in seen.trouble
    assert 'class="trouble"' in parts(seen)["way"]


def test_curves_are_thinned_and_keep_their_end() -> None:
    points = [(float(n), 1.0 / (n + 1)) for n in range(10_000)]
    kept = thin(points)
    assert len(kept) <= MOST_POINTS + 1
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]


def test_a_tail_is_the_last_lines_without_progress_bars(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"x" * 20_000 + b"\n" + b"".join(b"%d\n" % n for n in range(20)) + b"1 %\r2 %")
    assert tail(path).splitlines() == ["15", "16", "17", "18", "19", "2 %"]
    assert tail(tmp_path / "none") == ""


@pytest.mark.parametrize("lang", languages())
def test_every_word_is_there(lang: str) -> None:
    with speaking(Language(lang)):
        for key in WORDS:
            assert say(key, project="p", name="n", steps=1, state="", time="t")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a secret beside it and links that lead out."""
    base = tmp_path_factory.mktemp("tree")
    root = base / "project"
    (root / ".joymigrate" / "steps").mkdir(parents=True)
    (root / ".joymigrate" / "steps" / "a.json").write_text("{}")
    (root / "train.py").write_text("x")
    (root / "secret.env").write_text("x")
    (base / "outside.txt").write_text("x")
    (root / ".joymigrate" / "out").symlink_to(base / "outside.txt")
    (root / ".joymigrate" / "up").symlink_to(base)
    (root / ".joymigrate" / "mine").symlink_to(root / "secret.env")
    os.mkfifo(root / ".joymigrate" / "pipe")
    return root


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (".joymigrate/steps/a.json", True),
        ("train.py", True),  # named by a step
        ("secret.env", False),
        ("../outside.txt", False),
        (".joymigrate/../secret.env", False),
        (".joymigrate/out", False),
        (".joymigrate/up/outside.txt", False),
        (".joymigrate/mine", False),
        (".joymigrate/pipe", False),
        (".joymigrate/steps", False),
        (".joymigrate", False),
        ("/etc/passwd", False),
        ("", False),
        (".joymigrate/steps/a.json\0.txt", False),
        ("..\\outside.txt", False),
    ],
)
def test_only_evidence_is_shown(path: str, shown: bool, tree: Path) -> None:
    assert (files.resolve_file(tree, path, ["train.py", "../outside.txt"]) is not None) == shown


@given(
    st.lists(
        st.sampled_from([".joymigrate", "..", ".", "", "steps", "up", "out", "mine", "a.json",
                         "outside.txt", "secret.env", "project", "train.py"]),
        max_size=7,
    )
)  # fmt: skip
def test_no_path_leaves_the_evidence(tree: Path, words: list[str]) -> None:
    real = files.resolve_file(tree, "/".join(words), ["train.py"])
    allowed = {tree / ".joymigrate" / "steps" / "a.json", tree / "train.py"}
    assert real is None or real in {path.resolve() for path in allowed}


def test_a_named_file_outside_the_project_is_not_served(project: Path) -> None:
    (project.parent / "outside.txt").write_text("x")
    step = Step(kind="note", outputs=(FileHash("../outside.txt", "0" * 64),))
    Ledger.of(project).record(step)
    seen = LiveProject(project, losses).look()
    named = [file for row in seen.rows for file in row.evidence]
    assert "../outside.txt" in named
    assert files.resolve_file(project, "../outside.txt", named) is None
