"""A condition that the project defines in another file stays with code behind it that stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.model import Style
from tests.rewrite.projects import look, move, rewritten, write

ASKS = {
    "a function": ("def has_gpu():\n    return torch.cuda.is_available()\n", "has_gpu()"),
    "a variable": ("has_gpu = torch.cuda.is_available()\n", "has_gpu"),
    "a function that asks another": (
        "def inner():\n    return torch.cuda.device_count() > 0\n"
        "def has_gpu():\n    return inner()\n",
        "has_gpu()",
    ),
}
LACKS = "torch.cuda.jiterator._create_jit_fn('x')"
USES = {
    "a branch": "if {}:\n    {}\n    x = x.cuda()\n",
    "one that leaves": "def f(x):\n    if not {}:\n        return x\n    {}\n    return x.cuda()\n",
    "an operand": "ok = {} and {}\n",
    "an expression": "ok = {1} if {0} else None\n",
}


def project(root: Path, ask: str, use: str, call: str) -> dict[str, str]:
    """Three files: the condition, its use around `call`, and another use."""
    body, question = ASKS[ask]
    head = "import torch\nfrom pkg import has_gpu\n"
    files = {
        "pkg/__init__.py": "from .devices import has_gpu\n",
        "pkg/devices.py": f"import torch\n{body}",
        "pkg/use.py": head + USES[use].format(question, call),
        "pkg/other.py": f"{head}if {question}:\n    torch.cuda.empty_cache()\n",
    }
    write(root, files)
    return files


@pytest.mark.parametrize("style", [Style.DIRECT, Style.AGNOSTIC])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("ask", ASKS)
def test_nothing_moves_where_code_behind_a_condition_stays(
    ask: str, use: str, style: Style, tmp_path: Path
) -> None:
    files = project(tmp_path, ask, use, LACKS)
    move(tmp_path, style)
    for name, text in files.items():
        assert (tmp_path / name).read_text() == text


@pytest.mark.parametrize("ask", ASKS)
def test_all_moves_where_all_can(ask: str, tmp_path: Path) -> None:
    files = project(tmp_path, ask, "a branch", "torch.cuda.synchronize()")
    move(tmp_path)
    for name in ("pkg/devices.py", "pkg/use.py", "pkg/other.py"):
        after = (tmp_path / name).read_text()
        assert after != files[name]
        assert "cuda" not in after


def test_the_report_names_the_place_in_the_other_file(tmp_path: Path) -> None:
    project(tmp_path, "a function", "a branch", LACKS)
    (told,) = [f for f in look(tmp_path).findings if f.path == "pkg/devices.py"]
    assert "torch.cuda.jiterator" in str(told.reason)
    assert "pkg/use.py" in str(told.reason)


@pytest.mark.parametrize(
    "code",
    [
        f"try:\n    if has_gpu():\n        {LACKS}\nexcept Exception:\n    pass\n",
        f"if torch.npu.is_available():\n    pass\nelif has_gpu():\n    {LACKS}\n",
        f"if cpu_only():\n    {LACKS}\n",
    ],
)
def test_code_that_can_not_fail_there_holds_nothing(code: str, tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "pkg/__init__.py": "",
            "pkg/devices.py": "import torch\n"
            + ASKS["a function"][0]
            + "def cpu_only(): return x\n",
            "pkg/use.py": f"import torch\nfrom pkg.devices import has_gpu, cpu_only\n{code}",
        },
    )
    move(tmp_path)
    assert "torch.npu.is_available()" in (tmp_path / "pkg/devices.py").read_text()


def test_a_decorator_of_another_file_is_not_held(tmp_path: Path) -> None:
    marks = "def gpu_test(f):\n    return skipif(torch.cuda.device_count() < 1)(f)\n"
    use = f"import torch\nfrom marks import gpu_test\n@gpu_test\ndef test_x():\n    {LACKS}\n"
    write(tmp_path, {"marks.py": f"import torch\n{marks}", "test_x.py": use})
    move(tmp_path)
    assert "torch.npu.device_count()" in (tmp_path / "marks.py").read_text()


WRAPPED = """\
import torch
class Card:
    @property
    def on_card(self):
        return torch.cuda.is_available()
    def has_card(self):
        return torch.cuda.is_available()
    def run(self, x):
        if self.{}:
            torch.cuda.cudart().cudaProfilerStart()
            torch.cuda.synchronize()
        return x.cuda()
"""


@pytest.mark.parametrize("asked", ["has_card()", "on_card"])
def test_a_method_stays_where_code_behind_it_stays(asked: str, tmp_path: Path) -> None:
    text = WRAPPED.format(asked)
    name = asked.strip("()")
    kept = f"def {name}(self):\n        return torch.cuda.is_available()"
    after = rewritten(tmp_path, text)
    assert kept in after
    assert "torch.cuda.synchronize()" in after
    assert "return x.npu()" in after


def test_a_guard_needs_the_look_that_the_code_behind_it_needs(tmp_path: Path) -> None:
    text = (
        "import torch\ndef f(x):\n    if torch.cuda.is_available():\n"
        "        torch.cuda.nvtx.range_push('a')\n        x = x.cuda()\n    return x\n"
    )
    assert rewritten(tmp_path / "safe", text) == text
    assert "cuda" not in rewritten(tmp_path / "all", text, unsafe=True)
