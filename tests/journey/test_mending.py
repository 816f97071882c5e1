"""What is tried against a stop on a copy of the project, in which order, and how it is taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from joymigrate.journey import mending
from joymigrate.journey.context import StepContext
from joymigrate.journey.gates import Gates
from joymigrate.journey.mending import Mend, Round
from joymigrate.journey.model import JourneyRequest
from joymigrate.journey.sites import LEFT
from joymigrate.ledger import Ledger

STOP: dict[str, Any] = {
    "line": "train.py:2", "message": "AssertionError: x", "whose": "rewrite", "edits": {},
}  # fmt: skip
PROGRAM = "import torch\ndevice = torch.device(cfg['device'])\nx.to(torch.channels_last)\n"


def site(path: str, line: int, before: str, tier: str, after: str | None) -> dict[str, Any]:
    return {
        "rule": "JM1", "path": path, "line": line, "column": 9, "before": before, "tier": tier,
        "after": after, "reason": None, "message": "",
    }  # fmt: skip


SITES = [
    site("other.py", 1, "x.cuda()", "unsafe", "x.npu()"),
    site("train.py", 3, "torch.channels_last", "report", None),
    site("conf.yaml", 1, "cuda", "report", None),
    site("train.py", 2, "torch.device(…)", "unsafe", "torch.device('npu')"),
    site("train.py", 3, "cuda", "report", None),
]


@pytest.fixture
def at(tmp_path: Path) -> StepContext:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "conf.yaml").write_text("device: cuda\nother: cuda\n")
    (tmp_path / "pyproject.toml").write_text("")
    folder = tmp_path / ".joymigrate" / "journey"
    (folder / LEFT).parent.mkdir(parents=True)
    (folder / LEFT).write_text(json.dumps({"findings": SITES}))
    return StepContext(JourneyRequest(tmp_path, ("python", "train.py"), "ascend"), Gates(), folder)


def test_the_nearest_to_the_stop_comes_first_and_what_nobody_offers_not_at_all(
    at: StepContext,
) -> None:
    found = [(one.path, one.line, one.after, one.value) for one in mending.mends(at, STOP)]
    assert found == [
        ("train.py", 2, "torch.device('npu')", False),
        ("conf.yaml", 1, "npu", True),
        ("other.py", 1, "x.npu()", False),
    ]


def test_a_packages_stop_has_its_known_remedy_alone(at: StepContext) -> None:
    edits = {"torch.channels_last": "torch.preserve_format"}
    stop = {**STOP, "whose": "package", "edits": edits}
    assert [str(one) for one in mending.mends(at, stop)] == [
        "train.py:3 `torch.channels_last` → `torch.preserve_format` (JM1)"
    ]


def test_nothing_is_tried_against_the_programs_own_error(at: StepContext) -> None:
    assert mending.try_mends(at, {**STOP, "whose": "program"}, lambda place: ()) == []


def tried(at: StepContext, one: Mend, after: dict[str, Any] | None) -> Round:
    """A round whose rehearsal ended so: the copy is a real one, and mended."""
    copy = at.path("rounds/1/tree")
    mending.original.copy(at.request.project, copy)
    mending.edit(at, one, copy, "rounds/1/rewrite.json")
    return Round(one, STOP, after)


VALUE = Mend("JM1", "conf.yaml", 1, 9, "cuda", "npu", value=True)
REMEDY = Mend(
    "JM1", "train.py", 3, 6, "torch.channels_last", "torch.preserve_format", everywhere=True
)


@pytest.mark.parametrize(
    ("one", "name", "text"),
    [
        (VALUE, "conf.yaml", "device: npu\nother: cuda\n"),
        (REMEDY, "train.py", PROGRAM.replace("channels_last", "preserve_format")),
    ],
)
def test_what_cured_the_stop_is_a_patch_and_one_step_that_can_be_rolled_back(
    at: StepContext, one: Mend, name: str, text: str
) -> None:
    project = at.request.project
    before = (project / name).read_text()
    rounds = [tried(at, one, None)]
    tree = mending.last_tree(at, rounds)
    assert tree is not None
    made = mending.write_patch(at, rounds, tree)
    assert (project / name).read_text() == before  # offered, not taken
    assert f"b/{name}".encode() in at.path(mending.PATCH).read_bytes()
    step = mending.take(at, rounds, made)
    assert step is not None
    assert (project / name).read_text() == text
    Ledger.of(project).rollback(step)
    assert (project / name).read_text() == before


def test_a_mend_that_leaves_the_stop_is_no_cure(at: StepContext) -> None:
    rounds = [tried(at, VALUE, STOP)]
    assert mending.last_tree(at, rounds) is None
    assert [str(line) for line in mending.lines(rounds, None, "p", "joymigrate migrate .")] == [
        "tried on a copy: conf.yaml:1 `cuda` → `npu` (JM1): cures nothing"
    ]


def test_what_stands_behind_the_cured_stop_is_told(at: StepContext) -> None:
    other = {**STOP, "line": "train.py:3", "message": "RuntimeError: y"}
    told = mending.lines([Round(VALUE, STOP, other)], None, "p", "joymigrate migrate .")
    assert "cures this, and stops at train.py:3: RuntimeError: y" in told[0]
    assert told[1] == "take it: joymigrate migrate . --yes (patch: p)"


def test_a_round_that_was_made_is_not_made_again(at: StepContext) -> None:
    trial = at.path("rounds/1")
    (trial / "tree").mkdir(parents=True)
    document = {"key": "k", "mend": mending.asdict(VALUE), "after": None}
    (trial / "round.json").write_text(json.dumps(document))
    known = mending.read_round(trial, VALUE, STOP, "k")
    assert known is not None
    assert known.cured
    assert mending.read_round(trial, VALUE, STOP, "another tree") is None
    assert mending.read_round(trial, REMEDY, STOP, "k") is None


def test_the_stop_of_the_same_files_is_known_with_what_was_tried(at: StepContext) -> None:
    """With `--yes` the program that stopped is not run again."""

    def rehearse(place: str) -> tuple[str, ...]:
        return ("rehearse", "-o", place, "--", *at.request.entry)

    trial = at.path("rounds/1")
    trial.mkdir(parents=True)
    assert mending.known_stop(at, rehearse) is None
    key = mending.key_of(at.request.project, rehearse)
    (trial / "round.json").write_text(json.dumps({"key": key, "before": STOP}))
    assert mending.known_stop(at, rehearse) == STOP
    assert mending.known_stop(at, lambda place: (*rehearse(place), "--more")) is None
    (at.request.project / "train.py").write_text("changed\n")
    assert mending.known_stop(at, rehearse) is None
