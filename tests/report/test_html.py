"""The HTML report: one file, no network, nothing in a source can break out of it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from joymigrate.model import Finding, Tier
from joymigrate.report.html import page as page_module
from joymigrate.report.html.page import BarPart, Html, Page, Section, bar, code, escape, table
from joymigrate.report.labels import Labels
from joymigrate.rewrite.rules import AREAS as RULE_AREAS
from tests.report.build import result_of, shown, site, write

VOID = {"meta", "input", "link", "br", "hr", "img"}


class Outline(HTMLParser):
    """Tags that a document opens and closes, its ids, and every address that it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.anchors: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if values.get("id"):
            self.ids.append(values["id"] or "")
        if tag in ("script", "img", "link", "iframe", "source"):
            self.loads += [values[key] or "" for key in ("src", "href") if key in values]
        if tag == "a" and (values.get("href") or "").startswith("#"):
            self.anchors.append((values["href"] or "")[1:])

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    assert found.open == []
    return found


def sample(root: Path, evil: str = "") -> str:
    text = f"import torch\nx.cuda()  # {evil}\ny = flash\n"
    write(root, {"a.py": text})
    found = result_of(
        root,
        site(root, "a.py", ".cuda()", ".npu()"),
        site(
            root, "a.py", "flash", rule="JM200", area="kernels", weight=90.0, message=f"no {evil}"
        ),
        lines=3,
    )
    return shown(found, "html", "en", "today")


def data_of(page: str) -> dict[str, object]:
    match = re.search(r'<script type="application/json" id="jm-data">(.*?)</script>', page)
    assert match
    return dict(json.loads(match[1]))


def test_the_page_is_well_formed_and_loads_nothing(tmp_path: Path) -> None:
    page = sample(tmp_path)
    found = outline(page)
    assert found.loads == []
    assert "@import" not in page
    assert not re.search(r"url\(", page)
    assert "default-src 'none'" in html.unescape(page)


def test_anchors_lead_somewhere_and_ids_are_unique(tmp_path: Path) -> None:
    found = outline(sample(tmp_path))
    assert set(found.anchors) <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))


def test_text_of_a_source_cannot_break_out(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> \u2028"
    page = sample(tmp_path, evil)
    outline(page)
    assert "<script>alert" not in page
    assert "<img" not in page
    data = data_of(page)
    assert any(evil.split("\u2028")[0] in text for text in data["texts"])  # type: ignore[attr-defined]


def test_a_finding_travels_with_its_lines_before_and_after(tmp_path: Path) -> None:
    data = data_of(sample(tmp_path, "note"))
    first, second = data["files"][0]["findings"]  # type: ignore[index]
    assert first[-2] == [[2, ["x.cuda()  # note"], ["x.npu()  # note"]]]
    assert second[-2:] == [[], ["y = flash"]]


def test_the_summary_needs_no_script(tmp_path: Path) -> None:
    page = re.sub(r"<script.*?</script>", "", sample(tmp_path), flags=re.DOTALL)
    assert "<b>50%</b><span>automatic</span>" in page
    assert "JM200" in page
    assert "1.5 h" in page


def test_labels_are_chinese_on_request(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "x.cuda()\n"})
    page = shown(result_of(root, site(root, "a.py", ".cuda()", ".npu()")), "html", "zh", "")
    assert '<html lang="zh-CN">' in page
    assert "迁移就绪度" in page
    assert "设备接口" in page


def test_every_area_of_the_rules_has_a_chinese_name() -> None:
    say = Labels("zh")
    assert [name for name in RULE_AREAS if say.area(name) == name] == []


def test_an_empty_scan_has_a_page_too(tmp_path: Path) -> None:
    page = shown(result_of(tmp_path), "html", "en", "")
    outline(page)
    assert "Nothing to do" in page


def test_long_lines_are_cut(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "x.cuda();" + "y" * 100_000 + "\n"})
    page = shown(result_of(root, site(root, "a.py", ".cuda()", ".npu()")), "html", "en", "")
    assert len(page) < 60_000


def test_the_frame_escapes_what_is_not_markup() -> None:
    page = Page(
        "<title>", "a & b", [Section("s", "<h>", Html("<p>body</p>"))], footer="<f>"
    ).render()
    outline(page)
    assert "&lt;title&gt;" in page
    assert "<p>body</p>" in page
    assert escape("<b>") == "&lt;b&gt;"
    assert code("`<x>` & y") == "<code>&lt;x&gt;</code> &amp; y"


def test_a_bar_speaks_its_figures() -> None:
    drawn = bar(
        [BarPart(3, "safe", "safe"), BarPart(1, "by hand", "report"), BarPart(0, "none", "plain")]
    )
    assert 'aria-label="safe 3, by hand 1, none 0"' in drawn
    assert "width:75.00%" in drawn
    assert drawn.count("<i ") == 2


def test_a_table_sorts_by_numbers_not_by_their_text() -> None:
    drawn = table(["name", "minutes"], [["a", ("1.5 h", 90.0)], ["b", 1000]], right=(1,))
    assert 'data-key="90.0">1.5 h<' in drawn
    assert 'data-key="1000">1,000<' in drawn


STYLE = (Path(page_module.__file__).parent / "page.css").read_text(encoding="utf-8")
COLOURS = {
    name: pair for name, *pair in re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\)", STYLE)
}


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours (WCAG 2.2, from 1 to 21)."""
    lights = sorted((luminance(one), luminance(other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb`."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_told_from_the_ground(theme: int) -> None:
    """WCAG 2.2: 4.5 for text (1.4.3), 3 for graphics (1.4.11)."""
    for ground in ("ground", "panel"):
        for name in ("text", "soft", "link", "safe", "unsafe", "report", "plain"):
            assert contrast(COLOURS[name][theme], COLOURS[ground][theme]) >= 4.5, (name, ground)
    for name in ("safe-fill", "unsafe-fill", "report-fill", "plain-fill"):
        assert contrast(COLOURS[name][theme], COLOURS["ground"][theme]) >= 3, name
    for name in ("gone", "gone-mark", "come", "come-mark", "site"):
        assert contrast(COLOURS["text"][theme], COLOURS[name][theme]) >= 4.5, name


@pytest.mark.chromium
def test_filters_narrow_the_list(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "x.cuda()\ny = flash\n", "b.py": "z.cuda(1)\n"})
    findings = [
        site(root, "a.py", "x.cuda()", "x.npu()"),
        site(root, "a.py", "flash", rule="JM200", area="kernels"),
        site(root, "b.py", "z.cuda(1)", "z.npu(1)"),
    ]
    assert "3 / 3 shown" in drawn(tmp_path, findings)
    steps = {
        "document.querySelector('[name=tier][value=safe]').click()": "1 / 3 shown",
        "document.querySelector('#rule').value = 'JM101'": "2 / 3 shown",
        "document.querySelector('#area').value = 'kernels'": "1 / 3 shown",
        "document.querySelector('#text').value = 'b.py CUDA'": "1 / 3 shown",
        "document.querySelector('#text').value = 'nothing like it'": "No finding matches",
        "document.querySelector('a[data-rule=JM200]').click()": "1 / 3 shown",
        "document.querySelector('a[data-text=\"a.py\"]').click()": "2 / 3 shown",
    }
    for script, expected in steps.items():
        assert expected in drawn(tmp_path, findings, script), script


@pytest.mark.chromium
def test_ten_thousand_findings_are_drawn_on_demand(tmp_path: Path) -> None:
    root = write(tmp_path, {"f0.py": "x.cuda()\n"})
    one = site(root, "f0.py", ".cuda()", ".npu()")
    findings = [
        replace(one, path=f"f{number // 20}.py", line=number % 20 + 1) for number in range(10_000)
    ]
    by_hand = [replace(one, path="g.py", rule="JM200", tier=Tier.REPORT, message="no <b> here")]
    dom = drawn(tmp_path, [*findings, *by_hand])
    assert "10,001 / 10,001 shown" in dom
    assert dom.count('<details class="file"') == 150
    assert dom.count("<article") == 20
    assert dom.count('<span class="row gone">') == 20
    assert "Show more (351)" in dom


def drawn(root: Path, findings: list[Finding], script: str = "") -> str:
    """The document after its scripts ran in Chromium, and after one more step of a reader."""
    text = shown(result_of(root, *findings), "html", "en", "")
    if script:  # the page's own policy would refuse it
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
        event = "document.querySelector('#filters').dispatchEvent(new Event('input'))"
        text = text.replace("</body>", f"<script>{script};{event}</script></body>")
    page = root / "report.html"
    page.write_text(text, encoding="utf-8")
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)))
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
               "--virtual-time-budget=2000", f"--user-data-dir={root / 'profile'}",
               page.as_uri()]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
