"""The chip-day kit on the CPU: it runs alone, goes on where it stopped, and is scored."""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
import zipfile
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from joymigrate.chips import calibration, get
from joymigrate.chips.calibration import Calibration
from joymigrate.cli._main import run
from joymigrate.errors import JoyError
from joymigrate.run.kit import bound, cases, make, prediction_script, repro, score, seal, seal_cases
from joymigrate.run.kit.runner.judge import attribute, deviations
from joymigrate.run.rehearse.matrix_unit import unit_of

CHIP = get("ascend")
GELU = "torch.nn.functional.gelu float16 contiguous"
FEW = (GELU, "torch.nn.functional.gelu float32 strided", "torch.expm1 float64 contiguous",
       "serving", "collective all_reduce", "time torch.softmax float32 contiguous")  # fmt: skip


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked kit with a few cases whose predictions are those of a good chip."""
    folder = tmp_path_factory.mktemp("kit")
    data, document = make.make(CHIP, [], Calibration("ascend"), predict=False)
    assert len(data) < 50 << 20
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(folder)
    few = [case for case in document["cases"] if case["id"] in FEW]
    for case in few:
        case["prediction"] = {"outcome": "accepted", "error": 1.0}
        if case["section"] == "serving":
            case["prediction"]["tokens"] = [1]
    (folder / "kit" / "kit.json").write_text(json.dumps({**document, "cases": few}))
    return folder


def play(folder: Path, *more: str) -> dict[str, Any]:
    """Run the kit with Python alone: no package of ours on the path."""
    command = [sys.executable, "-I", "kit/run.py", "--device", "cpu", *more]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (folder / "score.json").is_file(), done.stderr
    found: dict[str, Any] = json.loads((folder / "score.json").read_text())
    return found


def test_the_kit_runs_alone_and_goes_on_where_it_stopped(kit: Path) -> None:
    first = play(kit, "--section", "operator")
    assert {row["id"] for row in first["results"]} == set(FEW[:3])
    before = (kit / "kit-state" / "results.jsonl").read_text()
    found = play(kit)
    assert (kit / "kit-state" / "results.jsonl").read_text().startswith(before)
    rows = {row["id"]: row for row in found["results"]}
    assert set(rows) == set(FEW)
    assert rows[GELU]["outcome"] == "accepted"
    assert rows[GELU]["error"] < 4
    assert rows[GELU]["gradient_error"] < 8
    assert rows["collective all_reduce"]["outcome"] == "accepted"
    assert rows["serving"]["deviations"] == ["tokens"]
    assert str(kit) not in json.dumps(found)
    assert "<h1>" in (kit / "score.html").read_text()
    assert score.check(found, "score.json")


BLOCK = """\
import importlib.abc, runpy, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("joymigrate", "numpy", "yaml", "packaging", "torch"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
sys.path.insert(0, sys.argv[1])
import json, look, runner.main
kit = json.load(open(sys.argv[1] + "/kit.json"))
print(sorted(runner.main.record_versions(kit)))
"""


def test_the_kit_imports_nothing_but_torch(kit: Path) -> None:
    run = [sys.executable, "-c", BLOCK, str(kit / "kit")]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['cards', 'driver', 'sdk', 'unhealthy']"
    for path in (kit / "kit").rglob("*.py"):
        tree = ast.parse(path.read_text())
        checking = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_" in ast.dump(n)]
        only_types = {id(inner) for one in checking for inner in ast.walk(one)}
        for node in ast.walk(tree):
            if id(node) in only_types or not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            relative = isinstance(node, ast.ImportFrom) and node.level > 0
            names = (
                [node.module] if isinstance(node, ast.ImportFrom) else [n.name for n in node.names]
            )
            inside = [kit / "kit" / f"{str(name).replace('.', '/')}" for name in names]
            if all(one.with_suffix(".py").is_file() or one.is_dir() for one in inside):
                continue
            if names == ["joymigrate.run.kernels.registry"]:
                continue  # in a function that patches programs: the kit calls none
            tops = {str(name).partition(".")[0] for name in names}
            tops -= {"torch", "runner", CHIP.package}
            assert relative or tops <= sys.stdlib_module_names, f"{path.name}: {tops}"


def closure(name: str, found: dict[str, metadata.Distribution]) -> None:
    """The installed distributions that one asks for, itself included."""
    try:
        one = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return
    if name in found:
        return
    found[name] = one
    for line in one.requires or ():
        asked = Requirement(line)
        if asked.marker is None or asked.marker.evaluate({"extra": ""}):
            closure(canonicalize_name(asked.name), found)


@pytest.mark.slow
def test_the_kit_runs_where_only_torch_and_the_chips_package_are(tmp_path: Path, kit: Path) -> None:
    """A virtual environment that sees torch, torch_npu and what they ask for, nothing of ours."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    where = [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    site = Path(subprocess.check_output(where, text=True).strip())
    wanted: dict[str, metadata.Distribution] = {}
    for name in ("torch", "torch-npu"):
        closure(name, wanted)
    for one in wanted.values():
        for top in {
            file.parts[0] for file in one.files or () if file.parts[0] not in ("..", "bin")
        }:
            if not (site / top).exists() and top != "__pycache__":
                (site / top).symlink_to(Path(str(one.locate_file(top))))
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMP_NUM_THREADS": "1",
                   "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # fmt: skip
    ours = [python, "-I", "-c", "import torch, joymigrate"]
    assert b"joymigrate" in subprocess.run(ours, capture_output=True, env=environment).stderr
    run = [python, "kit/run.py", "--device", "cpu", "--state", "alone", "-o", "alone.json"]
    done = subprocess.run(run, cwd=kit, capture_output=True, text=True, env=environment)
    assert (kit / "alone.json").is_file(), done.stderr
    found = json.loads((kit / "alone.json").read_text())
    outcomes = dict.fromkeys(FEW, "accepted") | {FEW[-1]: "skipped"}  # softmax is not among the few
    assert {row["id"]: row["outcome"] for row in found["results"]} == outcomes
    assert score.check(found, "alone.json")


def test_every_line_of_the_rules_becomes_a_case() -> None:
    listed, masters, backends = cases.build(CHIP)
    ids = [case["id"] for case in listed]
    assert len(set(ids)) == len(ids)
    assert {case["section"] for case in listed} == {
        "operator", "vendor", "collective", "time", "memory", "training", "serving", "rate"
    }  # fmt: skip
    assert backends["npu"] == "hccl"
    named = {one["tensor"] for case in listed for one in case["args"] if isinstance(one, dict)}
    assert named <= set(masters)


CASE = {"section": "operator"}
GOOD = {
    "outcome": "accepted", "error": 1.0, "gradient_error": 2.0,
    "dtypes": ["float16"], "shapes": [[2, 3]], "strides": [[3, 1]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, []),
        ({"error": 60.0}, []),
        ({"error": 65.0}, ["result"]),
        ({"gradient_error": 1e9}, ["gradient"]),
        ({"dtypes": ["float32"]}, ["dtype"]),
        ({"strides": [[1, 2]]}, ["layout"]),
        ({"shapes": [[3, 2]], "strides": [[2, 1]]}, ["shape"]),
        ({"outcome": "refused"}, ["refused"]),
        ({"outcome": "hung"}, ["hung"]),
        ({"outcome": "skipped"}, []),
    ],
)
def test_what_deviates_has_a_name(change: dict[str, Any], names: list[str]) -> None:
    assert deviations(CASE, GOOD, {**GOOD, **change}) == names
    refused = {"outcome": "refused"}
    assert deviations(CASE, refused, GOOD) == ["accepted instead of refused"]


def test_a_program_that_fails_with_an_operator_is_no_finding_of_its_own() -> None:
    rows = [
        {"id": "cat", "op": "torch.cat", "section": "operator", "deviations": ["refused"]},
        {"id": "serving", "op": "serving", "section": "serving", "deviations": ["refused"],
         "message": "aten::cat: call failed"},
        {"id": "training", "op": "training", "section": "training", "deviations": ["losses"]},
    ]  # fmt: skip
    attribute(rows)
    assert [row.get("because") for row in rows] == [None, ["cat"], None]


def test_our_call_of_a_function_that_deviates_is_no_finding_of_its_own() -> None:
    norm = {"op": "torch_npu.npu_rms_norm", "section": "vendor", "dtype": "float16"}
    ours = {"op": "npu_rms_norm", "section": "kernel", "deviations": ["result"]}
    rows: list[dict[str, Any]] = [
        {"id": "norm", **norm, "deviations": ["result"]},
        {"id": "rms_norm", **ours, "dtype": "float16"},
        {"id": "rms_norm wide", **ours, "dtype": "float32"},
    ]
    attribute(rows)
    assert [row.get("because") for row in rows] == [None, ["norm"], None]


def result(outcome: str, **more: Any) -> dict[str, Any]:
    return {
        "id": GELU, "section": "operator", "op": "torch.nn.functional.gelu", "dtype": "float16",
        "layout": "contiguous", "call": "torch.nn.functional.gelu", "kwargs": {},
        "args": [{"tensor": "float_8x48.0"}], "message": "", **GOOD, "outcome": outcome,
        "predicted": {**GOOD}, **more,
    }  # fmt: skip


def scored(*rows: dict[str, Any], rehearsal: bool = False, date: str = "2026-11-22") -> Any:
    return {
        "schema": "joymigrate.score/1", "kit": "1", "chip": "ascend", "rehearsal": rehearsal,
        "device": "npu", "environment": {"driver": "25.2.3", "sdk": "9.0.0", "cards": 8},
        "device_name": "Ascend910B3", "versions": {"torch_npu": "2.13.0"},
        "date": date, "deviations": 0, "results": list(rows),
    }  # fmt: skip


def test_what_was_measured_is_the_next_prediction_and_a_rehearsal_never_replaces_it() -> None:
    empty = Calibration("ascend")
    first = score.calibrate([scored(result("refused"))], empty)
    said = first.prediction({"id": GELU})
    assert said is not None
    assert said["grade"] == "measured"
    assert deviations(CASE, said, {**GOOD, "outcome": "refused"}) == []
    assert first.of_operators(["aten::gelu"])[0]["deviations"] == ["refused"]
    assert first.of_operators(["aten::gelu_backward"]) == []
    again = score.calibrate([scored(result("accepted"), rehearsal=True)], first)
    assert again.prediction({"id": GELU}) == said
    other = score.calibrate([scored(result("accepted"), date="2026-12-01")], first)
    mended = other.prediction({"id": GELU})
    assert mended is not None
    assert mended["outcome"] == "accepted"
    assert len(mended["sources"]) == 2


def test_a_score_of_a_cpu_says_nothing_of_the_chip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, path = tmp_path / "known.json", tmp_path / "score.json"
    monkeypatch.setenv(calibration.ENVIRONMENT, str(known))
    path.write_text(json.dumps({**scored(result("refused")), "device": "cpu"}))
    assert run(["kit", "score", str(path)]) == 0
    assert not known.exists()
    assert run(["kit", "merge", str(path), "-o", str(known)]) == 2


def test_precision_and_recall_count_troubles() -> None:
    prediction_script = result("refused", predicted={"outcome": "refused"})
    missed = result("fallback")
    alarm = result("accepted", predicted={"outcome": "refused"})
    rows = score.judge_rows(scored(prediction_script, missed, alarm, result("accepted")))
    (overall,) = score.quality([{**row, "all": ""} for row in rows], "all")
    assert (overall["precision"], overall["recall"]) == (0.5, round(1 / 3, 4))


def test_a_score_with_a_path_or_without_a_key_is_refused() -> None:
    with pytest.raises(JoyError, match="holds a path"):
        score.check(scored(result("refused", message="in /home/me/x.py")), "s.json")
    broken = scored(result("refused"))
    del broken["results"][0]["dtype"]
    with pytest.raises(JoyError, match="'dtype' is missing"):
        score.check(broken, "s.json")


def test_the_command_writes_what_rehearsals_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(calibration.ENVIRONMENT, str(tmp_path / "known.json"))
    (tmp_path / "score.json").write_text(json.dumps(scored(result("refused"))))
    assert run(["kit", "score", f"{tmp_path}/score.json", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["grade"] == "measured"
    assert said["deviations"][0]["names"] == ["refused"]
    assert calibration.load("ascend").of_operators(["aten::gelu"])
    assert run(["kit", "merge", f"{tmp_path}/score.json", "--check"]) == 0
    (tmp_path / "known.json").write_text("{}")
    with pytest.raises(JoyError, match="not a calibration"):
        calibration.load("ascend")


def test_a_finding_becomes_a_short_script(tmp_path: Path) -> None:
    document = scored({**result("accepted"), "deviations": ["result"]}) | {"device": "cpu"}
    text = repro.script(document, repro.find(document, "torch.nn.functional.gelu"))
    assert len(text.splitlines()) <= repro.MOST_LINES
    path = tmp_path / "gelu.py"
    path.write_text(text)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "largest error" in done.stdout
    with pytest.raises(JoyError, match="no finding is called"):
        repro.find(document, "torch.gleu")


def test_a_seal_that_was_changed_is_broken(tmp_path: Path) -> None:
    rehearsal = {
        "chip": "ascend", "soc": "Ascend910B3", "package": {"torch_npu": "2.13.0"},
        "fallbacks": [], "peak_memory_bytes": {"npu:0": 1}, "kernels": {"aclnnGelu": 2},
        "precision": "fp32",
    }  # fmt: skip
    form = {"dtype": "float16", "shape": [4, 8], "strides": [8, 1]}
    signature = {
        "op": "aten::gelu",
        "args": [{"tensor": form}],
        "kwargs": {},
        "outcome": "accepted",
    }
    path = tmp_path / "seal.json"
    seal.write(seal.of_rehearsal(rehearsal, [signature], [], None, unit_of), path)
    document = seal.read(path)
    masters: cases.Masters = {}
    case = seal_cases.of_signature(document["predictions"]["signatures"][0], masters)
    assert isinstance(case, dict)
    assert case["call"] == "torch.ops.aten.gelu.default"
    assert list(masters) == ["float_4x8.0"]
    inplace = {"op": "aten::add_.Tensor", "args": []}
    assert seal_cases.of_signature(inplace, masters) == "writes into its arguments"
    structured = {**signature, "op": "aten::gelu.out", "kwargs": {"approximate": "tanh"}}
    plain = seal_cases.of_signature(structured, masters)
    assert isinstance(plain, dict)
    assert (plain["call"], plain["kwargs"]) == (
        "torch.ops.aten.gelu.default", {"approximate": "tanh"},
    )  # fmt: skip
    document["predictions"]["peak_memory_bytes"] = {"npu:0": 2}
    path.write_text(json.dumps(document))
    with pytest.raises(JoyError, match="seal is broken"):
        seal.read(path)


def matmul(calls: int, **more: Any) -> dict[str, Any]:
    """A sealed product of [4, 8] and [8, 16]."""
    left, right = ({"tensor": {"dtype": "float32", "shape": s}} for s in ([4, 8], [8, 16]))
    row = {"op": "aten::mm", "args": [left, right], "kwargs": {}, "messages": []}
    return {**row, "outcome": "accepted", "calls": calls, **more}


def test_a_bound_of_time_counts_what_is_known_and_says_so() -> None:
    exp = {**matmul(5), "op": "aten::exp"}
    found = bound.lower_bound([matmul(3), exp, matmul(9, outcome="refused")], CHIP.sku("910B3"))
    assert found is not None
    assert found["operations"] == 3 * 2 * 4 * 8 * 16
    assert found["us"] == found["operations"] / 354e6
    assert (found["calls_counted"], found["calls"]) == (3, 8)
    assert bound.lower_bound([matmul(3)], CHIP.sku("910ProB")) is None


def test_operations_of_a_convolution_are_those_that_torch_counts() -> None:
    from torch.utils.flop_counter import conv_flop_count

    args: list[Any] = [
        {"tensor": {"dtype": "float32", "shape": s}} for s in ([2, 3, 9, 8], [4, 3, 3, 2])
    ]
    row = {
        "op": "aten::convolution",
        "args": [*args, None, [2, 1], [1, 0], [1, 2], False, [0, 0], 1],
    }
    image = torch.nn.functional.conv2d(
        torch.zeros(2, 3, 9, 8), torch.zeros(4, 3, 3, 2), None, (2, 1), (1, 0), (1, 2)
    )
    assert bound.operations(row) == conv_flop_count([2, 3, 9, 8], [4, 3, 3, 2], list(image.shape))


def test_the_first_divergence_is_where_numbers_part_by_design() -> None:
    exp = {**matmul(1), "op": "aten::exp"}
    plain = bound.first_divergence([exp, matmul(1)], "fp32", unit_of)
    rounded = bound.first_divergence([exp, matmul(1)], "hf32", unit_of)
    assert plain is not None
    assert rounded is not None
    assert (plain["call"], plain["why"]) == (1, "sums in the chip's own order")
    assert rounded["relative"] == 2.0**-12
    assert bound.first_divergence([exp], "hf32", unit_of) is None


def test_calls_of_several_processes_are_one_call() -> None:
    (row,) = seal.join_calls([matmul(3), matmul(4)])
    assert row["calls"] == 7


def test_how_often_a_call_was_made_does_not_name_its_case() -> None:
    names = {seal_cases.of_signature(matmul(n), {})["id"] for n in (1, 7)}  # type: ignore[index]
    assert len(names) == 1
    left = seal_cases.of_signature({**matmul(1), "args": ["<not recorded>"]}, {})
    assert left == "has an argument that is neither a tensor nor a number"


TENSOR = {"tensor": {"dtype": "float64", "shape": [2, 3], "strides": [1, 2]}}
EXPANDED = {"tensor": {"dtype": "float64", "shape": [2, 3], "strides": [0, 1]}}


def predicted_documents() -> dict[str, dict[str, Any]]:
    rows = [
        {"op": "aten::expm1", "args": [TENSOR], "kwargs": {}, "outcome": "refused",
         "messages": ['not "implemented" for DT_DOUBLE'], "calls": 1},
        {"op": "aten::sum.dim_IntList", "args": [EXPANDED, [1], True], "kwargs": {"dtype": None},
         "outcome": "refused", "messages": [], "calls": 1},
        {"op": "aten::gelu", "args": [TENSOR], "kwargs": {}, "outcome": "accepted", "messages": []},
        {"op": "aten::to", "args": [TENSOR, "<dtype>"], "kwargs": {}, "outcome": "refused"},
    ]  # fmt: skip
    seal_cases = seal.finish("rehearsal", "ascend", {"torch_npu": "2.13.0"}, {"signatures": rows})
    ops = [{"op": "aten::add", "overload": "Tensor", "status": "missing", "note": "no kernel"},
           {"op": "aten::mul", "overload": "", "status": "native"}]  # fmt: skip
    coverage = {
        "schema": prediction_script.COVERAGE,
        "chip": "ascend",
        "version": "2.13",
        "ops": ops,
    }
    rehearsal = {
        "schema": prediction_script.REHEARSAL,
        "chip": "ascend",
        "package": {"torch_npu": "2.13"},
        "fallbacks": [{"op": "aten::unique_dim", "calls": 1}],
        "refusals": [{"op": "aten::expm1", "message": "no"}],
    }
    return {"seal": seal_cases, "coverage": coverage, "rehearsal": rehearsal}


@pytest.mark.parametrize(
    ("document", "finding", "line"),
    [
        ("seal", "aten::expm1", "torch.ops.aten.expm1.default(tensor([2, 3], [1, 2], torch.f"),
        ("seal", "aten::sum.dim_IntList", "[1], True, dtype=None)"),
        ("coverage", "aten::add.Tensor", 'name = "aten::add.Tensor"'),
        ("rehearsal", "aten::unique_dim", 'name = "aten::unique_dim"'),
    ],
)
def test_what_is_predicted_becomes_a_script_too(
    document: str, finding: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "document.json"
    path.write_text(json.dumps(predicted_documents()[document]))
    assert run(["report", "repro", finding, "--score", str(path)]) == 0
    text = capsys.readouterr().out
    assert line in text
    assert len(text.splitlines()) <= repro.MOST_LINES
    compile(text, "repro.py", "exec")
    here = text.replace("import torch_npu\n", "").replace('"npu"', '"cpu"')
    with pytest.raises(SystemExit) if "key" in here else nullcontext():
        exec(here.replace("PrivateUse1", "CPU"), {})  # on the CPU both kinds show no fault


def test_a_prediction_without_its_arguments_says_so() -> None:
    documents = predicted_documents()
    with pytest.raises(JoyError, match="holds no arguments"):
        prediction_script.script(documents["rehearsal"], "aten::expm1")
    with pytest.raises(JoyError, match="takes an argument whose value"):
        prediction_script.script(documents["seal"], "aten::to")
    with pytest.raises(JoyError, match="no finding is called 'aten::gelu'"):
        prediction_script.script(documents["seal"], "aten::gelu")
