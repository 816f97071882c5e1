"""The README's commands, and those of how-to pages that ask for it, run as they stand there.

Each block of commands says above itself what happens to it:

    <!-- tested: FOLDER -->                     run in a fresh copy of FOLDER
    <!-- tested: FOLDER, slow -->               the same, by `make test-slow`
    <!-- tested: FOLDER, slow, as NAME -->      after the lines of PREPARED[NAME]
    <!-- not run: REASON -->                    and why

A block of the README without such a line fails. A `text` block below `<!-- printed -->` is what the
block of commands before it prints, figures apart; `…` stands for anything.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import pages

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?:^<!-- ([^\n]*?) -->\n)?^```(\w*)\n(.*?)^```$", re.M | re.S)
TESTED = re.compile(r"tested: (?P<folder>[^\s,]+)(?P<slow>, slow)?(?:, as (?P<name>\w+))?")

# What a reader has at that point of the README, and a test has to make first; smaller where the
# whole thing would take minutes.
PREPARED = {
    # `joymigrate run` is left out: it needs a chip.
    "rehearsal": r"""
        sed -i 's/default=400/default=2/; /eval-sums/s/default=64/default=0/' train.py
        joymigrate rewrite . --quiet
        joymigrate() { [ "$1" = run ] && return 0; command joymigrate "$@"; }
    """,
    # Both sides without mixed precision, which this program leaves away on a CPU.
    "verification": r"""
        sed -i 's/default=400/default=3/; s/default=128/default=32/; s/use_amp = .*/use_amp = False/
            /batch-size/s/default=64/default=4/; /eval-sums/s/default=64/default=0/' train.py
        joymigrate rewrite . --style agnostic --quiet
        cp train.py train_npu.py
        for id in $(seq 2000); do
            echo "{\"id\": \"$id\", \"prediction\": 1, \"reference\": 1}"
        done | tee gpu.jsonl > npu.jsonl
    """,
    # Exit code 1 says that something was found or would change.
    "findings": r"""
        git init -q . && git add -A && git -c user.name=a -c user.email=a@b.c commit -qm first
        joymigrate() { command joymigrate "$@" || [ $? = 1 ]; }
    """,
    "recorded": r"""
        cp train.py train_npu.py
        joymigrate verify record -o base.jmb --steps 0-2 --batches 9MiB -- python train.py --steps 4
        joymigrate verify record -o npu.jmb --steps 0-2 -- python train.py --steps 4
        joymigrate verify pack base.jmb -o base.jmb.tar
    """,
    "journey": r"""
        joymigrate migrate . --entry "python train.py --steps 3" --until rewrite --quiet
    """,
    "portfolio": r"""
        for name in vision ranking; do mkdir ../$name && cp *.py ../$name; done
        echo '- {path: ../vision, name: vision}' > repos.yaml
        echo '- {path: ../ranking, name: ranking, to: musa}' >> repos.yaml
        joymigrate() { command joymigrate "$@" || [ $? = 1 ]; }
    """,
    # The server is asked once, and ended.
    "training": r"""
        sed -i 's/^steps: 250/steps: 20/' examples/finetune/job.yaml
        joymigrate() {
          [ "$1" = serve ] || { command joymigrate "$@"; return; }
          command joymigrate "$@" --device cpu & local server=$!
          curl -fs --retry 90 --retry-delay 1 --retry-connrefused localhost:8000/v1/models
          kill "$server"; wait "$server" || true
        }
    """,
}


@dataclass(frozen=True, slots=True)
class Block:
    """One block of commands: its line above, its text, and what the README says it prints."""

    mark: str
    script: str
    printed: str | None = None

    @property
    def name(self) -> str:
        return self.script.split("\n")[0]


def blocks(text: str) -> list[Block]:
    """The blocks of commands of a page."""
    found: list[Block] = []
    for mark, kind, body in BLOCK.findall(text):
        if kind in ("bash", "console", "sh"):
            found.append(Block(mark, body))
        elif mark == "printed" and found:
            found[-1] = Block(found[-1].mark, found[-1].script, body)
    return found


README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = blocks(README)
HOW_TO = [
    block
    for page in sorted((ROOT / "docs" / "how-to").glob("*.md"))
    for block in blocks(page.read_text(encoding="utf-8"))
]
TESTED_BLOCKS = [one for one in (*BLOCKS, *HOW_TO) if one.mark.startswith("tested")]


def parameter(block: Block) -> object:
    found = TESTED.fullmatch(block.mark)
    marks = [pytest.mark.slow] if found and found["slow"] else []
    if "rehearse" in block.script or "migrate migrate" in block.script:
        marks.append(pytest.mark.compiler)
    return pytest.param(block, id=block.name, marks=marks)


@pytest.mark.parametrize("block", [parameter(block) for block in TESTED_BLOCKS])
def test_a_marked_block_runs(block: Block, tmp_path: Path) -> None:
    found = TESTED.fullmatch(block.mark)
    assert found, f"not a mark: {block.mark}"
    project = tmp_path / "project"
    where = project / found["folder"] if found["folder"] == "examples" else project
    shutil.copytree(ROOT / found["folder"], where)
    beside = str(Path(sys.executable).parent)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", PREPARED.get(found["name"] or "", "") + block.script],
        cwd=project,
        env=pages.environment()
        | {"PATH": f"{beside}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=pages.SECONDS,
    )
    assert done.returncode == 0, done.stdout
    if block.printed is not None:
        shown = ["…", *block.printed.strip("\n").split("\n"), "…"]
        printed = [line.rstrip() for line in done.stdout.split("\n")]
        assert pages.matches(shown, printed, vary=True), f"{block.printed}\nprinted:\n{done.stdout}"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_every_block_is_run_or_says_why_not(block: Block) -> None:
    assert block.mark, "say `<!-- tested: FOLDER -->` or `<!-- not run: REASON -->` above it"
    if TESTED.fullmatch(block.mark) is None:
        reason = re.fullmatch(r"not run: (.{10,})", block.mark)
        assert reason, f"neither tested nor a reason: {block.mark}"


def test_the_readme_has_blocks_that_run() -> None:
    assert sum(block.mark.startswith("tested") for block in BLOCKS) >= 3


def test_an_unmarked_block_is_found() -> None:
    text = (
        "a\n```bash\nls\n```\n<!-- tested: examples/gpt, slow, as training -->\n```bash\nls\n```\n"
    )
    first, second = blocks(text)
    assert first.mark == ""
    found = TESTED.fullmatch(second.mark)
    assert found
    assert found.groups() == ("examples/gpt", ", slow", "training")


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([\w./-]+)\)", README):
        assert (ROOT / target).exists(), target
