"""Rewrites the parent of a human port and compares device lines with what the human wrote.

    python -m benchmarks.golden_ports BEFORE AFTER [--style agnostic] [--rename OLD=NEW]

BEFORE and AFTER are checkouts of a project before and after somebody ported it by hand. A device
line is a line that the human changed or removed and that names the origin's device or backend.
Printed: how many of them the tool changed too (touched), how many came out equal after both sides'
helper names are mapped to one form (equal), and how many other lines the tool changed (extra).
Lines that the tool adds (an import) are counted apart.

Used on: DETR (facebookresearch/detr fe752a8 → Ascend/ModelZoo-PyTorch
PyTorch/contrib/cv/detection/DETR) in style direct; verl (0528ba118^ → 0528ba118) in agnostic.
"""

from __future__ import annotations

import argparse
import difflib
import re
from pathlib import Path

from joymigrate import chips
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


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--style", default="direct")
    parser.add_argument(
        "--rename", action="append", default=[], help="OLD=NEW, a file the port renamed"
    )
    parser.add_argument("--list", action="store_true", help="show every line that is not equal")
    options = parser.parse_args()
    renamed = dict(item.split("=") for item in options.rename)

    result = scan(
        [options.before], chip=chips.target(None), origin=chips.origin(), style=Style(options.style)
    )
    rewritten = {patch.path: patch for patch in patches(result)}
    reported = {(f.path, f.line) for f in result.findings if f.tier is not Tier.SAFE}
    human_lines = touched = equal = extra = ours_lines = told = added = 0
    for path in sorted(options.before.rglob("*.py")):
        name = path.relative_to(options.before).as_posix()
        other = options.after / renamed.get(name, name)
        before = path.read_text(encoding="utf-8").splitlines()
        patch = rewritten.get(path)
        ours = patch.after.decode().splitlines() if patch and patch.after else before
        theirs = other.read_text(encoding="utf-8").splitlines() if other.is_file() else before
        human = {
            n: new for n, new in changes(before, theirs).items() if DEVICE.search(before[n - 1])
        }
        tool = changes(before, ours)
        added += len(ours) - len(before)
        human_lines += len(human)
        ours_lines += len(tool)
        for number, new in human.items():
            if number not in tool:
                told += (name, number) in reported
                if options.list:
                    said = "reported" if (name, number) in reported else "silent"
                    print(f"{said:9} {name}:{number} {before[number - 1].strip()}")
                continue
            touched += 1
            mine = [canonical(line) for line in tool[number]]
            hit = any(canonical(line) in mine for line in new)
            equal += hit
            if options.list and not hit:
                print(f"different {name}:{number}\n   ours  {tool[number]}\n   human {new}")
        if other.is_file() and human:
            more = [n for n in tool if n not in human]
            extra += len(more)
            if options.list:
                for number in more:
                    print(f"extra     {name}:{number} {before[number - 1].strip()}")
    print(
        f"{options.before.name}: {human_lines} device lines changed by the human; "
        f"touched {touched}, equal {equal}, reported instead {told}; "
        f"extra lines in the same files {extra}; import lines added {added}"
    )


if __name__ == "__main__":
    main()
