"""Edits with one meaning are written together or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.model import Scan, Style, Tier
from joymigrate.rewrite import patches, scan
from tests.ledger.trees import write_tree

STYLES = (Style.DIRECT, Style.AGNOSTIC)


def moved(root: Path, text: str, style: Style = Style.DIRECT) -> tuple[str, Scan]:
    """The text after a rewrite, and the scan."""
    write_tree(root, {"sample.py": text.encode()})
    found = scan([root], chip=chips.target("ascend"), origin=chips.origin(), style=style)
    made = {patch.path.name: patch.after for patch in patches(found)}
    return (made.get("sample.py") or text.encode()).decode(), found


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "line",
    [
        "A = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (7, 5)",
        "if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] > 7: x.cuda()",
        "flag = torch.cuda.is_available()\nif flag:\n    torch.cuda.cudart().x()\n    y.cuda()",
        "if torch.cuda.is_available():\n    torch.cuda.cudart().x()\n    y.cuda()",
        "def f():\n    if not torch.cuda.is_available():\n        return\n    torch.cuda.cudart()",
        "@skip(not torch.cuda.is_available())\ndef test():\n    torch.cuda.cudart()\n    a.cuda()",
        "torch.Tensor.cuda = torch.Tensor.xpu",
        "torch.cuda.synchronize = torch.xpu.synchronize",
        "if torch.xpu.is_available():\n    torch.cuda.empty_cache()",
        "s = {'cuda': torch.cuda.get_rng_state()}",
    ],
)
def test_what_can_not_move_as_a_whole_stays_as_a_whole(
    line: str, style: Style, tmp_path: Path
) -> None:
    text = f"import torch\n{line}\n"
    after, found = moved(tmp_path, text, style)
    assert after == text
    assert all(f.tier is Tier.REPORT for f in found.findings)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('torch.cuda.get_device_properties("cuda")', 'torch.npu.get_device_properties("npu")'),
        ('x = m.to("cpu"if q else"cuda")', 'x = m.to("cpu"if q else"npu")'),
        ('k = "cuda" if torch.cuda.is_available() else "cpu"',
         'k = "npu" if torch.npu.is_available() else "cpu"'),
        ('def f() -> torch.device: return "cuda"', 'def f() -> torch.device: return "npu"'),
        ('d = []\nd.append(f"cuda:{i}")\nm.to(d[0])', 'd = []\nd.append(f"npu:{i}")\nm.to(d[0])'),
        ('d = {"where": "cuda"}\nm.to(d["where"])', 'd = {"where": "npu"}\nm.to(d["where"])'),
    ],
)  # fmt: skip
def test_a_value_that_is_a_device_moves(before: str, after: str, tmp_path: Path) -> None:
    text, _ = moved(tmp_path, f"import torch\n{before}\n")
    assert text == f"import torch\nimport torch_npu\n{after}\n"


def test_a_value_takes_every_comparison_with_it(tmp_path: Path) -> None:
    text, _ = moved(
        tmp_path,
        "import torch\nclass C:\n    where: str = 'cuda:0'\n"
        "def f(c):\n    m.to(c.where)\n    return c.where.split(':')[0] == 'cuda'\n",
    )
    assert "cuda" not in text


def test_words_do_not_grow_together(tmp_path: Path) -> None:
    text, _ = moved(tmp_path, 'import torch\nx = m.to("cpu"if q else"cuda")\n', Style.AGNOSTIC)
    assert "else jm.device_type()" in text


def test_an_edit_left_out_by_choice_takes_its_expression_with_it(tmp_path: Path) -> None:
    line = 'm.to(torch.device("cuda"), torch.cuda.current_device())  # joymigrate: ignore[JM101]'
    text, _ = moved(tmp_path, f"import torch\n{line}\n")
    assert text == f"import torch\n{line}\n"


def test_an_option_its_default_and_its_choices_move_together(tmp_path: Path) -> None:
    line = 'p.add_argument("--device", default="cuda", choices=["cuda", "cpu"])'
    text, _ = moved(tmp_path, f"import torch\n{line}\n")
    assert 'default="npu", choices=["cuda", "npu", "cpu"]' in text


def test_a_form_feed_is_not_copied(tmp_path: Path) -> None:
    text, _ = moved(tmp_path, "\fimport torch\ntorch.cuda.empty_cache()\n")
    assert text == "\fimport torch\nimport torch_npu\ntorch.npu.empty_cache()\n"


@pytest.mark.parametrize(("version", "stays"), [("8.4.30", True), ("8.0.0", False)])
def test_a_project_that_serves_the_chip_by_itself_is_told_so(
    version: str, stays: bool, tmp_path: Path
) -> None:
    write_tree(
        tmp_path,
        {
            "ultralytics/__init__.py": f'__version__ = "{version}"\n'.encode(),
            "ultralytics/a.py": b"import torch\ntorch.cuda.empty_cache()\n",
        },
    )
    found = scan([tmp_path], chip=chips.target("ascend"), origin=chips.origin())
    assert (patches(found) == []) is stays
    if stays:
        assert 'device="npu:0"' in str(found.findings[0].reason)


ALLOWED = {
    "choices": 'p.add_argument("--device", choices=["cuda", "cpu"])',
    "a tuple": 'p.add_argument("--device", choices=("cuda", "cpu"))',
    "click's choice": 'click.option("--device", type=click.Choice(["cuda", "cpu"]))',
    "absl's values": 'flags.DEFINE_enum("device", None, ["cuda", "cpu"], "where")',
    "a list by name": 'D = ["cuda", "cpu"]\np.add_argument("--device", choices=D)',
    "a type": 'def main(device: Literal["cuda", "cpu"]): ...\ntyper.run(main)',
}


@pytest.mark.parametrize("style", ["direct", "agnostic"])
@pytest.mark.parametrize("text", ALLOWED.values(), ids=ALLOWED.keys())
def test_the_chip_joins_the_values_that_an_option_allows(
    text: str, style: str, tmp_path: Path
) -> None:
    after, _ = moved(tmp_path, f"{text}\n", Style(style))
    assert '"cuda", "npu", "cpu"' in after
    assert moved(tmp_path / "again", after, Style(style))[0] == after


def test_a_list_that_is_read_elsewhere_too_moves_itself(tmp_path: Path) -> None:
    # With the chip's name added behind it, `D[0]` would still be the origin's.
    use = 'p.add_argument("--device", choices=D, default=D[0])'
    text, _ = moved(tmp_path, f'import torch\nD = ["cuda", "cpu"]\n{use}\n')
    assert 'D = ["npu", "cpu"]' in text
    member = 'p.add_argument("--device", choices=D)\nassert "cpu" in D\n'
    text, _ = moved(tmp_path / "b", f'import torch\nD = ["cuda", "cpu"]\n{member}')
    assert 'D = ["cuda", "npu", "cpu"]' in text


def test_a_word_of_a_command_line_keeps_no_u_before_its_f(tmp_path: Path) -> None:
    text, _ = moved(tmp_path, 'run(["x.py", u"--device=cuda:1"])\n', Style("agnostic"))
    assert '["x.py", f"--device={jm.device(1)}"]' in text
