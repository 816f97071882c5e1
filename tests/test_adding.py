"""Adding one thing costs one file, or one item of one file: done in a copy, then used there.

Every addition is made once, in one copy of the project. Nothing else of the copy is touched: no
list, no snapshot, no generated page. Then each is asked for as a user would, and the tests that
hold the form of the project run in the copy.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "shared")

FILES = {
    "joymigrate/run/kernels/ops/scaled_square.py": '''
"""The scaled square of a tensor."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from joymigrate.run.kernels.operator import POINTWISE, Operator, OperatorCase, rows_of
from joymigrate.run.kernels.samples import Samples


def reference(x: Tensor, scale: float = 2.0) -> Tensor:
    """The definition."""
    return x * x * scale


def describe(x: Tensor, scale: float = 2.0) -> tuple[Tensor, tuple[int, ...], str]:
    """What decides about speed."""
    return x, (rows_of(x), x.shape[-1]), ""


def cases(random: Samples) -> Iterator[OperatorCase]:
    """One usual case."""
    yield OperatorCase("usual", (random.normal(2, 8),), grad=(0,))


OPERATOR = Operator(
    name="scaled_square",
    signature="scaled_square(x, scale=2.0) -> y",
    formula="y = scale * x^2",
    reference=reference,
    describe=describe,
    cases=cases,
    tolerance=POINTWISE,
)
''',
    "joymigrate/profile/readers/plain_list.py": '''
"""Lists of operator names, one a line, behind the line `# operators`."""

from __future__ import annotations

from pathlib import Path

from joymigrate.profile.table import OpTable, Trace

START = "# operators"


def read(path: Path) -> Trace:
    """One list."""
    table = OpTable()
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            table.add(table.name_id(line))
    return Trace(path, "plain-list", table)


def kind_of(start: bytes, text: str) -> str:
    """plain-list for a file that begins so."""
    return "plain-list" if text.startswith(START) else ""


RANK = 3
READERS = {"plain-list": read}
''',
    "joymigrate/report/renderers/outline.py": '''
"""The titles of a document."""

from __future__ import annotations

from joymigrate.report.blocks import BlockDocument
from joymigrate.report.renderers._words import tell


def render(document: BlockDocument) -> str:
    """One line a chapter."""
    return "\\n".join(["OUTLINE", *(tell(one.title) for one in document.chapters)]) + "\\n"
''',
    "joymigrate/run/cluster/policies/first.py": '''
"""`first`: the first node that has room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from joymigrate.run.cluster.cards import IMPOSSIBLE
from joymigrate.run.cluster.policies import Policy, Typical
from joymigrate.run.cluster.policies._shares import emptiest

if TYPE_CHECKING:
    from joymigrate.run.cluster.shape import TaskShape
    from joymigrate.run.cluster.state import ClusterState, Ints


def rank(state: ClusterState, shape: TaskShape, free: Ints) -> Ints:
    """The order of the inventory."""
    return np.where(shape.choice.fits[free] > 0, np.arange(len(free)), IMPOSSIBLE)


def make(demand: Sequence[Typical]) -> Policy:
    """The policy; it needs no demand."""
    return Policy("first", rank, emptiest)
''',
    "joymigrate/run/train/recommendation/plain.py": '''
"""A linear model over ids and numbers."""

from __future__ import annotations

from torch import Tensor, nn

from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs, Sizes

PAPER = "logistic regression"
SIZES: Sizes = {}
LINEAR = True


class PlainModel(nn.Module):
    """logit = w · x + b."""

    def __init__(self, shape: InputShape) -> None:
        super().__init__()
        self.first = nn.Linear(shape.numbers, shape.targets)

    def forward(self, x: RowInputs) -> Tensor:
        """Logits [B, T]."""
        assert x.linear_B is not None
        logits: Tensor = self.first(x.numbers_BG) + x.linear_B[:, None]
        return logits


MODEL = PlainModel
''',
    "rules/acme/chip.yaml": """
schema: joymigrate.chip/1
name: acme
title: Acme A1
device: acm
module: torch.acm
backend: acl
package: torch_acm
distribution: torch-acm
""",
}

# The item goes behind the line that opens its list; "": the list opens the file.
ITEMS = {
    "rules/common/python.yaml": (
        "",
        """\
- id: JM299
  name: added-call
  title: A call that was added
  tier: report
  area: kernels
  message: an added call
  weight: 5
  match:
    - names: [torch.cuda.added_call]
  cases:
    - before: |
        import torch
        torch.cuda.added_call()
      after: null
    - keep: |
        import torch
        torch.relu(x)

""",
    ),
    "rules/ascend/imports.yaml": (
        "imports:\n",
        "  added_package: {to: added_npu, note: a package}\n",
    ),
    "rules/common/advice/profile.yaml": (
        "rules:\n",
        """\
- id: ADDED
  title: Sines
  detect: {by: dtype, dtypes: [float16]}
  problem: a sine was computed in half precision
  action: compute it in float32
  source: this test

""",
    ),
}

CODEMOD = """
import libcst as cst
from joymigrate.codemods import Case, Codemod, Tier


class Rename(Codemod):
    RULE, NAME, MESSAGE = "ACME1", "acme-rename", "old name: `{before}`"
    WORDS = ("old_name",)
    TIER = Tier.SAFE
    CASES = (
        Case(before="import acme\\nacme.old_name(1)\\n", after="import acme\\nacme.new_name(1)\\n"),
        Case(before="from ours import old_name\\nold_name(1)\\n", keep=True),
    )

    def leave_Call(self, original_node, updated_node):
        if self.view.dotted(original_node.func) != "acme.old_name":
            return updated_node
        func = updated_node.func.with_changes(attr=cst.Name("new_name"))
        return updated_node.with_changes(func=func)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with all additions."""
    root = tmp_path_factory.mktemp("adding") / "project"
    shutil.copytree(ROOT, root, ignore=LEFT_OUT, symlinks=True)
    for name, text in FILES.items():
        path = root / name
        assert not path.exists()
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.lstrip("\n"), encoding="utf-8")
    for name, (before, text) in ITEMS.items():
        held = (root / name).read_text(encoding="utf-8")
        place = held.index(before) + len(before)
        (root / name).write_text(held[:place] + text + held[place:], encoding="utf-8")
    subprocess.run(["git", "init", "-q", root], check=True)
    subprocess.run(["git", "-C", root, "add", "-A"], check=True)
    return root


def ask(root: Path, *words: str, folder: Path | None = None) -> str:
    """What a command line of the copy prints; it must succeed."""
    found = start(root, "-m", "joymigrate", *words, folder=folder)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def start(root: Path, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "PYTHONPATH": str(root),
        "JOYMIGRATE_CACHE": str(root.parent / "cache"),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }
    return subprocess.run(
        [sys.executable, *words], cwd=folder or root.parent, env=env, text=True,
        capture_output=True, check=False,
    )  # fmt: skip


def test_a_rule_is_one_item(copy: Path) -> None:
    assert "JM299" in ask(copy, "explain", "JM299")
    found = start(copy, "-m", "pytest", "-rA", "-n0", "-k", "JM299", "tests/rewrite/test_cases.py",
                  folder=copy)  # fmt: skip
    assert found.returncode == 0, found.stdout
    assert "PASSED" in found.stdout


def test_an_api_rename_is_one_item(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import added_package\n")
    text = ask(copy, "scan", ".", "--exit-zero", "--format", "json", folder=tmp_path)
    assert "added_npu" in text


def test_a_codemod_is_one_file(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "codemods").mkdir()
    (tmp_path / "codemods/acme.py").write_text(CODEMOD)
    (tmp_path / "pyproject.toml").write_text('[tool.joymigrate]\ncodemods = ["codemods"]\n')
    (tmp_path / "use.py").write_text("import acme\nacme.old_name(2)\n")
    ask(copy, "explain", "--check", folder=tmp_path)
    ask(copy, "rewrite", ".", "--select", "ACME1", folder=tmp_path)
    assert (tmp_path / "use.py").read_text() == "import acme\nacme.new_name(2)\n"


def test_a_kernel_is_one_file(copy: Path) -> None:
    assert "scaled_square" in ask(copy, "kernels", "list")
    assert "scaled_square" in ask(copy, "kernels", "check", "scaled_square", "--device", "cpu")


def test_a_reader_and_an_advice_are_one_file_and_one_item(copy: Path, tmp_path: Path) -> None:
    trace = tmp_path / "calls.txt"
    trace.write_text("# operators\naten::relu\naten::relu\n")
    document = json.loads(ask(copy, "profile", "coverage", str(trace), "--format", "json"))
    assert "aten::relu" in json.dumps(document)
    script = (
        "from joymigrate import chips\nfrom joymigrate.profile import advice\n"
        "print([one.id for one in advice.load_rules(chips.target('ascend'))])"
    )
    assert "ADDED" in start(copy, "-c", script).stdout


def test_a_format_is_one_file(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nx = torch.ones(2).cuda()\n")
    text = ask(copy, "scan", ".", "--exit-zero", "--format", "outline", folder=tmp_path)
    assert text.startswith("OUTLINE\n")
    assert len(text.splitlines()) > 1
    ask(copy, "scan", ".", "--exit-zero", "--format", "json", "-o", "scan.json", folder=tmp_path)
    for words in (("report", "scan.json"), ("chips", "list"), ("kernels", "list")):
        assert ask(copy, *words, "--format", "outline", folder=tmp_path).startswith("OUTLINE\n")


def test_a_placement_policy_is_one_file(copy: Path, tmp_path: Path) -> None:
    script = "from joymigrate.run.cluster import policies\nprint(policies.names())"
    assert "'first'" in start(copy, "-c", script).stdout


def test_a_model_family_is_one_file(copy: Path) -> None:
    assert "plain" in ask(copy, "train", "models", "--family", "plain", "--format", "json")


def test_a_chip_is_one_folder(copy: Path, tmp_path: Path) -> None:
    assert "acme" in ask(copy, "chips", "list")
    ask(copy, "chips", "validate", "acme")
    (tmp_path / "train.py").write_text('import torch\nx = torch.ones(2, device="cuda")\n')
    ask(copy, "rewrite", ".", "--to", "acme", "--style", "direct", folder=tmp_path)
    assert 'device="acm"' in (tmp_path / "train.py").read_text()


def test_the_form_of_the_project_holds(copy: Path) -> None:
    """Nothing else had to be written: imports, names, docs, snapshots and generated pages."""
    tests = ("test_imports.py", "test_names.py", "test_docs_form.py", "test_files.py",
             "cli/test_scan.py")  # fmt: skip
    found = start(
        copy, "-m", "pytest", "-q", "-n0", *(f"tests/{one}" for one in tests), folder=copy
    )
    assert found.returncode == 0, found.stdout[-4000:]
