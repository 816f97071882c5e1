"""Device strings that travel: inside a file, through options and classes, between files."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.model import Style, Tier
from tests.rewrite.projects import findings, look, move, rewritten, write

TRAVELS = {
    "a constant": "D = 'cuda'\nmodel.to(D)\n",
    "a default argument": "def f(where='cuda'):\n    x.to(where)\n",
    "a keyword of the project's own function": "def f(w):\n    x.to(w)\nf(w='cuda')\n",
    "a positional argument": "def f(a, w):\n    x.to(w)\nf(1, 'cuda')\n",
    "a method's argument": (
        "class A:\n    def go(self, w):\n        x.to(w)\n"
        "    def run(self):\n        self.go('cuda')\n"
    ),
    "a conditional expression": "d = 'cuda' if ok else 'cpu'\nx.to(d)\n",
    "a return value": "def pick():\n    return 'cuda'\nx.to(pick())\n",
    "an attribute": (
        "class A:\n    def __init__(self):\n        self.dev = 'cuda'\n"
        "    def run(self, x):\n        return x.to(self.dev)\n"
    ),
    "a class attribute": "class C:\n    where = 'cuda'\nx.to(C().where)\n",
    "an option": "p.add_argument('--where', default='cuda')\nx.to(args.where)\n",
    "click's option": (
        "import click\n@click.option('--where', default='cuda')\n"
        "def main(where):\n    x.to(where)\n"
    ),
    "an environment default": "import os\nd = os.environ.get('DEV', 'cuda')\nx.to(d)\n",
    "a loop over a list": "for d in ['cuda:0', 'cuda:1']:\n    x.to(d)\n",
    "a walrus": "if (d := 'cuda'):\n    x.to(d)\n",
    "an alternative": "d = given or 'cuda'\nx.to(d)\n",
    "a lambda": "f = lambda d='cuda': x.to(d)\n",
    "a tuple": "a, d = 1, 'cuda'\nx.to(d)\n",
}


@pytest.mark.parametrize("text", TRAVELS.values(), ids=TRAVELS.keys())
def test_a_string_is_followed_through(text: str, tmp_path: Path) -> None:
    assert "cuda" not in rewritten(tmp_path, text)


STAYS = {
    "an unknown function": "transport('cuda')\n",
    "a name that goes nowhere": "mode = 'cuda'\n",
    "a shadowed torch": (
        "class torch:\n    @staticmethod\n    def device(x): pass\ntorch.device('cuda')\n"
    ),
    "a different variable of the name": (
        "def f():\n    d = 'cuda'\n    return d2\ndef g(d2):\n    x.to(d2)\n"
    ),
    "a dictionary key": "states = {'cuda': 1}\n",
    "a comparison with anything": "if kind == 'cuda':\n    pass\n",
}


@pytest.mark.parametrize("text", STAYS.values(), ids=STAYS.keys())
def test_what_is_not_proven_stays_and_is_reported(text: str, tmp_path: Path) -> None:
    assert rewritten(tmp_path, text) == text
    found = findings(tmp_path, text)
    assert all(f.tier is Tier.REPORT and f.reason for f in found)
    assert found


SILENT = {
    "a message": "print('cuda')\nlogger.info('cuda')\nraise ValueError('cuda')\n",
    "a docstring": "def f():\n    'cuda'\n",
    "a mode's name": "backend = 'cuda_amp'\n",
    "a class path": "config = {'target': 'main.CUDACallback'}\n",
    "a flag": "p.add_argument('--no-cuda', action='store_true', help='disables CUDA')\nargs.cuda\n",
    "somebody else's symbol": "from transformers.utils import is_torch_cuda_available\n",
    "a method of another library": "trt.deserialize_cuda_engine(x)\n",
    "a URL": "open('cuda://host')\n",
}


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT.keys())
def test_what_plainly_is_no_device_is_left_in_silence(text: str, tmp_path: Path) -> None:
    assert findings(tmp_path, text) == []


def test_a_constant_reaches_a_device_in_another_file(tmp_path: Path) -> None:
    write(
        tmp_path, {"settings.py": "D = 'cuda'\n", "train.py": "from settings import D\nx.to(D)\n"}
    )
    move(tmp_path)
    assert (tmp_path / "settings.py").read_text() == "D = 'npu'\n"


def test_a_constant_travels_over_a_reexport_and_a_module_attribute(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "from pkg.base import D\n",
        "pkg/base.py": "D = 'cuda'\n",
        "train.py": "import pkg\nx.to(pkg.D)\n",
    }
    write(tmp_path, files)
    move(tmp_path)
    assert (tmp_path / "pkg/base.py").read_text() == "D = 'npu'\n"


def test_an_argument_reaches_a_device_in_another_file(tmp_path: Path) -> None:
    files = {
        "lib/__init__.py": "",
        "lib/build.py": "def build(n, where):\n    return net.to(where)\n",
        "train.py": "from lib.build import build\nbuild(1, 'cuda')\nbuild(2, where='cuda:1')\n",
    }
    write(tmp_path, files)
    move(tmp_path)
    assert "cuda" not in (tmp_path / "train.py").read_text()


def test_a_return_value_reaches_a_device_in_another_file(tmp_path: Path) -> None:
    files = {
        "util.py": "def pick():\n    return 'cuda'\n",
        "train.py": "from util import pick\nx.to(pick())\n",
    }
    write(tmp_path, files)
    move(tmp_path)
    assert "'npu'" in (tmp_path / "util.py").read_text()


def test_a_string_that_no_other_file_takes_to_a_device_is_reported(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "PLACE = 'cuda'\n", "b.py": "from a import PLACE\nprint(PLACE)\n"})
    (finding,) = look(tmp_path).findings
    assert finding.rule == "JM121"
    assert finding.reason == "not seen to reach a device: it is kept in PLACE"


def test_an_option_defined_in_one_file_and_used_in_another(tmp_path: Path) -> None:
    files = {
        "options.py": "p.add_argument('--gpu-device', default='cuda')\n",
        "train.py": "def run(args):\n    x.to(args.gpu_device)\n",
    }
    write(tmp_path, files)
    move(tmp_path)
    assert "'npu'" in (tmp_path / "options.py").read_text()


def test_a_method_of_a_project_class_is_not_taken_for_torchs(tmp_path: Path) -> None:
    text = (
        "import torch\nclass Batch:\n    def cuda(self):\n        return self\n"
        "b = Batch().cuda()\nx = torch.ones(1).cuda()\n"
    )
    new = rewritten(tmp_path, text)
    assert "Batch().cuda()" in new
    assert "torch.ones(1).npu()" in new


def test_a_branch_for_the_target_leaves_the_other_branch_alone(tmp_path: Path) -> None:
    text = (
        "import torch\nif is_npu():\n    torch.npu.synchronize()\n"
        "else:\n    torch.cuda.synchronize()\n"
    )
    assert rewritten(tmp_path, text) == text
    (finding,) = findings(tmp_path, text, "JM101")
    assert "already serves" in (finding.reason or "")


GUARDS = {
    "not on the target": "if not is_npu():\n    torch.cuda.synchronize()\n",
    "in the other branch": (
        "if torch.npu.is_available():\n    pass\nelse:\n    torch.cuda.synchronize()\n"
    ),
    "in an expression": "x = torch.npu.Event() if npu else torch.cuda.Event()\n",
    "after a failed import": (
        "try:\n    import torch_npu\nexcept ImportError:\n    torch.cuda.synchronize()\n"
    ),
}


@pytest.mark.parametrize("text", GUARDS.values(), ids=GUARDS.keys())
def test_code_for_when_the_target_is_absent_stays(text: str, tmp_path: Path) -> None:
    assert "torch.cuda" in rewritten(tmp_path, "import torch\n" + text)


def test_code_for_the_target_itself_is_rewritten(tmp_path: Path) -> None:
    text = "import torch\nif device == 'npu':\n    torch.cuda.synchronize()\n"
    assert "torch.npu.synchronize()" in rewritten(tmp_path, text)


@pytest.mark.parametrize(
    "line",
    [
        "table[f'layers.{i}'] = f'cuda:{i}'",
        "table['layers.0'] = 'cuda:0'",
        "kw['device_map'] = 'cuda'",
        "device_map[i] = 'cuda'",
        "if device in {f'cuda:{i}' for i in range(n)}: go()",
        "if device not in [f'cuda:{i}' for i in range(n)]: go()",
    ],
)
def test_devices_in_tables_and_sets_move(line: str, tmp_path: Path) -> None:
    head = "def run(m, kw, device, n, i):\n    table = {}\n"
    text = f"{head}    {line}\n    m.load(device_map=table)\n"
    after = rewritten(tmp_path, text)
    assert line.replace("cuda", "npu") in after


@pytest.mark.parametrize("line", ["names[0] = 'cuda'", "names['a b'] = 'cuda'"])
def test_other_tables_stay(line: str, tmp_path: Path) -> None:
    text = f"def run(names, device):\n    {line}\n    show(names)\n"
    assert rewritten(tmp_path, text) == text


@pytest.mark.parametrize(
    "bound",
    [
        "import importlib\ntorch = importlib.import_module('torch')",
        "import pytest\ntorch = pytest.importorskip('torch', '2.1')",
        "class Late:\n    def __getattr__(self, name):\n        import torch\n"
        "        return getattr(torch, name)\ntorch = Late()",
    ],
)
def test_torch_that_is_loaded_by_a_call_is_torch(bound: str, tmp_path: Path) -> None:
    text = (
        f'{bound}\ndef sync(device):\n    if "cuda" in device:\n        torch.cuda.synchronize()\n'
    )
    after = rewritten(tmp_path, text)
    assert 'if "npu" in device:\n        torch.npu.synchronize()' in after


def test_a_keyword_goes_on_through_the_rest_of_the_keywords(tmp_path: Path) -> None:
    text = (
        "def f(x, **kw):\n    return g(x, **kw)\n"
        "def g(x, spot=None, **kw):\n    return x.to(spot).to(kw['other'])\n"
        "f(x, spot='cuda', other='cuda')\nf(x, mode='cuda')\n"
    )
    after = rewritten(tmp_path, text)
    assert "f(x, spot='npu', other='npu')" in after
    assert "f(x, mode='cuda')" in after


def test_a_comprehension_takes_from_a_list_that_grows(tmp_path: Path) -> None:
    text = "ds = []\nfor i in n:\n    ds.append(f'cuda:{i}')\nys = [x.to(d) for d in ds]\n"
    assert "f'npu:{i}'" in rewritten(tmp_path, text)


def test_names_are_followed_through_a_star_import(tmp_path: Path) -> None:
    values = 'WHERE = "cuda"\ndef go(x, target):\n    return x.to(target)\n'
    use = 'from values import *\nx.to(WHERE)\ngo(x, "cuda")\nif WHERE == "cuda":\n    pass\n'
    write(tmp_path, {"values.py": values, "use.py": use})
    move(tmp_path)
    assert 'WHERE = "npu"' in (tmp_path / "values.py").read_text()
    after = (tmp_path / "use.py").read_text()
    assert 'go(x, "npu")' in after
    assert 'if WHERE == "npu":' in after


def test_words_of_a_command_line_move_with_what_they_give(tmp_path: Path) -> None:
    text = (
        "a = parse(['--device=cuda:2', '--backend=nccl', '--device', 'cuda', '--kind=cuda'])\n"
        "assert a['device'] == 'cuda:2'\n"
    )
    after = rewritten(tmp_path, text.replace(", '--kind=cuda'", ""))
    assert "parse(['--device=npu:2', '--backend=hccl', '--device', 'npu'])" in after
    assert "a['device'] == 'npu:2'" in after
    both = rewritten(tmp_path / "both", text, Style.AGNOSTIC)
    assert "f'--device={jm.device(2)}', f'--backend={jm.dist_backend()}'" in both
    assert "'--kind=cuda'" in both


def test_a_list_with_the_device_where_it_is_there_is_followed(tmp_path: Path) -> None:
    text = "import torch\nds = ['cpu'] + (['cuda'] if torch.cuda.is_available() else [])\n"
    assert "['npu'] if torch.npu.is_available() else []" in rewritten(tmp_path, text)
