"""Scan and rewrite public projects, and check what a rewrite promises on each.

    python -m benchmarks.public_projects --sources DIR [--case NAME …]

DIR holds a checkout of each project under its name, at the commit of the list below. Printed per
project: sites by tier, files that a rewrite changes, and three checks over both styles, with and
without the edits that need a look: every Python and JSON file that was readable still is, a second
rewrite changes nothing, and safe direct edits are undone by
the way back (`--from ascend --to nvidia`). A check that fails names its files.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import warnings
from collections import Counter
from pathlib import Path

from joymigrate import chips
from joymigrate.model import Scan, Style, Tier
from joymigrate.rewrite import patches, scan

COMMITS = {
    "hifi-gan": "jik876/hifi-gan 4769534",
    "tacotron2": "NVIDIA/tacotron2 185cd24",
    "YOLOX": "Megvii-BaseDetection/YOLOX 6ddff48",
    "whisper": "openai/whisper c0d2f62",
    "BasicSR": "xinntao/BasicSR d21eac8",
    "stylegan2-ada-pytorch": "NVlabs/stylegan2-ada-pytorch d72cc7d",
    "open_clip": "mlfoundations/open_clip 89fb801",
    "OpenPCDet": "open-mmlab/OpenPCDet 8caccce",
    "lightning-hydra-template": "ashleve/lightning-hydra-template bddbc24",
    "cleanrl": "vwxyzjn/cleanrl fe8d8a0",
}


def readable(path: Path, data: bytes) -> bool:
    """Whether a Python or JSON file can be parsed; True for every other file."""
    try:
        if path.suffix == ".py":
            compile(data, str(path), "exec", dont_inherit=True)
        elif path.suffix in (".json", ".ipynb"):
            json.loads(data)
    except (SyntaxError, ValueError):
        return False
    return True


def rewritten(
    root: Path, style: Style, *, unsafe: bool, back: bool = False
) -> tuple[Scan, int, list[str]]:
    """Rewrite in place: the scan, the number of files changed, and files that broke."""
    here, there = chips.origin(), chips.target(None)
    if back:
        here, there = there, here
    found = scan([root], chip=there, origin=here, style=style)
    made = list(patches(found, unsafe=unsafe))
    broken = []
    for patch in made:
        old = patch.path.read_bytes() if patch.path.exists() else b""
        assert patch.after is not None
        if readable(patch.path, old) and not readable(patch.path, patch.after):
            broken.append(patch.path.name)
        patch.path.write_bytes(patch.after)
    return found, len(made), broken


def contents(root: Path) -> dict[str, bytes]:
    """Every file's bytes."""
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def case(name: str, source: Path, folder: Path) -> list[str]:
    """One row of the table."""
    before, failed, counts, changed = None, [], Counter[Tier](), 0
    for style in (Style.DIRECT, Style.AGNOSTIC):
        for unsafe in (False, True):
            root = folder / f"{name}-{style.value}-{unsafe}"
            shutil.copytree(source, root, ignore=shutil.ignore_patterns(".git"), symlinks=True)
            before = before or contents(root)
            found, files, broken = rewritten(root, style, unsafe=unsafe)
            failed += [f"unreadable: {each}" for each in broken]
            failed += ["second run"] * bool(rewritten(root, style, unsafe=unsafe)[1])
            if style is Style.DIRECT and not unsafe:
                counts, changed = Counter(finding.tier for finding in found.findings), files
                rewritten(root, style, unsafe=False, back=True)
                after = contents(root)
                failed += [f"way back: {p}" for p in before if before[p] != after.get(p)]
            shutil.rmtree(root)
    sites = " / ".join(str(counts[tier]) for tier in (Tier.SAFE, Tier.UNSAFE, Tier.REPORT))
    return [COMMITS[name], f"{found.scanned}", sites, str(changed), ", ".join(failed) or "held"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--case", action="append", choices=list(COMMITS))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| project | files read | safe / unsafe / reported | files changed | checks |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in given.case or COMMITS:
            row = case(name, given.sources / name, Path(folder))
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
