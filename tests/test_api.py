"""`joymigrate.api` and the tables of the command line: the same rows in a frame, CSV, Parquet."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

from joymigrate import api
from joymigrate.cli._main import run
from joymigrate.errors import JoyError
from joymigrate.report import tables
from scripts.clean_machine.workplace import INVENTORY, OPERATORS, TRACE

ROOT = Path(__file__).parents[1]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.py").write_text("import torch\ntorch.cuda.synchronize()\nx.to('cuda')\n")
    return folder


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text(OPERATORS.lstrip("\n"))
    return path


def test_importing_it_loads_nothing_heavy() -> None:
    program = (
        "import sys, joymigrate.api\n"
        "heavy = {'torch', 'pandas', 'numpy', 'libcst', 'typer', 'rich'} & set(sys.modules)\n"
        "sys.exit(str(sorted(heavy)) if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_scan_has_its_findings_and_a_row_for_each(project: Path) -> None:
    found = api.scan(project)
    table = found.frame()
    assert found.document["schema"] == "joymigrate.scan/1"
    assert len(table) == len(found.scan.findings) >= 2
    assert list(table["line"]) == [f.line for f in found.scan.findings]
    assert set(table["path"]) == {"a.py"}
    assert len(api.scan(project, select=["JM900"]).frame()) < len(table)


def test_a_rewrite_is_shown_and_not_done(project: Path) -> None:
    before = (project / "a.py").read_bytes()
    made = api.rewrite(project)
    assert b"+torch.npu.synchronize()" in made.diff()
    assert len(made.frame()) == made.document["summary"]["edits"] >= 1
    assert (project / "a.py").read_bytes() == before
    assert not (project / ".joymigrate").exists()


def test_coverage_has_a_row_per_operator(recording: Path) -> None:
    table = api.coverage(recording, to="ascend").frame()
    assert dict(zip(table["op"], table["status"], strict=True))["aten::lgamma"] == "cpu_fallback"
    assert dict(zip(table["op"], table["calls"], strict=True))["aten::addmm"] == 4


def test_a_path_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="no such file or folder"):
        api.scan(tmp_path / "absent")
    with pytest.raises(JoyError, match=r"no such|there is no"):
        api.verdict(tmp_path / "a.jmb", tmp_path / "b.jmb")


@pytest.mark.slow
def test_two_recordings_are_judged_and_a_program_is_rehearsed(tmp_path: Path) -> None:
    program = tmp_path / "p.py"
    program.write_text(
        "import torch\nm = torch.nn.Linear(2, 2)\nm(torch.ones(1, 2)).sum().backward()\n"
    )
    bundle = tmp_path / "b.jmb"
    assert run(["verify", "record", "-o", str(bundle), "--", "python", str(program)]) == 0
    judged = api.verdict(bundle, bundle)
    assert judged.verdict == judged.document["verdict"]
    assert judged.verdict in ("pass", "fail", "inconclusive")
    rehearsed = api.rehearse(["python", str(program)], devices=1)
    assert rehearsed.exit_code == 0
    assert rehearsed.document["rehearsal"] is True
    assert isinstance(rehearsed.frame(), pandas.DataFrame)


@pytest.mark.parametrize("form", tables.FORMATS)
def test_the_command_line_writes_the_rows_of_the_document(
    form: str, recording: Path, tmp_path: Path
) -> None:
    line = ["profile", "coverage", str(recording), "--to", "ascend", "-q"]
    made, document = tmp_path / f"out.{form}", tmp_path / "out.json"
    assert run([*line, "--format", form, "-o", str(made)]) == 0
    assert run([*line, "--format", "json", "-o", str(document)]) == 0
    table = pandas.read_csv(made) if form == "csv" else pandas.read_parquet(made)
    rows = json.loads(document.read_text())["ops"]
    assert list(table["op"]) == [row["op"] for row in rows]
    assert list(table["calls"]) == [row["calls"] for row in rows]
    assert "phases.unknown" in table.columns


def test_operators_and_simulations_are_tables_too(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(["oplist", "show", "aten::add", "--to", "ascend", "--format", "csv"]) == 0
    head, first, *_ = capsysbinary.readouterr().out.decode().splitlines()
    assert head.startswith("op,overload,status,dtypes")
    assert first.startswith("aten::add,")
    (tmp_path / "n.yaml").write_text(INVENTORY)
    (tmp_path / "t.csv").write_text(TRACE)
    words = ["cluster", "simulate", "--inventory", str(tmp_path / "n.yaml")]
    words += ["--trace", str(tmp_path / "t.csv"), "--policy", "topology,spread", "--format", "csv"]
    assert run([*words, "-o", str(tmp_path / "s.csv")]) == 0
    assert list(pandas.read_csv(tmp_path / "s.csv")["policy"]) == ["topology", "spread"]


def test_a_cell_of_csv_is_one_line_and_comes_back_whole() -> None:
    rows = [{"name": 'a "b", c\nd', "words": ["x", "y"], "deep": [{"a": 1}]}, {"name": None}]
    data = tables.encode(tables.frame(rows), "csv").decode()
    table = pandas.read_csv(io.StringIO(data))
    assert table["name"][0] == 'a "b", c\nd'
    assert table["words"][0] == "x y"
    assert json.loads(table["deep"][0]) == [{"a": 1}]


def test_without_pyarrow_parquet_says_which_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "has_pyarrow", lambda: False)
    with pytest.raises(JoyError, match="Parquet needs pyarrow") as error:
        tables.encode(tables.frame([{"a": 1}]), "parquet")
    assert "joymigrate[" in str(error.value.help)


def test_a_document_without_a_table_is_refused() -> None:
    with pytest.raises(JoyError, match="has no table"):
        tables.rows_of({"schema": "joymigrate.doctor/1"})


@pytest.mark.parametrize("kind", tables.ROWS)
def test_a_table_without_rows_has_its_columns(kind: str) -> None:
    document = {"schema": f"joymigrate.{kind}/1"}
    key = tables.ROWS[kind]
    assert len(tables.columns_of(document)) >= 2
    if key:
        table = tables.frame_of(document | {key: []})
        assert len(table) == 0
        assert list(table.columns) == tables.columns_of(document)
        assert tables.encode(table, "csv").decode().startswith(f"{table.columns[0]},")
        assert pandas.read_parquet(io.BytesIO(tables.encode(table, "parquet"))).shape[0] == 0


def test_a_clean_project_can_be_grouped_like_any_other(project: Path) -> None:
    full = api.scan(project)
    assert set(tables.columns_of(full.document)) <= set(full.frame().columns)
    (project / "a.py").write_text("x = 1\n")
    assert api.scan(project).frame().groupby("rule").size().empty
    assert list(api.rewrite(project).frame()["path"]) == []
