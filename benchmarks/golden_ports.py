"""Rewrites the parent of a human port and compares device lines with what the human wrote.

    python -m benchmarks.golden_ports BEFORE AFTER [--style agnostic] [--rename OLD=NEW]
    python -m benchmarks.golden_ports --mirrors DIR [--port NAME …] [--style agnostic]

BEFORE and AFTER are checkouts of a project before and after somebody ported it by hand. A device
line is a line that the human changed or removed and that names the origin's device or backend.
Printed: how many of them the tool changed too (touched), how many came out equal after both sides'
helper names are mapped to one form (equal), and how many other lines the tool changed (extra).
Lines that the tool adds (an import) are counted apart. Lines that the tool did not change are
looked up in golden_ports.yaml, which says why of each; those without a reason are printed.

Used on: DETR (facebookresearch/detr fe752a8 → Ascend/ModelZoo-PyTorch
PyTorch/contrib/cv/detection/DETR) in style direct; verl (0528ba118^ → 0528ba118) in agnostic.
"""

from __future__ import annotations

import argparse
import difflib
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from joymigrate import chips
from joymigrate.chips import read_yaml
from joymigrate.model import Style, Tier
from joymigrate.rewrite import patches, scan

DEVICE = re.compile(r"cuda|nccl", re.I)
# Both sides' helpers in one form. What differs beyond names stays different.
FORMS = [
    (r"get_torch_device\(\)|jm\.device_module\(\)", "<MODULE>"),
    (r"\bget_device_name\(\)|\bself\.device_name\b|\bdevice_name\b", "<DEVICE>"),
    (r"jm\.device_type\(\)|jm\.device\(\)|jm\.accelerator\(\)", "<DEVICE>"),
    (r"\"nccl\" if is_cuda_available else \"hccl\"", "<BACKEND>"),
    (r"\"cpu:gloo,cuda:nccl\" if is_cuda_available else \"cpu:gloo,npu:hccl\"", "<BACKEND2>"),
    (r"jm\.dist_backend\(with_cpu=True\)", "<BACKEND2>"),
    (r"jm\.dist_backend\(\)", "<BACKEND>"),
    (r"jm\.device\((<MODULE>\.current_device\(\))\)", r"\1"),
    (r"\.to\(device=", ".to("),
    (r"\s+", " "),
]


# Ports of public projects: name → (repository, commit before, commit after). The first three are
# asked for; the next eight, later eight more, and the last five were chosen by author and year
# before the tool was run on any of them.
PORTS = {
    "mmengine": ("open-mmlab/mmengine", "601db12d^", "601db12d"),
    "torchtune": ("pytorch/torchtune", "c5f20b967^", "c5f20b967"),
    "verl": ("volcengine/verl", "ca65c363f^", "ca65c363f"),
    "mmcv": ("open-mmlab/mmcv", "ba9c36bf8^1", "ba9c36bf8"),  # 2022
    "FastChat": ("lm-sys/FastChat", "c685951d^", "c685951d"),  # 2023
    "peft": ("huggingface/peft", "d99ea2913^", "d99ea2913"),  # 2023
    "lm-eval": ("EleutherAI/lm-evaluation-harness", "cfced1104^", "cfced1104"),  # 2024
    "sentence-transformers": ("huggingface/sentence-transformers", "454cb376^", "454cb376"),
    "open_clip": ("mlfoundations/open_clip", "b92a266^", "b92a266"),  # 2024
    "trl": ("huggingface/trl", "a6c0c57f6^", "a6c0c57f6"),  # 2025
    "FunASR": ("modelscope/FunASR", "34360664e^", "34360664e"),  # 2026
    "accelerate": ("huggingface/accelerate", "c33adecc^", "c33adecc"),  # 2023-07
    "mmpretrain": ("open-mmlab/mmpretrain", "c5248b17^", "c5248b17"),  # 2023-07
    "wenet": ("wenet-e2e/wenet", "dec409bf^", "dec409bf"),  # 2024-06
    "xtuner": ("InternLM/xtuner", "2c06115f6^", "2c06115f6"),  # 2025-01
    "ms-swift": ("modelscope/ms-swift", "6df7932f4^", "6df7932f4"),  # 2025-02
    "torchchat": ("pytorch/torchchat", "701d8265^", "701d8265"),  # 2025-04
    "AReaL": ("inclusionAI/AReaL", "a327a9fc2^", "a327a9fc2"),  # 2025-09
    "DiffSynth-Studio": ("modelscope/DiffSynth-Studio", "2883bc1b^", "2883bc1b"),  # 2025-12
    "ColossalAI": ("hpcaitech/ColossalAI", "d202cc28c^", "d202cc28c"),  # 2024-01
    "FlagEmbedding": ("FlagOpen/FlagEmbedding", "f121479^", "f121479"),  # 2024-02
    "opencompass": ("open-compass/opencompass", "28eba6fe^", "28eba6fe"),  # 2024-07
    "timm": ("huggingface/pytorch-image-models", "234f9757^", "234f9757"),  # 2024-10
    "ROLL": ("alibaba/ROLL", "f70037b5^", "f70037b5"),  # 2025-09
}


def canonical(line: str) -> str:
    """A line with both sides' helper names mapped to one form."""
    for pattern, form in FORMS:
        line = re.sub(pattern, form, line)
    return line.strip()


def changes(before: list[str], after: list[str]) -> dict[int, list[str]]:
    """Changed or removed lines of `before` (from 1), with the lines that took their place."""
    found: dict[int, list[str]] = {}
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, start, end, new_start, new_end in matcher.get_opcodes():
        if tag in ("replace", "delete"):
            for number in range(start, end):
                found[number + 1] = after[new_start:new_end]
    return found


@dataclass(frozen=True, slots=True)
class Score:
    """One comparison: lines that the human changed, and what the tool did with them."""

    human: int
    touched: int
    equal: int
    told: int  # reported instead
    silent: int
    extra: int  # other lines of the same files
    added: int
    argued: int  # of the lines that the tool did not change

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.human} device lines changed by the human; touched {self.touched}, "
            f"equal {self.equal}, reported instead {self.told}, silent {self.silent}, "
            f"of both argued {self.argued}; "
            f"extra lines in the same files {self.extra}; import lines added {self.added}"
        )


def reasons(port: str) -> dict[str, str]:
    """Parts of lines that the tool leaves in a port, each with why."""
    data = read_yaml(Path(__file__).with_suffix(".yaml"))
    return {each["line"]: data["reasons"][each["why"]] for each in data["exceptions"].get(port, ())}


def compare(
    root: Path,
    after: Path,
    style: Style,
    renamed: dict[str, str],
    *,
    listed: bool,
    port: str = "",
) -> Score:
    """Rewrite `root` in memory and compare it with what a human made of it in `after`."""
    result = scan([root], chip=chips.target(None), origin=chips.origin(), style=style)
    rewritten = {patch.path: patch for patch in patches(result)}
    reported = {(f.path, f.line) for f in result.findings if f.tier is not Tier.SAFE}
    human_lines = touched = equal = extra = told = added = argued = 0
    known = reasons(port)
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        other = after / renamed.get(name, name)
        before = path.read_text(encoding="utf-8", errors="replace").splitlines()
        patch = rewritten.get(path)
        ours = patch.after.decode().splitlines() if patch and patch.after else before
        theirs = (
            other.read_text(encoding="utf-8", errors="replace").splitlines()
            if other.is_file()
            else before
        )
        human = {
            n: new for n, new in changes(before, theirs).items() if DEVICE.search(before[n - 1])
        }
        tool = changes(before, ours)
        added += len(ours) - len(before)
        human_lines += len(human)
        for number, new in human.items():
            if number not in tool:
                line = before[number - 1].strip()
                told += (name, number) in reported
                why = next((why for part, why in known.items() if part in line), None)
                argued += why is not None
                if listed or (port and why is None):
                    said = "reported" if (name, number) in reported else "silent"
                    print(f"{said:9} {name}:{number} {line}\n   why   {why or 'NOT ARGUED'}")
                continue
            touched += 1
            mine = [canonical(line) for line in tool[number]]
            hit = any(canonical(line) in mine for line in new)
            equal += hit
            if listed and not hit:
                print(f"different {name}:{number}\n   ours  {tool[number]}\n   human {new}")
        if other.is_file() and human:
            more = [n for n in tool if n not in human]
            extra += len(more)
            if listed:
                for number in more:
                    print(f"extra     {name}:{number} {before[number - 1].strip()}")
    silent = human_lines - touched - told
    return Score(human_lines, touched, equal, told, silent, extra, added, argued)


def checkout(mirror: Path, commit: str, folder: Path) -> Path:
    """The Python files of a commit, as a tree below `folder`."""
    folder.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "-C", str(mirror), "archive", commit, "*.py"], capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "x", "-C", str(folder)], input=archive, check=True)
    return folder


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, nargs="?")
    parser.add_argument("after", type=Path, nargs="?")
    parser.add_argument("--style", default="direct")
    parser.add_argument(
        "--rename", action="append", default=[], help="OLD=NEW, a file the port renamed"
    )
    parser.add_argument("--list", action="store_true", help="show every line that is not equal")
    parser.add_argument("--mirrors", type=Path, help="folder of OWNER+NAME/repo git folders")
    parser.add_argument("--port", action="append", default=[], help="names of PORTS; default all")
    options = parser.parse_args()
    if options.mirrors is None:
        renamed = dict(item.split("=") for item in options.rename)
        style = Style(options.style)
        print(compare(options.before, options.after, style, renamed, listed=options.list))
        return
    for name, (repository, before, after) in PORTS.items():
        if options.port and name not in options.port:
            continue
        mirror = options.mirrors / repository.replace("/", "+") / "repo"
        with tempfile.TemporaryDirectory() as folder:
            old = checkout(mirror, before, Path(folder) / "before")
            new = checkout(mirror, after, Path(folder) / "after")
            style = Style(options.style)
            score = compare(old, new, style, {}, listed=options.list, port=name)
        print(f"{name}: {score}", flush=True)


if __name__ == "__main__":
    main()
