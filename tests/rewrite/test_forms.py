"""The forms of `forms.yaml`: what is written, what is left, what holds for each."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml

from joymigrate import chips
from joymigrate.model import Style, Tier
from joymigrate.rewrite import scan
from joymigrate.rewrite.python import clash
from tests.rewrite.projects import look, move, rewritten, write

FORMS = yaml.safe_load((Path(__file__).parent / "forms.yaml").read_text(encoding="utf-8"))
NAMES = [form["name"] for form in FORMS]
STYLES = {"direct": Style.DIRECT, "agnostic": Style.AGNOSTIC}


def expected(form: dict[str, Any], style: str) -> str:
    """The text that a style writes for a form."""
    return str(form["before"] if form[style] == "same" else form[style])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_a_form_is_written_as_listed(form: dict[str, Any], style: str, tmp_path: Path) -> None:
    write(tmp_path, {"sample.py": form["before"]})
    found = move(tmp_path, STYLES[style])
    assert (tmp_path / "sample.py").read_text(encoding="utf-8") == expected(form, style)
    left = form["left"] if style == "direct" else form.get("left_agnostic", form["left"])
    sites = [f"{f.rule}@{f.line}" for f in found.findings if f.tier is not Tier.SAFE]
    assert sites == left


@pytest.mark.parametrize(
    ("style", "unsafe"),
    [
        ("direct", False),
        *(
            pytest.param(*one, marks=pytest.mark.dear)
            for one in (("direct", True), ("agnostic", False), ("agnostic", True))
        ),
    ],
)
@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_a_second_rewrite_of_a_form_changes_nothing(
    form: dict[str, Any], style: str, unsafe: bool, tmp_path: Path
) -> None:
    write(tmp_path, {"sample.py": form["before"]})
    move(tmp_path, STYLES[style], unsafe=unsafe)
    once = (tmp_path / "sample.py").read_text(encoding="utf-8")
    ast.parse(once)
    move(tmp_path, STYLES[style], unsafe=unsafe)
    assert (tmp_path / "sample.py").read_text(encoding="utf-8") == once


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_the_way_back_restores_a_form(form: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, {"sample.py": form["before"]})
    move(tmp_path)
    move(tmp_path, to="nvidia", origin="ascend")
    # Values that an option allows keep both names.
    back = form.get("back", form["before"])
    assert (tmp_path / "sample.py").read_text(encoding="utf-8") == back


def test_a_comment_inside_an_import_stays(tmp_path: Path) -> None:
    text = "from torch.cuda import (\n    synchronize,  # wait\n)\nsynchronize()\n"
    write(tmp_path, {"sample.py": text})
    found = look(tmp_path, Style.AGNOSTIC).findings
    assert [(f.tier, f.reason) for f in found] == [(Tier.REPORT, "comments inside the import")]


PLACES = {
    "an import over several lines": "from torch import (nn,\n                   optim)\nx.cuda()\n",
    "a foreign import over lines": "from a import (b,\n        c)\nd = dict(device='cuda')\n",
    "try in one line": "try: import torch\nexcept OSError: pass\ntorch.cuda.synchronize()\n",
    "behind a statement": "import os; import torch\ntorch.cuda.synchronize()\n",
    "between statements": "import os; import torch; torch.cuda.synchronize()\n",
    "behind a condition": "if True: import torch\ntorch.cuda.synchronize()\n",
    "tabs": "def f():\n\timport torch\n\ttorch.cuda.synchronize()\n",
    "no final newline": "def f(x):\n    x.cuda()\nimport torch",
    "a form feed": "import torch\n\x0c\ntorch.cuda.synchronize()\n",
    "a backslash": "from torch.cuda import \\\n    synchronize\nsynchronize()\n",
    "carriage returns": "import torch\r\ntorch.cuda.synchronize()\r\n",
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("text", PLACES.values(), ids=PLACES)
def test_the_added_import_stands_where_it_runs(text: str, style: str, tmp_path: Path) -> None:
    write(tmp_path, {"sample.py": text})
    move(tmp_path, STYLES[style])
    once = (tmp_path / "sample.py").read_bytes()
    ast.parse(once)
    added = {"direct": b"import torch_npu", "agnostic": b"import joymigrate_device"}[style]
    assert added in once or b"torch" not in once
    move(tmp_path, STYLES[style])
    assert (tmp_path / "sample.py").read_bytes() == once
    if style == "direct":
        move(tmp_path, to="nvidia", origin="ascend")
        assert (tmp_path / "sample.py").read_bytes() == text.encode()


def test_many_sites_in_one_file_are_settled_without_comparing_each_with_each() -> None:
    edits = [(start, start + 4) for start in range(0, 400_000, 10)]
    assert not clash((14, 20), edits)
    assert clash((13, 20), edits)
    assert clash((0, 4), edits)
    assert clash((5, 11), edits)


@pytest.mark.parametrize("value", ["$FACE", "%s", "'lo'", "^lo,docker0", "{face if face else 0}"])
def test_a_value_of_a_command_is_written_twice_only_where_it_is_read_whole(
    value: str, tmp_path: Path
) -> None:
    text = f'import os\nos.system(f"A=1 NCCL_SOCKET_IFNAME={value} torchrun t.py")\n'
    assert rewritten(tmp_path, text, Style.AGNOSTIC, unsafe=True) == text
    assert "A=1 HCCL_SOCKET_IFNAME=" in rewritten(tmp_path, text, unsafe=True)


def test_switches_of_a_platform_that_stays_are_no_sites(tmp_path: Path) -> None:
    text = (
        "import torch\ntorch.backends.cudnn.is_available()\ntorch.backends.cudnn.version()\n"
        "torch.backends.cuda.matmul.allow_tf32 = True\n"
    )
    write(tmp_path, {"sample.py": text})
    for to, start in (("amd", chips.origin()), ("nvidia", chips.get("ascend"))):
        assert not scan([tmp_path], chip=chips.target(to), origin=start).findings
    assert {f.rule for f in look(tmp_path).findings} >= {"JM150", "JM151"}
