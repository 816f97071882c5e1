"""`python -m scripts.build_names`: one list from several versions of a package."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from joymigrate.chips.extract import SourceTree
from joymigrate.chips.names import parse

SCRIPTS = Path(__file__).parents[2] / "scripts"
pytestmark = pytest.mark.skipif(not SCRIPTS.is_dir(), reason="only in a checkout")

OLD = {
    "torch_acm/__init__.py": "",
    "torch_acm/acm/__init__.py": "def old(): pass\ndef both(): pass\nimport os\nErr = 1\n",
}
NEW = {
    "torch_acm/__init__.py": "",
    "torch_acm/acm/__init__.py": "from .mark import mark\ndef both(): pass\nmatmul = object()\n",
    "torch_acm/acm/mark.py": "class mark:\n  def push(self): pass\n",
    "torch_acm/ops.yaml": "custom:\n- func: acm_rms(Tensor x) -> Tensor\n- acm_add\nother: [no]\n",
}
RECIPE = {
    "versions": {},
    "sections": [
        {
            "module": "torch.acm",
            "read": ["torch_acm.acm"],
            "drop": ["Err*"],
            "members": ["mark"],
            "add": {"matmul": ["matmul.fast"]},
        },
        {"module": "torch_acm", "schemas": "torch_acm/ops.yaml", "keys": ["custom"]},
        {"module": "torch.version", "state": ["acm"], "why": "set at run time"},
    ],
}


def tree(root: Path, files: dict[str, str]) -> SourceTree:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return SourceTree(root)


def test_one_list_says_since_when_a_name_exists(tmp_path: Path) -> None:
    from scripts.build_names import render

    trees = {"2.10": tree(tmp_path / "new", NEW), "2.9": tree(tmp_path / "old", OLD)}
    text = render("acme", RECIPE, trees, {"2.9": "torch-acm 2.9", "2.10": "torch-acm 2.10"})
    body = text[text.index("version 2") :]
    assert body == textwrap.dedent(
        """\
        version 2.9 torch-acm 2.9
        version 2.10 torch-acm 2.10

        [torch.acm]
        both
        mark 2.10-
        mark.push 2.10-
        matmul 2.10-
        matmul.fast 2.10-
        old 2.9

        [torch_acm] 2.10-
        acm_add
        acm_rms

        [torch.version]
        acm
        """
    )
    path = tmp_path / "names.txt"
    path.write_text(text)
    assert parse(path).names("torch.acm", "2.9") == {"both", "old"}


@pytest.mark.slow
def test_the_origin_s_list_is_what_the_installed_torch_says() -> None:
    from joymigrate.chips import origin, read_yaml
    from scripts.build_names import names_of

    torch = pytest.importorskip("importlib.metadata").version("torch")
    if not torch.startswith("2.13"):
        pytest.skip(f"the list is of torch 2.13, installed is {torch}")
    import sysconfig

    site = SourceTree(Path(sysconfig.get_paths()["purelib"]))
    listed = origin().name_list()
    assert listed is not None
    for section in read_yaml(origin().folder / "names.yaml")["sections"]:
        assert names_of(section, site) == set(listed.names(section["module"], "2.13"))


def test_without_its_sources_the_script_says_what_to_fetch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.build_names", "ascend", "--wheels", str(tmp_path)],
        cwd=SCRIPTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "pip download --no-deps torch-npu" in done.stderr
