"""The README's commands, run as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- tested: (\S+) -->\n```bash\n(.*?)```", README, re.S)


@pytest.mark.parametrize(("folder", "script"), BLOCKS, ids=[b[1].split("\n")[0] for b in BLOCKS])
def test_a_block_of_the_readme_runs(folder: str, script: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / folder, project)
    beside = str(Path(sys.executable).parent)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=project,
        env={**os.environ, "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_has_blocks_that_run() -> None:
    assert len(BLOCKS) >= 2


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([\w./-]+)\)", README):
        assert (ROOT / target).exists(), target
