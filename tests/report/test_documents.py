"""`report` opens every document that joymigrate writes, and leaves nothing of it out."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

import joymigrate
from joymigrate.cli._main import run
from joymigrate.errors import JoyError
from joymigrate.language import Language, speaking
from joymigrate.report import archive, documents, lead
from joymigrate.report.blocks import TableBlock
from joymigrate.report.renderers import text
from tests.report import journey_made

PACKAGE = Path(joymigrate.__file__).parent
NAME = re.compile(r"joymigrate\.[a-z][a-z-]*/1\b")
RULES = joymigrate.__path__ and Path(joymigrate.__path__[0]).parent / "rules"


def schemas() -> set[str]:
    """Every schema that the sources and the rules name."""
    files = [*PACKAGE.rglob("*.py"), *RULES.rglob("*.yaml"), *RULES.rglob("*.json")]
    return {name for path in files for name in NAME.findall(path.read_text("utf-8"))}


@pytest.mark.parametrize("schema", sorted(schemas()))
def test_every_schema_has_a_view(schema: str) -> None:
    assert schema in documents.views(), f"write report/documents/views/{schema[11:-2]}.yaml"


def test_no_view_is_left_of_a_schema_that_is_gone() -> None:
    assert set(documents.views()) - schemas() == set()


ODD: dict[str, Any] = {
    "number": 1234567.5, "nothing": None, "yes": True, "text": "a <b> | c\nd",
    "few": ["p", "q"], "many": [f"one-{n}" for n in range(30)],
    "nested": {"inner": {"deep": "treasure", "list": [{"k": "v-1"}, {"other": "v-2"}]}},
    "rows": [{"op": f"aten::op{n}", "where": {"file": f"f{n}.py"}} for n in range(3)],
    "by_name": {"x": {"share": 0.25}, "y": {"share": 0.75}}, "texts": {"secret": {}},
}  # fmt: skip
LEAVES = ["treasure", "v-1", "v-2", "one-29", "aten::op2", "f2.py", "0.75"]


@pytest.mark.parametrize("format", documents.FORMATS)
def test_nothing_of_a_document_is_left_out(tmp_path: Path, format: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"schema": "joymigrate.plan/1", **ODD}))
    text = documents.show(documents.open_file(path), format)
    assert "<b>" not in text or format == "text"
    shown = text.replace("\\", "")
    assert [leaf for leaf in LEAVES if leaf not in shown] == []
    assert "secret" not in shown


def test_rows_that_are_not_shown_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    rows = [{"job": n} for n in range(1000)]
    path.write_text(json.dumps({"schema": "joymigrate.plan/1", "waiting": rows}))
    assert "800 more rows are in the document" in documents.show(documents.open_file(path), "text")


def test_a_terminal_shows_wide_cells_below_their_row_and_the_first_rows() -> None:
    rows = [("a", 1, "", "long " * 30), ("b", 22, "", ""), ("c", 3, "", "")]
    table = TableBlock(("name", "n", "empty", "why"), rows, first=2)
    assert [*text.draw(table)] == [
        "name   n  why", "a      1", f"    {('long ' * 30).strip()}", "b     22",
        "1 more rows are in the document",
    ]  # fmt: skip


def test_the_ledger_and_metrics_are_opened_and_a_cut_line_is_said(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "lo')
    found = documents.open_file(path)
    assert found.view.title == "Metrics of a run"
    assert found.document["cut_off_lines"] == 1
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text('{"schema": "joymigrate.step/1", "id": "0001", "kind": "rewrite"}\n')
    assert "rewrite" in documents.show(documents.open_file(ledger), "md")


def test_a_trace_is_opened_with_its_operators(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
    path.write_text(json.dumps({"traceEvents": [event], "displayTimeUnit": "ms"}))
    found = documents.open_file(path)
    assert [row["op"] for row in found.document["ops"]] == ["aten::mm"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.json", "{}", "the document names no schema"),
        ("x.json", '{"schema": "joymigrate.scam/1"}', "joymigrate.scan/1"),
        ("x.json", "[1]", "not a document"),
        ("x.json", "{", "not JSON"),
        ("x.jsonl", "x\n{}\n", "not JSON"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(JoyError, match=re.escape(said)):
        documents.open_file(path)


def test_the_command_opens_what_another_command_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chips.json"
    assert run(["chips", "list", "--format", "json"]) == 0
    path.write_text(capsys.readouterr().out)
    for format in documents.FORMATS:
        assert run(["report", str(path), "--format", format]) == 0
        assert "ascend" in capsys.readouterr().out


def project(root: Path) -> tuple[dict[str, Any], Path]:
    document, folder = journey_made.journey(root)
    return document, folder


def test_a_packed_journey_has_every_file_that_its_page_links_to(tmp_path: Path) -> None:
    document, folder = project(tmp_path)
    (folder / "secret.safetensors").write_bytes(b"weights")
    output = tmp_path / "out.zip"
    contents = archive.pack(document, folder, output)
    with zipfile.ZipFile(output) as packed:
        names = set(packed.namelist())
        page = packed.read("index.html").decode()
    linked = set(archive.links(page))
    assert len(linked) > 3
    assert linked - names == set()
    assert str(tmp_path) not in page
    assert [one["path"] for one in contents["left_out"]] == ["journey/secret.safetensors"]
    assert archive.pack(document, folder, tmp_path / "again.zip") == contents
    assert (tmp_path / "again.zip").read_bytes() == output.read_bytes()


def test_a_link_that_leads_nowhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, folder = project(tmp_path)
    page = '<a href="journey/journey.json#/verdict">1</a> <a href="journey/gone.json">2</a>'
    monkeypatch.setattr(archive.journey_html, "render", lambda *_, **__: page)
    with pytest.raises(JoyError, match=r"links to 1 files that are not there: journey/gone"):
        archive.pack(document, folder, tmp_path / "out.zip")
    assert not (tmp_path / "out.zip").exists()


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_summary_fits_a_page_and_names_what_was_not_looked_at(
    tmp_path: Path, lang: str
) -> None:
    document, folder = project(tmp_path)
    with speaking(Language(lang)):
        opened = lead.page(document, folder / "journey.json")
    text = documents.show(opened, "text")
    assert len(text.splitlines()) <= 60
    told = [row["line"] for row in opened.document["next"]]
    assert told
    assert all(f"\n  {' '.join(line.split())}\n" in f"{text}\n" for line in told)
    looked = [s for s in document["journey"] if s["status"] == "done"]
    gaps = [g["step"] for g in opened.document.get("not_looked_at", [])]
    assert len(gaps) >= len(document["journey"]) - len(looked)
