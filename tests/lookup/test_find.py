"""Names that people meet: what is said of each kind, and that nothing is said of none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.data import rules_root
from joymigrate.lookup import Described, Statement, find, suggest
from joymigrate.rewrite.rules import load


def ask(name: str, to: str | None = None) -> list[Described]:
    return find(name, chips.target(to), chips.origin())


def pick(found: Described, chip: str, style: str | None = None) -> Statement:
    mine = [one for one in found.statements if chip in one.chips]
    (chosen,) = [one for one in mine if style is None or style in one.styles]
    return chosen


def test_an_api_is_what_a_rewrite_writes_with_its_first_release() -> None:
    (found,) = ask("torch.cuda.mem_get_info")
    direct, portable = pick(found, "ascend", "direct"), pick(found, "ascend", "accelerator")
    assert (direct.becomes, direct.tier) == ("torch.npu.mem_get_info", "safe")
    assert direct.since == "torch-npu 2.2 and later"
    assert portable.becomes == "torch.accelerator.get_memory_info"
    assert portable.since == "torch 2.10 and later"
    assert pick(found, "musa", "direct").becomes == "torch.musa.mem_get_info"
    assert pick(found, "hygon").text == "stays as it is"


def test_an_api_without_a_counterpart_says_why() -> None:
    (found,) = ask("torch.cuda.get_device_capability")
    told = pick(found, "ascend", "direct")
    assert (told.becomes, told.tier, told.rule) == (None, "report", "JM107")
    assert told.text


@pytest.mark.parametrize("module", ["torch.npu", "torch_npu.npu"])
def test_a_name_that_the_package_lost_is_known_with_what_is_called_alike(module: str) -> None:
    (found,) = ask(f"{module}.profile")
    told = pick(found, "ascend")
    assert told.since == "torch-npu 2.1"
    assert "torch_npu.profiler.profile" in told.text
    (gone,) = ask(f"{module}.no_such_name")
    assert "no release" in pick(gone, "ascend").text
    (typed,) = ask(f"{module}.empty_cach")
    assert "near: torch.npu.empty_cache, " in pick(typed, "ascend").text
    assert ask(f"{module}.Event")[0].statements[0].becomes == "torch.npu.Event"


def test_every_name_that_a_message_sends_to_explain_is_known() -> None:
    files = [*rules_root().rglob("*.yaml"), *Path(chips.__file__).parents[1].rglob("*.py")]
    form = re.compile(r"joymigrate explain ([^\s,;`\"']+)")
    asked = {one for path in files for one in form.findall(path.read_text(encoding="utf-8"))}
    stands_for_one = {"NAME", "RULE", "MODULE.NAME", "{rule}", "{finding.rule}"}
    rules = load(chips.target("ascend"), chips.origin())
    names = {one for one in asked - stands_for_one if not one.startswith("--")}
    assert {one for one in names if one not in rules and not ask(one)} == set()


def test_the_chosen_chip_comes_first() -> None:
    (found,) = ask("torch.cuda.Event", "musa")
    assert found.statements[0].chips[0] == "musa"


def test_a_name_below_the_origins_module_needs_no_prefix() -> None:
    (short,), (full,) = ask("mem_get_info"), ask("torch.cuda.mem_get_info")
    assert short.statements == full.statements


@pytest.mark.parametrize(
    ("name", "style", "becomes"),
    [
        ("Tensor.cuda", "direct", ".npu()"),
        ("cuda", "direct", '"npu"'),
        ("cuda:1", "direct", '"npu:1"'),
        (
            "cuda",
            "accelerator",
            'torch.accelerator.current_accelerator() or torch.device("cpu")',
        ),
        ("CUDA_VISIBLE_DEVICES", "direct", '"ASCEND_RT_VISIBLE_DEVICES"'),
        ("nvidia-smi", "direct", "npu-smi info"),
    ],
)
def test_values_variables_and_tools(name: str, style: str, becomes: str) -> None:
    (found,) = ask(name)
    assert pick(found, "ascend", style).becomes == becomes


def test_a_backend_is_a_value_and_a_package() -> None:
    package, value = ask("nccl")
    assert (package.kind, value.kind) == ("package", "value")
    assert pick(value, "ascend", "direct").becomes == '"hccl"'


def test_an_operator_has_its_status_on_each_chip_with_a_list() -> None:
    (found,) = ask("aten::lgamma")
    assert pick(found, "ascend").tier == "cpu_fallback"
    assert pick(found, "ascend").since.startswith("torch-npu ")
    assert pick(found, "ascend").source
    assert next(one.tier for one in ask("torch.lgamma")[0].statements) == "cpu_fallback"


@pytest.mark.parametrize("name", ["aten::no_such_operator", "aten::add.NoSuchOverload", "a::b"])
def test_an_operator_that_no_list_has_is_not_described(name: str) -> None:
    assert ask(name) == []


def test_a_package_is_described_as_distribution_and_as_import() -> None:
    package, imported = ask("flash_attn")
    assert pick(package, "ascend").becomes == "flash-attn-npu"
    assert pick(imported, "ascend").text.startswith("use torch_npu.npu_fusion_attention")
    assert "(2026-11-20)" in pick(package, "ascend").source


def test_the_chips_own_names_are_known() -> None:
    (found,) = ask("torch_npu.npu_fusion_attention")
    assert pick(found, "ascend").since.startswith("every torch-npu from 2.1 on")


def test_an_error_code_of_a_known_stop_says_what_helps() -> None:
    (found,) = ask("EZ1001")
    assert found.kind == "code"
    told = next(one for one in found.statements if one.rule == "flux-float64")
    assert "upgrade diffusers" in told.text
    assert told.source.startswith("https://github.com/")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nonsense",
        "torch.cuda.mem_get_inf",
        "999999",
        "NO_SUCH_VARIABLE",
        "x y",
        "../etc",
        "-rf",
    ],
)
def test_nothing_is_said_of_what_is_no_name(name: str) -> None:
    assert ask(name) == []


@pytest.mark.parametrize(
    ("code", "words"),
    [("107027", "captur"), ("ACL_ERROR_RT_CONTEXT_NULL", "no device yet"), ("507008", "")],
)
def test_an_error_code_of_the_chips_table_says_its_meaning(code: str, words: str) -> None:
    (found,) = [one for one in ask(code) if one.kind == "code"]
    told = [one for one in found.statements if "ascend" in one.chips]
    assert words in told[0].text
    assert all(one.source for one in told)


def test_near_names_are_told_those_with_the_same_end_first() -> None:
    chip, origin = chips.target(None), chips.origin()
    assert suggest("torch.cuda.mem_get_inf", [], chip, origin)[0] == "torch.cuda.mem_get_info"
    assert "torch.cuda.mem_get_info" in suggest("cuda.mem_get_info", [], chip, origin)
    assert suggest("aten::lgama", [], chip, origin)[0] == "aten::lgamma"
    assert suggest("qqqqqqqq", ["JM101"], chip, origin) == []
