"""Finding chip folders, and what a wrong chip.yaml says."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.chips import get, load_folder, origin, target
from joymigrate.errors import JoyError
from joymigrate.model import Tier

GOOD = """
schema: joymigrate.chip/1
name: acme
title: Acme AI card
device: acm
backend: accl
"""


def folder(tmp_path: Path, text: str, **files: str) -> Path:
    (tmp_path / "chip.yaml").write_text(text)
    for name, content in files.items():
        (tmp_path / f"{name}.yaml").write_text(content)
    return tmp_path


def test_the_least_chip_needs_five_lines(tmp_path: Path) -> None:
    chip = load_folder(folder(tmp_path, GOOD))
    assert (chip.module, chip.import_module) == ("torch.acm", "torch.acm")
    assert chip.tensor == {"cuda": "acm", "is_cuda": "is_acm"}
    assert chip.names() == frozenset()
    assert chip.exists("torch.acm.Stream") is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("- a list", "expected keys with values"),
        ("name: [", "not valid YAML"),
        (GOOD.replace("device: acm", ""), "'device' is missing"),
        (GOOD + "devise: acm", "unknown key 'devise'. Did you mean 'device'?"),
        (GOOD + "skus: {a: 1}", "'skus' takes a list"),
        (GOOD + "tools: [a]", "'tools' takes keys with values"),
        (GOOD + "cpu_fallback: maybe", "'cpu_fallback' takes true or false"),
        (GOOD.replace("acm\n", "910\n", 1), "'device' takes a text, got 910"),
        (
            GOOD.replace("chip/1", "chip/9"),
            "the schema is 'joymigrate.chip/9'",
        ),
        (GOOD + "skus: [{memory_gib: 4}]", "'name' is missing"),
        (GOOD + "skus: [{name: 910_93}]", "'name' takes a text, got 91093"),
        (GOOD + "skus: [{name: x, memory: 4}]", "unknown key 'memory'"),
    ],
)
def test_a_wrong_chip_file_says_what_and_where(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(JoyError) as caught:
        load_folder(folder(tmp_path, text))
    assert what in caught.value.what
    assert str(tmp_path / "chip.yaml") in (caught.value.where or "")


@pytest.mark.parametrize(
    ("section", "what"),
    [
        ("api: {renamed: {CUDAGraph: 3}}", "'to' takes a text, got 3"),
        ("api: {renamed: {CUDAGraph: {too: x}}}", "unknown key 'too'. Did you mean 'to'?"),
        ("api: {renamed: {CUDAGraph: {to: x, tier: sure}}}", "'tier' does not know 'sure'."),
        ("api: {renamed: [CUDAGraph]}", "expected a mapping"),
    ],
)
def test_wrong_advice_names_the_key(tmp_path: Path, section: str, what: str) -> None:
    chip = load_folder(folder(tmp_path, GOOD + section))
    with pytest.raises(JoyError) as caught:
        chip.renamed()
    assert what in caught.value.what
    assert "api.renamed" in (caught.value.where or "")


def test_an_unknown_role_of_the_environment_is_named(tmp_path: Path) -> None:
    chip = load_folder(folder(tmp_path, GOOD + "environment: {visible_device: ACM_VISIBLE}"))
    with pytest.raises(JoyError, match="Did you mean 'visible_devices'"):
        chip.variables()


def test_advice_without_a_replacement_is_only_reported(tmp_path: Path) -> None:
    text = GOOD + "api: {renamed: {A: {note: gone}, B: C, D: {to: E, tier: unsafe}}}"
    found = load_folder(folder(tmp_path, text)).renamed()
    tiers = [found[name].tier for name in "ABD"]
    assert tiers == [Tier.REPORT, Tier.SAFE, Tier.UNSAFE]


def test_a_variable_that_stays_is_its_own_replacement(tmp_path: Path) -> None:
    text = GOOD + "environment: {keep: {MAX_X: why}, report: {'NCCL_*': gone, NCCL_A_B: here}}"
    chip = load_folder(folder(tmp_path, text))
    kept = chip.variable("MAX_X")
    assert kept is not None
    assert kept.keeps
    assert chip.variable("NCCL_OTHER").note == "gone"  # type: ignore[union-attr]
    assert chip.variable("NCCL_A_B").note == "here"  # type: ignore[union-attr]
    assert chip.variable("PATH") is None


def test_own_advice_goes_before_the_common_one(tmp_path: Path) -> None:
    chip = load_folder(
        folder(
            tmp_path,
            GOOD,
            imports="imports: {flash_attn.ops: {note: mine}}",
            packages="packages: {Flash_Attn: {to: acme-attn, note: ours}}",
        )
    )
    assert chip.import_advice("flash_attn.ops.rms_norm").note == "mine"  # type: ignore[union-attr]
    shared = chip.import_advice("flash_attn.layers")
    assert shared is not None
    assert shared.to == "torch.nn.functional.scaled_dot_product_attention"
    assert chip.package_advice("flash.attn").to == "acme-attn"  # type: ignore[union-attr]
    assert chip.package_advice("nvidia-cublas-cu12").name == "nvidia-cu*"  # type: ignore[union-attr]
    assert chip.package_advice("requests") is None
    assert chip.import_advice("requests") is None


def test_the_origin_gets_no_advice_on_its_own_packages() -> None:
    assert origin().imports() == {}
    assert origin().packages() == {}


def test_a_chip_is_found_by_name_and_alias() -> None:
    assert get("npu") is get("ascend")
    assert target(None).default
    assert target("mlu").name == "cambricon"


def test_an_unknown_chip_suggests_the_nearest() -> None:
    with pytest.raises(JoyError, match=r"unknown chip 'asend'\. Did you mean 'ascend'\?"):
        get("asend")


def test_two_chips_of_one_name_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from joymigrate.chips import load

    one = folder(tmp_path, GOOD)
    other = tmp_path / "other"
    other.mkdir()
    folder(other, GOOD.replace("name: acme", "name: emca") + "aliases: [acme]")
    monkeypatch.setattr(load, "folders", lambda: iter([(one, "a"), (other, "b")]))
    load.all_chips.cache_clear()
    try:
        with pytest.raises(JoyError, match="two chips are called 'acme'"):
            chips.all_chips()
    finally:
        load.all_chips.cache_clear()
