"""What does not stand is not written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.model import Edit, Finding, Style, Tier
from joymigrate.rewrite import patches, scan
from joymigrate.rewrite.project import index_of
from joymigrate.rewrite.proof import Devices, prove
from tests.ledger.trees import write_tree

DIRECT = Devices("cuda", "npu", agnostic=False)


def finding(start: int, end: int, text: bytes, group: str | None = None) -> Finding:
    """An edit of the first line."""
    return Finding(
        "JM120", "x", Tier.SAFE, "a.py", 1, start + 1, 1, end + 1, "", "", "", None,
        (Edit(start, end, text),), group=group,
    )  # fmt: skip


def test_a_result_that_does_not_parse_is_left_out_with_its_group() -> None:
    before = b"a = 1\nb = 2\nc = 3\n"
    bad, same, good = (
        finding(4, 5, b")", "one"), finding(10, 11, b"5", "one"), finding(16, 17, b"6"),
    )  # fmt: skip
    proven = prove("a.py", before, [bad, same, good], DIRECT)
    assert proven.content == b"a = 1\nb = 2\nc = 6\n"
    assert [each for each, _ in proven.left] == [bad, same]
    assert "does not parse" in proven.left[0][1]


def test_a_result_with_both_devices_in_one_expression_is_left_out() -> None:
    before = b'x = f("cuda", torch.cuda.y)\n'
    proven = prove("a.py", before, [finding(7, 11, b"npu")], DIRECT)
    assert proven.content == before
    assert "both devices" in proven.left[0][1]


CLEARS = "import torch\ntorch.cuda.empty_cache()\n"
LAYOUTS = {
    "package": (
        {"pkg/__init__.py": "", "pkg/a.py": "import torch\nx = torch.ones(1).cuda\n"
         "def f(t):\n    return t.is_cuda\n"},
        ["-c", "import pkg.a"],
    ),
    "namespace": (
        {"recipe/prime/__init__.py": "", "recipe/prime/a.py":
         "import torch\ntorch.cuda.empty_cache()\n", "main.py": "from recipe.prime import a\n"},
        ["main.py"],
    ),
    "namespace beside the package": (
        {"verl/__init__.py": "", "verl/b.py": "", "recipe/prime/__init__.py": "",
         "recipe/prime/a.py": "import torch\nimport verl.b\ntorch.cuda.empty_cache()\n"},
        ["-m", "recipe.prime.a"],
    ),
    "script by path": (
        {"pkg/__init__.py": "", "tools/run.py": "import torch\ntorch.cuda.empty_cache()\n"},
        ["tools/run.py"],
    ),
    "configuration that imports from above": (
        {"app/flow/loaders.py": "y = 1\n", "app/configs/base.py": "import torch\n"
         "from flow.loaders import y\ntorch.cuda.empty_cache()\n",
         "app/main.py": "import runpy, os\n"
         "runpy.run_path(os.path.join(os.path.dirname(__file__), 'configs/base.py'))\n"},
        ["app/main.py"],
    ),
    "folder named as a distribution": (
        {"datasets/__init__.py": "", "examples/run.py":
         "import torch\ntry:\n    from datasets import x\nexcept ImportError:\n    x = 0\n"
         "torch.cuda.empty_cache()\n"},
        ["examples/run.py"],
    ),
    "folder in a package of programs that is no part of it": (
        {"net/__init__.py": "", "examples/__init__.py": "", "examples/detect/utils/__init__.py": "",
         "examples/detect/utils/args.py": "import torch\ntorch.cuda.empty_cache()\n",
         "examples/detect/run.py": "import utils.args\n"},
        ["examples/detect/run.py"],
    ),
    "package below a folder with setup.py and an __init__": (
        {"python/__init__.py": "", "python/setup.py": "from setuptools import setup\nsetup()\n",
         "python/net/__init__.py": "",
         "python/net/a.py": "import torch\ntorch.cuda.empty_cache()\n"},
        ["-c", "import sys; sys.path[0] = 'python'; import net.a"],
    ),
    "file that another program loads by its path": (
        {"plug/x.py": "import torch\ntorch.cuda.empty_cache()\n", "main.py":
         "import importlib.util as u\ns = u.spec_from_file_location('x', 'plug/x.py')\n"
         "m = u.module_from_spec(s)\ns.loader.exec_module(m)\n"},
        ["main.py"],
    ),
    "packages of a program": (
        {"models/__init__.py": "", "models/m.py": CLEARS, "utils/__init__.py": "",
         "utils/u.py": CLEARS, "test.py": CLEARS,
         "train.py": f"from models.m import torch\nfrom utils import u\n{CLEARS}"},
        ["train.py"],
    ),
    "folders of a program": (
        {"models/m.py": CLEARS, "utils/u.py": CLEARS,
         "train.py": "from models.m import torch\nfrom utils.u import torch\n"},
        ["train.py"],
    ),
    "program in src": (
        {"pyproject.toml": "[tool.ruff]\n", "src/models/__init__.py": "",
         "src/models/m.py": CLEARS, "src/data/d.py": CLEARS,
         "src/train.py": f"import models.m\nfrom data.d import torch\n{CLEARS}",
         "tools/eval.py": "import sys\nsys.path.append('src')\nimport models.m\n" + CLEARS},
        ["tools/eval.py"],
    ),
    "program beside src, which it imports": (
        {"src/__init__.py": "", "src/net.py": CLEARS, "main.py": f"import src.net\n{CLEARS}"},
        ["main.py"],
    ),
    "packages of one distribution": (
        {"pyproject.toml": "[project]\n[tool.setuptools]\npackages = ['hall', 'kitchen']\n",
         "hall/__init__.py": "", "hall/door.py": CLEARS, "hall/wall.py": "",
         "kitchen/__init__.py": "from kitchen.oven import torch\n", "kitchen/oven.py": CLEARS,
         "more/__init__.py": "", "main.py": f"import hall.door\nimport kitchen.oven\n{CLEARS}"},
        ["-c", "import kitchen.oven, main, hall.joymigrate_device"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_added_import_resolves_as_the_program_resolves_it(name: str, tmp_path: Path) -> None:
    files, command = LAYOUTS[name]
    write_tree(tmp_path, {path: text.encode() for path, text in files.items()})
    found = scan(
        [tmp_path], chip=chips.target("ascend"), origin=chips.origin(), style=Style.AGNOSTIC
    )
    made = patches(found)
    assert sum(patch.path.name == "joymigrate_device.py" for patch in made) == 1
    for patch in made:
        patch.path.write_bytes(patch.after or b"")
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_files_of_a_package_that_a_host_loads_keep_a_helper_in_their_package(
    tmp_path: Path,
) -> None:
    """A folder that is a package itself is not on the path."""
    files = {"__init__.py": "from .models import m\n", "models/__init__.py": "",
             "models/m.py": CLEARS, "utils/__init__.py": "", "utils/u.py": CLEARS,
             "train.py": f"import models.m\nimport utils.u\n{CLEARS}"}  # fmt: skip
    write_tree(tmp_path, {path: text.encode() for path, text in files.items()})
    chip, origin = chips.target("ascend"), chips.origin()
    found = scan([tmp_path], chip=chip, origin=origin, style=Style.AGNOSTIC)
    texts = {f.path: f.after for f in found.findings if f.rule == "JM001"}
    assert texts["models/m.py"] == "from models import joymigrate_device as jm"


def test_distributions_that_install_apart_keep_a_helper_each(tmp_path: Path) -> None:
    files = {"one/setup.py": "", "one/one_pkg/__init__.py": "", "one/one_pkg/a.py": CLEARS,
             "two/setup.py": "", "two/two_pkg/__init__.py": "",
             "two/two_pkg/a.py": f"import one_pkg.a\n{CLEARS}"}  # fmt: skip
    write_tree(tmp_path, {path: text.encode() for path, text in files.items()})
    chip, origin = chips.target("ascend"), chips.origin()
    found = scan([tmp_path], chip=chip, origin=origin, style=Style.AGNOSTIC)
    made = [p for p in patches(found) if p.path.name == "joymigrate_device.py"]
    assert {p.path.parent.name for p in made} == {"one_pkg", "two_pkg"}


def test_the_helper_is_imported_by_the_name_that_other_files_use() -> None:
    hub = {"hubconf.py": "from Hub.vision.net.a import f\n", "Hub/vision/net/__init__.py": "",
           "Hub/vision/net/a.py": "", "Hub/vision/main.py": "import net.a\n",
           "Hub/vision/test.py": "from net.a import f\n"}  # fmt: skip
    assert index_of(hub).helper_home("Hub/vision/net/a.py")[1] == (
        "try:\n    from net import joymigrate_device as jm\n"
        "except ImportError:\n    from Hub.vision.net import joymigrate_device as jm"
    )
    inner = {"main.py": "import inner.x\n", "inner/x.py": "", "inner/deps/setup.py": "",
             "inner/deps/quant/__init__.py": "", "inner/deps/quant/a.py": "",
             "inner/deps/examples/run.py": "from quant.a import q\n"}  # fmt: skip
    for path in ("inner/deps/quant/a.py", "inner/deps/examples/run.py"):
        assert index_of(inner).helper_home(path) == (
            "inner/deps/quant/joymigrate_device.py", "from quant import joymigrate_device as jm",
        )  # fmt: skip
    asking = "from ns.core.a import x\n"
    namespace = {"setup.py": "", "src/ns/core/__init__.py": "", "src/ns/core/a.py": "",
                 "src/ns/core/deep/b.py": asking, "tests/t.py": asking}  # fmt: skip
    for path in ("src/ns/core/a.py", "src/ns/core/deep/b.py"):
        assert index_of(namespace).helper_home(path) == (
            "src/ns/core/joymigrate_device.py", "from ns.core import joymigrate_device as jm",
        )  # fmt: skip
    installed = {"net/__init__.py": "", "net/a.py": "", "setup.py": "",
                 "examples/node/walk.py": "from net import a\nimport net.a\n"}  # fmt: skip
    assert index_of(installed, "cuda").helper_home("examples/node/walk.py") == (
        "examples/node/joymigrate_device.py", "import joymigrate_device as jm",
    )  # fmt: skip


def test_the_target_in_the_next_line_excuses_no_expression_with_both() -> None:
    before = b'x = f("cuda", torch.cuda.y)\nz = torch.npu.q\n'
    assert prove("a.py", before, [finding(7, 11, b"npu")], DIRECT).content == before
    both = b'x = f("cuda", "npu", torch.cuda.y)\n'
    assert prove("a.py", both, [finding(7, 11, b"npu")], DIRECT).content != both
