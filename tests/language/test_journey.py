"""A journey in Chinese: what its steps found, its page, its progress, its plan."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from joymigrate.chips import get
from joymigrate.cli._progress import JourneyProgress
from joymigrate.cli.migrate import planned_text
from joymigrate.journey.context import CompletedCommand, StepContext
from joymigrate.journey.gates import CHECKS, Gates, find_violation
from joymigrate.journey.gates import OF as GATES
from joymigrate.journey.model import (
    Journey,
    JourneyRequest,
    StepOutcome,
    StepStatus,
    outcomes_from,
    to_json,
)
from joymigrate.journey.plan import NAMES, plan
from joymigrate.journey.runner import with_pending
from joymigrate.journey.steps import baseline, coverage, rehearse, scan, train, verify
from joymigrate.language import HAN, Language, Text, speaking
from joymigrate.report import journey_html, journey_text
from joymigrate.report.journey_closing import closing
from joymigrate.report.live.look import ProjectView, StepRow
from joymigrate.report.live.parts import page as live_page
from tests.language.test_reports import english

ENTRY = ("python", "train.py", "--steps", "4")
KEY_ERROR = "Traceback (most recent call last):\n  File \"train.py\", line 1\nKeyError: 'lr'\n"
LACKS = "torch.npu has no {name}, which torch.cuda has"
OF = Text("the original on this machine's {device}", device="CPU")
FIRST = {
    "module": "net.0", "phase": "forward", "stage": "S3", "metric": "relative", "value": 0.1,
    "limit": 0.01, "cause": Text("the result is the baseline's times {scale}", scale="1.01"),
    "evidence": Text("relative error {error}, of no known kind", error="0.01"),
}  # fmt: skip


def travelling(folder: Path) -> StepContext:
    """A step's view of a journey in which nothing has run."""
    request = JourneyRequest(folder, ENTRY, "ascend")
    return StepContext(request, Gates(), folder / ".joymigrate" / "journey")


def failed_baseline(at: StepContext, log: str) -> StepOutcome:
    """What the baseline tells of a program that printed `log` and ended with 1."""
    path = at.path("log.txt")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(log, encoding="utf-8")
    return baseline.explain_failure(at, CompletedCommand("", 1, path), {"exit_code": 1})


def outcomes(at: StepContext) -> list[StepOutcome]:
    """One of every kind of step, most of them with something to tell."""
    sites = {"sites": 7, "files": 2, "safe": 5, "unsafe": 0, "by_hand": 2, "rewritten": 3}
    trap = {"where": "train.py:3", "message": Text(LACKS, name="nvtx"),
            "remedy": rehearse.sentences(["a.", Text("use {to}", to="z")], "; ")}  # fmt: skip
    run = {"exit_code": 0, "fallbacks": [{"op": "aten::lgamma", "calls": 2, "where": ["a.py:1"]}]}
    curve = {"losses": [4, 4], "baseline": OF}
    chip = StepOutcome(
        "train", StepStatus.DONE, train.against(curve, "fail"), curve, verdict="fail"
    )
    return [
        StepOutcome("scan", StepStatus.DONE, Text(scan.AGAIN, **sites), sites),
        replace(failed_baseline(at, "RuntimeError: no NVIDIA driver\n"), evidence=()),
        StepOutcome("rewrite", StepStatus.FAILED, "the rewrite told no result"),
        StepOutcome(
            "rehearse",
            StepStatus.STOPPED,
            "ran to its end",
            help=rehearse.advice([trap], run, None, ""),
        ),
        StepOutcome(
            "coverage",
            StepStatus.STOPPED,
            Text(coverage.IN_PART, calls=98.3, lacking=1, operators=56, code=1),
            help=Text.join("\n", [coverage.lack({"op": "aten::lgamma", "status": "cpu_fallback"})]),
        ),
        StepOutcome("advice", StepStatus.SKIPPED, str(plan(replace(at.request, entry=()))[5].skip)),
        replace(
            verify.without(at),
            evidence=(),
        ),
        train.leave_undecided(
            chip, Text("each device draws its own numbers in {operators}", operators="a")
        ),
    ]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A journey as its file has it."""
    at = travelling(tmp_path_factory.mktemp("project"))
    journey = Journey(at.request, at.folder, "rehearsed", tuple(outcomes(at)))
    found: dict[str, Any] = json.loads(json.dumps(to_json(with_pending(journey))))
    return found


def test_the_file_of_a_journey_is_english_and_knows_its_templates(document: dict[str, Any]) -> None:
    told = json.dumps({**document, "texts": {}}, ensure_ascii=False)
    assert not HAN.search(told)
    assert document["texts"][document["journey"][0]["summary"]]["template"] == scan.AGAIN


def test_a_journey_says_no_english_sentence(document: dict[str, Any], tmp_path: Path) -> None:
    with speaking(Language("zh")):
        forms = {
            "text": journey_text.text(document),
            "md": journey_text.markdown(document).replace("```", ""),
            "junit": journey_text.junit(document),
            "closing": closing(document, "report.html"),
            "html": journey_html.render(document, tmp_path).replace("<pre>", "<p>"),
        }
    assert {name: english(text) for name, text in forms.items() if english(text)} == {}
    assert "此前已改写 3" in forms["md"]


def test_the_live_page_says_no_english_sentence(document: dict[str, Any]) -> None:
    rows = [
        StepRow("0002", "2026-01-01T00:00:00Z", Text("rollback of {step}", step="0001"), "", "", "",
            "", "", Text("rolled back by {step}", step="0002"), True, "", "joymigrate x", ())
    ]  # fmt: skip
    with speaking(Language("zh")):
        page = live_page(ProjectView("p", "/p", tuple(rows), document))
    assert english(page.replace("<pre>", "<p>")) == []
    assert "已被 0002 回退" in page


def test_a_journey_that_was_read_again_keeps_its_texts(document: dict[str, Any]) -> None:
    back = outcomes_from(document)
    assert isinstance(back[0].summary, Text)
    assert back[0].summary.template == scan.AGAIN
    journey = Journey(JourneyRequest(Path("/p"), ENTRY, "ascend"), Path("/p"), "rehearsed", back)
    again = to_json(journey)
    assert again["journey"] == document["journey"]
    assert again["texts"] == document["texts"]


FIGURES: dict[str, tuple[dict[str, Any], str | None, Any]] = {
    "automatic": ({"automatic_pct": 50.0}, None, 80),
    "by_hand": ({"not_automatic": 2}, None, 0),
    "baseline": ({"failure": "broken", "exit_code": 1, "said": "KeyError: 3"}, None, True),
    "rehearse": ({"exit_code": 1, "rehearsal": True}, None, True),
    "fallbacks": ({"fallbacks": 1}, None, 0),
    "refusals": ({"refusals": 2}, None, 0),
    "memory_gib": ({"peak_bytes": 2**31}, None, 1),
    "reached": ({"reached_pct": 50.0}, None, 100),
    "coverage": ({"calls_pct": 90.0}, None, 95),
    "verify": ({}, "fail", "inconclusive"),
    "verified": ({"verified_pct": 90.0}, None, 95),
    "loss": ({}, "inconclusive", "pass"),
    "serve": ({}, "fail", True),
    "grade": ({"grades": {"documented": 3, "rehearsed": 2, "measured": 1}}, None, "measured"),
}


@pytest.mark.parametrize("gate", CHECKS)
def test_a_gate_that_holds_says_so_in_chinese(gate: str) -> None:
    figures, verdict, limit = FIGURES[gate]
    step = next(name for name, gates in GATES.items() if gate in gates)
    hold = find_violation(step, figures, verdict, replace(Gates(), **{gate: limit}))
    assert hold is not None
    assert hold.gate == gate
    said = Language("zh")(hold.why)
    assert HAN.search(said)
    assert english(said) == []


def test_a_baseline_that_fails_by_itself_says_so_in_chinese(tmp_path: Path) -> None:
    found = failed_baseline(travelling(tmp_path), KEY_ERROR)
    say = Language("zh")
    assert say(found.summary) == "程序在迁移之前即已失败：KeyError: 'lr'"
    told = say(found.help)
    assert told.startswith(
        "停在 train.py:1：KeyError: 'lr'\n  归属：程序自身（原程序未经改动就在此停止"
    )


def test_a_first_divergence_is_told_in_chinese(tmp_path: Path) -> None:
    said = Language("zh")(
        verify.explain_verdict(travelling(tmp_path), {"first_divergence": FIRST}, None)
    )
    assert said.startswith("net.0：结果是基线的 1.01 倍\n  相对误差 0.01")


def test_progress_and_plan_are_chinese() -> None:
    request = JourneyRequest(Path("/p"), ENTRY, get("ascend").name)
    out = io.StringIO()
    going = JourneyProgress(quiet=False, stream=out, lang="zh")
    steps = plan(request)
    for step in steps:
        going("begin", step, None)
        going("end", step, StepOutcome(step.name, StepStatus.DONE, "not reached", seconds=1.0))
    going.begin(steps[0])
    said = out.getvalue() + going.interrupted()
    said += planned_text(request, Gates(by_hand=0), False, "verify", "zh")
    assert english("\n".join(line for line in said.splitlines() if "$ " not in line)) == []
    assert "在 scan 中被中断；已完成并保留：scan" in said
    assert all(name in said for name in NAMES)
