"""Byte preservation, idempotence and the way back, over programs composed at random."""

from __future__ import annotations

import ast
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate.model import Style
from joymigrate.rewrite.source import apply_edits
from tests.rewrite.projects import look, move

HEADS = [
    "import torch\n",
    "import torch as th\nimport torch\n",
    "import torch\nimport torch.distributed as dist\n",
    "import torch\nfrom torch import cuda\n",
    "import torch\nfrom torch.cuda.amp import autocast, GradScaler\n",
    "import torch\nimport torch.cuda as tc\n",
    "# -*- coding: utf-8 -*-\n'''cuda 文档'''\nimport torch\n",
]
LINES = [
    "x = torch.zeros(3, device='cuda')",
    'y = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")  # cuda 注释',
    "z = model.cuda(); w = z.is_cuda",
    "torch.cuda.synchronize()",
    "name = 'cuda_amp'",
    'print("cuda", torch.cuda.device_count())',
    "i = 1; d = torch.device(f'cuda:{i}')",
    "d2 = torch.device('cuda:%d' % 1)",
    "d3 = torch.device('cuda:' + str(1))",
    "torch.distributed.init_process_group('nccl')",
    "if x.device.type == 'cuda':\n    x = x.cuda(non_blocking=True)",
    "state = torch.load('m', map_location={'cuda:0': 'cuda:1'})",
    "def step(device='cuda', *, cuda=True):\n    '''cuda'''\n    return torch.ones(1).to(device)",
    "class Net:\n    dev = 'cuda'\n    def go(self):\n        return torch.ones(1).to(self.dev)",
    "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'",
    "with torch.cuda.amp.autocast():\n    pass",
    "stream: torch.cuda.Stream = None",
    "t = torch.cuda.FloatTensor(2)",
    "table = {'cuda': 1}\nuse(table['cuda'])",
    "with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):\n    pass",
    "模型 = 网络().cuda()  # 移到 cuda",
    "g = torch.cuda.CUDAGraph()",
    "torch.cuda.nvtx.mark('a')",
    "ok = lambda t: t.cuda() if torch.cuda.is_available() else t",
    "parser.add_argument('--device', default='cuda', help='cuda or cpu')",
]
PROGRAMS = st.builds(
    lambda head, body, newline, mark, last: (
        mark + (head + "\n".join(body) + last).replace("\n", newline).encode()
    ),
    st.sampled_from(HEADS),
    st.lists(st.sampled_from(LINES), min_size=1, max_size=8),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.sampled_from(["\n", "", "\n\n"]),
)


@settings(max_examples=60, deadline=None)
@given(PROGRAMS, st.sampled_from([Style.DIRECT, Style.AGNOSTIC, Style.SHIM]))
def test_bytes_outside_the_edits_stay_and_a_second_run_changes_nothing(
    program: bytes, style: Style
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        file = root / "sample.py"
        file.write_bytes(program)
        scan = look(root, style)
        edits = sorted(
            {e for f in scan.findings if f.tier.value == "safe" for e in f.edits},
            key=lambda e: (e.start, e.end),
        )
        move(root, style)
        once = file.read_bytes()
        # What stands between two edits is found in the result, in order and byte for byte.
        at = position = 0
        for edit in edits:
            between = program[at : edit.start]
            assert once[position : position + len(between)] == between
            position += len(between) + len(edit.text)
            at = edit.end
        assert once[position:] == program[at:]
        assert isinstance(ast.parse(once), ast.Module)
        move(root, style)
        assert file.read_bytes() == once


@settings(max_examples=60, deadline=None)
@given(PROGRAMS, st.sampled_from(["ascend", "cambricon", "musa"]))
def test_safe_direct_edits_go_back_to_the_original(program: bytes, chip: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        file = root / "sample.py"
        file.write_bytes(program)
        move(root, to=chip)
        move(root, to="nvidia", origin=chip)
        assert file.read_bytes() == program


@given(st.binary(max_size=60), st.data())
def test_edits_replace_exactly_their_spans(data: bytes, choice: st.DataObject) -> None:
    from joymigrate.model import Edit

    start = choice.draw(st.integers(0, len(data)))
    end = choice.draw(st.integers(start, len(data)))
    assert apply_edits(data, [Edit(start, end, b"!")]) == data[:start] + b"!" + data[end:]
