"""Places of a project that mean one thing move together, or stay together."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml

from joymigrate import chips
from joymigrate.model import Style, Tier
from joymigrate.rewrite import device_tests, patches, scan
from tests.ledger.trees import write_tree
from tests.rewrite.projects import move, write

CASES = [
    {"styles": [*styles], **case}
    for name, styles in {
        "together.yaml": ("direct", "agnostic"),
        "outside_python.yaml": ("direct", "agnostic"),
        "shim.yaml": ("shim",),
    }.items()
    for case in yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))
]
RUNS = [
    pytest.param(case, Style(style), id=f"{case['name']}-{style}")
    for case in CASES
    for style in case["styles"]
]


def rewritten(root: Path, case: dict[str, Any], style: Style) -> dict[str, str]:
    """The project's files after a rewrite."""
    write_tree(root, {name: text.encode() for name, text in case["files"].items()})
    found = scan([root], chip=chips.target("ascend"), origin=chips.origin(), style=style)
    made = list(patches(device_tests.include(found), unsafe=case.get("unsafe", False)))
    # No value is left with a word of each device, and every name means something: what was decided
    # stands, and the check on the written tree had nothing to take out.
    assert not [reason for patch in made for _, reason in patch.left]
    after = {patch.path.relative_to(found.root).as_posix(): patch.after for patch in made}
    return {
        name: (after.get(name) or text.encode()).decode() for name, text in case["files"].items()
    }


def untold(case: dict[str, Any], root: Path) -> list[str]:
    """Places on whose line nothing is reported under the vendor's shim, before the rewrite."""
    words = case.get("reported", ())
    found = scan([root], chip=chips.target("ascend"), origin=chips.origin(), style=Style.SHIM)
    told = {(f.path, line) for f in found.findings if f.tier is Tier.REPORT
            for line in range(f.line, f.end_line + 1)}  # fmt: skip
    lines = [(name, number, line) for name, text in case["files"].items()
             for number, line in enumerate(text.splitlines(), 1)]  # fmt: skip
    return [
        f"{word} is not reported" for word in words
        if not any(word in line and (name, number) in told for name, number, line in lines)
    ]  # fmt: skip


def problems(case: dict[str, Any], text: str, style: Style) -> list[str]:
    """What a case's text after the rewrite does wrong."""
    found = [f"{word} stays" for word in map(str, case.get("move", ())) if word in text]
    found += [f"{word} went" for word in map(str, case.get("stay", ())) if word not in text]
    for group in case.get("together", ()):
        there = [word in text for word in map(str, group)]
        found += [f"apart: {group}"] * (any(there) and not all(there))
    if style is not Style.AGNOSTIC:
        found += [f"no {word}" for word in case.get("have", ()) if word not in text]
        found += [f"{word} stays" for word in case.get("bad", ()) if word in text]
    if style is Style.AGNOSTIC:
        found += [f"no {word}" for word in case.get("have_agnostic", ()) if word not in text]
    return found


@pytest.mark.parametrize(("case", "style"), RUNS)
def test_places_of_one_meaning_go_together(
    case: dict[str, Any], style: Style, tmp_path: Path
) -> None:
    before = "\n".join(case["files"].values())
    grouped = [word for group in case.get("together", ()) for word in group]
    words = [*case.get("move", ()), *case.get("stay", ()), *grouped]
    assert all(str(word) in before for word in words), "the case speaks of what it does not hold"
    after = rewritten(tmp_path, case, style)
    for name, text in after.items():
        if name.endswith(".py"):
            ast.parse(text)
    found = problems(case, "\n".join(after.values()), style)
    if style is Style.SHIM:
        found += untold(case, tmp_path)
        line = chips.target("ascend").shim["line"]
        got = {name for name, text in after.items() if line in text}
        found += [f"imported in {got}"] * (got != set(case.get("imports", got)))
    assert bool(found) == ("known" in case), found or "no longer weaker: take `known` away"


def test_a_second_rewrite_changes_nothing(tmp_path: Path) -> None:
    for number, run in enumerate(RUNS[::7]):
        case, style = run.values
        root = tmp_path / str(number)
        rewritten(root, case, Style(style))  # type: ignore[arg-type]
        found = scan([root], chip=chips.target("ascend"), origin=chips.origin(), style=style)  # type: ignore[arg-type]
        for patch in patches(device_tests.include(found)):
            patch.path.write_bytes(patch.after or b"")
        again = scan([root], chip=chips.target("ascend"), origin=chips.origin(), style=style)  # type: ignore[arg-type]
        assert not list(patches(again)), case["name"]  # type: ignore[index]


INSIDE = (
    "import os\ndef ready():\n    return torch.cuda.is_available()\n"
    'os.environ["OMP_NUM_THREADS"] = "4"\nimport torch\n'
)
LATE = "from net import Net\nnet = Net().cuda()\nimport torch\nnet = torch.nn.Sequential(net)\n"


@pytest.mark.parametrize(
    ("style", "files", "path", "wanted"),
    [
        (
            Style.AGNOSTIC,
            {
                "a.py": "import torch\n\ndef main(config):\n"
                '    d = torch.device(config["device"] if torch.cuda.is_available() else "cpu")\n',
                "config.yaml": 'device: "cuda"   # "cpu" without a card\n',
            },
            "a.py",
            'jm.device(config["device"]) if jm.device_module().is_available() else "cpu"',
        ),
        (
            Style.AGNOSTIC,
            {"a.sh": "[[ -v CUDA_VISIBLE_DEVICES ]] && python a.py\n", "a.py": "import torch\n"},
            "a.sh",
            "[[ -v CUDA_VISIBLE_DEVICES || -v ASCEND_RT_VISIBLE_DEVICES ]] &&",
        ),
        (
            Style.AGNOSTIC,
            {"a.sh": "[[ ! -v CUDA_VISIBLE_DEVICES ]] && python a.py\n", "a.py": "import torch\n"},
            "a.sh",
            "[[ ! -v CUDA_VISIBLE_DEVICES ]] &&",
        ),
        (Style.DIRECT, {"a.py": LATE}, "a.py", "from net import Net\nimport torch_npu\n"),
        (
            Style.AGNOSTIC,
            {"a.py": LATE},
            "a.py",
            "from net import Net\nimport joymigrate_device as jm\n",
        ),
        (Style.DIRECT, {"a.py": INSIDE}, "a.py", '"4"\nimport torch\nimport torch_npu\n'),
        (Style.ACCELERATOR, {"a.py": LATE}, "a.py", "from net import Net\nimport torch\nnet = "),
        (
            Style.ACCELERATOR,
            {
                "a.py": "import torch\ndef names(verbose):\n"
                "    return torch.cuda if verbose else torch\n"
            },
            "a.py",
            "return torch.cuda if verbose",
        ),
        (
            Style.ACCELERATOR,
            {"a.py": "import torch\nimport torch.multiprocessing\nx = torch.ones(2).cuda()\n"},
            "a.py",
            "import torch\nimport torch.multiprocessing\nx",
        ),
        (
            Style.ACCELERATOR,
            {
                "net.py": "import torch\nclass Net:\n    def __init__(self, use_cuda):\n"
                "        self.torch = torch.cuda if use_cuda else torch\n",
                "a.py": "import torch\nfrom net import Net\nNet(torch.cuda.is_available())\n",
            },
            "net.py",
            "self.torch = torch.get_device_module() if use_cuda else torch",
        ),
    ],
    ids=[
        *("configured", "tested", "not set", "late, direct", "late", "inside", "late, portable"),
        *("no question", "imported twice", "module"),
    ],
)
def test_what_a_stranger_found_half_moved(
    style: Style, files: dict[str, str], path: str, wanted: str, tmp_path: Path
) -> None:
    write(tmp_path, files)
    move(tmp_path, style)
    assert wanted in (tmp_path / path).read_text(encoding="utf-8")
