"""Notebooks: one module over all cells, edits inside the JSON, magics and broken cells."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.rewrite.source import Unreadable
from tests.rewrite.readers.moved import found, moved, rules


def notebook(*cells: object, **layout: object) -> str:
    return json.dumps(
        {
            "cells": [
                {"cell_type": "code", "metadata": {}, "outputs": [], "source": cell}
                for cell in cells
            ],
            "metadata": {"note": "cuda"},
            "nbformat": 4,
        },
        **({"indent": 1} | layout),  # type: ignore[arg-type]
    )


def sources(text: str) -> list[object]:
    return [cell["source"] for cell in json.loads(text)["cells"]]


def test_names_reach_from_cell_to_cell() -> None:
    before = notebook(["import torch as th\n"], ["x = th.zeros(1, device='cuda')"])
    assert sources(moved("a.ipynb", before))[-1] == ["x = th.zeros(1, device='npu')"]


def test_edits_keep_lists_strings_and_escapes_and_the_way_back_restores_every_byte() -> None:
    for layout in ({"indent": 1}, {"indent": 4}, {"indent": None}, {"ensure_ascii": False}):
        before = notebook(
            ["import torch\n", "d = torch.device('cuda')  # 设备 😀 cuda\n", "s = 'cuda'"],
            "x = torch.zeros(1).cuda()\ny = '\\u4e2d'\t",
            [],
            **layout,
        )
        after = moved("a.ipynb", before)
        cells = sources(after)
        assert cells[0] == [
            "import torch\n",
            "import torch_npu\n",
            "d = torch.device('npu')  # 设备 😀 cuda\n",
            "s = 'cuda'",
        ]
        assert cells[1] == "x = torch.zeros(1).npu()\ny = '\\u4e2d'\t"
        assert moved("a.ipynb", after, to="nvidia", origin="ascend") == before
        assert moved("a.ipynb", after) == after


def test_an_import_behind_the_last_line_of_a_cell_gets_a_line_of_its_own() -> None:
    after = moved("a.ipynb", notebook(["import torch"], ["x = torch.zeros(1).cuda()"]))
    assert sources(after) == [
        ["import torch\n", "import torch_npu"],
        ["x = torch.zeros(1).npu()"],
    ]


def test_findings_carry_the_cell_its_line_and_the_line_of_the_file() -> None:
    text = notebook(["import torch\n"], ["a = 1\n", "\n", "x = torch.zeros(1).cuda()"])
    (finding,) = [f for f in found("a.ipynb", text) if f.rule == "JM110"]
    assert (finding.cell, finding.line) == (1, 3)
    assert ".cuda()" in text.splitlines()[(finding.file_line or 0) - 1]


def test_outputs_markdown_and_metadata_are_not_looked_at() -> None:
    text = json.dumps(
        {
            "cells": [
                {"cell_type": "markdown", "source": ["device='cuda'"]},
                {"cell_type": "raw", "source": "x.cuda()"},
                {"cell_type": "code", "source": "1", "outputs": [{"text": ["torch.cuda"]}]},
            ]
        }
    )
    assert found("a.ipynb", text) == []


def test_magics_are_read_around() -> None:
    text = notebook(
        [
            "%matplotlib inline\n",
            "import torch\n",
            "if True:\n",
            "    !pip install flash-attn\n",
            "%time x = torch.zeros(1).cuda()\n",
            "files = !ls\n",
            "x.size?\n",
            "!python t.py \\\n",
            "  --device cuda\n",
            "y = 7 % 2\n",
            "z = await f(x.cuda())\n",
        ],
        ["%%time\n", "x = x.to('cuda')"],
        ["%%bash\n", "CUDA_VISIBLE_DEVICES=0 python t.py"],
        ["%%html\n", "<b>cuda</b>"],
        ["%env CUDA_VISIBLE_DEVICES=0"],
        ["%load_ext cuda"],
    )
    assert rules("a.ipynb", text) == [
        ("JM001", "safe", ""),
        ("JM191", "report", "flash-attn"),
        ("JM110", "safe", ".cuda()"),
        ("JM120", "unsafe", "cuda"),
        ("JM110", "safe", ".cuda()"),
        ("JM120", "safe", "'cuda'"),
        ("JM170", "unsafe", "CUDA_VISIBLE_DEVICES"),
        ("JM900", "report", "cuda"),
        ("JM170", "unsafe", "CUDA_VISIBLE_DEVICES"),
        ("JM900", "report", "cuda"),
    ]


def test_both_variables_are_set_by_two_magics() -> None:
    before = notebook(["%env CUDA_VISIBLE_DEVICES=0\n", "1"])
    after = moved("a.ipynb", before, style="agnostic", unsafe=True)
    assert sources(after) == [
        ["%env CUDA_VISIBLE_DEVICES=0\n", "%env ASCEND_RT_VISIBLE_DEVICES=0\n", "1"]
    ]


def test_a_cell_that_does_not_parse_is_reported_and_the_others_are_read() -> None:
    text = notebook("import torch", "def broken(:\n  x.cuda()", "torch.zeros(1).cuda()")
    findings = found("a.ipynb", text)
    assert [(f.rule, f.cell) for f in findings if f.rule != "JM001"] == [("JM000", 1), ("JM110", 2)]


def test_the_third_format_is_read() -> None:
    cell = {"cell_type": "code", "input": ["import torch\n", "torch.zeros(1).cuda()"]}
    text = json.dumps({"nbformat": 3, "worksheets": [{"cells": [cell]}]})
    assert [f.rule for f in found("a.ipynb", text)] == ["JM001", "JM110"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"cells": [', "not valid JSON"),
        ("", "not valid JSON"),
        ("[1]", "not a notebook"),
        ("{}", "not a notebook"),
    ],
)
def test_a_broken_notebook_has_a_place(text: str, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason) as caught:
        found("a.ipynb", text)
    assert caught.value.line >= 1


LINES = st.sampled_from(
    [
        "x = torch.zeros(1).cuda()",
        "d = torch.device('cuda:0')",
        "# cuda 中文",
        "s = 'cuda 😀'",
        "!nvidia-smi",
        "%time y = x.to('cuda')",
        "",
        "print(torch.cuda.is_available())",
        "t = '''",
        "'''",
    ]
)


@given(
    st.lists(st.tuples(st.lists(LINES, max_size=5), st.booleans()), max_size=4),
    st.sampled_from([None, 1, 4]),
    st.booleans(),
)
def test_any_notebook_stays_one_changes_once_and_comes_back(
    cells: list[tuple[list[str], bool]], indent: int | None, ascii_only: bool
) -> None:
    written: list[object] = ["import torch"]
    for lines, as_list in cells:
        text = "\n".join(lines)
        written.append(text.splitlines(keepends=True) if as_list else text)
    before = notebook(*written, indent=indent, ensure_ascii=ascii_only)
    after = moved("a.ipynb", before)
    assert len(json.loads(after)["cells"]) == len(written)
    assert moved("a.ipynb", after) == after
    assert moved("a.ipynb", after, to="nvidia", origin="ascend") == before
