"""docs/how-to/bring-your-own-chip.md does what it says, and chips.md explains every key."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PAGE = HOW_TO / "bring-your-own-chip.md"
BLOCK = re.compile(
    r"(?:^`(?P<file>[^`]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)
PIP = "-m pip install -q --no-deps --no-build-isolation --no-index --target site"


def test_the_page_adds_a_chip_from_a_package(tmp_path: Path) -> None:
    python = shlex.quote(sys.executable)
    site = tmp_path / "site"
    environment = {**os.environ, "PYTHONPATH": str(site), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    ran = 0
    for block in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        if block["file"]:
            path = tmp_path / block["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block["text"])
        if block["kind"] != "console":
            continue
        for part in block["text"].split("$ ")[1:]:
            command, *expected = part.splitlines()
            line = re.sub(r"^joymigrate\b", f"{python} -m joymigrate", command)
            line = re.sub(r"^pip install", f"{python} {PIP}", line)
            done = subprocess.run(
                line,
                shell=True,
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            shown = done.stdout + done.stderr
            # `validate` of a wrong folder and `rewrite --diff` say 1.
            assert done.returncode in (0, 1), f"{command}\n{shown}"
            for text in expected:
                assert text in shown, f"{command}\nexpected {text!r} in\n{shown}"
            ran += 1
    assert ran == 10


def test_every_key_of_a_chip_is_explained() -> None:
    from joymigrate.chips.load import ChipFile
    from joymigrate.chips.validate_names import API_KEYS

    page = (HOW_TO / "chips.md").read_text(encoding="utf-8")
    unsaid = {"schema", "notes"}  # they explain themselves
    keys = {one.name for one in dataclasses.fields(ChipFile)}
    for key in {*keys, *(f"api.{key}" for key in API_KEYS)} - unsaid - {"api"}:
        assert f"`{key}`" in page, key
