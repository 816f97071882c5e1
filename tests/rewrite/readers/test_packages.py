"""Requirements in every file and command that names them."""

from __future__ import annotations

import pytest

from joymigrate.model import Tier
from joymigrate.rewrite.readers._packages import package_advice
from tests.rewrite.readers.moved import context_of, found, moved, rules


def test_a_build_for_the_toolkit_becomes_the_plain_one_with_its_companion() -> None:
    change = package_advice("torch==2.1.0+cu121", context_of())
    assert change is not None
    assert (change.after, change.also) == ("torch==2.1.0", ("torch-npu==2.1.0.*",))
    assert change.tier is Tier.UNSAFE


def test_an_unknown_version_says_which_ones_are_known() -> None:
    change = package_advice("torch==1.5.0", context_of())
    assert change is not None
    assert "no build for torch 1.5.0 is known (known: 2.13.0" in change.reason


@pytest.mark.parametrize("name", ["numpy", "torchmetrics", "pytorch-lightning", "transformers"])
def test_packages_that_run_anywhere_may_stay(name: str) -> None:
    assert package_advice(f"{name}>=1", context_of()) is None


def test_a_pin_below_the_first_version_that_knows_the_target_is_reported() -> None:
    change = package_advice("transformers==4.19.2", context_of())
    assert change is not None
    assert change.tier is Tier.REPORT
    assert "use transformers >=" in change.reason


@pytest.mark.parametrize("name", ["flash_attn", "Flash-Attn", "nvidia-cudnn-cu12", "cupy-cuda12x"])
def test_packages_of_the_vendor_are_reported_with_a_dated_reason(name: str) -> None:
    change = package_advice(name, context_of())
    assert change is not None
    assert change.tier is Tier.REPORT
    assert "as of 20" in change.reason


def test_a_name_that_a_chip_says_nothing_about_is_reported_as_unknown() -> None:
    change = package_advice("py3nvml", context_of("musa"))
    assert change is not None
    assert change.tier is Tier.REPORT


def test_between_two_other_chips_only_the_companion_changes() -> None:
    context = context_of("ascend", "cambricon")
    assert package_advice("torch==2.6.0", context) is None
    change = package_advice("torch_mlu==2.6.0", context)
    assert change is not None
    assert change.after == "torch-npu==2.6.0"


def test_requirements_get_a_line_of_their_own() -> None:
    before = "numpy\r\n  torch==2.1.0+cu121  # pinned\r\ntorchvision==0.16.0+cu121"
    assert moved("requirements.txt", before, unsafe=True) == (
        "numpy\r\n  torch==2.1.0  # pinned\r\n  torch-npu==2.1.0.*\r\ntorchvision==0.16.0"
    )
    assert moved("requirements.txt", before) == before


def test_a_companion_repeats_the_marker() -> None:
    before = 'torch>=2.1; sys_platform == "linux"'
    assert moved("requirements.txt", before, unsafe=True) == (
        f'{before}\ntorch-npu>=2.1; sys_platform == "linux"'
    )


def test_a_companion_that_is_listed_is_not_added() -> None:
    assert found("requirements.txt", "torch==2.1.0\ntorch_npu==2.1.0\n") == []


def test_a_hash_is_never_contradicted() -> None:
    text = "torch==2.1.0 --hash=sha256:00\n"
    assert rules("requirements.txt", text) == [("JM191", "report", "torch==2.1.0")]


@pytest.mark.parametrize(
    "option", ["--extra-index-url ", "--index-url ", "--index-url=", "-i ", "-f"]
)
def test_an_index_of_toolkit_builds_becomes_the_plain_one(option: str) -> None:
    before = f"{option}https://example.org/whl/cu121\ntorch\ntorch-npu\n"
    assert moved("requirements.txt", before, unsafe=True) == before.replace("cu121", "cpu")


def test_options_comments_and_includes_of_requirements_stay() -> None:
    text = "-r base.txt\n-e .\n# torch==2.1+cu121\n--no-binary flash\n./local.whl\n"
    assert found("requirements/dev.txt", text) == []


def test_a_wheel_for_the_toolkit_is_reported() -> None:
    text = "https://example.org/whl/cu121/torch-2.1.0%2Bcu121-cp310-linux_x86_64.whl\n"
    assert [tier for _, tier, _ in rules("requirements.txt", text)] == ["report"]


def test_lists_of_pyproject_keep_their_layout() -> None:
    before = (
        '[project]\nname = "torch-cuda"\ndependencies = [\n    "torch>=2.1",  # cuda\n'
        '    "flash-attn",\n]\n[project.optional-dependencies]\ngpu = ["torch==2.1.0+cu121"]\n'
    )
    after = moved("pyproject.toml", before, unsafe=True)
    assert '    "torch>=2.1",\n    "torch-npu>=2.1",  # cuda\n' in after
    assert 'gpu = ["torch==2.1.0", "torch-npu==2.1.0.*"]' in after
    assert moved("pyproject.toml", after, unsafe=True) == after


def test_tables_of_packages_are_reported() -> None:
    poetry = '[tool.poetry.dependencies]\npython = "^3.10"\ntorch = "2.1"\nxformers = "*"\n'
    assert [name for _, _, name in rules("pyproject.toml", poetry)] == ["torch", "xformers"]
    assert [name for _, _, name in rules("Pipfile", '[packages]\ncupy = "*"\n')] == ["cupy"]


def test_setup_cfg_gets_a_line_of_its_own() -> None:
    before = "[options]\ninstall_requires =\n    numpy\n    torch==2.1.0\npython_requires = >=3.8\n"
    after = moved("setup.cfg", before, unsafe=True)
    assert after == before.replace("torch==2.1.0\n", "torch==2.1.0\n    torch-npu==2.1.0.*\n")


def test_condas_own_packages_are_reported_and_pips_are_moved() -> None:
    before = (
        "name: x\nchannels: [pytorch, nvidia]\ndependencies:\n  - pytorch=2.1\n"
        "  - cudatoolkit=11.3\n  - pip:\n    - torch==2.1.0+cu121\n    - einops\n"
    )
    after = moved("environment.yml", before, unsafe=True)
    assert after == before.replace(
        "torch==2.1.0+cu121\n", "torch==2.1.0\n    - torch-npu==2.1.0.*\n"
    )
    reported = [name for _, tier, name in rules("environment.yml", before) if tier == "report"]
    assert reported == ["nvidia", "pytorch=2.1", "cudatoolkit=11.3"]


def test_a_yaml_file_of_other_dependencies_is_no_environment() -> None:
    assert found("galaxy.yml", "dependencies:\n  - name: torch\n    version: 1\n") == []


def test_a_vendor_with_builds_of_its_own_is_not_sent_to_the_plain_ones() -> None:
    text = "--index-url https://example.org/whl/cu121\ntorch==2.1.0+cu121\n"
    assert moved("requirements.txt", text, to="hygon", unsafe=True) == text
    reasons = [str(f.reason) for f in found("requirements.txt", text, to="hygon")]
    assert all("builds of its own" in reason for reason in reasons)
    assert len(reasons) == 2
