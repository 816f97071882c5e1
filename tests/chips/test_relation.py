"""Two vocabularies as one relation, forwards and backwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.chips import Chip, NameRelation, get, load_folder, origin, relate
from joymigrate.model import Tier

CHIP = """
name: acme
title: Acme AI card
device: acm
backend: accl
api:
  names: names.txt
  renamed:
    CUDAGraph: AcmGraph
    random.seed: {to: seed, tier: unsafe, one_way: true}
    late: newest
  absent:
    nvtx: {note: use marks}
  moved:
    torch.a: torch.acm.a
    torch.b: {to: torch.acm.ab, tier: unsafe}
    torch.c: {note: nothing like it}
    torch.d: {to: torch.acm.a, tier: unsafe, one_way: true}
environment:
  visible_devices: ACM_VISIBLE
  map: {NCCL_X: ACCL_X}
  report: {"NCCL_*": ask}
"""
NAMES = """
version 1.0 x
version 2.0 x
[torch.acm]
Stream
AcmGraph
seed
a
ab
amp
amp.autocast
newest 2.0
"""


@pytest.fixture
def chip(tmp_path: Path) -> Chip:
    (tmp_path / "chip.yaml").write_text(CHIP)
    (tmp_path / "names.txt").write_text(NAMES)
    return load_folder(tmp_path)


@pytest.fixture
def there(chip: Chip) -> NameRelation:
    return relate(origin(), chip)


@pytest.fixture
def back(chip: Chip) -> NameRelation:
    return relate(chip, origin())


def test_a_name_that_exists_stays(there: NameRelation) -> None:
    assert there.name("Stream").to == "Stream"
    assert there.name("amp.autocast").tier is Tier.SAFE


def test_a_renamed_name_takes_its_members_along(there: NameRelation) -> None:
    assert there.name("CUDAGraph").to == "AcmGraph"
    assert there.name("CUDAGraph.replay").to == "AcmGraph.replay"


def test_an_absent_name_and_what_lies_below_it_is_reported(there: NameRelation) -> None:
    for name in ("nvtx", "nvtx.range_push"):
        found = there.name(name)
        assert (found.to, found.tier, found.note) == (None, Tier.REPORT, "use marks")


def test_a_name_nobody_listed_is_reported(there: NameRelation) -> None:
    assert there.name("gds").note == "torch.acm has no gds"


def test_a_target_must_exist_in_the_version(there: NameRelation) -> None:
    assert there.name("late", "2.0").to == "newest"
    old = there.name("late", "1.0")
    assert old.to is None
    assert old.note == "torch.acm.newest does not exist in torch.acm 1.0"


def test_the_way_back_reads_the_same_data(back: NameRelation) -> None:
    assert back.name("AcmGraph").to == "CUDAGraph"
    assert back.moved["torch.acm.a"].to == "torch.a"
    assert back.variables["ACM_VISIBLE"].to == "CUDA_VISIBLE_DEVICES"
    assert back.tensor == {"acm": "cuda", "is_acm": "is_cuda"}


def test_what_can_not_go_back_does_not_shadow_what_can(back: NameRelation) -> None:
    assert back.name("seed").to == "seed"
    assert back.moved["torch.acm.a"].tier is Tier.SAFE


def test_the_way_back_is_no_safer_than_the_way_there(back: NameRelation) -> None:
    assert back.moved["torch.acm.ab"].tier is Tier.UNSAFE
    assert back.variables["ACCL_X"].tier is Tier.UNSAFE


def test_patterns_of_variables_count(there: NameRelation) -> None:
    assert there.variable("NCCL_X").to == "ACCL_X"  # type: ignore[union-attr]
    assert there.variable("NCCL_Y").note == "ask"  # type: ignore[union-attr]


def test_two_targets_meet_through_the_origin() -> None:
    between = relate(get("cambricon"), get("musa"))
    assert between.name("MLUGraph").to == "MUSAGraph"
    assert between.variables["MLU_VISIBLE_DEVICES"].to == "MUSA_VISIBLE_DEVICES"
    assert between.tensor == {"mlu": "musa", "is_mlu": "is_musa"}


def test_two_names_that_became_one_are_not_guessed_apart(tmp_path: Path) -> None:
    (tmp_path / "chip.yaml").write_text(
        "name: b\ntitle: B\ndevice: bb\nbackend: bccl\n"
        "api: {moved: {torch.x: torch.bb.one, torch.y: torch.bb.one}}\n"
    )
    back = relate(load_folder(tmp_path), origin())
    assert back.moved["torch.bb.one"].tier is Tier.REPORT


@pytest.mark.parametrize(
    ("chip", "module", "written"),
    [
        ("ascend", "torch.cuda", "torch.npu"),
        ("ascend", "torch.cuda.amp.autocast_mode", "torch.npu.amp.autocast_mode"),
        ("musa", "torch.cuda", "torch_musa"),
        ("musa", "torch.cuda.amp.autocast_mode", "torch_musa.core.amp.autocast_mode"),
        ("metax", "torch.cuda.amp", "torch.cuda.amp"),
    ],
)
def test_import_statements_name_what_can_be_imported(chip: str, module: str, written: str) -> None:
    assert relate(origin(), get(chip)).import_name(module) == written
    assert relate(get(chip), origin()).import_name(written) == module


def test_a_module_of_somebody_else_has_no_import_name() -> None:
    assert relate(origin(), get("ascend")).import_name("torch.cudart") is None
