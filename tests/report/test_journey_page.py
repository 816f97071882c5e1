"""The page of a journey: every figure is linked to evidence that says the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from joymigrate.language import Language, speaking
from joymigrate.report import journey_html
from tests.report import journey_made
from tests.report.journey_walk import Walker, walk, wrong
from tests.report.screens import browser, cut_parts

LANGUAGES = ("en", "zh")


def written(
    root: Path, lang: str = "en", name: str = ".joymigrate/journey/report.html", **more: Any
) -> Path:
    document, folder = journey_made.journey(root, **more)
    page = root / name
    page.parent.mkdir(parents=True, exist_ok=True)
    link = "" if page.parent == folder else "../.joymigrate/journey/"
    with speaking(Language(lang)):
        text = journey_html.render(document, folder, link=link)
    page.write_text(text, encoding="utf-8")
    return page


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_figure_is_a_link_to_evidence_that_says_the_same(lang: str, tmp_path: Path) -> None:
    page = written(tmp_path, lang)
    assert wrong(page) == []
    assert len(walk(page).links) > 120


def test_the_links_hold_where_the_page_is_written_elsewhere(tmp_path: Path) -> None:
    page = written(tmp_path, name="out/page.html")
    assert wrong(page) == []


def test_the_walk_finds_a_wrong_value_a_missing_file_and_a_loose_figure(tmp_path: Path) -> None:
    page = written(tmp_path)
    folder = page.parent
    scan = json.loads((folder / "scan/scan.json").read_text())
    scan["summary"]["report"] = 3
    (folder / "scan/scan.json").write_text(json.dumps(scan))
    (folder / "advice/advice.json").unlink()
    text = page.read_text().replace("</main>", "<p>41 apples</p></main>")
    page.write_text(text)
    problems = wrong(page)
    assert any("'2' at scan/scan.json#/summary/report is 3" in one for one in problems)
    assert any("no such file: advice/advice.json" in one for one in problems)
    assert "not linked: '41 apples'" in problems


def test_a_journey_that_a_gate_stopped_says_so_and_links_the_gate(tmp_path: Path) -> None:
    taken = journey_made.steps()[:4]
    taken[-1] |= {"status": "stopped", "verdict": "fail", "help": "line 1\n  help: drop 2"}
    taken[-1]["figures"] = {**taken[-1]["figures"], "exit_code": 1,
                            "held": {"gate": "fallbacks", "found": 12, "limit": 5}}  # fmt: skip
    pending = {"status": "pending", "figures": {}, "evidence": [], "commands": [], "verdict": None}
    rest = [one | pending | {"seconds": 0.0, "help": ""} for one in journey_made.steps()[4:]]
    page = written(tmp_path, journey=[*taken, *rest], verdict="fail")
    text = page.read_text()
    assert "The journey stopped at “Rehearsal”." in text
    assert "journey.json#/journey/3/figures/held/limit" in text
    assert "line 1" in text
    # What only other steps' evidence says is not shown as theirs.
    assert wrong(page) == []


@pytest.mark.parametrize(
    ("lang", "words"),
    [("en", "is “failed”; to go on it has to be “passed or not decided”"),
     ("zh", "比对结论为“未通过”，须为“通过或未定”方可继续")],
)  # fmt: skip
def test_a_verdict_gate_says_which_verdicts_go_on(lang: str, words: str, tmp_path: Path) -> None:
    taken = journey_made.steps()[:7]
    held = {"gate": "verify", "found": "fail", "limit": "inconclusive"}
    figures = taken[-1]["figures"] | {"verdict": "fail", "held": held}
    taken[-1] |= {"status": "stopped", "verdict": "fail", "figures": figures}
    page = written(tmp_path, lang, journey=taken, verdict="fail")
    assert words in re.sub(r"<[^>]+>", "", page.read_text())
    assert wrong(page) == []


def test_what_was_not_decided_is_left_to_do_and_ends_its_sentence(tmp_path: Path) -> None:
    document, folder = journey_made.journey(tmp_path)
    verify = next(one for one in document["journey"] if one["name"] == "verify")
    verify.update(verdict="inconclusive", summary="undecided: other precisions", help="Set one.")
    text = journey_html.render(document, folder)
    left = text[text.index('id="left"') : text.index('id="scan"')]
    assert "<pre>Set one.</pre>" in left
    assert "undecided: other precisions. " in re.sub(r"<[^>]*>", "", text)


def test_nothing_but_a_document_still_makes_a_page(tmp_path: Path) -> None:
    document, _ = journey_made.journey(tmp_path)
    text = journey_html.render(document, tmp_path / "nowhere")
    assert "passed" in text


def test_steps_and_gates_that_have_no_words_yet_are_shown_by_their_own(tmp_path: Path) -> None:
    odd = journey_made.step("polish", {"x": 1, "held": {"gate": "shine", "found": 1}}, ())
    text = written(tmp_path, journey=[odd | {"status": "stopped"}]).read_text()
    assert "polish 7" in text


def test_sites_that_were_rewritten_before_count_as_what_they_were(tmp_path: Path) -> None:
    taken = journey_made.steps()
    more = {"sites": 1008, "safe": 1005, "rewritten": 5}
    taken[0]["figures"] = taken[0]["figures"] | more
    page = written(tmp_path, journey=taken)
    text = re.sub(r"<[^>]+>", "", page.read_text())
    assert "1,008 sites in all: 1,005 rewritten automatically (99.7 %), 5 of them before" in text
    assert "of 1,008 sites rewritten automatically" in text
    assert wrong(page) == []


def test_a_changed_file_of_evidence_is_told_from_the_ledgers(tmp_path: Path) -> None:
    document, folder = journey_made.journey(tmp_path)
    (folder / "rewrite/rewrite.json").write_text(json.dumps(journey_made.REWRITE, indent=1))
    text = journey_html.render(document, folder)
    assert text.count("changed since it was recorded") == 1
    assert text.count("as the ledger has it") == 12


def test_text_of_the_project_is_escaped(tmp_path: Path) -> None:
    text = written(tmp_path).read_text()
    assert "<switches>" not in text
    assert "<own>" not in text
    assert "<project>" not in text


def test_the_page_asks_nothing_of_a_network_and_stays_small(tmp_path: Path) -> None:
    text = written(tmp_path).read_text()
    assert not re.search(r"""(?:src|href|url)\s*[=(]\s*["']?(?:https?:)?//""", text)
    assert len(text) < 500_000


def test_plots_speak_and_share_no_ids(tmp_path: Path) -> None:
    text = written(tmp_path, "zh").read_text()
    labels = re.findall(r'<svg class="plot"[^>]*aria-label="([^"]+)"', text)
    assert len(labels) == 9
    assert all(len(label) > 10 for label in labels)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'(?:href="#|url\(#)([^")]+)', text):
        assert target in ids or target == "content", target
    assert "可在芯片上执行" in text  # text stays text


def test_on_a_chip_both_speeds_are_shown_and_nothing_is_called_a_rehearsal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [{"step": n, "steps_per_s": 20.0 + n} for n in (1, 2, 3)]
    chip = {"steps_per_s": 22.0, "points": points, "printed": None}
    speed = journey_made.SPEED | {"rehearsal": False, "chip": chip}
    monkeypatch.setitem(journey_made.FILES, "train/speed.json", speed)
    monkeypatch.delitem(journey_made.FILES, "rehearse/rehearse.json")
    taken = journey_made.steps()
    figures = {"rehearsal": False, "exit_code": 0, "peak_bytes": 5 * 2**20}
    taken[3] = journey_made.step("rehearse", figures, (), commands=["joymigrate run -- a"])
    page = written(tmp_path, journey=taken, grade="measured", verdict="pass")
    text = page.read_text()
    assert "22.00</a> steps per second on the chip, " in text
    assert "train/speed.json#/chip/points/2/steps_per_s" in text
    assert "Measured: run on the chip itself." in text
    assert "rehearse/memory.json#/processes/1/peak_bytes/d:1" in text
    shown = re.sub(r'href="[^"]*"|title="[^"]*"|id="[^"]*"|>rehearse/memory\.json<', "", text)
    assert "ehears" not in shown
    assert wrong(page) == []


@pytest.mark.parametrize(
    ("lang", "said"), [("en", "optimiser states 1.0 MiB"), ("zh", "优化器状态 1.0 MiB")]
)
def test_memory_is_told_by_what_holds_it(lang: str, said: str, tmp_path: Path) -> None:
    text = written(tmp_path, lang).read_text()
    assert said in re.sub(r"<[^>]+>", "", text)
    assert "rehearse/memory.json#/processes/1/held/peak/bytes/weights" in text
    assert ("held more, up to 5.0 MiB" in re.sub(r"<[^>]+>", "", text)) == (lang == "en")


def test_an_error_without_end_stands_at_the_top_of_its_plot(tmp_path: Path) -> None:
    text = written(tmp_path).read_text()
    assert ">inf, nan<" in text
    assert "verify/verdict.json#/records/2/value" in text


def test_a_large_journey_shows_a_part_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journey_made, "LOSSES", [3.0 - n / 5000 for n in range(10_000)])
    page = written(tmp_path)
    text = page.read_text()
    assert len(text) < 1_500_000
    assert "Not every row is shown here" in text
    assert "train/chip.jsonl#/9999/loss" in text


@pytest.mark.chromium
@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_cut_on_screens(lang: str, width: int, tmp_path: Path) -> None:
    assert cut_parts(written(tmp_path, lang), width) == []


@pytest.mark.chromium
def test_the_page_runs_under_its_own_policy_and_prints_with_everything_open(
    tmp_path: Path,
) -> None:
    page = written(tmp_path)
    target = tmp_path / "page.pdf"
    browser(tmp_path, f"--print-to-pdf={target}", "--no-pdf-header-footer", page.as_uri())
    assert target.read_bytes().startswith(b"%PDF")
    folded = page.read_text().count("<details>")
    assert folded > 8
    script = "dispatchEvent(new Event('beforeprint'))"
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    page.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
    dom = browser(tmp_path, "--dump-dom", page.as_uri())
    assert dom.count("<details open") == folded


def test_the_walker_refuses_links_inside_links() -> None:
    with pytest.raises(AssertionError, match="inside a link"):
        Walker().feed('<main><a href="a"><a href="b">1</a></a></main>')
