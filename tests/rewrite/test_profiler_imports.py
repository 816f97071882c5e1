"""An import of the profiler's names moves but for what the chip's profiler lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.model import Style
from tests.rewrite.projects import findings, rewritten

HEAD = "import torch\nfrom torch.profiler import ProfilerActivity{}, profile\n"
BODY = """\
kinds = [{0}.CPU]
if torch.cuda.is_available():
    kinds.append({0}.CUDA)
{1}
    kinds.append({0}.XPU)
with profile(activities=kinds):
    step()
"""


@pytest.mark.parametrize("name", ["ProfilerActivity", "PA"])
def test_an_activity_that_the_chip_lacks_keeps_its_import(name: str, tmp_path: Path) -> None:
    alias = "" if name == "ProfilerActivity" else f" as {name}"
    text = HEAD.format(alias) + BODY.format(name, "if asked:")
    after = rewritten(tmp_path, text)
    assert f"from torch.profiler import ProfilerActivity{alias}, profile\n" in after
    assert "from torch_npu.profiler import profile\n" in after
    assert "kinds = [torch_npu.profiler.ProfilerActivity.CPU]" in after
    assert "kinds.append(torch_npu.profiler.ProfilerActivity.NPU)" in after
    assert f"kinds.append({name}.XPU)" in after
    told = findings(tmp_path / "again", text, "JM160")
    assert any(f.before == f"{name}.XPU" and not f.edits for f in told)


def test_an_activity_behind_another_back_end_does_not_hold_the_import(tmp_path: Path) -> None:
    text = HEAD.format("") + BODY.format("ProfilerActivity", "elif torch.xpu.is_available():")
    after = rewritten(tmp_path, text)
    assert "from torch_npu.profiler import ProfilerActivity, profile\n" in after
    assert "kinds.append(ProfilerActivity.NPU)" in after
    assert "kinds.append(ProfilerActivity.XPU)" in after


def test_the_helper_is_not_asked_for_an_activity_that_the_chip_lacks(tmp_path: Path) -> None:
    text = HEAD.format("") + BODY.format("ProfilerActivity", "if asked:")
    after = rewritten(tmp_path, text, Style.AGNOSTIC)
    assert "kinds.append(jm.profiler_activity())" in after
    assert "kinds.append(ProfilerActivity.XPU)" in after


def test_a_list_with_such_an_activity_stays_whole(tmp_path: Path) -> None:
    text = HEAD.format("") + "many = [ProfilerActivity.CUDA, ProfilerActivity.XPU]\n"
    for style in (Style.DIRECT, Style.AGNOSTIC):
        folder = tmp_path / style.value
        assert "many = [ProfilerActivity.CUDA, ProfilerActivity.XPU]" in rewritten(
            folder, text, style
        )
