"""The board: the rule that classes, going on, limits, the list, the report."""

from __future__ import annotations

import csv
import io
import json
import sys
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.board import __main__ as board
from benchmarks.board import journey, limited, packages, programs, report, rows, suite
from benchmarks.board.outcome import Attempt, Observed, Outcome, area, attempt, judge
from joymigrate.verify.model import divergence_json
from tests.verify.harness import record, replay

WELL = Attempt(0)
PASSED = Observed(WELL, WELL, WELL, compared={"modules": "same"}, operators=7)


def broken(error: str, where: str = "/somewhere/train.py") -> Attempt:
    return Attempt(1, "", error, where)


def test_a_program_with_the_same_results_on_both_sides_passes() -> None:
    assert judge(PASSED) == (Outcome.PASSES, "")


def test_a_rewrite_that_broke_a_file_is_our_defect_before_all_else() -> None:
    seen = replace(PASSED, original=broken("ValueError: x"), rewrite=("a.py cannot be read",))
    assert judge(seen)[0] is Outcome.OURS


def test_an_original_that_fails_on_the_cpu_is_the_programs_own() -> None:
    seen = replace(PASSED, original=broken("ModuleNotFoundError: No module named 'wandb'"))
    assert judge(seen) == (
        Outcome.OWN,
        "the original ends badly: ModuleNotFoundError: No module named 'wandb'",
    )


def test_a_file_that_our_checkout_lacks_is_not_the_programs_own() -> None:
    error = "FileNotFoundError: [Errno 2] No such file or directory: '…/J.npy'"
    seen = replace(PASSED, original=broken(error), lacks=("data/J.npy",))
    assert judge(seen) == (Outcome.UNDECIDED, "our checkout lacks data/J.npy")
    assert judge(replace(seen, lacks=("data/K.npy",)))[0] is Outcome.OWN
    assert Observed.read(json.loads(json.dumps(asdict(seen)))) == seen


def test_an_original_that_wants_a_gpu_is_not_blamed_and_does_not_pass_unseen() -> None:
    wants = broken("AssertionError: Torch not compiled with CUDA enabled")
    assert judge(replace(PASSED, original=wants, compared={}))[0] is Outcome.UNDECIDED


def test_a_run_that_still_asks_for_cuda_is_our_defect() -> None:
    asks = broken("AssertionError: Torch not compiled with CUDA enabled")
    assert judge(replace(PASSED, direct=asks, agnostic=asks))[0] is Outcome.OURS


@pytest.mark.parametrize(
    "said",
    [
        "call aclnnExpm1 failed, error code is 161002",
        "CAUTION: The operator 'aten::addmm' is not currently supported on the NPU backend.",
        "Could not run 'aten::addmm' with arguments from the 'SparsePrivateUse1' backend.",
    ],
)
def test_a_refusal_of_the_vendors_host_code_is_what_a_chip_does(said: str) -> None:
    refused = broken(f"RuntimeError: {said}")
    assert judge(replace(PASSED, direct=refused, agnostic=refused))[0] is Outcome.CHIP


def test_the_vendors_own_python_is_what_a_chip_does() -> None:
    place = "/torch_npu/npu/utils.py"
    raised = broken("RuntimeError: not supported", place)
    outcome, cause = judge(replace(PASSED, direct=raised, agnostic=raised))
    assert outcome is Outcome.CHIP
    assert "npu/utils.py" in cause


def test_a_function_that_the_simulated_chip_lacks_is_our_defect() -> None:
    place = "/torch_npu/utils/storage.py"
    lacks = broken("RuntimeError: Failed to find function aclrtIpcMemGetExportKey", place)
    assert judge(replace(PASSED, direct=lacks, agnostic=lacks))[0] is Outcome.OURS


def test_our_own_frame_is_our_defect() -> None:
    ours = broken("KeyError: 'x'", "/joymigrate/run/rehearse/device.py")
    assert judge(replace(PASSED, direct=ours, agnostic=ours))[0] is Outcome.OURS


def test_one_style_that_ends_badly_alone_is_our_defect() -> None:
    outcome, cause = judge(replace(PASSED, agnostic=broken("TypeError: x")))
    assert outcome is Outcome.OURS
    assert cause.startswith("one style only: agnostic")


def test_a_failure_of_both_styles_that_nobody_owns_is_undecided() -> None:
    raised = broken("TypeError: x")
    assert judge(replace(PASSED, direct=raised, agnostic=raised))[0] is Outcome.UNDECIDED


@pytest.mark.parametrize(
    ("repeats", "phase", "outcome"),
    [
        (True, "forward", Outcome.OURS),
        (None, "forward", Outcome.OURS),
        (False, "forward", Outcome.UNDECIDED),
        (True, "input", Outcome.UNDECIDED),
    ],
)
def test_a_wrong_result_is_ours_unless_the_program_does_not_repeat_itself_or_its_data(
    repeats: bool | None, phase: str, outcome: Outcome
) -> None:
    seen = replace(PASSED, compared={"modules": "differs"}, repeats=repeats, phase=phase)
    assert judge(seen)[0] is outcome


def test_a_refused_call_is_no_pass_although_the_program_went_on() -> None:
    assert judge(replace(PASSED, refused=("float64 is not taken",)))[0] is Outcome.CHIP


@pytest.mark.parametrize("change", [{"operators": 0}, {"compared": {}}])
def test_nothing_seen_is_undecided(change: dict[str, object]) -> None:
    assert judge(replace(PASSED, **change))[0] is Outcome.UNDECIDED  # type: ignore[arg-type]


def test_a_limit_is_undecided() -> None:
    stopped = replace(PASSED, direct=Attempt(-9, "time"))
    assert judge(stopped)[0] is Outcome.UNDECIDED
    suite_ended = broken("8 failed, 34 passed")  # of a suite that failed in part on the CPU
    assert judge(replace(stopped, original=suite_ended))[0] is Outcome.UNDECIDED


def test_the_last_error_and_its_innermost_frame_are_read_from_the_output() -> None:
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\n'
        '  File "/x/site-packages/torch_npu/b.py", line 2, in f\n    g()\n'
        "RuntimeError: no kernel: 3\n[W] bye\n"
    )
    found = attempt(1, text)
    assert (found.error, found.where) == ("RuntimeError: no kernel: 3", "/torch_npu/b.py")


def test_the_vendors_own_code_of_a_refusal_below_the_message_is_what_a_chip_does() -> None:
    said = (
        "RuntimeError: Only contiguous_format or preserve_format is supported.\n"
        "[ERROR] 2026-11-24-00:04:02 (PID:1, Device:0, RankID:-1) ERR01007 OPS feature not "
        "supported\nrecord: 3 calls\n"
    )
    text = f'  File "/a/joymigrate/run/rehearse/traps.py", line 1, in f\n{said}'
    run = attempt(1, text)
    assert run.error.endswith("is supported. (ERR01007 OPS feature not supported)")
    seen = replace(PASSED, direct=run, agnostic=run, compared={})
    assert judge(seen)[0] is Outcome.CHIP
    elsewhere = attempt(1, text.replace("\n[ERROR]", "\nbye\n[ERROR]"))
    assert judge(replace(seen, direct=elsewhere))[0] is Outcome.OURS


def ended(tmp_path: Path, code: str, **limits: float) -> limited.Ended:
    return limited.run(
        [sys.executable, "-c", code], tmp_path, tmp_path / "log",
        **{"seconds": 30, "gib": 2, **limits}, environment={"BOARD": "here"},
    )  # fmt: skip


def test_an_original_that_ends_badly_under_the_recorder_alone_is_our_defect() -> None:
    seen = replace(PASSED, original=broken("RuntimeError: x"), recording="RuntimeError: x")
    assert judge(seen) == (Outcome.OURS, "under the recorder alone: RuntimeError: x")


def test_a_recorder_that_fails_under_a_launcher_is_our_defect() -> None:
    said = "RuntimeError: Expected all tensors to be on the same device, but found npu:0 and cpu!"
    text = (
        '  File "/x/site-packages/torch/distributed/launcher/api.py", line 3, in launch\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "error: nothing recorded: joymigrate's own recorder failed at tape.py:9: "
        f"{said}\n"
    )
    seen = replace(PASSED, agnostic=attempt(2, text), compared={})
    assert judge(seen) == (Outcome.OURS, f"agnostic: the recorder failed: {said}")
    assert area(seen) == "verify"


def test_below_a_launchers_error_stands_the_programs() -> None:
    said = "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'"
    launcher = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
    assert attempt(1, f"{said}\n{launcher}\ntrain.py FAILED\n").error == said
    seen = replace(PASSED, original=broken(said), compared={})
    assert judge(seen) == (Outcome.UNDECIDED, "the original needs a GPU")


def test_a_command_gets_its_folder_and_environment(tmp_path: Path) -> None:
    found = ended(tmp_path, "import os; print(os.getcwd(), os.environ['BOARD'])")
    assert (found.code, found.stopped) == (0, "")
    assert found.text.split() == [str(tmp_path), "here"]


def test_the_limit_of_time_ends_a_command_and_its_children(tmp_path: Path) -> None:
    nap = "import time; time.sleep(60)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {nap!r}])"
    assert ended(tmp_path, child, seconds=0.5).stopped == "time"


def test_the_limit_of_memory_ends_a_command(tmp_path: Path) -> None:
    assert (
        ended(tmp_path, "x = b'1' * 2**28\nimport time\ntime.sleep(60)", gib=0.1).stopped
        == "memory"
    )


def listed(tmp_path: Path, *extra: str) -> Path:
    path = tmp_path / "list.yaml"
    lines = [
        "- repository: some/one", "  commit: abc", "  licence: MIT", "  family: control",
        "  chosen_before: true", "  programs:", "    - name: a", "      command: python a.py",
        *extra,
    ]  # fmt: skip
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_programs_take_what_their_group_shares(tmp_path: Path) -> None:
    more = ("    - name: b", "      command: python b.py", "      family: speech")
    first, second = programs.load(listed(tmp_path, *more))
    assert (first.family, second.family) == ("control", "speech")
    assert second.checkout == "some+one"


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (("      comand: x",), "unknown key 'comand'"),
        (("    - name: a", "      command: x"), "stand twice: a"),
        (("    - name: c",), "command"),
    ],
)
def test_a_wrong_list_says_where(tmp_path: Path, extra: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        programs.load(listed(tmp_path, *extra))


def test_shards_share_the_list_out(tmp_path: Path) -> None:
    every = programs.load()
    parts = [programs.shard(every, f"{number}/3") for number in (1, 2, 3)]
    assert sorted(one.name for part in parts for one in part) == sorted(p.name for p in every)
    with pytest.raises(ValueError, match="1/4"):
        programs.shard(every, "4/3")


def test_every_listed_script_of_data_exists() -> None:
    for one in programs.load():
        assert not one.data or (programs.DATA / f"{one.data.split()[0]}.py").is_file(), one.name


def row(
    tmp_path: Path, seen: Observed, before: dict[str, object] | None = None
) -> dict[str, object]:
    (program,) = programs.load(listed(tmp_path))
    return rows.made(program, seen, {}, before=before, day="2026-01-02")


def test_the_first_outcome_stays_when_a_program_is_run_again(tmp_path: Path) -> None:
    first = row(tmp_path, replace(PASSED, agnostic=broken("TypeError: x")))
    rows.save(tmp_path / "rows", row(tmp_path, PASSED, first))
    (found,) = rows.load(tmp_path / "rows").values()
    assert rows.judged(found, "first")[0] is Outcome.OURS
    assert rows.judged(found, "final")[0] is Outcome.PASSES
    assert found["tries"] == 2


def test_a_row_that_is_not_whole_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"schema"', encoding="utf-8")
    with pytest.raises(ValueError, match=r"a\.json is not JSON"):
        rows.load(tmp_path)


def test_what_was_observed_comes_back_from_a_file() -> None:
    seen = replace(PASSED, refused=("x",), repeats=False)
    assert Observed.read(json.loads(json.dumps(asdict(seen)))) == seen


def test_a_shard_goes_on_and_runs_a_program_again_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("    - name: b", "      command: python b.py")
    ran: list[str] = []

    def travel(program: programs.Program, *_: object) -> tuple[Observed, dict[str, object]]:
        ran.append(program.name)
        assert program.seconds == 240
        return PASSED, {}

    monkeypatch.setattr(board.journey, "travel", travel)
    given = Namespace(
        results=tmp_path / "rows", sources=None, name=None, again=[], keep=None, patience=2.0
    )
    every = programs.load(listed(tmp_path, *more))
    assert board.run(given, every[:1]) == 0
    assert board.run(given, every) == 0
    given.again = ["a"]
    assert board.run(given, every) == 0
    assert ran == ["a", "b", "a"]


def test_without_a_whole_recording_the_chip_runs_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def run(_: programs.Program, words: list[str], *__: object) -> limited.Ended:
        asked.append(words[0])
        return limited.Ended(0, "", 1.0)

    monkeypatch.setattr(journey, "run", run)
    (program,) = programs.load(listed(tmp_path))
    found, repeats = journey.replay(program, tmp_path, tmp_path, None, tmp_path, {}, {})
    assert found.well
    assert repeats is None
    assert asked == ["rehearse"]


def test_the_report_counts_first_and_final_and_escapes_what_programs_printed(
    tmp_path: Path,
) -> None:
    first = row(tmp_path, replace(PASSED, agnostic=broken("=<b>|Error: x")))
    judged = {"calls": 9, "by": {"host": 0, "documents": 5}, "nobody": 4}
    found = [row(tmp_path, PASSED, first) | {"calls": 9, "judged": judged}]
    every = programs.load(listed(tmp_path))
    text = report.markdown(found, every)
    assert "| passes | 0 | 1 |" in text
    assert "| our defect | 1 | 0 |" in text
    assert "<b>" not in text
    assert "the arguments of 5\nof 9 calls" in text
    assert "| 5 of 9 calls |" in text
    assert "| scan and rewrite | 1 | 1 (100.0 %) | 0 (0.0 %) |" in text
    page = report.html(found, every)
    assert 'data-key="control|passes"' in page
    assert "<b>|Error" not in page
    (line,) = csv.DictReader(io.StringIO(report.table(found, every)))
    assert (line["outcome"], line["first_outcome"]) == ("passes", "our defect")
    badge = json.loads(report.badge(found, every))
    assert (badge["message"], badge["color"]) == ("1 of 1 pass", "blue")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"rewrite": ("a.py cannot be read",)}, "scan and rewrite"),
        ({"agnostic": broken("ModuleNotFoundError: No module named 'x'")}, "scan and rewrite"),
        ({"direct": broken("E: 1", "/joymigrate/run/rehearse/traps.py")}, "rehearse"),
        ({"direct": broken("RuntimeError: Failed to find function aclrtX")}, "rehearse"),
        ({"tests": {"same": 9, "OURS": 1}}, "rehearse"),
        ({"agnostic": broken("E: 1", "/joymigrate/verify/log.py")}, "verify"),
        ({"recording": "AssertionError"}, "verify"),
        ({"compared": {"modules": "differs"}, "repeats": True}, "verify"),
        ({}, ""),
    ],
)
def test_a_defect_of_ours_falls_to_one_part_of_the_tool(
    change: dict[str, object], part: str
) -> None:
    assert area(replace(PASSED, **change)) == part  # type: ignore[arg-type]


def test_an_operator_that_went_to_the_cpu_and_that_coverage_did_not_name_is_told() -> None:
    covered = {"coverage": {"lacking": ["aten::f"]}, "fallbacks": ["aten::f.out", "aten::g"]}
    assert report.overlooked(covered) == {"aten::g"}


def test_two_releases_stand_side_by_side(tmp_path: Path) -> None:
    here, there = row(tmp_path, PASSED), row(tmp_path, replace(PASSED, agnostic=broken("E: 1")))
    there["final"]["with"] = {"torch": "2.7.1", "torch_npu": "2.7.1.post11"}
    head, _, line = report.releases([here], {there["name"]: there})
    assert "| torch 2.7.1 + torch_npu 2.7.1.post11 |" in head
    assert "| passes | our defect: one style only: agnostic: E: 1 |" in line


def test_a_recorder_that_saw_no_step_is_no_verdict() -> None:
    said = "help: the program ended before its first step, or calls no torch module"
    seen = replace(PASSED, original=broken(said), recording=said)
    assert judge(seen)[0] is Outcome.UNDECIDED


def test_what_the_vendor_prints_below_every_exception_is_no_refusal() -> None:
    said = (
        "UnpicklingError: Unsupported global\n[ERROR] 2026 ERR99999 UNKNOWN applicaiton exception\n"
    )
    run = attempt(1, f'  File "/x/site-packages/torch/serialization.py", line 1, in f\n{said}')
    assert judge(replace(PASSED, direct=run, agnostic=run, compared={}))[0] is Outcome.UNDECIDED


REPORT = """<testsuites><testsuite>
<testcase classname="t" name="test_a[cpu]"/>
<testcase classname="t" name="test_b"/>
<testcase classname="t" name="test_c"/>
<testcase classname="t" name="test_d"><skipped message="slow"/></testcase>
<testcase classname="t" name="test_e"><failure>E   ValueError: bad</failure></testcase>
</testsuite></testsuites>"""


def test_a_suite_is_held_against_the_cpu_test_by_test(tmp_path: Path) -> None:
    (tmp_path / "cpu.xml").write_text(REPORT.replace("test_b", "test_b_1"), encoding="utf-8")
    on_chip = REPORT.replace("[cpu]", "[npu]").replace("test_b", "test_b_01").replace(
        '"test_c"/>',
        '"test_c"><error>a.py:3: in f\nE       RuntimeError: error code is 161002</error>'
        "</testcase>",
    )  # fmt: skip
    (tmp_path / "chip.xml").write_text(on_chip, encoding="utf-8")
    found = suite.compare(suite.read(tmp_path / "cpu.xml"), suite.read(tmp_path / "chip.xml"))
    counts = {"same": 2, "CHIP": 1, "skipped on the CPU": 1, "failed on the CPU": 1}
    assert found["counts"] == counts
    assert found["messages"] == {"CHIP": {"RuntimeError: error code is 161002": 1}}
    assert found["names"] == {"CHIP": ["t::test_c"]}
    outcome, cause = judge(replace(PASSED, compared={}, tests=counts))
    assert outcome is Outcome.CHIP
    assert cause.startswith("2 of 3 tests that pass on the CPU pass")


def test_of_a_test_that_ran_on_the_cpu_and_on_the_chip_the_chips_counts(tmp_path: Path) -> None:
    chip = '<testcase classname="t" name="test_a[npu]"><failure>E   ValueError</failure></testcase>'
    cpu = '<testcase classname="t" name="test_a[cpu]"/>'
    for number, both in enumerate((chip + cpu, cpu + chip)):
        report = tmp_path / f"{number}.xml"
        report.write_text(f"<testsuites><testsuite>{both}</testsuite></testsuites>", "utf-8")
        assert [one.end for one in suite.read(report).values()] == ["failed"]


@pytest.mark.parametrize(
    ("counts", "outcome"),
    [
        ({"same": 9}, Outcome.PASSES),
        ({"same": 9, "CHIP": 1, "OURS": 1}, Outcome.OURS),
        ({"same": 9, "missing": 1}, Outcome.UNDECIDED),
        ({"skipped": 9}, Outcome.UNDECIDED),
        ({"failed on the CPU": 9}, Outcome.OWN),
    ],
)
def test_a_suite_is_as_good_as_its_worst_test(counts: dict[str, int], outcome: Outcome) -> None:
    seen = replace(PASSED, compared={}, tests=counts, touched=True)
    assert judge(seen)[0] is outcome
    if outcome is Outcome.PASSES:
        assert judge(replace(seen, touched=False))[0] is Outcome.UNDECIDED


def test_packages_are_named_and_never_torch(tmp_path: Path) -> None:
    for wrong, said in (("torch==2.1", "own torch"), ("einops >", "no requirement")):
        with pytest.raises(ValueError, match=said):
            packages.folder([wrong], tmp_path)
    assert not list(tmp_path.iterdir())


FED = """
import torch
from torch.utils.data import DataLoader
torch.manual_seed(0); torch.set_num_threads(1)
net = torch.nn.Linear(4, 1)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for x in DataLoader(torch.arange(32.0).view(8, 4) + SHIFT, batch_size=4):
    optimiser.zero_grad(); net(x).square().mean().backward(); optimiser.step()
"""


def test_a_verdict_that_names_another_batch_asks_for_a_replay_on_the_baselines(
    tmp_path: Path,
) -> None:
    for name, shift in (("p", "0"), ("t", "1")):
        (tmp_path / f"{name}.py").write_text(FED.replace("SHIFT", shift))
    record(tmp_path / "p.py", tmp_path / "b.jmb")
    found = replay(tmp_path / "b.jmb", tmp_path / "t.py", tmp_path / "t.jmb")
    first = divergence_json(found.first_divergence)
    assert first is not None
    assert (first["stage"], journey.phase_of(first)) == ("S1", "input")
    assert journey.phase_of({**first, "op": "parameter weight"}) != "input"
