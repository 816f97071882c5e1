"""The pull-request comment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from joymigrate.model import Tier
from joymigrate.report import md
from joymigrate.report.renderers import markdown
from tests.report.build import result_of, site, write


def test_the_comment_has_summary_manual_list_and_details(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "x.cuda()\ny = flash\n"})
    found = result_of(
        root,
        site(root, "a.py", ".cuda()", ".npu()"),
        site(root, "a.py", "flash", rule="JM200", area="kernels", weight=60.0,
             message="no *kernel* | here", reason="`a|b`"),
    )  # fmt: skip
    assert md.render(found) == (
        "## Migration readiness: cuda → chip\n"
        "\n"
        "**50%** automatic, **50%** with --unsafe; Effort: 60 min\n"
        "\n"
        "| Area | Sites | safe | to review | by hand | Effort |\n"
        "| --- | ---: | ---: | ---: | ---: | --- |\n"
        "| device | 1 | 1 | 0 | 0 | 12 s |\n"
        "| kernels | 1 | 0 | 0 | 1 | 60 min |\n"
        "\n"
        "Statements about the chip: 2 documented, 0 rehearsed, 0 measured.\n"
        "\n"
        "### Work by hand, the heaviest first\n"
        "\n"
        "| Rule | What | Sites | Files | Effort |\n"
        "| --- | --- | ---: | ---: | --- |\n"
        "| JM200 | no \\*kernel\\* \\| here: `flash` | 1 | 1 | 60 min |\n"
        "\n"
        "<details><summary><code>a.py</code>: 2 sites</summary>\n"
        "\n"
        "- line 1: **JM101** (safe) the origin's device\n"
        "  ```diff\n"
        "  -x.cuda()\n"
        "  +x.npu()\n"
        "  ```\n"
        "- line 2: **JM200** (by hand) no \\*kernel\\* | here (`a|b`)\n"
        "\n"
        "</details>\n"
        "\n"
        "Found 2 sites in 1 file (1 fixable with joymigrate rewrite).\n"
    )


def test_an_empty_scan_says_so(tmp_path: Path) -> None:
    assert md.render(result_of(tmp_path)).endswith("Nothing to do: no cuda site (1 file read).\n")


def test_a_long_comment_stays_below_the_limit_of_github(tmp_path: Path) -> None:
    files = {f"f{number}.py": "x.cuda()\n" for number in range(900)}
    root = write(tmp_path, files)
    found = result_of(root, *(site(root, name, ".cuda()", ".npu()") for name in files))
    comment = md.render(found)
    assert len(comment) < 65_536
    assert "more files are left out here" in comment
    assert comment.count("<details>") == comment.count("</details>")


def test_labels_are_chinese_on_request(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "x.cuda()\n"})
    comment = md.render(result_of(root, site(root, "a.py", ".cuda()", ".npu()")), "zh")
    assert "迁移就绪度" in comment
    assert "| 设备接口 | 1 | 1 | 0 | 0 | 12 秒 |" in comment


def test_code_with_backticks_gets_a_longer_fence(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "x = '```'; y.cuda()\n"})
    one = site(root, "a.py", ".cuda()", ".npu()", tier=Tier.UNSAFE)
    assert "  ````diff\n" in md.render(result_of(root, one))


def test_an_odd_backtick_does_not_swallow_the_rest() -> None:
    assert markdown.escape("a ` b <c>") == "a ' b &lt;c&gt;"
    assert markdown.escape("`<a>` *b*") == "`<a>` \\*b\\*"


def test_a_path_is_no_markup(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "x.cuda()\n"})
    one = replace(site(root, "a.py", "x.cuda()"), path="<b>&.py")
    assert "<code>&lt;b&gt;&amp;.py</code>" in md.render(result_of(root, one))
