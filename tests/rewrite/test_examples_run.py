"""What rules write runs: every example in Python, in every style, on the simulated chip."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from joymigrate import __version__, chips
from joymigrate.model import Case, Style
from joymigrate.rewrite import cases, helper, rules
from joymigrate.rewrite.context import Context
from tests.rewrite.test_cases import rewritten, scanned

RUNNER = Path(__file__).parent / "example_runner.py"
STYLES = (Style.DIRECT, Style.AGNOSTIC, Style.ACCELERATOR)
# Examples that can't run by themselves, and why.
NOT_RUN = {
    "JM120-6": "torchdata is not installed here",
    "JM191-7": "a build script: setuptools would build",
    "JM191-10": "a build script: setuptools would build",
    "JM235-2": "keys and lengths of a real batch are needed",
}


def examples(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Each example as its style writes it, and as the others do, with the files beside it."""
    chip, origin = chips.target(None), chips.origin()
    for rule in rules.common_rules():
        for number, case in enumerate(rule.cases, 1):
            here = case.chip in (None, chip.name) and case.file.endswith(".py")
            if case.keep or not here or f"{rule.id}-{number}" in NOT_RUN:
                continue
            for style in STYLES:
                name = f"{rule.id}-{number}-{style.value}"
                text = written(case, style, folder / name)
                if text is None:
                    continue
                files = {case.file: text, **dict(case.files)}
                if style is Style.AGNOSTIC:
                    files["joymigrate_device.py"] = helper.source(origin, chip, __version__)
                yield name, files


def written(case: Case, style: Style, folder: Path) -> str | None:
    """The example in a style; None where the style leaves it as it is."""
    context = Context.between(chips.target(case.chip), chips.origin(), style)
    filled = cases.fill_case(replace(case, style=style), context)
    if style is case.style:
        return filled.after
    text = rewritten(scanned(filled, folder), filled)
    return None if text == filled.before else text


@pytest.mark.slow
def test_every_example_runs_on_the_simulated_chip(tmp_path: Path) -> None:
    made = [{"id": name, "files": files} for name, files in examples(tmp_path / "made")]
    (tmp_path / "examples.json").write_text(json.dumps(made))
    words = [sys.executable, str(RUNNER), "examples.json", "results.json"]
    done = subprocess.run(
        [sys.executable, "-m", "joymigrate", "rehearse", "-q", "--", *words],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    if "rehearse setup" in done.stderr:
        pytest.skip("the vendor's package is not set up here")
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results) == [each["id"] for each in made], done.stderr[-2000:]
    assert {name: why for name, why in results.items() if why} == {}
