"""Error codes: a code is found by number, by name and in a message; its cause exists."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from joymigrate.chips import get
from joymigrate.chips.codes import FILE, find_codes, look_up_code, read_codes
from joymigrate.environment import diagnose
from joymigrate.environment.rules import rules_of
from joymigrate.errors import JoyError

CHIP = get("ascend")
ROWS = list(dict.fromkeys(read_codes(CHIP.folder / FILE).values()))


def package() -> Path:
    """Its folder, by its distribution: other tests hide the package where it has no driver."""
    try:
        return Path(str(distribution("torch-npu").locate_file("torch_npu")))
    except PackageNotFoundError:
        pytest.skip("torch_npu is not installed")


@pytest.mark.parametrize("text", ["107027", "acl_error_rt_stream_captured", " 107027 "])
def test_a_code_is_found_by_number_and_by_name(text: str) -> None:
    found = look_up_code(CHIP, text)
    assert found is not None
    assert found.code == "107027"
    assert "waits for a stream" in found.meaning


def test_what_is_no_code_is_none() -> None:
    assert look_up_code(CHIP, "107999") is None
    assert look_up_code(get("nvidia"), "107027") is None


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        (
            "call aclnnCast failed, error code is 161002\n[ERROR] ERR01100 OPS call acl api failed."
            "\nEZ1001: [PID: 1] 2025-07-01-00:40:04.135.732 x is refused",
            ["161002", "ERR01100", "EZ1001"],
        ),
        ("HCCL function error: HcclAllreduce, error code is 9", ["HCCL 9"]),
        ("aclrtMemcpy, error code is 9 of lines 12345 and 507015001", []),
        ("step 107000: loss 1.107027", []),
        ("rtMemcpy execute failed, reason=[x], runtime result = 207001[FUNC:A]", ["207001"]),
        ("waiting for its stream (107027)", ["107027"]),
        ("halMemAlloc failed, driver ret=6", ["driver 6"]),
    ],
)
def test_a_message_holds_its_codes_and_no_other_numbers(text: str, codes: list[str]) -> None:
    assert [one.code for one in find_codes(CHIP, text)] == codes


def test_every_cause_is_one_that_doctor_knows() -> None:
    rules = rules_of(CHIP)
    assert rules is not None
    assert {one.cause for one in ROWS if one.cause} <= set(rules.causes)


@pytest.mark.parametrize("header", ["rt_error_codes.h", "ge_error_codes.h"])
def test_every_code_of_the_package_s_headers_has_a_row(header: str) -> None:
    folder = package() / "include" / "third_party" / "acl" / "inc" / "acl" / "error_codes"
    text = (folder / header).read_text(encoding="utf-8")
    listed = re.findall(r"\b(ACL_\w+)\s+(?:=\s+)?(\d{6})U?\b", text)
    assert len(listed) > 30
    wrong = [
        (name, code)
        for name, code in listed
        if (found := look_up_code(CHIP, code)) is None or found.name != name
    ]
    assert wrong == []


def test_doctor_names_a_code_that_no_pattern_knows() -> None:
    said = diagnose({"errors": ["SomeCall failed, error code is 507035"]}, CHIP)
    assert said.next is not None
    assert said.next.cause == "kernel-fault"
    assert "vector cores" in said.next.evidence
    said = diagnose({"errors": ["SomeCall failed, error code is 507041"]}, CHIP)
    assert said.next is not None
    assert said.next.cause == "error-code"
    assert "ACL_ERROR_RT_DIE_MODE_NOT_SET" in said.next.evidence


def test_a_frame_of_the_package_alone_names_no_cause() -> None:
    said = diagnose({"errors": ["ERR00100 PTA call acl api failed"]}, CHIP)
    assert said.next is not None
    assert said.next.cause == "unrecognised"


def test_a_broken_table_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / FILE
    head = "code,name,of,meaning,do,cause,source\n"
    path.write_text(f"{head}1,A,runtime,,,,x\n")
    with pytest.raises(JoyError, match="needs `of`, `meaning` and `source`"):
        read_codes(path)
    path = tmp_path / "other.csv"
    path.write_text(f"{head}1,A,runtime,a,,,x\n1,B,runtime,b,,,x\n")
    with pytest.raises(JoyError, match="stands twice"):
        read_codes(path)
