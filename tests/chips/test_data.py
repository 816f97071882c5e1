"""What the chips that come with joymigrate say, and that it holds together."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest

import joymigrate
from joymigrate.chips import Chip, all_chips, get, origin, relate, rules_root
from joymigrate.chips.extract import Extractor, SourceTree
from joymigrate.chips.validate import validate
from joymigrate.model import Tier

ROOT = Path(joymigrate.__file__).parent
CHIPS = list(all_chips().values())
OWN_DEVICE = [chip for chip in CHIPS if not chip.origin and not chip.keeps_device]
# One with advice of its own; what `chips new` writes is a start, of which nothing is claimed.
DESCRIBED = [chip for chip in OWN_DEVICE if (chip.folder / "imports.yaml").is_file()]
FAMILY = [chip for chip in CHIPS if chip.keeps_device]
SITE = Path(sysconfig.get_paths()["purelib"])


def names(chip: Chip) -> str:
    return chip.name


def test_the_chips_that_are_described_are_known() -> None:
    assert len(DESCRIBED) >= 3


@pytest.mark.parametrize("chip", CHIPS, ids=names)
def test_every_chip_is_valid(chip: Chip) -> None:
    assert [str(problem) for problem in validate(chip.folder)] == []


@pytest.mark.parametrize("chip", DESCRIBED, ids=names)
def test_every_safe_name_comes_back(chip: Chip) -> None:
    there, back = relate(origin(), chip), relate(chip, origin())
    checked = 0
    for name in origin().names():
        found = there.name(name)
        if found.tier is not Tier.SAFE or found.to is None:
            continue
        if found.to.startswith("torch"):
            continue  # a full name: the next test
        checked += 1
        assert back.name(found.to).to == name
        assert back.name(found.to).tier is Tier.SAFE
    assert checked > 100


@pytest.mark.parametrize("chip", DESCRIBED, ids=names)
def test_every_safe_move_comes_back(chip: Chip) -> None:
    there, back = relate(origin(), chip), relate(chip, origin())
    safe = [item for item in there.moved.values() if item.tier is Tier.SAFE]
    assert safe
    for item in safe:
        assert item.to is not None
        assert back.moved[item.to].to == item.name
        assert back.moved[item.to].tier is Tier.SAFE


@pytest.mark.parametrize("chip", OWN_DEVICE, ids=names)
def test_every_safe_variable_comes_back(chip: Chip) -> None:
    there, back = relate(origin(), chip), relate(chip, origin())
    for item in there.variables.values():
        if item.tier is Tier.SAFE and item.to:
            assert back.variables[item.to].to == item.name


@pytest.mark.parametrize("chip", DESCRIBED, ids=names)
def test_no_public_name_is_missing_without_a_word(chip: Chip) -> None:
    relation = relate(origin(), chip)
    internal = re.compile(r"(^|\.)_|Tensor$|Storage$|^(Device|classproperty)$|\.(Tensor|Device)$")
    silent = [
        name
        for name in origin().names()
        if "." not in name
        and not internal.search(name)
        and not name.isupper()
        and (found := relation.name(name)).to is None
        and found.note == f"{chip.module} has no {name}"
    ]
    assert silent == []


def test_the_lists_cover_what_the_packages_offer() -> None:
    # 125 names in torch.cuda.__all__ of torch 2.13; counted against each package's own source.
    bound = Extractor(SourceTree(SITE), "torch.cuda").bound("torch.cuda")
    assert bound is not None
    covered = {
        (chip.name, version): len(bound.public & chip.names(version))
        for chip in OWN_DEVICE
        if (listed := chip.name_list())
        for version in listed.versions
    }
    assert covered["ascend", "2.13"] == 94
    assert covered["ascend", "2.1"] == 74
    assert covered["cambricon", "2.1"] == 73
    assert covered["cambricon", "2.4"] == 86
    assert covered["musa", "2.7"] == 61
    assert covered["musa", "2.2"] == 48


def installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


@pytest.mark.skipif(not installed("torch-npu").startswith("2.13"), reason="needs torch-npu 2.13")
def test_the_list_is_what_the_installed_package_says() -> None:
    found = set(Extractor(SourceTree(SITE), "torch_npu.npu").dotted())
    listed = get("ascend").names("2.13")
    added_by_hand = {name for name in listed - found if name.split(".")[0] in BY_HAND}
    assert listed - found - added_by_hand == set()
    left_out = {name for name in found - listed if name in origin().names()}
    assert {name for name in left_out if "._" not in name} == set()


BY_HAND = {"mstx", "matmul", "conv"}  # members of a class and attributes set by __setattr__

LIVE = """
import json, sys, torch, torch_npu, torch_npu.optim, torch_npu.profiler, torch_npu.contrib
def there(dotted):
    found = {"torch": torch, "torch_npu": torch_npu}[dotted.split(".")[0]]
    for part in dotted.split(".")[1:]:
        try:
            found = getattr(found, part)
        except AttributeError:
            return False
    return True
names = json.load(open(sys.argv[1]))
json.dump([name for name in names if not there(name)], open(sys.argv[2], "w"))
"""
LIVE_SECTIONS = ("torch.npu", "torch_npu", "torch_npu.profiler", "torch_npu.optim", "torch.version")


@pytest.mark.slow
@pytest.mark.compiler
def test_every_listed_name_is_in_the_live_package(tmp_path: Path) -> None:
    chip = get("ascend")
    listed = chip.name_list()
    assert listed is not None
    wanted = [
        f"{module}.{name}"
        for module in LIVE_SECTIONS
        for name in listed.names(module, "2.13")
        # torch_npu.npu.aclnn replaces itself by an object with the same public attributes.
        if not name.startswith("aclnn.")
    ]
    wanted += [f"{chip.module}.{item.to}" for item in chip.renamed().values() if item.to]
    wanted += [item.to for item in chip.moved().values() if item.to and not item.keeps]
    assert len(wanted) > 800
    (tmp_path / "names.json").write_text(json.dumps(wanted))
    program = tmp_path / "live.py"
    program.write_text(LIVE)
    command = [sys.executable, "-m", "joymigrate", "rehearse", "--", sys.executable, str(program)]
    arguments = [str(tmp_path / "names.json"), str(tmp_path / "missing.json")]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    missing = set(json.loads((tmp_path / "missing.json").read_text()))
    assert missing == set()


@pytest.mark.parametrize("chip", FAMILY, ids=names)
def test_a_chip_that_keeps_the_device_keeps_every_name(chip: Chip) -> None:
    relation = relate(origin(), chip)
    assert relation.tensor == {"cuda": "cuda", "is_cuda": "is_cuda"}
    assert relation.moved == {}
    for name in ("Stream", "amp.autocast", "nvtx.range_push", "CUDAGraph"):
        assert (relation.name(name).to, relation.name(name).tier) == (name, Tier.SAFE)
    assert relation.tools["nvidia-smi"].to not in (None, "nvidia-smi")


def test_advice_names_only_what_exists() -> None:
    """Every torch_npu.… and torch.npu.… in the texts is in the name list of some version."""
    for chip in DESCRIBED:
        files = [chip.folder / f for f in ("chip.yaml", "imports.yaml", "packages.yaml")]
        text = "".join(path.read_text(encoding="utf-8") for path in files)
        text = re.sub(r"\w+/[\w./]+", "", text)  # paths of source files
        listed = chip.name_list()
        assert listed is not None
        pattern = rf"\b(?:{chip.package}|{re.escape(chip.module)})(?:\.\w+)+"
        found = set(re.findall(pattern, text)) - EXPLAINED - {*chip.import_modules.values()}
        assert len(found) > 5
        for dotted in found:
            assert True in [chip.exists(dotted, v) for v in listed.versions], dotted


# Named to say that they are absent.
EXPLAINED = {"torch.musa.random", "torch.musa.streams"}


@pytest.mark.parametrize("chip", CHIPS, ids=names)
def test_every_figure_of_a_sku_has_a_source(chip: Chip) -> None:
    for sku in chip.skus:
        assert sku.source, sku.name


def test_a_sku_is_found_by_what_the_chip_calls_itself() -> None:
    ascend = get("ascend")
    found = {name: ascend.sku(name) for name in ("Ascend910B3", "910_93", "Ascend910B4-1", "B7")}
    assert [sku.name if sku else None for sku in found.values()] == [
        "910B3",
        "910_93",
        "910B4-1",
        None,
    ]
    hopper = get("nvidia").sku("NVIDIA H100 80GB HBM3")
    assert hopper is not None
    assert hopper.peak_tflops["bfloat16"] == 989


# Code about one vendor lives in files or folders that say so by name; the rest knows no chip.
ABOUT_ONE_VENDOR = ("run/rehearse/",)
SAYS_SO = re.compile(r"(^|/)(vendor_\w+|\w+_vendor)\.py$")


def test_no_vendor_name_in_the_core() -> None:
    words = {"huawei", "cambricon"}
    for chip in CHIPS:
        if chip.origin:
            continue
        words |= {chip.name, *chip.aliases, chip.package or "", chip.distribution or ""}
        if not chip.keeps_device:
            words |= {chip.device, chip.backend}
    words -= {"", "torch"}
    assert {"ascend", "npu", "hccl", "mlu", "musa", "hygon", "rocm"} <= words
    pattern = re.compile(
        rf"(?<![A-Za-z0-9])({'|'.join(map(re.escape, sorted(words)))})(?![A-Za-z0-9])", re.I
    )
    alone = "|".join(sorted(word for word in words if word.isalpha()))
    own = re.compile(rf"(^|/)\w*({alone})\w*(\.py$|/)")
    files = [p for p in ROOT.rglob("*.py") if "_rules" not in p.parts]
    files += (rules_root() / "common").rglob("*.yaml")
    found = []
    for path in files:
        name = path.relative_to(ROOT if path.suffix == ".py" else rules_root()).as_posix()
        if name.startswith(ABOUT_ONE_VENDOR) or SAYS_SO.search(name) or own.search(name):
            continue
        text = path.read_text(encoding="utf-8").replace("ascend_resolver", "")  # PyYAML's
        lines = text.splitlines()
        found += [f"{name}:{n}: {line}" for n, line in enumerate(lines, 1) if pattern.search(line)]
    assert found == []


def test_reading_chips_imports_nothing_heavy() -> None:
    program = (
        "import sys; from joymigrate.chips import all_chips, origin, relate, target\n"
        "relate(origin(), target(None)).name('Stream')\n"
        "print({'torch', 'pandas', 'libcst', 'numpy', 'packaging'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr
