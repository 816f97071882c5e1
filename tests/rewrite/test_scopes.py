"""Which name means what: captures, comprehensions, `global`, relative imports, parameters."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from joymigrate.model import Style
from joymigrate.rewrite.scope_fields import FIELD, FIELDS, fields_of
from joymigrate.rewrite.scopes import ModuleScopes
from tests.rewrite.projects import findings, look, move, rewritten, write

USE = "torch.cuda.synchronize()\n"

SHADOWED = {
    "a match capture": "match x:\n    case torch:\n        torch.cuda.synchronize()\n",
    "a match capture under a pattern": (
        "match x:\n    case int() as torch:\n        torch.cuda.synchronize()\n"
    ),
    "the rest of a matched list": (
        "match x:\n    case [1, *torch]:\n        torch.cuda.synchronize()\n"
    ),
    "the rest of a matched mapping": (
        "match x:\n    case {'a': 1, **torch}:\n        torch.cuda.synchronize()\n"
    ),
    "a comprehension's variable": "[torch.cuda.synchronize() for torch in them]\n",
    "a parameter without annotation": "def f(torch):\n    torch.cuda.synchronize()\n",
    "a keyword-only parameter": "def f(*, torch=1):\n    torch.cuda.synchronize()\n",
    "a global that is assigned elsewhere": (
        "def f():\n    global torch\n    torch = mine()\ndef g():\n    torch.cuda.synchronize()\n"
    ),
}


@pytest.mark.parametrize("text", SHADOWED.values(), ids=SHADOWED.keys())
def test_another_thing_of_the_name_is_left_alone(text: str, tmp_path: Path) -> None:
    for head in ("", "import torch\n"):
        assert rewritten(tmp_path, head + text) == head + text


MEANT = {
    "in a comprehension's condition": "[x for x in xs if torch.cuda.is_available()]\n",
    "in a later loop of a comprehension": (
        "{x: y for x in xs for y in range(torch.cuda.device_count())}\n"
    ),
    "beside a match": "match torch.cuda.device_count():\n    case 1:\n        pass\n",
    "under a match guard": "match n:\n    case 1 if torch.cuda.is_available():\n        pass\n",
    "as a keyword-only default": "def f(*, a, n=torch.cuda.device_count(), b=1):\n    pass\n",
    "as a positional-only default": "def f(a, n=torch.cuda.device_count(), /, b=1):\n    pass\n",
    "as a function's `global`": "def f():\n    global torch\n    torch.cuda.synchronize()\n",
    "in a nested function": "def f():\n    def g():\n        torch.cuda.synchronize()\n",
    "in a lambda's default": "f = lambda n=torch.cuda.device_count(): n\n",
    "in a class body": "class A:\n    n = torch.cuda.device_count()\n",
}


@pytest.mark.parametrize("text", MEANT.values(), ids=MEANT.keys())
def test_torch_is_found(text: str, tmp_path: Path) -> None:
    moved = rewritten(tmp_path, "import torch\n" + text)
    assert "torch.npu." in moved
    assert "cuda" not in moved


def test_an_outer_variable_set_from_inside_carries_the_device(tmp_path: Path) -> None:
    text = (
        "def outer():\n    d = 'cpu'\n    def inner():\n        nonlocal d\n        d = 'cuda'\n"
        "    inner()\n    x.to(d)\n"
    )
    assert "d = 'npu'" in rewritten(tmp_path, text)
    text = "D = 'cpu'\ndef pick():\n    global D\n    D = 'cuda'\nx.to(D)\n"
    assert "D = 'npu'" in rewritten(tmp_path, text)


@pytest.mark.parametrize(
    ("importing", "owner"),
    [
        ("from .settings import D\n", "pkg/sub/settings.py"),
        ("from ..settings import D\n", "pkg/settings.py"),
        ("from .. import D\n", "pkg/__init__.py"),
        ("from . import D\n", "pkg/sub/__init__.py"),
        ("from pkg.sub.settings import (\n    D,\n)\n", "pkg/sub/settings.py"),
    ],
)
def test_relative_imports_are_followed_to_their_file(
    importing: str, owner: str, tmp_path: Path
) -> None:
    files = dict.fromkeys(("pkg/__init__.py", "pkg/sub/__init__.py"), "E = 1\n")
    files |= {"pkg/sub/train.py": importing + "x.to(D)\n", owner: "D = 'cuda'\n"}
    write(tmp_path, files)
    move(tmp_path)
    assert (tmp_path / owner).read_text() == "D = 'npu'\n"


@pytest.mark.parametrize("importing", ["from ...torch import cuda\n", "from .torch import cuda\n"])
def test_a_relative_import_never_looks_like_an_installed_module(
    importing: str, tmp_path: Path
) -> None:
    write(tmp_path, {"pkg/__init__.py": "", "pkg/a.py": importing + "cuda.synchronize()\n"})
    assert [f for f in look(tmp_path).findings if f.rule == "JM101"] == []
    assert rewritten(tmp_path, importing + "cuda.synchronize()\n") == importing + (
        "cuda.synchronize()\n"
    )


def test_names_behind_a_star_import_are_still_bound(tmp_path: Path) -> None:
    moved = rewritten(tmp_path, "from os import *\nfrom torch import cuda\ncuda.synchronize()\n")
    assert "from torch import npu" in moved


def test_the_place_of_what_is_unreadable_is_told(tmp_path: Path) -> None:
    write(tmp_path, {"bad.py": "import torch\nx = (\n", "good.py": "import torch\n" + USE})
    found = look(tmp_path)
    told = {(finding.path, finding.rule, finding.line) for finding in found.findings}
    assert told == {("bad.py", "JM000", 2), ("good.py", "JM001", 1), ("good.py", "JM101", 2)}


ENTRIES = {
    "with a main guard": ("import torch\nif __name__ == '__main__':\n    x.cuda()\n", True),
    "a loose script": ("import torch\nmain()\nx.cuda()\n", True),
    "a loose module that only defines": ("import torch\ndef f():\n    x.cuda()\n", False),
    "one without torch": ("main()\nx.cuda()\n", False),
}


@pytest.mark.parametrize(("text", "started"), ENTRIES.values(), ids=ENTRIES.keys())
def test_the_shim_goes_into_files_that_are_started(
    text: str, started: bool, tmp_path: Path
) -> None:
    assert ("transfer_to_npu" in rewritten(tmp_path, text, Style.SHIM)) == started


def test_the_shim_stays_out_of_a_script_that_others_import(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "lib.py": "import torch\nsetup()\nx.cuda()\n",
            "a.py": "import torch\nimport lib\nrun()\n",
            "pkg/__init__.py": "import torch\nsetup()\n",
        },
    )
    move(tmp_path, Style.SHIM)
    with_shim = [p.name for p in tmp_path.rglob("*.py") if "transfer_to_npu" in p.read_text()]
    assert with_shim == ["a.py"]


# -- values that travel ---------------------------------------------------------------------------

FOLLOWED = {
    "an option read as an entry": (
        "p.add_argument('--where', default='cuda')\nc = vars(p.parse_args())\nx.to(c['where'])\n"
    ),
    "a list's element": "ds = ['cuda']\nx.to(ds[0])\n",
    "a method on a string": "d = 'cuda'.strip()\nx.to(d)\n",
    "a default of `get`": "x.to(config.get('where', 'cuda'))\n",
    "a default of `getattr`": "x.to(getattr(args, 'where', 'cuda'))\n",
    "an option read by `getattr`": (
        "p.add_argument('--where', default='cuda')\nx.to(getattr(args, 'where', None))\n"
    ),
    "an option with dashes": "p.add_argument('--run-on', default='cuda')\nx.to(args.run_on)\n",
    "an option with another name": (
        "p.add_argument('-w', '--where', dest='place', default='cuda')\nx.to(args.place)\n"
    ),
    "a class made with a device": (
        "class A:\n    def __init__(self, n, w):\n        x.to(w)\nA(1, 'cuda')\nA(1, w='cuda')\n"
    ),
    "a class's own method": (
        "class A:\n    def pick(self):\n        return 'cuda'\n"
        "    def run(self):\n        x.to(self.pick())\n"
    ),
}


@pytest.mark.parametrize("text", FOLLOWED.values(), ids=FOLLOWED.keys())
def test_a_device_is_followed_through(text: str, tmp_path: Path) -> None:
    assert "'npu" in rewritten(tmp_path, text)


NOT_FOLLOWED = {
    "an option of another name": "p.add_argument('--mode', default='cuda')\nx.to(args.where)\n",
    "a return without a function's value": "def f():\n    return\nmode = 'cuda'\nx.to(f())\n",
    "an environment's name in capitals": "x.to(os.environ['WHERE'])\nWHERE = 'cuda'\n",
}


@pytest.mark.parametrize("text", NOT_FOLLOWED.values(), ids=NOT_FOLLOWED.keys())
def test_an_equal_word_elsewhere_is_no_device(text: str, tmp_path: Path) -> None:
    assert rewritten(tmp_path, text) == text
    assert all(finding.after is None for finding in findings(tmp_path, text))


def test_a_device_in_a_second_file_is_found_beside_its_own(tmp_path: Path) -> None:
    """The file that owns the constant uses it too; both ways are looked at."""
    files = {
        "settings.py": "D = 'cuda'\nif D:\n    pass\n",
        "pkg/__init__.py": "from settings import D\n",
        "train.py": "import pkg\nx.to(pkg.D)\n",
    }
    write(tmp_path, files)
    move(tmp_path)
    assert (tmp_path / "settings.py").read_text().startswith("D = 'npu'")


def test_an_argument_of_a_reexported_function_reaches_its_device(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "from pkg.making import build\n",
        "pkg/making.py": "def build(n, where):\n    return net.to(where)\n",
        "train.py": "import pkg\npkg.build(1, 'cuda')\npkg.build(2, where='cuda:1')\n",
    }
    write(tmp_path, files)
    move(tmp_path)
    assert "cuda" not in (tmp_path / "train.py").read_text()


DEVICES = {
    "its type": "if x.device.type == 'cuda':\n    pass\n",
    "a variable that holds it": "d = x.device\nif d.type == 'cuda':\n    pass\n",
    "a variable's variable": "d = torch.device(w)\ne = d\nif e.type == 'cuda':\n    pass\n",
    "its text": "if str(x.device) == 'cuda:0':\n    pass\n",
    "a part of its text": "if str(x.device).split(':')[0] == 'cuda':\n    pass\n",
    "either of two": "if (x.device if a else y.device).type == 'cuda':\n    pass\n",
    "the second of two": "if (None if a else y.device).type == 'cuda':\n    pass\n",
}


@pytest.mark.parametrize("text", DEVICES.values(), ids=DEVICES.keys())
def test_a_comparison_with_a_device_is_rewritten(text: str, tmp_path: Path) -> None:
    moved = rewritten(tmp_path, "import torch\n" + text)
    assert "cuda" not in moved
    assert "npu" in moved


def test_a_comparison_with_anything_else_is_not(tmp_path: Path) -> None:
    text = "d = x.kind\nif d.type == 'cuda':\n    pass\nif str(mode) == 'cuda':\n    pass\n"
    assert rewritten(tmp_path, text) == text


def test_every_node_that_holds_code_is_visited() -> None:
    text = (
        "@a\ndef f(x: int = 1, *y, z=2, **w) -> str:\n    global q\n    try:\n        pass\n"
        "    except E as e:\n        raise F from e\n    with g() as (h, *i):\n"
        "        return [j for k in l if m], {n: o, **p}, lambda r: f'{s!r:>{t}}'\n"
        "class C(D, metaclass=M):\n    v: int = (u := 3)[1:2:3]\n    del v.x, v[0]\n"
        "match a:\n    case [B(c, d=1), *_] if b: pass\n    case {'k': 1, **rest}: pass\n"
    )
    tree = ast.parse(text)
    names = ModuleScopes(tree)
    seen = {id(each) for nodes in (*names.nodes.values(), names.adopted) for each in nodes}
    skipped = (ast.Module, ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)
    left = [n for n in ast.walk(tree) if id(n) not in seen and not isinstance(n, skipped)]
    assert left == []


def test_the_fields_of_this_python_are_read_from_its_own_grammar() -> None:
    # A description in another form would hide code from every rule, without a word.
    for kind in FIELDS:
        text = kind.__doc__ or ""
        read = {name for _, _, name in FIELD.findall(text.partition("(")[2])}
        assert text.startswith("Deprecated") or set(kind._fields) <= read, kind
    newer = type("Dict", (ast.Dict,), {"__doc__": "Dict(expr?* keys, expr* values)"})
    assert fields_of(newer) == (("keys", True), ("values", True))
