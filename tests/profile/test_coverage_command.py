"""`profile coverage` and `oplist` on the command line: formats, exit codes, mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from joymigrate.cli._output import break_line
from tests.cli.joy import Joy, joy_with
from tests.profile.test_readers import op, written
from tests.report.screens import browser, cut_parts


@pytest.fixture
def joy(capsys: pytest.CaptureFixture[str]) -> Joy:
    """Runs a command line in this process."""
    return joy_with(capsys)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three operators, one of which the default chip lacks."""
    events = [op("aten::mm", 0, 10), op("aten::add", 20, 10), op("aten::lgamma", 40, 10)]
    return written(tmp_path / "t.json", events)


@pytest.mark.parametrize("form", ["text", "json", "sarif", "junit", "html"])
def test_every_format_exits_0_and_goes_to_stdout(joy: Joy, trace: Path, form: str) -> None:
    told = joy("profile", "coverage", trace, "--format", form)
    assert told.code == 0
    assert "lgamma" in told.out
    assert "documented" in told.out  # how well it is known
    assert told.err.startswith("note: the recordings do not name their torch; judged by 2.13")


def test_a_marked_trace_is_a_trace_again(joy: Joy, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "marked.json"
    assert joy("profile", "coverage", trace, "--format", "trace", "-o", out).code == 0
    events = json.loads(out.read_text())["traceEvents"]
    gaps = [e for e in events if e.get("cat") == "cpu_fallback"]
    assert [e["name"] for e in gaps] == ["aten::lgamma"] * 2  # in its place, and on its track
    assert all({"ph", "pid", "tid", "ts", "dur", "name"} <= set(e) for e in gaps)
    assert gaps[0]["args"]["status"] == "cpu_fallback"
    assert gaps[0]["args"]["grade"] == "documented"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--fail-under", "60"], 0),
        (["--fail-under", "90"], 1),
        (["--fail-under", "100", "--by", "calls"], 1),
        (["--fail-under", "0"], 0),
        (["--fail-under", "101"], 2),
        (["--by", "colour"], 2),
        (["--version", "1.0"], 2),
        (["--to", "ascent"], 2),
        (["--to", "metax"], 2),
        (["--format", "xml"], 2),
        (["--wheel", "gone.whl"], 2),
        (["--ops", "gone.yaml"], 2),
    ],
)
def test_exit_codes(joy: Joy, trace: Path, options: list[str], code: int) -> None:
    told = joy("profile", "coverage", trace, *options)
    assert told.code == code
    if code == 2:
        assert told.err.startswith("error: ")
        assert told.out == ""


def test_a_trace_that_is_none_is_one_clear_error(joy: Joy, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("[]")
    told = joy("profile", "coverage", path)
    assert told.code == 2
    assert "no events" in told.err
    assert joy("profile", "coverage", tmp_path / "gone").code == 2


def test_a_skeleton_is_started_once_per_missing_operator(
    joy: Joy, trace: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "ops"
    told = joy("profile", "coverage", trace, "--skeleton", folder)
    assert "skeleton: " in told.err
    (path,) = folder.iterdir()
    text = path.read_text(encoding="utf-8")
    compile(text, str(path), "exec")
    assert "def lgamma(self):" in text
    path.write_text("mine")
    joy("profile", "coverage", trace, "--skeleton", folder)
    assert path.read_text() == "mine"


def test_a_list_of_another_chip_needs_one_file(joy: Joy, trace: Path, tmp_path: Path) -> None:
    ops = tmp_path / "acme.yaml"
    ops.write_text("meta: {fallback: error}\nops: [aten::mm, aten::add]\n")
    told = joy("profile", "coverage", trace, "--to", "musa", "--ops", ops, "--format", "json")
    rows = {row["op"]: row["status"] for row in json.loads(told.out)["ops"]}
    assert rows == {"aten::mm": "native", "aten::add": "native", "aten::lgamma": "missing"}


def test_long_lines_break_between_words_and_changes_stay_whole() -> None:
    line = "    note: " + "word " * 30 + "torch_npu/csrc/aten/" + "x" * 60
    pieces = break_line(line.rstrip(), 60)
    assert all(len(piece) <= 60 or " " not in piece.strip() for piece in pieces)
    assert pieces[0].startswith("    note: word")
    assert {piece[:6] for piece in pieces[1:]} == {" " * 6}
    assert " ".join(" ".join(pieces).split()) == line.strip()
    assert break_line("     + y = " + "x, " * 40, 60) == ["     + y = " + "x, " * 40]


def test_show_keeps_the_contract(joy: Joy) -> None:
    told = joy("oplist", "show", "--to", "ascend", "--version", "2.13", "--format", "json")
    data = json.loads(told.out)
    assert (data["schema"], data["chip"], data["version"]) == (
        "joymigrate.oplist/1",
        "ascend",
        "2.13",
    )
    rows = {(row["op"], row["overload"]): row for row in data["ops"]}
    assert rows["aten::add", "Tensor"]["status"] == "native"
    assert sorted(rows["aten::mm", ""]["dtypes"]) == ["bfloat16", "float16", "float32"]
    assert rows["npu::npu_silu", ""]["status"] == "native"
    assert "deprecated" in rows["npu::npu_silu", ""]["note"]


def test_show_picks_names_and_statuses(joy: Joy) -> None:
    told = joy("oplist", "show", "digamma")
    assert [line.split()[1] for line in told.lines[:-2]] == [
        "aten::digamma",
        "aten::digamma.out",
        "aten::digamma_",
        "aten::special_digamma",
        "aten::special_digamma.out",
    ]
    told = joy("oplist", "show", "add.Tensor", "--format", "json")
    assert [row["op"] for row in json.loads(told.out)["ops"]] == ["aten::add"]
    assert joy("oplist", "show", "no_such_thing").code == 2
    told = joy("oplist", "show", "add.Tensor", "lgama")
    assert told.code == 2
    assert "Did you mean 'lgamma'?" in told.err
    told = joy("oplist", "show", "--status", "missing", "--to", "musa", "--format", "json")
    assert {row["status"] for row in json.loads(told.out)["ops"]} == {"missing"}


def test_diff_of_versions_and_of_chips(joy: Joy) -> None:
    told = joy("oplist", "diff", "2.1", "2.13")
    assert "+ npu::npu_fusion_attention_v3  absent → native" in told.lines
    told = joy("oplist", "diff", "ascend@2.13", "musa", "--format", "json")
    changes = {c["op"]: c for c in json.loads(told.out)["changes"]}
    assert changes["aten::lgamma"]["after"]["status"] == "native"
    assert joy("oplist", "diff", "2.1", "9.9").code == 2


def test_a_built_list_says_the_same_as_the_shipped_one(joy: Joy, tmp_path: Path) -> None:
    if PathFinder.find_spec("torch_npu") is None:
        pytest.skip("torch_npu is not installed")
    told = joy("oplist", "build", "-o", tmp_path / "ops")
    assert told.code == 0
    told = joy("oplist", "diff", "2.13", tmp_path / "ops" / "operators.yaml", "--format", "json")
    changes = json.loads(told.out)["changes"]
    assert all(c["after"] is None or c["before"]["status"] == c["after"]["status"] for c in changes)


@pytest.mark.compiler
def test_the_shipped_list_is_the_real_dispatcher(joy: Joy) -> None:
    if PathFinder.find_spec("torch_npu") is None:
        pytest.skip("torch_npu is not installed")
    told = joy("oplist", "validate", "--format", "json")
    data = json.loads(told.out)
    assert data["overloads"] >= 2500
    assert data["share"] >= 0.996
    assert data["own"]["operators"] >= 419
    assert all(one["reason"] for one in data["differences"])


def test_a_chip_that_cannot_be_rehearsed_wants_a_dump(joy: Joy, tmp_path: Path) -> None:
    told = joy("oplist", "validate", "--to", "musa")
    assert told.code == 2
    assert "--dump" in told.err
    path = tmp_path / "dump.json"
    path.write_text("{}")
    assert joy("oplist", "validate", "--to", "musa", "--dump", path).code == 2


@pytest.mark.chromium
def test_the_page_opens_in_a_browser(joy: Joy, trace: Path, tmp_path: Path) -> None:
    html = tmp_path / "page.html"
    assert joy("profile", "coverage", trace, "--format", "html", "-o", html).code == 0
    dom = browser(tmp_path, "--dump-dom", html.as_uri())
    assert "aten::lgamma" in dom
    assert 'style="fill: var(--unsafe-fill)"' in dom
    assert cut_parts(html, 390) == []
    html.write_text(html.read_text().replace("</main>", "<p>" + "wide" * 99 + "</p></main>"))
    assert cut_parts(html, 390) == ["the page scrolls sideways"]


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from joymigrate.cli._main import run; "
        "run(['profile', '--help']); run(['oplist', '--help']); "
        "sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
