"""Values and conditions that several files share: all of it is rewritten, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.model import Style, Tier
from joymigrate.rewrite import device_tests, patches, scan
from joymigrate.rewrite.discover import Exclusion
from joymigrate.rewrite.switch.plan import edits_below
from tests.rewrite.projects import move, write

TORCH = "import torch\n"
LACKS = "torch.cuda.jiterator._create_jit_fn('x')"
PROBE = TORCH + "def has_gpu():\n    return torch.cuda.is_available()\n"
ENV = TORCH + "class Env:\n    def has_gpu(self):\n        return torch.cuda.is_available()\n"
HOLDS = "from env import has_gpu\nif has_gpu():\n    "
BOTH = TORCH + f"from env import has_gpu\nx = 1\nif has_gpu():\n    {LACKS}\n    x = x.cuda()\n"
SHARED = {"a.py": TORCH + "class E:\n    def __init__(self):\n"
          "        self.where = 'cuda' if torch.cuda.is_available() else 'cpu'\n",
          "b.py": "from a import E\ndef f(e: E):\n"
          "    if e.where == 'cuda':\n        return 1\n"}  # fmt: skip
# What stays as it is, whole: a condition guards what the chip lacks.
HELD = {
    "asked of an object": {"env.py": ENV, "u.py": TORCH + "def f(env, x):\n    if env.has_gpu():\n"
                           f"        {LACKS}\n        x = x.cuda()\n    return x\n"},
    "asked of an annotated one": {"env.py": ENV, "u.py": TORCH + "from env import Env\n"
                                  f"def f(env: Env):\n    if env.has_gpu():\n        {LACKS}\n"},
    "asked of a field": {"env.py": ENV, "u.py": TORCH + "class T:\n    def __init__(self, env):\n"
                         "        self.env = env\n    def go(self):\n"
                         f"        if self.env.has_gpu():\n            {LACKS}\n"},
    "kept as an attribute": {
        "env.py": TORCH + "class E:\n    def __init__(self):\n"
        "        self.has_it = torch.cuda.is_available()\n",
        "u.py": TORCH + f"from env import E\nif E().has_it:\n    {LACKS}\n",
        "v.py": TORCH + "def go(e):\n    if e.has_it:\n        torch.cuda.empty_cache()\n",
    },
    "kept in a try": {
        "env.py": TORCH + "try:\n    HAS = torch.cuda.is_available()\nexcept Exception:\n"
        "    HAS = False\n",
        "u.py": TORCH + f"from env import HAS\nif HAS:\n    {LACKS}\n",
    },
    "kept in a table": {
        "env.py": TORCH + "CAN = {'card': torch.cuda.is_available()}\n",
        "u.py": TORCH + f"from env import CAN\nif CAN['card']:\n    {LACKS}\n",
        "v.py": TORCH + "from env import CAN\nif CAN['card']:\n    torch.cuda.empty_cache()\n",
    },
    "answered in a branch": {
        "env.py": TORCH + "def has():\n    if torch.cuda.is_available():\n        return True\n"
        "    return False\n",
        "u.py": TORCH + "from env import has\nwhere = 'cuda' if has() else 'cpu'\n"
        f"if where == 'cuda':\n    {LACKS}\n",
    },
    "kept in a variable of a function": {
        "env.py": TORCH + "def has_gpu():\n    if torch.cuda.is_available():\n        ok = True\n"
        "    else:\n        ok = False\n    return ok\n",
        "u.py": BOTH,
    },
    "taken back behind a question": {
        "env.py": TORCH + "HAS = True\nif not torch.cuda.is_available():\n    HAS = False\n"
        "def has_gpu():\n    return HAS\n",
        "u.py": BOTH,
    },
    **{
        f"answered by {answer}": {
            "env.py": f"{TORCH}HAS = {answer}\n",
            "u.py": TORCH + f"from env import HAS\nif HAS:\n    {LACKS}\n",
            "v.py": TORCH + "from env import HAS\ndevice = 'cuda' if HAS else 'cpu'\n"
            "x = torch.zeros(1).to(device)\n",
        }
        for answer in (
            "bool(torch.cuda.is_available())",
            "int(torch.cuda.is_available())",
            "any([torch.cuda.is_available()])",
            "not torch.cuda.is_available()",
            "not (not torch.cuda.is_available())",
            "True if torch.cuda.is_available() else False",
            "False if not torch.cuda.is_available() else True",
            "torch.cuda.is_available() is True",
            "torch.cuda.device_count() != 0",
            "torch.cuda.is_available() & True",
        )
    },
    "answered by a lambda": {
        "env.py": TORCH + "has_gpu = lambda: torch.cuda.is_available()\n",
        "u.py": BOTH,
    },
    "asked before what may be off": {
        "env.py": PROBE, "u.py": TORCH + HOLDS + "print(torch.cuda.get_device_capability())\n",
    },
    "before more than a switch": {
        "u.py": TORCH + "device = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
        f"if device == 'cuda':\n    torch.backends.cudnn.benchmark = True; {LACKS}\n",
    },
    "before more than a printed text": {
        "u.py": TORCH + "device = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
        f"if device == 'cuda':\n    print(torch.cuda.get_device_name(), {LACKS})\n",
    },
    "a keyword that is compared": {
        "a.py": TORCH + "def make(**kw):\n    if kw['place'] == 'cuda':  # joymigrate: ignore\n"
        "        pass\n",
        "b.py": TORCH + "from a import make\nplace = 'cuda'\nmake(place=place)\n"
        "torch.zeros(1, device=place)\n",
    },
    "an element of a list": {
        "env.py": "PLACES = ['cuda', 'cpu']\n",
        "u.py": TORCH + "from env import PLACES\nx = torch.zeros(2, device=PLACES[0])\n"
        "if PLACES[0] == 'cuda':  # joymigrate: ignore\n    print(x)\n",
    },
    "in many files": {"env.py": PROBE, "z.py": TORCH + HOLDS + LACKS + "\n",
                      **{f"u{i}.py": TORCH + HOLDS + "torch.cuda.empty_cache()\n"
                         for i in range(45)}},
}  # fmt: skip
# What moves, whole: file → how often the origin's word is left.
MOVED = {
    "an attribute and its comparison": SHARED,
    "a constant that many files import": {
        "env.py": "PLACE = 'cuda'\n",
        **{f"u{i}.py": TORCH + "from env import PLACE\ntorch.zeros(1, device=PLACE)\n"
           "if PLACE == 'cuda': print(1)\n" for i in range(42)},
    },
    "a keyword that is handed on": {
        "a.py": TORCH + "def make(**kw):\n    return torch.zeros(1, **kw)\n",
        "b.py": "from a import make\nwhere = 'cuda'\nmake(device=where)\n",
    },
    "a keyword that is handed on under another name": {
        "a.py": TORCH + "def make(**kw):\n    return torch.zeros(1, device=kw['place'])\n",
        "b.py": "from a import make\nmake(place='cuda')\n",
    },
    "an attribute of an object of an unknown class": {
        "a.py": "def set_up(opt):\n    opt.place = 'cuda'\n",
        "b.py": TORCH + "def run(opt):\n    return torch.zeros(1, device=opt.place)\n",
    },
    "a field of a dataclass": {
        "cfg.py": "from dataclasses import dataclass\n"
        "@dataclass\nclass C:\n    where: str = 'cuda'\n",
        "u.py": TORCH + "from cfg import C\ndef run(c: C):\n"
        "    return torch.zeros(1, device=c.where)\nrun(C())\n",
    },
}  # fmt: skip


def write_safely(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """The files after all safe edits."""
    for name, text in files.items():
        (folder / name).write_text(text)
    found = scan([folder], chip=chips.target(None), origin=chips.origin(), jobs=1)
    written = patches(device_tests.include(found), unsafe=False)
    return {**files, **{one.path.name: (one.after or b"").decode() for one in written}}


@pytest.mark.parametrize("name", HELD)
def test_what_a_condition_guards_is_held_with_it(tmp_path: Path, name: str) -> None:
    assert write_safely(tmp_path, HELD[name]) == HELD[name]


@pytest.mark.parametrize("name", MOVED)
def test_a_value_moves_with_all_that_compares_and_takes_it(tmp_path: Path, name: str) -> None:
    made = write_safely(tmp_path, MOVED[name])
    assert {file for file, text in made.items() if "cuda" in text} == set()


PARSER = (
    "import argparse\nimport torch\nparser = argparse.ArgumentParser()\n"
    "parser.add_argument('--device', default='{}', type=str)\nargs = parser.parse_args()\n"
)


@pytest.mark.parametrize(
    "behind", ["torch.backends.cudnn.benchmark = True", "print(torch.cuda.get_device_capability())"]
)
def test_a_comparison_before_what_may_be_off_holds_no_value(tmp_path: Path, behind: str) -> None:
    """`cudnn` and a printed capability mean nothing on the target; the default device does."""
    chosen = "torch.device('cuda' if torch.cuda.is_available() else 'cpu')"
    made = write_safely(
        tmp_path,
        {
            "train.py": f"import argparse\nimport torch\np = argparse.ArgumentParser()\n"
            f"p.add_argument('--device', default={chosen})\nargs = p.parse_args()\n"
            f"if args.device.type == 'cuda':\n    {behind}\n"
            "model = torch.nn.Linear(2, 2).to(args.device)\n",
        },
    )
    assert "torch.device('npu' if torch.npu.is_available() else 'cpu')" in made["train.py"]
    assert f"if args.device.type == 'cuda':\n    {behind}\n" in made["train.py"]


@pytest.mark.parametrize(("made", "safe"), [("torch.Tensor(2)", False), ("torch.zeros(2)", True)])
def test_a_default_device_is_not_safe_where_a_constructor_does_not_take_it(
    tmp_path: Path, made: str, safe: bool
) -> None:
    written = write_safely(
        tmp_path,
        {
            "train.py": TORCH + "torch.set_default_tensor_type('torch.cuda.FloatTensor')\n",
            "boxes.py": TORCH + f"def box():\n    return {made}\n",
        },
    )
    assert ('torch.set_default_device("npu")' in written["train.py"]) is safe


def test_an_option_of_one_program_is_none_of_another(tmp_path: Path) -> None:
    reads = "args.device = args.device if torch.cuda.is_available() else 'cpu'\n"
    write(tmp_path, {
        "train.py": PARSER.format("cuda") + "import loop\n" + reads + "loop.run(args)\n",
        "loop.py": "import torch\ndef run(args):\n    torch.zeros(1, device=args.device)\n",
        "export.py": "import onnxruntime\n" + PARSER.format("cpu") +
        "provider = 'CUDAExecutionProvider' if args.device in ['gpu', 'cuda'] else 'CPU'\n",
    })  # fmt: skip
    move(tmp_path)
    text = (tmp_path / "train.py").read_text()
    assert "default='npu'" in text
    assert "torch.npu.is_available()" in text
    assert "'cuda'" in (tmp_path / "export.py").read_text()


def test_an_option_that_programs_share_is_one(tmp_path: Path) -> None:
    write(tmp_path, {
        "options.py": PARSER.format("cuda").replace("args = parser.parse_args()\n", ""),
        "train.py": "import torch\nfrom options import parser\nargs = parser.parse_args()\n"
        "torch.zeros(1).to(args.device)\n",
        "other.py": "from options import parser\nargs = parser.parse_args()\n"
        "kind = args.device == 'cuda'  # joymigrate: ignore\n",
    })  # fmt: skip
    move(tmp_path)
    assert "default='cuda'" in (tmp_path / "options.py").read_text()


READ = "import torch, yaml\ncfg = yaml.safe_load(open('c.yaml'))\n"
ASKED = READ + "x = torch.ones(2)\nif {0} == 'cuda':\n    x = x.to({0})\n"
STAYS = {
    "the value is ignored": ("device: cuda  # joymigrate: ignore\n", "cfg['device']", ()),
    "the file is excluded": ("lr: 1\ndevice: cuda:0\n", "cfg['device']", ("*.yaml",)),
    "nothing says that the key is a device": ("mode: cuda\n", "cfg['mode']", ()),
    "asked by get": ("device: cuda  # joymigrate: ignore\n", "cfg.get('device', 'cpu')", ()),
    "an attribute": ("device: cuda  # joymigrate: ignore\n", "cfg.device", ()),
    "a key in a key": ("a:\n  device: cuda  # joymigrate: ignore\n", "cfg['a']['device']", ()),
}


@pytest.mark.parametrize("style", [Style.DIRECT, Style.AGNOSTIC, Style.ACCELERATOR])
@pytest.mark.parametrize("name", STAYS)
def test_a_value_of_a_settings_file_that_stays_holds_what_asks_for_it(
    tmp_path: Path, name: str, style: Style
) -> None:
    told, key, excluded = STAYS[name]
    (tmp_path / "c.yaml").write_text(told)
    (tmp_path / "train.py").write_text(ASKED.format(key))
    found = scan(
        [tmp_path],
        chip=chips.target(None),
        origin=chips.origin(),
        style=style,
        exclude=Exclusion(excluded),
        jobs=1,
    )
    (asked,) = [one for one in found.findings if one.rule == "JM111"]
    assert not asked.edits or asked.tier is not Tier.SAFE
    assert "c.yaml" in str(asked.reason)


def test_a_settings_file_moves_with_its_comparison_or_not_at_all(tmp_path: Path) -> None:
    files = {"c.yaml": "device: cuda\n", "train.py": ASKED.format("cfg['device']")}
    made = write_safely(tmp_path, files)
    assert "cuda" not in "".join(made.values())
    files["train.py"] = files["train.py"].replace("'cuda':", "'cuda':  # joymigrate: ignore")
    assert write_safely(tmp_path, files) == files


def test_the_switch_leaves_what_a_settings_file_is_compared_with(tmp_path: Path) -> None:
    """Settings files are read from the disk: they keep the origin's word."""
    (tmp_path / "c.yaml").write_text("device: cuda\n")
    (tmp_path / "train.py").write_text(ASKED.format("cfg['device']") + "y = x.cuda()\n")
    made = edits_below(
        tmp_path, chip=chips.target(None), origin=chips.origin(), leave=(), version=None
    )
    (only,) = made.values()
    data = (tmp_path / "train.py").read_bytes()
    assert [data[start:end] for start, end, _ in only["edits"]] == [b"cuda"]  # of `x.cuda()`


def test_the_agnostic_style_translates_a_configured_device_where_torch_is_given_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "c.yaml").write_text("device: cuda\n")
    (tmp_path / "train.py").write_text(
        READ + "where = cfg['device']\nx = torch.ones(2, device=where)\ny = x.to(cfg['device'])\n"
        "if where == 'cuda':\n    print(torch.load('x', map_location=where))\n"
    )
    (tmp_path / "other.py").write_text(
        READ + "where = cfg['device']\ndef f(where):\n    return torch.ones(2, device=where)\n"
    )
    found = scan(
        [tmp_path],
        chip=chips.target(None),
        origin=chips.origin(),
        style=Style.AGNOSTIC,
        jobs=1,
    )
    made = {one.path.name: (one.after or b"").decode() for one in patches(found)}
    assert made["train.py"].count("jm.device(where)") == 2
    assert "jm.device(cfg['device'])" in made["train.py"]
    assert "if where == 'cuda':" in made["train.py"]
    assert "other.py" not in made


def test_a_long_chain_of_calls_is_read(tmp_path: Path) -> None:
    """Each method calls the next one on what it is given: the class of that is asked of the last
    one, which asks the one before."""
    calls = 200
    steps = "".join(
        f"    def step{number}(self, other):\n        other.step{number + 1}(other)\n"
        for number in range(calls)
    )
    last = f"    def step{calls}(self, other):\n        other.place = 'cuda'\n"
    last += "        if other.place == 'cuda':  # joymigrate: ignore\n            print(1)\n"
    last += "        torch.zeros(1, device=other.place)\n"
    root = write(tmp_path, {"a.py": f"{TORCH}class Chain:\n{steps}{last}"})
    move(root)
    assert (root / "a.py").read_text().count("'cuda'") == 2
