"""Values and conditions that several files share: all of it is rewritten, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.rewrite import device_tests, patches, scan
from tests.rewrite.projects import move, write

TORCH = "import torch\n"
LACKS = "torch.cuda.jiterator._create_jit_fn('x')"
PROBE = TORCH + "def has_gpu():\n    return torch.cuda.is_available()\n"
ENV = TORCH + "class Env:\n    def has_gpu(self):\n        return torch.cuda.is_available()\n"
HOLDS = "from env import has_gpu\nif has_gpu():\n    "
SHARED = {"a.py": TORCH + "class E:\n    def __init__(self):\n"
          "        self.where = 'cuda' if torch.cuda.is_available() else 'cpu'\n",
          "b.py": "from a import E\ndef f(e: E):\n"
          "    if e.where == 'cuda':\n        return 1\n"}  # fmt: skip
# What stays as it is, whole: a condition guards what the chip lacks.
HELD = {
    "asked of an object": {"env.py": ENV, "u.py": TORCH + "def f(env, x):\n    if env.has_gpu():\n"
                           f"        {LACKS}\n        x = x.cuda()\n    return x\n"},
    "asked of an annotated one": {"env.py": ENV, "u.py": TORCH + "from env import Env\n"
                                  f"def f(env: Env):\n    if env.has_gpu():\n        {LACKS}\n"},
    "asked of a field": {"env.py": ENV, "u.py": TORCH + "class T:\n    def __init__(self, env):\n"
                         "        self.env = env\n    def go(self):\n"
                         f"        if self.env.has_gpu():\n            {LACKS}\n"},
    "in many files": {"env.py": PROBE, "z.py": TORCH + HOLDS + LACKS + "\n",
                      **{f"u{i}.py": TORCH + HOLDS + "torch.cuda.empty_cache()\n"
                         for i in range(45)}},
}  # fmt: skip
# What moves, whole: file → how often the origin's word is left.
MOVED = {
    "an attribute and its comparison": SHARED,
    "a constant that many files import": {
        "env.py": "PLACE = 'cuda'\n",
        **{f"u{i}.py": TORCH + "from env import PLACE\ntorch.zeros(1, device=PLACE)\n"
           "if PLACE == 'cuda': print(1)\n" for i in range(42)},
    },
    "a field of a dataclass": {
        "cfg.py": "from dataclasses import dataclass\n"
        "@dataclass\nclass C:\n    where: str = 'cuda'\n",
        "u.py": TORCH + "from cfg import C\ndef run(c: C):\n"
        "    return torch.zeros(1, device=c.where)\nrun(C())\n",
    },
}  # fmt: skip


def write_safely(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """The files after all safe edits."""
    for name, text in files.items():
        (folder / name).write_text(text)
    found = scan([folder], chip=chips.target(None), origin=chips.origin(), jobs=1)
    written = patches(device_tests.include(found), unsafe=False)
    return {**files, **{one.path.name: one.after.decode() for one in written}}


@pytest.mark.parametrize("name", HELD)
def test_what_a_condition_guards_is_held_with_it(tmp_path: Path, name: str) -> None:
    assert write_safely(tmp_path, HELD[name]) == HELD[name]


@pytest.mark.parametrize("name", MOVED)
def test_a_value_moves_with_all_that_compares_and_takes_it(tmp_path: Path, name: str) -> None:
    made = write_safely(tmp_path, MOVED[name])
    assert {file for file, text in made.items() if "cuda" in text} == set()


PARSER = (
    "import argparse\nimport torch\nparser = argparse.ArgumentParser()\n"
    "parser.add_argument('--device', default='{}', type=str)\nargs = parser.parse_args()\n"
)


def test_an_option_of_one_program_is_none_of_another(tmp_path: Path) -> None:
    reads = "args.device = args.device if torch.cuda.is_available() else 'cpu'\n"
    write(tmp_path, {
        "train.py": PARSER.format("cuda") + "import loop\n" + reads + "loop.run(args)\n",
        "loop.py": "import torch\ndef run(args):\n    torch.zeros(1, device=args.device)\n",
        "export.py": "import onnxruntime\n" + PARSER.format("cpu") +
        "provider = 'CUDAExecutionProvider' if args.device in ['gpu', 'cuda'] else 'CPU'\n",
    })  # fmt: skip
    move(tmp_path)
    text = (tmp_path / "train.py").read_text()
    assert "default='npu'" in text
    assert "torch.npu.is_available()" in text
    assert "'cuda'" in (tmp_path / "export.py").read_text()


def test_an_option_that_programs_share_is_one(tmp_path: Path) -> None:
    write(tmp_path, {
        "options.py": PARSER.format("cuda").replace("args = parser.parse_args()\n", ""),
        "train.py": "import torch\nfrom options import parser\nargs = parser.parse_args()\n"
        "torch.zeros(1).to(args.device)\n",
        "other.py": "from options import parser\nargs = parser.parse_args()\n"
        "kind = args.device == 'cuda'  # joymigrate: ignore\n",
    })  # fmt: skip
    move(tmp_path)
    assert "default='cuda'" in (tmp_path / "options.py").read_text()
