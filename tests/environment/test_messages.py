"""A machine by what people paste: the same first cause as by a record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from joymigrate.chips import get
from joymigrate.cli._main import run
from joymigrate.environment import diagnose
from joymigrate.environment.messages import TRACE, read_message, split_tracebacks
from joymigrate.schema import read_yaml

FOLDER = Path(__file__).parents[1] / "samples" / "environments"
CHIP = get("ascend")
ROWS = [row for path in sorted(FOLDER.glob("*.yaml")) for row in read_yaml(path)]
REPORT = """### Your current environment
PyTorch version: 2.5.1
OS: Ubuntu 22.04.5 LTS (aarch64)
Python version: 3.10.17 (main, May  8 2025, 07:18:04) [GCC 11.4.0] (64-bit runtime)
Nvidia driver version: 535.104.05
Architecture:                       aarch64
[pip3] numpy==1.26.4
[pip3] torch-npu==2.5.1
vLLM Version: 0.8.5.post1
vLLM Ascend Version: 0.8.5rc1
ASCEND_RT_VISIBLE_DEVICES=0,9
| npu-smi 24.1.rc2                 Version: 24.1.rc2                                              |
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| 0     910B3               | OK            | 96.3        48                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3389 / 65536         |
CANN:
package_name=Ascend-cann-toolkit
version=8.1.RC1
Serving shows an error: it is slow. torch 2.4 worked for me, torch 2 too.
"""
LOG = """(Engine pid=412) ERROR 09-12 11:02:33 [core.py:700] Traceback (most recent call last):
(Engine pid=412) ERROR 09-12 11:02:33 [core.py:700]   File "/vllm/core.py", line 691, in run
(Engine pid=412) ERROR 09-12 11:02:33 [core.py:700]     start(ERROR)
(Engine pid=412) ERROR 09-12 11:02:33 [core.py:700] ImportError: libatb.so: cannot open shared
"""


def name(letter: str, number: int | None) -> str:
    """A user or group as `ls` and `id` print it."""
    return f"{letter}{number}" if number else "root"


def paste(told: Mapping[str, Any]) -> Iterator[str]:
    """A recorded machine as the lines of the tools that tell of it."""
    machine, driver = told.get("machine") or {}, told.get("driver") or {}
    if "python" in machine:
        yield f"Python {machine['python']}"
    if "arch" in machine:
        yield f"Linux host 5.10.0 #1 SMP {machine['arch']} GNU/Linux"
    if "uid" in machine:
        groups = ",".join(f"{one}({name('g', one)})" for one in machine.get("gids", ()))
        yield f"uid={machine['uid']}({name('u', machine['uid'])}) gid=1(g1) groups={groups}"
    for package, version in (told.get("packages") or {}).items():
        if version:
            yield f"{package:<24} {version}"
    for variable, value in (told.get("variables") or {}).items():
        yield f'declare -x {variable}="{value}"'
    smi = told.get("smi") or {}
    if smi.get("version"):
        yield f"| npu-smi {smi['version']}   Version: {smi['version']}  |"
    for card in smi.get("cards") or ():
        yield f"| {card['id']}     {card['name']}    | {card['health']}    | 93.4  36   0 / 0 |"
        yield "| 0       | 0000:C1:00.0 | 0       0 / 0  3161/ 32768 |"
    yield str(smi.get("output", ""))
    if sdk := (told.get("sdk") or {}).get("version"):
        yield f"CANN version: {sdk}"
    for part in ("version", "firmware"):
        if part in driver:
            yield f"{'driver' if part == 'version' else part} version: {driver[part]}"
    for path, facts in (told.get("devices") or {}).items():
        bits = int(facts.get("mode", "0666"), 8)
        mode = "".join(one if bits >> 8 - n & 1 else "-" for n, one in enumerate("rwxrwxrwx"))
        owner, group = name("u", facts.get("uid")), name("g", facts.get("gid"))
        yield f"c{mode} 1 {owner} {group} 236, 0 May 10 10:00 {path}"
    for error in told.get("errors") or ():
        yield from ("Traceback (most recent call last):", '  File "a.py", line 3', error, "")


@pytest.mark.parametrize("row", ROWS, ids=[row["thread"][-50:] for row in ROWS])
def test_a_pasted_machine_has_the_cause_of_its_record(row: dict[str, Any]) -> None:
    told = row["environment"]
    if told.get("devices"):  # `ls -l` prints no answer to whether this user may open a file
        shown = {
            path: {key: value for key, value in facts.items() if key != "access"}
            for path, facts in told["devices"].items()
        }
        told = {**told, "devices": shown}
    by_record = diagnose(told, CHIP)
    by_text = diagnose(read_message("\n".join(paste(told)), CHIP) or {}, CHIP)
    first = [said.next and said.next.cause for said in (by_text, by_record)]
    assert first[0] == first[1], by_text


def test_a_report_is_read_by_its_lines_and_prose_is_not() -> None:
    found = read_message(REPORT, CHIP)
    assert found is not None
    assert found["packages"] == {
        "torch": "2.5.1", "numpy": "1.26.4", "torch-npu": "2.5.1", "vllm": "0.8.5.post1",
        "vllm-ascend": "0.8.5rc1",
    }  # fmt: skip
    assert found["machine"] == {"python": "3.10.17", "arch": "aarch64"}
    assert found["driver"] == {"version": "24.1.rc2"}
    assert found["sdk"] == {"version": "8.1.RC1"}
    assert "errors" not in found
    said = diagnose(found, CHIP)
    assert said.next is not None
    assert said.next.evidence == "ASCEND_RT_VISIBLE_DEVICES=0,9, and 1 cards"


def test_what_a_log_puts_before_each_line_is_no_error() -> None:
    found = read_message(LOG, CHIP)
    assert found is not None
    assert found["errors"] == ["ImportError: libatb.so: cannot open shared"]


def logged(*lines: str, stamp: str = "ERROR 09-12 11:02:33 [core.py:700]") -> str:
    """Lines of one record of a log."""
    return "".join(f"(Engine pid=412) {stamp} {line}\n" for line in lines)


@pytest.mark.parametrize(
    "after",
    [
        logged("Shutting down", stamp="INFO 09-12 11:02:34 [launcher.py:80]"),
        logged("Stopped with code 1", stamp="INFO 09-12 11:02:33 [core.py:71]"),
        "Killed\n",
        logged("") + logged("Stopped", stamp="INFO 09-12 11:02:33 [core.py:700]"),
    ],
)
def test_what_a_log_says_after_a_traceback_is_no_part_of_its_error(after: str) -> None:
    found = read_message(LOG + after, CHIP)
    assert found is not None
    assert found["errors"] == ["ImportError: libatb.so: cannot open shared"]


def test_lines_of_one_traceback_may_have_times_of_their_own_and_others_between_them() -> None:
    said = TRACE, '  File "a.py", line 3', "    run()", "RuntimeError: it failed", "[ERROR] EZ9999"
    ours = [f"2025-09-12T11:02:33.{100 + at}Z rank1: {one}" for at, one in enumerate(said)]
    other = "2025-09-12T11:02:33.104Z rank2: step 5"
    text = "\n".join([*ours[:2], other, *ours[2:], other])
    assert split_tracebacks(text.splitlines()) == (
        ["RuntimeError: it failed [ERROR] EZ9999"],
        [other, other],
    )


def test_what_stands_before_the_first_line_alone_is_not_cut_from_the_others() -> None:
    said = f'ERROR:root: {TRACE}\n  File "a.py", line 3\n    run()\nOSError: libatb.so\n\nbye'
    assert split_tracebacks(said.splitlines()) == (["OSError: libatb.so"], ["bye"])
    text = logged(f"Engine failed: {TRACE}", '  File "a.py", line 3', "OSError: libatb.so")
    assert split_tracebacks(text.splitlines()) == (["OSError: libatb.so"], [])


NVIDIA_SMI = "| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4     |"


@pytest.mark.parametrize(
    ("text", "sdk", "driver"),
    [
        ("It worked with CANN 8.0.RC1 and driver 23.0.3 last year", None, None),
        ("It worked with CANN 8.0.RC1 last year\nCANN version: 8.1.RC1", "8.1.RC1", None),
        ("CANN 8.0.RC1 did not help, driver 25.0 did not help", None, None),
        (f"{NVIDIA_SMI}\nDriver Version     : 550.54.15", None, None),
        (f"{NVIDIA_SMI}\n- NPU driver version: **24.1.rc2**", None, "24.1.rc2"),
        ("driver: 23.0.3\n| npu-smi 24.1.rc2   Version: 24.1.rc2   |", None, "24.1.rc2"),
        ("| CANN | 8.1.RC1 |\nHDK 24.1.rc2 (aarch64)", "8.1.RC1", "24.1.rc2"),
        ("CANN 8.0.RC1\nexport ASCEND_HOME_PATH=/usr/local/Ascend/cann-8.5.0", "8.5.0", None),
        ("OSError: /usr/local/Ascend/ascend-toolkit/8.0.RC3/lib64/libgraph.so: bad", "8.0.RC3",
         None),
        ("I had /usr/local/Ascend/ascend-toolkit/8.0.RC3 before", None, None),
    ],
)  # fmt: skip
def test_a_version_is_read_where_a_line_is_of_nothing_else(
    text: str, sdk: str | None, driver: str | None
) -> None:
    found = read_message(text, CHIP) or {}
    seen = [(found.get(part) or {}).get("version") for part in ("sdk", "driver")]
    assert seen == [sdk, driver]


@pytest.mark.parametrize(
    "line",
    [
        "ASCEND_RT_VISIBLE_DEVICES=0,1 python train.py",
        "export ASCEND_RT_VISIBLE_DEVICES=0,1  # two cards",
        'export ASCEND_RT_VISIBLE_DEVICES="0,1"; python train.py',
        "declare -x ASCEND_RT_VISIBLE_DEVICES='0,1'",
        "ASCEND_RT_VISIBLE_DEVICES=0,1&& python train.py",
    ],
)
def test_a_value_ends_where_the_shell_ends_it(line: str) -> None:
    found = read_message(line, CHIP) or {}
    assert found["variables"] == {"ASCEND_RT_VISIBLE_DEVICES": "0,1"}
    assert not diagnose(found, CHIP).findings


def test_cards_in_descending_order_are_told_what_order_to_take() -> None:
    said = diagnose(read_message("export ASCEND_RT_VISIBLE_DEVICES=1,0", CHIP) or {}, CHIP).next
    assert said is not None
    assert "not ascending" in said.evidence
    assert "ascending" in said.what
    assert "ascending" in said.fix


CARD = "crw-rw---- 1 HwHiAiUser HwHiAiUser 236, 0 Sep  6 08:00 /dev/davinci0\n"
GONE = "ls: cannot access '{}': No such file or directory\n"
SHM = "shm    15G   {}    {} {}% /dev/shm\n"
TIMED_OUT = "TimeoutError: RPC call to sample_tokens timed out."
BARRIER = "RuntimeError: aclrtSynchronizeDevice, error code is 507046 EE1002: stream sync timeout"
TABLE = '{"version": "1.0", "server_count": "1", "server_list": []}\n'
RANKS = "RuntimeError: Config_Error_Ranktable(EI0014): The ranktable is invalid."


@pytest.mark.parametrize(
    ("text", "cause", "evidence"),
    [
        (CARD, None, ""),  # nobody asked for the other files
        (CARD + GONE.format("/dev/devmm_svm"), "device-missing", "/dev/devmm_svm"),
        (CARD.replace("davinci0", "hisi_hdc"), None, ""),
        (CARD + GONE.format("/dev/davinci1"), None, ""),  # one card is here
        (SHM.format("15G", "0", 100) + TIMED_OUT, "shared-memory-full", "15360 MiB"),
        (SHM.format("8G", "7G", 54) + TIMED_OUT, "unrecognised", "timed out"),
        (TABLE + RANKS, "rank-table", '"version": "1.0"'),
        (RANKS, "rank-table", "EI0014"),
        (RANKS.replace("The", "topo file x.json of the"), "driver-missing", "topo file"),
        (f"Running tokenizer on dataset:  41%\n{BARRIER}", "rank-busy", "41%"),
        (BARRIER, "kernel-timeout", "507046"),
        ("torch 2.5.1\ntorchvision 0.21.0+cpu", "companion-mismatch", "torchvision 0.20.1"),
        ("torch 2.5.1\ntorchvision 0.20.1+cpu", None, ""),
        ("torch 2.0.1\ntorchvision 0.15.2", None, ""),  # before the range of that line
        ("torch 2.8.0\n$ pip install vllm-ascend==0.11.0rc0", "companion-mismatch", "torch 2.7.1"),
        ("torch 2.7.1\ntorch-npu 2.7.1.dev20250724\nvllm-ascend 0.11.0rc0", None, ""),
        ("torch 2.7.1\ntorch-npu 2.7.1.dev20240101", "unlisted-version", "dev20240101"),
    ],
)
def test_the_whole_text_speaks_for_a_cause(text: str, cause: str | None, evidence: str) -> None:
    first = diagnose(read_message(text, CHIP) or {}, CHIP).next
    assert (first.cause if first else None) == cause
    assert first is None or evidence in first.evidence


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("ls: cannot access '/dev/davinci*': No such file or directory", "no-device"),
        ("-bash: npu-smi: command not found", "driver-missing"),
        ("torch 2.6.0+cpu\ntorch_npu 2.5.1 pypi_0 pypi", "torch-mismatch"),
        ("Name: torch_npu\nVersion: 2.5.1\ntorch==2.6.0 ; python_version > '3'", "torch-mismatch"),
    ],
)
def test_short_answers_of_tools(text: str, cause: str) -> None:
    said = diagnose(read_message(text, CHIP) or {}, CHIP)
    assert said.next is not None
    assert said.next.cause == cause


def test_the_command_takes_a_text_and_refuses_one_that_tells_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pasted.txt"
    path.write_text(REPORT, encoding="utf-8")
    ask = ["doctor", "--to", "ascend", "--format", "json", "--env", str(path)]
    assert run(ask) == 1
    assert json.loads(capsys.readouterr().out)["next"] == "visible-devices"
    path.write_text("My model gives nonsense. What can I do?\n", encoding="utf-8")
    assert run(ask) == 2
    assert "nothing in it tells of a machine" in capsys.readouterr().err


THIRTY = Path(__file__).parents[2] / "benchmarks/strangers/rehearse/environments/thirty.yaml"
# No row says which CANN a development release takes; a variable that only sglang reads; words for
# which another thread (vllm-ascend issue 6676) has another cause.
UNTOLD = ("vllm-ascend/issues/154", "sglang/issues/22840", "vllm-ascend/issues/5599")
# Causes that have got their names after the first run.
OTHERS = {"network-file": "hccn-conf", "module-missing": "plugin-missing"}


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row["thread"][-40:])
        for row in read_yaml(THIRTY)
        if not row["thread"].endswith(UNTOLD)
    ],
)
def test_a_paste_of_a_public_thread_has_its_cause_first(row: dict[str, Any]) -> None:
    machine = read_message(row["paste"], CHIP)
    assert machine is not None
    said = diagnose(machine, CHIP).next
    assert said is not None
    assert OTHERS.get(said.cause, said.cause) in row["expect"], said
