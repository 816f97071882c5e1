"""The pull-request comment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from joymigrate.model import Tier
from joymigrate.report.renderers import md
from tests.report.build import result_of, shown, site, write


def test_the_comment_has_summary_manual_list_and_details(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "x.cuda()\ny = flash\n"})
    found = result_of(
        root,
        site(root, "a.py", ".cuda()", ".npu()"),
        site(root, "a.py", "flash", rule="JM200", area="kernels", weight=60.0,
             message="no *kernel* | here", reason="`a|b`"),
    )  # fmt: skip
    text = shown(found, "md").partition("\n\n")[2]
    assert text == (
        "cuda → chip, direct style\n"
        "\n"
        "## Summary\n"
        "\n"
        "- automatic: **50%** (50% with --unsafe)\n"
        "- Sites: **2** (1 Files; 1 files read)\n"
        "- to review: **0** (written with --unsafe)\n"
        "- by hand: **1** (60 min)\n"
        "- Effort: **60 min** (an estimate)\n"
        "\n"
        "safe 1, to review 0, by hand 1\n"
        "\n"
        "Statements about the chip: 2 documented, 0 rehearsed, 0 measured.\n"
        "\n"
        "## By area\n"
        "\n"
        "| Area | Sites | safe | to review | by hand | Effort |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |\n"
        "| device | 1 | 1 | 0 | 0 | 12 s |\n"
        "| kernels | 1 | 0 | 0 | 1 | 60 min |\n"
        "\n"
        "## Work by hand, the heaviest first\n"
        "\n"
        "| Rule | What | Area | Sites | Files | Effort |\n"
        "| --- | --- | --- | ---: | ---: | ---: |\n"
        "| JM200 | no \\*kernel\\* \\| here<br>`flash` | kernels | 1 | 1 | 60 min |\n"
        "\n"
        "## Findings\n"
        "\n"
        "<details><summary>a.py: 2 sites</summary>\n"
        "\n"
        "- line 1: JM101 (safe) the origin's device\n"
        "\n"
        "```diff\n"
        "-x.cuda()\n"
        "+x.npu()\n"
        "```\n"
        "\n"
        "- line 2: JM200 (by hand) no \\*kernel\\* | here (`a|b`)\n"
        "\n"
        "</details>\n"
        "\n"
        "Found 2 sites in 1 file (1 fixable with joymigrate rewrite).\n"
    )


def test_an_empty_scan_says_so(tmp_path: Path) -> None:
    assert shown(result_of(tmp_path), "md").endswith("Nothing to do: no cuda site (1 file read).\n")


def test_a_long_comment_stays_below_the_limit_of_github(tmp_path: Path) -> None:
    files = {f"f{number}.py": "x.cuda()\n" for number in range(900)}
    root = write(tmp_path, files)
    found = result_of(root, *(site(root, name, ".cuda()", ".npu()") for name in files))
    comment = shown(found, "md")
    assert len(comment) < 65_536
    assert "The rest is left out here" in comment
    assert comment.count("<details>") == comment.count("</details>")


def test_labels_are_chinese_on_request(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "x.cuda()\n"})
    comment = shown(result_of(root, site(root, "a.py", ".cuda()", ".npu()")), "md", "zh")
    assert "迁移就绪度" in comment
    assert "| 设备接口 | 1 | 1 | 0 | 0 | 12 秒 |" in comment


def test_code_with_backticks_gets_a_longer_fence(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "x = '```'; y.cuda()\n"})
    one = site(root, "a.py", ".cuda()", ".npu()", tier=Tier.UNSAFE)
    assert "\n````diff\n" in shown(result_of(root, one), "md")


def test_an_odd_backtick_does_not_swallow_the_rest() -> None:
    assert md.escape("a ` b <c>") == "a ' b &lt;c&gt;"
    assert md.escape("`<a>` *b*") == "`<a>` \\*b\\*"


def test_a_path_is_no_markup(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "x.cuda()\n"})
    one = replace(site(root, "a.py", "x.cuda()"), path="<b>&.py")
    assert "<summary>&lt;b&gt;&amp;.py: 1 site</summary>" in shown(result_of(root, one), "md")
