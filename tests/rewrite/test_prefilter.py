"""Files without a word of the origin are analysed where a rule could match, and only there."""

from __future__ import annotations

import pytest

from joymigrate import chips
from joymigrate.model import Style
from joymigrate.rewrite import python
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.prefilter import prefilter
from joymigrate.rewrite.source import decode

CONTEXT = Context.between(chips.target("ascend"), chips.origin(), Style.DIRECT)

LOOKED_AT = [
    "import torch\nx = torch.load(p)\n",
    "import torch as t\nx = t.load(p)\n",
    "from torch import load\nx = load(p)\n",
    "from torch import nn\nm = nn.DataParallel(m)\n",
    "import torch.nn as n\nm = n.DataParallel(m)\n",
    "from torch import (\n    nn,\n    jit as j,\n)\nf = j.script(f)\n",
    "import torch\njit = torch.jit\nf = jit.script(f)\n",
    "import os, vllm\n",
    "from apex.optimizers import FusedAdam\n",
    "import triton\n",
    "import torch\ny = x.double()\n",
    "import torch\nx[y > 0] = 1\n",
    "import torch\nz = x[y[0] == 1]\n",
    "import torch\nz = x[~m]\n",
    "import torch\nx = x.to(0)\n",
    "x = f(device=1)\n",
    "import subprocess\nsubprocess.run(['nsys', 'profile'])\n",
    "m = f(attn_implementation='flash_attention_2')\n",
    "import torch\nx = getattr(torch, name)\n",
    "import torch\nx = torch.zeros(1, dtype=torch.float64)\n",
    "import torch.distributed as d\nimport torch\nd.all_reduce(x.to(torch.uint8))\n",
]
# Imports, chains and comparisons that other lines, comments or brackets divide.
LOOKED_AT += [
    "from torch import (  # see docs (a)\n    nn,\n    jit,\n)\nf = jit.script(f)\n",
    "from torch import nn, \\\n    jit\nf = jit.script(f)\n",
    "from torch \\\n    import jit as j\nf = j.script(f)\n",
    "import torch\njit = torch.jit  # short\nf = jit.script(f)\n",
    "import torch\njit, nn = torch.jit, torch.nn\nf = jit.script(f)\n",
    "import \\\n  vllm\n",
    "from vllm import(LLM)\n",
    "from apex import *\n",
    "import torch\nm = (torch.nn\n  .DataParallel(m))\n",
    "import torch\nx = torch.\\\n  load(p)\n",
    "import torch\nx = m[\n  a > 0\n]\n",
]
PASSED_OVER = [
    "import json\nx = json.load(f)\n",
    "import torch\nx: list[int] = f()\ndef g(a: list[int]) -> list[int]: return a\n",
    "import torch\nfrom nothing import script\nnumber_of_functions = 3\n",
    "'''The distributed data parallel unit, written with jit and compile.'''\n",
    "import torch\nfrom flake import unique_name\n",
]


@pytest.mark.parametrize("text", LOOKED_AT)
def test_a_file_that_a_rule_matches_is_let_in(text: str) -> None:
    assert python.findings(decode("a.py", text.encode(), python=True), CONTEXT)
    assert prefilter(text, CONTEXT)


@pytest.mark.parametrize("text", PASSED_OVER)
def test_a_file_that_only_shares_letters_with_a_rule_is_passed_over(text: str) -> None:
    assert not python.findings(decode("a.py", text.encode(), python=True), CONTEXT)
    assert not prefilter(text, CONTEXT)


def test_a_package_of_the_project_itself_is_no_reason() -> None:
    text = "from megatron.core import parallel_state\n"
    assert prefilter(text, CONTEXT)
    assert not prefilter(text, CONTEXT, lambda dotted: not dotted.startswith("megatron"))
