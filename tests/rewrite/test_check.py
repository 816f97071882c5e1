"""The check on the written tree: it sees a half that somebody else made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.errors import JoyError
from joymigrate.model import Edit, Scan, Style, Tier
from joymigrate.rewrite import patch, patches, scan
from tests.rewrite.projects import write

CONF = 'DEVICE = "cuda"\n'
MAIN = "import torch\nfrom conf import DEVICE\nx = torch.ones(1).to(DEVICE)\n"
ASKS = 'import torch\nfrom conf import DEVICE\nif DEVICE == "cuda":\n    torch.cuda.synchronize()\n'


def found_in(root: Path, files: dict[str, str], style: Style = Style.DIRECT) -> Scan:
    write(root, files)
    return scan([root], chip=chips.target(None), origin=chips.origin(), style=style)


def left(made: list[patch.Patch]) -> list[str]:
    return [str(reason) for each in made for _, reason in each.left]


@pytest.mark.parametrize("style", [Style.DIRECT, Style.AGNOSTIC])
def test_a_half_that_was_chosen_is_not_written(style: Style, tmp_path: Path) -> None:
    found = found_in(tmp_path, {"conf.py": CONF, "main.py": MAIN, "asks.py": ASKS}, style)
    value = next(f for f in found.findings if f.path == "conf.py" and f.before == '"cuda"')
    whole = {each.path.name for each in patches(found)}
    assert {"conf.py", "asks.py"} <= whole
    made = patches(found, without=frozenset({patch.unit(value)}))
    after = {each.path.name: each.after for each in made}
    assert b'"cuda"' in (after.get("asks.py") or ASKS.encode())
    assert b'"cuda"' in (after.get("conf.py") or CONF.encode())


def test_the_reason_names_both_lines(tmp_path: Path) -> None:
    found = found_in(tmp_path, {"conf.py": CONF, "main.py": MAIN, "asks.py": ASKS})
    value = next(f for f in found.findings if f.path == "conf.py" and f.before == '"cuda"')
    words = patch.vocabulary_of(found)
    data = {name: (tmp_path / name).read_bytes() for name in ("conf.py", "main.py", "asks.py")}
    made = [each for each in patches(found) if each.path.name != "conf.py"]
    (fault, *_) = patch.find_faults(found, words, data, made)
    assert value.line == 1
    assert str(fault.reason).startswith('conf.py:1 says `"cuda"` and asks.py:')
    assert 'says `"npu"`' in str(fault.reason)


def test_a_name_that_nothing_binds_is_left_out(tmp_path: Path) -> None:
    found = found_in(
        tmp_path, {"main.py": MAIN.replace("from conf import DEVICE", 'DEVICE = "cuda"')}
    )
    edits = tuple(
        replace(each, edits=(Edit(each.edits[0].start - 1, each.edits[0].end + 1, b"nowhere.npu"),))
        if each.before == '"cuda"' else each for each in found.findings
    )  # fmt: skip
    made = patches(replace(found, findings=edits))
    assert all(b"nowhere" not in (each.after or b"") for each in made)


def test_what_still_fails_is_refused_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = found_in(tmp_path, {"conf.py": CONF, "main.py": MAIN, "asks.py": ASKS})
    value = next(f for f in found.findings if f.path == "conf.py" and f.before == '"cuda"')
    monkeypatch.setattr(patch, "ROUNDS", 1)
    with pytest.raises(JoyError, match=r"nothing is written: conf.py:1 says"):
        patches(found, without=frozenset({patch.unit(value)}))
    assert (tmp_path / "asks.py").read_text() == ASKS


def test_texts_that_both_stood_there_are_no_half(tmp_path: Path) -> None:
    text = (
        "import torch\n"
        "def name(device):\n"
        '    if device.type == "cuda":\n'
        '        return "card"\n'
        '    elif device.type == "npu":\n'
        '        return "other card"\n'
        "x = torch.ones(1)\n"
        "x = x.cuda()\n"
    )
    found = found_in(tmp_path, {"main.py": text})
    assert all(f.tier is not Tier.SAFE or f.before != '"cuda"' for f in found.findings)
    assert not left(patches(found))
