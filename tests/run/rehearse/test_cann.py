"""Which version of the chip's software a rehearsal tells the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.rehearse import report
from joymigrate.run.rehearse.options import cann_version, with_cann
from joymigrate.run.rehearse.settings import RehearsalSettings
from tests.run.rehearse.conftest import Run

PLAIN = RehearsalSettings(session=Path(), libraries=Path(), package="2.13.0")


@pytest.mark.parametrize(
    ("text", "version"),
    [("8.3.rc1", "8.3.RC1"), ("CANN 9.2.0", "9.2.0"), ("cann-8.0.0", "8.0.0"), ("9.1", "9.1")],
)
def test_versions_are_written_as_the_package_compares_them(text: str, version: str) -> None:
    assert cann_version(text) == version


@pytest.mark.parametrize("text", ["x", "9", "", "9.1.", "9.1 or later"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(JoyError, match="no version of CANN"):
        cann_version(text)


@pytest.mark.parametrize(
    ("package", "version"),
    [("2.13.0", "9.2.0"), ("2.7.1", "8.3.RC1"), ("2.7.1.post6", "9.2.0"), ("2.13.0.dev9", "9.2.0")],
)
def test_unnamed_it_is_the_one_that_the_release_came_out_with(package: str, version: str) -> None:
    assert with_cann(PLAIN, package).cann == version


def test_a_pair_that_no_source_names_is_said_before_the_program_starts() -> None:
    from dataclasses import replace

    told = report.banner(with_cann(replace(PLAIN, cann="7.0.0"), "2.13.0"))
    assert "torch_npu 2.13.0 works with CANN 7.0.0" in told
    told = report.banner(with_cann(replace(PLAIN, cann="9.1.0"), "2.13.0"))
    assert "works with" not in told
    assert "what kernels take was recorded of CANN 9.0 and 9.1" in told
    assert "CANN" not in report.banner(with_cann(PLAIN, "2.13.0"))


ASK = """
import torch_npu
from torch_npu.npu.utils import get_cann_version, _is_gte_cann_version
print(get_cann_version(), _is_gte_cann_version("9.0.0"))
"""


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param((), "9.2.0 True", marks=pytest.mark.slow),
        (("--cann", "8.5.0"), "8.5.0 False"),
    ],
)
def test_the_package_is_told(rehearse: Run, options: tuple[str, ...], said: str) -> None:
    done = rehearse("python", "-c", ASK, options=options)
    assert done.out.strip() == said
    assert done.report is not None
    assert done.report["package"]["cann"] == said.split()[0]
