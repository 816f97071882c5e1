"""Every example is migrated; what is planted in it is found, and mending it as told helps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from tests.test_examples import TRAPS

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples"
pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(
        PathFinder.find_spec("torch_npu") is None, reason="torch_npu is not installed"
    ),
]
ORDER = ("scan", "baseline", "rewrite", "rehearse", "coverage", "advice", "verify", "train")
ALL = dict.fromkeys(ORDER, "done")


def up_to(name: str) -> dict[str, str]:
    """The steps before `name` ended, it was held, the rest was not reached."""
    at = ORDER.index(name)
    held = {ORDER[at]: "stopped"}
    return {
        **dict.fromkeys(ORDER[:at], "done"),
        **held,
        **dict.fromkeys(ORDER[at + 1 :], "pending"),
    }


@dataclass(frozen=True)
class Case:
    """An example: how it is started, where its journey ends, and what is said there."""

    entry: str
    steps: dict[str, str]
    baseline: str  # what the original did here, as the result says
    said: tuple[str, ...] = ()  # words of the help of the step that was held
    verdicts: dict[str, str] = field(default_factory=dict)
    fallbacks: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()


RAN = "the original ran to its end by stand-ins for its GPU; 3 losses"
PASSED = {"verify": "pass", "train": "pass"}
CASES = {
    "gpt": Case(
        "python train.py --steps 3 --batch-size 4 --layers 2 --width 32 --log-every 1 "
        "--eval-sums 2",
        ALL,
        RAN,
        verdicts=PASSED,  # mixed precision by stand-ins is that of the card
    ),
    "classifier": Case(
        "python train.py --steps 3 --batch-size 4",
        up_to("rehearse"),
        RAN,
        said=("train.py:107", "drop memory_format=torch.channels_last", "JM212"),
    ),
    "finetune_qwen": Case(
        "python finetune.py --tiny --steps 3 --batch-size 4",
        ALL,
        RAN,  # its guard of a compute capability stays whole, and chooses float32 on the chip
        verdicts=PASSED,
    ),
    "ctr": Case(
        "python train.py --steps 3 --batch-size 16",
        ALL,
        RAN,
        verdicts=PASSED,
        fallbacks=("aten::_embedding_bag_backward",),
        lacking=("aten::_embedding_bag_backward",),
    ),
    "diffusion": Case(
        "python train.py --steps 3 --batch-size 4 --samples 0",
        ALL,
        RAN,  # the rehearsal runs its kernel in Triton's interpreter
        verdicts=PASSED,
    ),
    "detector": Case("python train.py --steps 3 --images 2", ALL, RAN, verdicts=PASSED),
    "speech": Case("python train.py --steps 3 --batch-size 4", ALL, RAN, verdicts=PASSED),
    "pretrain": Case(
        "python train.py --config configs/base.yaml --steps 3 --no-deepspeed",
        up_to("rehearse"),
        RAN,
        said=("train.py:53", "configs/base.yaml:5 `cuda` (JM120)"),
    ),
}
SLOW = {"ctr", "diffusion", "gpt", "detector", "speech", "pretrain", "finetune_qwen"}


def migrated(project: Path, entry: str, *words: str) -> dict[str, Any]:
    """The journey of a project, as JSON."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "joymigrate", "migrate", str(project), "--entry", entry),
            *("--format", "json", "-q", *words),
        ],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode in (0, 1), done.stderr[-3000:]
    document: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 1) == (document["verdict"] == "fail")
    return document


def copied(name: str, tmp_path: Path) -> Path:
    """An example in a folder of its own, as a user would clone it."""
    project = tmp_path / name
    leftovers = shutil.ignore_patterns("out", "__pycache__", ".joymigrate")
    shutil.copytree(EXAMPLES / name, project, ignore=leftovers)
    (project / "pyproject.toml").write_text("[tool.joymigrate]\n")
    return project


def steps_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in document["journey"]}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in sorted(CASES)]
)
def test_the_journey_finds_what_is_planted(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    project = copied(name, tmp_path)
    document = migrated(project, case.entry)
    steps = steps_of(document)
    shown = json.dumps(document["journey"], indent=1)[:6000]
    assert {step: steps[step]["status"] for step in ORDER} == case.steps, shown
    assert case.baseline in steps["baseline"]["found"]
    sites = steps["rewrite"]["figures"]["sites"]
    for rule, words in TRAPS[name]:
        assert any(one["rule"] == rule and words in one["before"] for one in sites), (rule, words)
    for one in sites:  # the lines are those of the rewritten code
        lines = (project / one["path"]).read_text().splitlines()
        assert one["before"].splitlines()[0] in lines[one["line"] - 1], one
    held = [step for step in steps.values() if step["status"] == "stopped"]
    for words in case.said:
        assert words in held[0]["help"]
    for step, verdict in case.verdicts.items():
        assert steps[step]["verdict"] == verdict, steps[step]
    if case.steps is not ALL:
        return
    assert tuple(steps["rehearse"]["figures"]["fallback_ops"]) == case.fallbacks
    lacking = {one["op"] for one in steps["coverage"]["figures"]["lacking"]}
    assert set(case.lacking) <= lacking
    assert steps["verify"]["figures"]["coverage"]["compared"] > 20  # no empty pass
    assert steps["train"]["figures"]["losses"] == [3, 3]


# What to change, as the help of the held step says, and the verdict of the comparison then.
MENDED = {
    "classifier": (
        "train.py",
        "model = model.to(memory_format=torch.channels_last)",
        "pass",
        "inconclusive",
    ),
    "pretrain": ("configs/base.yaml", "device: cuda", "device: npu", "pass"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MENDED))
def test_mending_it_as_the_help_says_lets_the_journey_through(name: str, tmp_path: Path) -> None:
    file, before, after, verdict = MENDED[name]
    project, entry = copied(name, tmp_path), CASES[name].entry
    first = steps_of(migrated(project, entry, "--until", "rehearse"))
    assert first["rehearse"]["status"] == "stopped"
    text = (project / file).read_text()
    assert before in text
    (project / file).write_text(text.replace(before, after))
    document = migrated(project, entry)
    steps = steps_of(document)
    shown = json.dumps(document["journey"], indent=1)[:8000]
    assert all(steps[step]["status"] == "done" for step in ORDER), shown
    assert steps["verify"]["verdict"] == verdict, steps["verify"]
    assert steps["train"]["verdict"] == "pass", steps["train"]
    assert steps["scan"]["figures"]["rewritten"] == first["rewrite"]["figures"]["edits"]
    assert document["rewrite_step"] == first["rewrite"]["figures"]["step"]
    if name == "finetune_qwen":  # it wrote a model: that is served
        assert steps["serve"]["status"] == "done", steps["serve"]
        assert steps["serve"]["figures"]["tokens"] == 8
