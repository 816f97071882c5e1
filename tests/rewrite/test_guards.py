"""Code that already serves the target, and tests that a kernel of the origin depends on, stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.model import Style, Tier
from tests.rewrite.projects import findings, look, move, rewritten, write

SERVED = {
    "a chain by type": (
        "def there(device_type):\n"
        "    if device_type == 'cuda':\n        return torch.cuda.is_available()\n"
        "    elif device_type == 'npu':\n        return torch.npu.is_available()\n"
    ),
    "a chain by platform": (
        "if torch.cuda.is_available():\n    model = model.cuda()\n"
        "elif torch.npu.is_available():\n    model = model.npu()\n"
    ),
    "branches that return": (
        "def kind():\n    if is_torch_npu_available():\n        return 'npu'\n"
        "    if torch.cuda.is_available():\n        return 'cuda'\n    return 'cpu'\n"
    ),
    "branches that return, the origin first": (
        "def kind():\n    if torch.cuda.is_available():\n        return torch.device('cuda')\n"
        "    if is_npu_available():\n        return torch.device('npu')\n"
    ),
    "one test after the other": (
        "if kind == 'cuda':\n    assert torch.cuda.is_available()\n"
        "if kind == 'npu':\n    assert torch.npu.is_available()\n"
    ),
    "twin names": (
        "is_cuda = device.type == 'cuda' and torch.cuda.is_available()\n"
        "is_npu = device.type == 'npu' and torch.npu.is_available()\n"
    ),
    "an alternative": "ok = torch.cuda.is_available() or torch.npu.is_available()\n",
    "a table": "BACKENDS = {'cuda': 'nccl', 'npu': 'hccl'}\n",
    "a list": "if device.type in ('cuda', 'npu'):\n    pass\n",
    "members": (
        "def backend(kind):\n    if kind == Kind.NPU:\n        return 'hccl'\n"
        "    elif kind == Kind.CUDA:\n        return 'nccl'\n"
    ),
}


@pytest.mark.parametrize("text", SERVED.values(), ids=SERVED.keys())
def test_code_that_serves_both_stays(text: str, tmp_path: Path) -> None:
    before = "import torch\n" + text
    assert rewritten(tmp_path, before, unsafe=True) == before
    assert rewritten(tmp_path, before, Style.AGNOSTIC, unsafe=True) == before


@pytest.mark.parametrize("text", SERVED.values(), ids=SERVED.keys())
def test_the_way_back_leaves_code_that_serves_both(text: str, tmp_path: Path) -> None:
    before = "import torch\n" + text
    write(tmp_path, {"sample.py": before})
    move(tmp_path, to="nvidia", origin="ascend")
    assert (tmp_path / "sample.py").read_text() == before


def test_a_choice_beside_the_target_still_gets_its_default(tmp_path: Path) -> None:
    text = "import torch\np.add_argument('--device', default='cuda', choices=['cuda', 'npu'])\n"
    assert "default='npu', choices=['cuda', 'npu']" in rewritten(tmp_path, text)


def test_a_refusal_of_the_target_does_not_hide_what_follows(tmp_path: Path) -> None:
    text = (
        "import torch\ndef f(device):\n    if device == 'npu':\n        raise ValueError\n"
        "    torch.cuda.synchronize()\n"
    )
    assert "torch.npu.synchronize()" in rewritten(tmp_path, text)


def test_the_only_import_of_a_block_stays_on_the_way_back(tmp_path: Path) -> None:
    text = "try:\n    import torch_npu\nexcept ImportError:\n    torch_npu = None\n"
    write(tmp_path, {"sample.py": text})
    move(tmp_path, to="nvidia", origin="ascend", unsafe=True)
    assert (tmp_path / "sample.py").read_text() == text


KERNELS = {
    "a function": "def f(x):\n    return dtw_cuda(x) if x.is_cuda else dtw(x)\n",
    "an autograd function": (
        "def f(x):\n    if x.device.type == 'cuda' and ready():\n"
        "        return ScanCuda.apply(x)\n    return scan(x)\n"
    ),
    "behind a refusal": (
        "def f(x):\n    if not x.is_cuda:\n        return scan(x)\n    return _C.scan_cuda(x)\n"
    ),
    "an extension": (
        "from torch.utils.cpp_extension import CUDAExtension, CppExtension\n"
        "kind = CppExtension\nif torch.cuda.is_available():\n    kind = CUDAExtension\n"
    ),
    "a package": (
        "from flash_attn import flash_attn_func\n"
        "def f(q):\n    if q.is_cuda:\n        return flash_attn_func(q)\n    return plain(q)\n"
    ),
}


@pytest.mark.parametrize("text", KERNELS.values(), ids=KERNELS.keys())
def test_a_test_that_a_kernel_depends_on_is_reported(text: str, tmp_path: Path) -> None:
    before = "import torch\n" + text
    assert rewritten(tmp_path, before, unsafe=True) == before
    write(tmp_path, {"sample.py": before})
    reasons = [f.reason or "" for f in look(tmp_path).findings if f.rule in ("JM101", "JM111")]
    assert reasons
    assert all("made for the origin" in reason for reason in reasons)


def test_a_branch_with_device_code_of_its_own_moves_with_its_test(tmp_path: Path) -> None:
    text = (
        "import torch\nif torch.cuda.is_available():\n    model = model.cuda()\n"
        "    from apex import amp\n"
    )
    assert "torch.npu.is_available()" in rewritten(tmp_path, text)
    text = "import torch\nif x.is_cuda:\n    y = y.cuda()\n"
    assert "x.is_npu" in rewritten(tmp_path, text)


def test_a_replaced_name_of_the_module_is_reported(tmp_path: Path) -> None:
    text = "import torch\ntorch.cuda.synchronize = torch.xpu.synchronize\n"
    (finding,) = findings(tmp_path, text, "JM101")
    assert finding.tier is Tier.REPORT
    assert "replaced" in (finding.reason or "")


RUNS = {
    "a provider": "    if device.type == 'cuda':\n        p = ['CUDAExecutionProvider']\n",
    "an operator of its own": "    if x.is_cuda:\n        return torch.ops.mine.scan(x)\n",
}


@pytest.mark.parametrize("body", RUNS.values(), ids=RUNS.keys())
def test_a_test_stays_before_what_runs_on_the_origin_alone(body: str, tmp_path: Path) -> None:
    text = f"import torch\ndef f(x, device):\n{body}    return x\n"
    assert rewritten(tmp_path, text) == text
    aten = text.replace("torch.ops.mine", "torch.ops.aten").replace(
        "['CUDAExecutionProvider']", "1"
    )
    assert rewritten(tmp_path / "other", aten) != aten


@pytest.mark.parametrize(
    "guard", ["assert torch.cuda.is_available()", "if not torch.cuda.is_available():\n    exit()"]
)
def test_a_value_that_stays_for_one_function_holds_no_guard_of_the_file(
    guard: str, tmp_path: Path
) -> None:
    text = (
        f"import torch\n{guard}\ny = torch.ones(1).cuda()\n\n\ndef f(x):\n    x = x.cuda()\n"
        "    if not x.is_cuda:\n        return None\n"
        "    import flash_attn\n    return flash_attn.f(x)\n"
    )
    found = findings(tmp_path, text)
    written = {
        each.line for each in found if each.rule in ("JM101", "JM110", "JM111") and each.edits
    }
    assert written == {2, 2 + guard.count("\n") + 1}


@pytest.mark.parametrize("name", ["have", "on_node", "norm_device", "notebook"])
def test_a_flag_whose_name_only_begins_like_a_denial_is_a_guard(name: str, tmp_path: Path) -> None:
    text = (
        f"import torch\n{name} = torch.cuda.is_available()\n\n\ndef f(x):\n"
        f"    if not {name}:\n        return x\n"
        '    return torch.cuda.jiterator._create_jit_fn("x")\n'
    )
    (flag,) = findings(tmp_path, text, "JM101")
    assert "which stays" in str(flag.reason)


@pytest.mark.parametrize("devices", ["DEVICES", '[torch.device("cpu"), torch.device("cuda")]'])
def test_a_device_of_a_list_that_is_gone_through_is_asked_for(devices: str, tmp_path: Path) -> None:
    text = (
        'import torch\nDEVICES = [torch.device("cpu"), torch.device("cuda")]\n'
        f'for d in {devices}:\n    if d.type == "cuda":\n        torch.ones(1, device=d)\n'
    )
    (question,) = findings(tmp_path, text, "JM111")
    assert question.edits
