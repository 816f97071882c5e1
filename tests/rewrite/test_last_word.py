"""What a user, a folder or a lacking function holds back takes all of its value with it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.model import Scan, Style, Tier
from joymigrate.rewrite import patches, scan
from joymigrate.rewrite.discover import Exclusion
from tests.rewrite.projects import write

BOTH = pytest.mark.parametrize("style", [Style.DIRECT, Style.AGNOSTIC])
READER = 'import torch\nfrom conf import DEVICE\nif DEVICE == "cuda":\n    print("card")\n'


def look(root: Path, files: dict[str, str], style: Style = Style.DIRECT, **more: object) -> Scan:
    write(root, files)
    return scan([root], chip=chips.target(None), origin=chips.origin(), style=style, **more)  # type: ignore[arg-type]


def changed(found: Scan) -> set[str]:
    return {patch.path.name for patch in patches(found) if patch.before != patch.after}


@BOTH
def test_an_ignored_value_keeps_the_comparison_in_another_file(
    style: Style, tmp_path: Path
) -> None:
    conf = 'DEVICE = "cuda"  # joymigrate: ignore\n'
    found = look(tmp_path, {"conf.py": conf, "main.py": READER}, style)
    assert changed(found) == set()
    reasons = [str(each.reason) for each in found.findings if each.path == "main.py"]
    assert any("(conf.py:1), which stays" in reason for reason in reasons), reasons


@pytest.mark.parametrize(
    "call",
    [
        "run(conf.DEVICE)",
        "run(getattr(conf, 'DEVICE'))",
        "run(conf.ALL.get('device'))",
        "for each in conf.ALL.values(): run(each)",
        "for _, each in conf.ALL.items(): run(each)",
        "for _, each in enumerate([conf.DEVICE]): run(each)",
        "for each, _ in zip([conf.DEVICE], [1]): run(each)",
    ],
)
def test_an_ignored_value_is_followed_through_known_calls(call: str, tmp_path: Path) -> None:
    conf = 'DEVICE = "cuda"  # joymigrate: ignore\nALL = {"device": DEVICE}\n'
    main = (
        'import torch\nimport conf\ndef run(where="cuda"):\n    if where == "cuda":\n'
        f'        print("card")\n    torch.ones(1).to(where)\n{call}\n'
    )
    assert changed(look(tmp_path, {"conf.py": conf, "main.py": main})) == set()


@BOTH
def test_an_excluded_file_is_read_as_a_fact(style: Style, tmp_path: Path) -> None:
    files = {"conf.py": 'DEVICE = "cuda"\n', "main.py": READER}
    assert changed(look(tmp_path, files, style, exclude=Exclusion(("conf.py",)))) == set()


def test_a_file_that_no_path_names_is_read_as_a_fact(tmp_path: Path) -> None:
    write(tmp_path, {"conf.py": 'DEVICE = "cuda"\n', "main.py": READER})
    found = scan([tmp_path / "main.py"], chip=chips.target(None), origin=chips.origin())
    assert changed(found) == set()


def test_an_excluded_comparison_keeps_the_value_that_it_imports(tmp_path: Path) -> None:
    conf = 'import torch\nDEVICE = "cuda"\ndef put(x):\n    return x.to(DEVICE)\n'
    files = {"conf.py": conf, "main.py": READER}
    assert changed(look(tmp_path, files, exclude=Exclusion(("main.py",)))) == set()


def test_a_comparison_that_stays_keeps_its_value_and_the_question_before_it(
    tmp_path: Path,
) -> None:
    text = (
        "import torch\n"
        "use = torch.cuda.is_available()\n"
        'DEVICE = "cuda" if use else "cpu"\n'
        "def fast(kind=DEVICE):\n"
        '    if kind == "cuda":\n'
        "        return torch.cuda.get_device_capability()[0] >= 8\n"
        "    return False\n"
        "model = torch.nn.Linear(4, 4).to(DEVICE)\n"
    )
    found = look(tmp_path, {"main.py": text})
    assert changed(found) == set()
    asked = next(f for f in found.findings if f.before == "torch.cuda.is_available")
    assert asked.tier is Tier.REPORT
    assert "which stays" in str(asked.reason)


def test_a_question_beside_one_for_the_target_holds_no_value(tmp_path: Path) -> None:
    text = (
        'import torch\ndef go(where="cuda"):\n    device = torch.device(where)\n'
        '    on_card = device.type == "cuda"\n    on_chip = device.type == "npu"\n'
        "    return torch.ones(1).to(device), on_card, on_chip\n"
    )
    (patch,) = patches(look(tmp_path, {"a.py": text}))
    assert b'where="npu"' in patch.after
    assert b'device.type == "cuda"' in patch.after


def test_values_that_meet_no_comparison_move_one_by_one(tmp_path: Path) -> None:
    text = (
        "import torch\n"
        "def put(x, where):\n"
        "    return x.to(where)\n"
        'put(torch.ones(1), "cuda")  # joymigrate: ignore\n'
        'put(torch.ones(2), "cuda")\n'
    )
    found = look(tmp_path, {"main.py": text})
    (patch,) = patches(found)
    assert patch.after is not None
    assert b'put(torch.ones(2), "npu")' in patch.after
    assert b'put(torch.ones(1), "cuda")' in patch.after


def test_fields_of_two_classes_are_apart(tmp_path: Path) -> None:
    text = (
        "import torch\n"
        "class One:\n"
        "    def __init__(self):\n"
        '        self.place = "cuda"  # joymigrate: ignore\n'
        "class Two:\n"
        "    def __init__(self):\n"
        '        self.place = "cuda"\n'
        "    def put(self, x):\n"
        '        if self.place == "cuda":\n'
        "            torch.cuda.synchronize()\n"
        "        return x.to(self.place)\n"
    )
    found = look(tmp_path, {"main.py": text})
    (patch,) = patches(found)
    assert patch.after is not None
    assert b'self.place == "npu"' in patch.after
    assert patch.after.count(b'"cuda"') == 1


def test_a_chosen_rule_leaves_no_half(tmp_path: Path) -> None:
    text = (
        "import torch\n"
        "def put(x, where):\n"
        '    if where == "cuda":\n'
        "        torch.cuda.synchronize()\n"
        "    return x.to(where)\n"
        'put(torch.ones(2), "cuda")\n'
    )
    write(tmp_path, {"main.py": text})
    for ignored in ("JM111", "JM12"):
        found = scan([tmp_path], chip=chips.target(None), origin=chips.origin(), ignore=[ignored])
        after = b"".join(patch.after or b"" for patch in patches(found))
        assert b'"npu"' not in after, ignored


@BOTH
def test_a_question_for_the_capability_in_one_line_does_not_hold_the_program(
    style: Style, tmp_path: Path
) -> None:
    text = """\
    import torch
    device = torch.device("cuda")
    modern = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8
    if device.type == "cuda":
        print(torch.cuda.max_memory_allocated(), modern)
    """
    found = look(tmp_path, {"main.py": textwrap.dedent(text)}, style)
    (patch,) = [one for one in patches(found) if one.path.name == "main.py"]
    assert patch.after is not None
    after = patch.after.decode()
    assert 'torch.device("cuda")' not in after
    assert 'modern = device.type == "cuda" and' in after


@BOTH
@pytest.mark.parametrize(
    "used",
    [
        'args.device if torch.cuda.is_available() else "cpu"',
        '"cpu" if not torch.cuda.is_available() else args.device',
        '(torch.cuda.is_available() and args.device) or "cpu"',
    ],
)
def test_a_question_before_a_name_whose_value_stays_is_left(
    used: str, style: Style, tmp_path: Path
) -> None:
    text = (
        "import argparse\nimport torch\n"
        "parser = argparse.ArgumentParser()\n"
        'parser.add_argument("--device", default="cuda")  # joymigrate: ignore\n'
        f"args = parser.parse_args()\nx = torch.ones(2).to({used})\n"
    )
    found = look(tmp_path, {"main.py": text}, style)
    assert changed(found) == set()
    (asked,) = [each for each in found.findings if each.line == 6 and each.tier is not Tier.SAFE]
    assert "(main.py:4), which stays" in str(asked.reason)


def test_the_other_side_of_a_choice_does_not_hold_its_question(tmp_path: Path) -> None:
    text = (
        'import torch\nother = "cuda"  # joymigrate: ignore\nplain = "cpu"\n'
        "x = torch.ones(2).to(plain if torch.cuda.is_available() else other)\n"
    )
    assert changed(look(tmp_path, {"main.py": text})) == {"main.py"}


def test_a_value_of_very_many_files_waits_for_review(tmp_path: Path) -> None:
    files = {f"use{number:02}.py": READER for number in range(60)}
    conf = 'DEVICE = "cuda"  # joymigrate: ignore\n'
    found = look(tmp_path, {"conf.py": conf, **files})
    assert changed(found) == set()
    asked = [each for each in found.findings if "DEVICE ==" in each.before or each.line == 3]
    assert len(asked) == 60
    assert {each.tier for each in asked} == {Tier.UNSAFE}


def test_a_reason_tells_a_condition_from_what_runs_behind_it(tmp_path: Path) -> None:
    text = (
        "import torch\nif torch.cuda.is_available():\n"
        "    torch.cuda._sleep(1)  # joymigrate: ignore\n    x = torch.ones(1).cuda()\n"
    )
    found = look(tmp_path, {"a.py": text})
    told = {each.line: str(each.reason) for each in found.findings if each.edits or each.reason}
    assert told[2] == "it stands before `torch.cuda._sleep` (a.py:3), which stays"
    assert told[4] == "it goes with `torch.cuda._sleep` (a.py:3), which stays"


def test_a_long_block_behind_one_question_is_held_as_a_whole(tmp_path: Path) -> None:
    lines = "".join(f"    x{n} = torch.ones({n}).cuda()\n" for n in range(400))
    stays = "    torch.cuda._sleep(1)  # joymigrate: ignore\n"
    text = f"import torch\nif torch.cuda.is_available():\n{stays}{lines}"
    assert changed(look(tmp_path, {"a.py": text})) == set()
