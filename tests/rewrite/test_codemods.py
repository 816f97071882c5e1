"""Codemods of a project: libcst transformers that take part in a scan like our own rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate import chips
from joymigrate.cli._main import run as main
from joymigrate.errors import JoyError
from joymigrate.model import Scan, Tier
from joymigrate.rewrite import patches, scan
from joymigrate.rewrite.codemod import Codemod
from joymigrate.rewrite.codemod_check import check
from joymigrate.rewrite.codemod_loader import load
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.prefilter import prefilter
from joymigrate.rewrite.text_changes import hunks
from tests.ledger.trees import write_tree

EXAMPLE = Path(__file__).parents[2] / "examples" / "codemods"
RENAME = """
import libcst as cst
from joymigrate.codemods import Case, Codemod, Tier

class Rename(Codemod):
    RULE, NAME, MESSAGE = "ACME1", "acme-rename", "old name: `{before}`"
    WORDS = ("old_name",)
    TIER = Tier.SAFE
    CASES = (Case(before="old_name(1)\\n", after="new_name(1)\\n"),)

    def leave_Call(self, original_node, updated_node):
        if self.view.dotted(original_node.func) == "acme.old_name":
            name = cst.Name("new_name")
            return updated_node.with_changes(func=updated_node.func.with_changes(attr=name))
        return updated_node
"""


def scanned(root: Path, files: dict[str, str], places: list[str]) -> Scan:
    write_tree(root, {name: text.encode() for name, text in files.items()})
    return scan(
        [root / "src"],
        chip=chips.target("ascend"),
        origin=chips.origin(),
        codemods=load(places, root),
    )


def test_the_example_does_what_its_cases_say() -> None:
    (kind,) = load(["."], EXAMPLE)
    assert [one.fault for one in check(kind)] == [None, None, None]


def test_a_codemod_writes_its_places_alone_byte_for_byte(tmp_path: Path) -> None:
    text = "import acme as a\r\n\r\nx = a.old_name( 1,2 )  # keep\r\ny = old_name(3)\r\n"
    found = scanned(tmp_path, {"tools/a.py": RENAME, "src/m.py": text}, ["tools"])
    (one,) = [each for each in found.findings if each.rule == "ACME1"]
    assert (one.line, one.column, one.tier) == (3, 5, Tier.SAFE)
    (patch,) = patches(found)
    assert patch.after == text.replace("a.old_name", "a.new_name").encode()


def test_a_change_over_several_lines_is_one_place(tmp_path: Path) -> None:
    text = "from apex.optimizers import FusedAdam\n\no = FusedAdam(\n    p,  # all\n    lr=1e-3)\n"
    found = scanned(tmp_path, {"src/m.py": text}, [str(EXAMPLE)])
    (patch,) = patches(found, unsafe=True)
    after = "from torch.optim import AdamW\n\no = AdamW(\n    p,  # all\n    lr=1e-3, fused=True)\n"
    assert patch.after == after.encode()


def test_an_ignore_a_selection_and_a_second_run_hold(tmp_path: Path) -> None:
    files = {
        "tools/a.py": RENAME,
        "src/m.py": "import acme\nacme.old_name()  # joymigrate: ignore[ACME1] stays\n",
        "src/n.py": "import acme\nacme.new_name('old_name')\n",
    }
    found = scanned(tmp_path, files, ["tools/a.py"])
    assert found.findings == ()
    assert found.suppressed == 1


def test_edits_of_one_file_with_their_import_stand_or_fall_together(tmp_path: Path) -> None:
    line = "from apex.optimizers import FusedAdam\no = FusedAdam(p)\nq = FusedAdam(p)"
    files = {"src/m.py": f"{line}  # joymigrate: ignore[EX001] mine\n"}
    write_tree(tmp_path, {name: text.encode() for name, text in files.items()})
    found = scanned(tmp_path, files, [str(EXAMPLE)])
    assert patches(found, unsafe=True) == []


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise ValueError('of its own')", "ValueError: of its own"),
        ("return updated_node.with_changes(args=[*updated_node.args, "
         "cst.Arg(cst.Integer('1'))])", "a second run"),
    ],
)  # fmt: skip
def test_a_codemod_that_fails_or_never_ends_is_a_report(
    body: str, told: str, tmp_path: Path
) -> None:
    head, _, _ = RENAME.partition("        if self.view")
    files = {"tools/a.py": f"{head}        {body}\n", "src/m.py": "old_name()\n"}
    found = scanned(tmp_path, files, ["tools"])
    (one,) = found.findings
    assert one.tier is Tier.REPORT
    assert told in str(one.reason)
    assert one.before.startswith("old_name")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (RENAME.replace('"ACME1"', '"JM101"'), "RULE is 'JM101'"),
        (RENAME.replace('("old_name",)', "()"), "WORDS"),
        (RENAME + "    AREA = 'divice'\n", "Did you mean 'device'"),
        ("import nothing_like_this\n", "ModuleNotFoundError"),
        (RENAME.replace("MESSAGE = ", "TEXT = "), "lacks MESSAGE"),
    ],
)
def test_a_codemod_that_reports_could_not_show_is_refused(
    text: str, told: str, tmp_path: Path
) -> None:
    write_tree(tmp_path, {"a.py": text.encode()})
    with pytest.raises(JoyError, match=told):
        load(["a.py"], tmp_path)


def test_the_command_line_reads_the_projects_codemods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    toml = '[tool.joymigrate]\ncodemods = ["tools"]\nexclude = ["tools"]\n'
    files = {"tools/a.py": RENAME, "m.py": "import acme\nacme.old_name()\n", "pyproject.toml": toml}
    write_tree(tmp_path, {name: text.encode() for name, text in files.items()})
    monkeypatch.chdir(tmp_path)
    capfd.readouterr()
    assert main(["scan", "--format", "sarif", "--select", "ACME1", "."]) == 1
    run = json.loads(capfd.readouterr().out)["runs"][0]
    assert [one["ruleId"] for one in run["results"]] == ["ACME1"]
    assert main(["explain", "ACME1"]) == 0
    assert "acme-rename" in capfd.readouterr().out
    assert main(["explain", "--check"]) == 1  # its case imports nothing called acme
    assert "ACME1 case 1: found nothing" in capfd.readouterr().out
    assert main(["rewrite", "."]) == 0
    assert (tmp_path / "m.py").read_text() == "import acme\nacme.new_name()\n"
    assert main(["rollback"]) == 0
    assert (tmp_path / "m.py").read_text() == files["m.py"]


PARTS = """
import libcst as cst
from joymigrate.codemods import Codemod, Tier

class Parts(Codemod):
    RULE, NAME, MESSAGE = "ACME2", "acme-parts", "old: `{before}`"
    WORDS, TIER = ("old",), Tier.SAFE

    @classmethod
    def wanted(cls, module):
        return "no tree" not in module.source.text

    def leave_SimpleStatementLine(self, original_node, updated_node):
        text = cst.Module([]).code_for_node(updated_node).strip()
        if text == "old()":
            self.changed(self.view.span(original_node), "put before")
            first = [cst.parse_statement("first()")] if self.fresh else []
            return cst.FlattenSentinel([*first, updated_node])
        if text == "old":
            return cst.parse_statement("new")
        return updated_node

    fresh = property(lambda self: "first()" not in self.view.module.source.text)
"""


def test_neighbours_and_lines_put_before_are_places_of_their_own(tmp_path: Path) -> None:
    files = {
        "tools/a.py": PARTS,
        "src/m.py": "if x:\n    old\n    old\n    a = 1\n    old()\n",
        "src/n.py": "old  # no tree\n",
    }
    found = scanned(tmp_path, files, ["tools"])
    assert [(f.path, f.line, f.column, f.reason) for f in found.findings] == [
        ("m.py", 2, 5, None), ("m.py", 3, 5, None), ("m.py", 5, 5, "put before"),
    ]  # fmt: skip
    (patch,) = patches(found)
    assert patch.after == b"if x:\n    new\n    new\n    a = 1\n    first()\n    old()\n"


def test_an_expression_of_any_kind_has_its_values(tmp_path: Path) -> None:
    tool = RENAME.replace("def leave_Call", "def leave_Assign").partition("        if self.view")[0]
    tool += "        self.report(original_node, str(self.view.values(original_node.value)))\n"
    tool += "        return updated_node\n"
    text = "old_name = ('a' if x else 'b')\n"
    (one,) = scanned(tmp_path, {"tools/a.py": tool, "src/m.py": text}, ["tools"]).findings
    assert one.reason == "['a', 'b']"


LINES = st.lists(st.sampled_from(["a = 1\n", "b(a, c)\n", "\n", "abc\r\n", "ab c"]), max_size=8)


@settings(max_examples=200)
@given(LINES, LINES)
def test_hunks_make_the_one_text_of_the_other(before: list[str], after: list[str]) -> None:
    old, new = "".join(before), "".join(after)
    text = old
    for start, end, put in sorted(hunks(old, new), reverse=True):
        text = text[:start] + put + text[end:]
    assert text == new


def test_every_scan_looks_for_the_words_of_its_own_codemods() -> None:
    """A set of rules is often made where the last one stood; it must not inherit its words."""
    for number in range(100):
        word = f"old_name_{number}"
        kind = type("One", (Codemod,), {"RULE": "ACME1", "NAME": "n", "MESSAGE": "m"})
        kind.WORDS = (word,)
        context = Context.between(chips.target("ascend"), chips.origin(), codemods=(kind,))
        assert prefilter(f"{word}()\n", context)
        del context
