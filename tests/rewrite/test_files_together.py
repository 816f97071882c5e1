"""Files of one program change their tables together, or none of them does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rewrite.projects import move, write

MODEL = (
    "from torchrec import EmbeddingBagCollection\ndef build(t): return EmbeddingBagCollection(t)\n"
)
MOVED = "from joymigrate.run.train.tables import EmbeddingBagCollection\n"
KEPT = "from torchrec.distributed.planner import EmbeddingShardingPlanner\n"
FREE = "from torchrec import KeyedJaggedTensor\n"


@pytest.mark.parametrize(
    "files",
    [
        {"plan.py": f"import model\n{KEPT}"},
        {"plan.py": KEPT, "train.py": "from model import build\nimport plan\n"},
        {"plan.py": KEPT, "middle.py": "import plan\n", "train.py": "import model, middle\n"},
        {
            "plan.py": KEPT,
            "pkg/__init__.py": "import plan\n",
            "pkg/use.py": "",
            "train.py": "import model\nimport pkg.use\n",
        },
    ],
    ids=["imports it", "a third imports both", "by another file", "by a package on the way"],
)
def test_a_file_stays_with_one_of_its_program(files: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, {"model.py": MODEL, **files})
    found = move(tmp_path, unsafe=True)
    assert (tmp_path / "model.py").read_text() == MODEL
    (mine,) = [f for f in found.findings if f.path == "model.py" and f.rule == "JM235"]
    assert "plan.py stays" in str(mine.reason)
    assert "EmbeddingShardingPlanner" in str(mine.reason)


def test_relative_imports_of_a_package_count(tmp_path: Path) -> None:
    write(tmp_path, {
        "pkg/__init__.py": "", "pkg/nets/__init__.py": "", "pkg/nets/model.py": MODEL,
        "pkg/plan.py": f"from .nets import model\n{KEPT}",
    })  # fmt: skip
    move(tmp_path, unsafe=True)
    assert (tmp_path / "pkg/nets/model.py").read_text() == MODEL


def test_programs_that_share_only_a_helper_are_two(tmp_path: Path) -> None:
    write(tmp_path, {
        "shared.py": "SIZE = 3\n", "one.py": f"import shared\n{MODEL}",
        "two.py": f"import shared\n{KEPT}", "keys.py": FREE,
    })  # fmt: skip
    move(tmp_path, unsafe=True)
    assert MOVED in (tmp_path / "one.py").read_text()
    assert (tmp_path / "two.py").read_text() == f"import shared\n{KEPT}"
    assert "joymigrate" in (tmp_path / "keys.py").read_text()
