"""Pages of docs/ with their generated parts, for the site, an offline bundle and the tests.

A line `<!-- generated: NAME -->` of a page stands for what `MAKERS[NAME]` says of the program as it
is. mkdocs calls the functions `on_…` (mkdocs.yml, hooks); `python -m scripts.pages FOLDER` writes
docs/ whole into a folder.
"""

from __future__ import annotations

import html
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.M)
LIMITS = DOCS / "reference" / "limits.yaml"
COLUMNS = 78
REDIRECT = """<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>Moved</title><link rel="canonical" href="{to}">
<script>location.replace("{to}" + location.hash)</script>
<meta http-equiv="refresh" content="0; url={to}"></head>
<body>This page is now at <a href="{to}">{to}</a>.</body></html>
"""


def commands() -> str:
    """The help of every command, one heading each."""
    parts = []
    for name, text in list_helps():
        parts.append(f"## joymigrate {name}\n\n```text\n{text.rstrip()}\n```\n")
    return "\n".join(parts)


def list_helps() -> Iterator[tuple[str, str]]:
    """Every command and sub-command with what its `--help` prints."""
    from joymigrate.cli import _main, _rehearse_setup

    def walk(command: Any, name: str) -> Iterator[tuple[str, str]]:
        yield name, help_of(command, name)
        for key, child in getattr(command, "commands", {}).items():
            if key == "default":  # `serve MODEL_DIR`: what the group itself does
                yield f"{name} MODEL_DIR", help_of(child, name)
            elif not child.hidden:
                yield from walk(child, f"{name} {key}")

    for name in _main.command_names():
        yield from walk(_main.load(name), name)
    yield from walk(_rehearse_setup.parser(), "rehearse setup")


def help_of(command: Any, name: str) -> str:
    """What `joymigrate NAME --help` prints, as wide as a page."""
    import click

    context = click.Context(command, info_name=f"joymigrate {name}", max_content_width=COLUMNS)
    context.terminal_width = COLUMNS
    return str(command.get_help(context)).replace(sys.executable, "this Python")


def rules() -> str:
    """Every rule for the default chip."""
    from joymigrate.report import rules as page

    return without_title(page.reference())


def schemas() -> str:
    """The keys of every document."""
    from joymigrate.report import schemas as page
    from joymigrate.schema import find, names

    return without_title(page.page([find(name) for name in names()]))


def settings() -> str:
    """The keys of the configuration."""
    from joymigrate.report import schemas as page
    from joymigrate.schema import find

    _, _, table = page.section(find("settings")).partition("| key |")
    return f"| key |{table}".replace("`? |", "` |")  # all may be left out


def versions() -> str:
    """Which versions of the default chip's software go together."""
    from joymigrate import chips
    from joymigrate.report import versions as page

    return without_title(page.page(chips.target(None)))


def operators() -> str:
    """Which operators of the vendor a rehearsal computes."""
    # Beside torch_npu and without CANN, torch can't be imported unless told to leave it alone.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    try:
        from joymigrate.run.rehearse.refs.__main__ import table
    except ImportError:
        return "The list needs torch: `python -m joymigrate.run.rehearse.refs` prints it."
    return without_title(table())


def llamafactory() -> str:
    """What becomes of LLaMA-Factory's keys."""
    from joymigrate.run.train import llamafactory_job

    return llamafactory_job.as_markdown()


def limits() -> str:
    """What the program can't do: a table for each command."""
    import yaml

    parts = []
    for command, rows in yaml.safe_load(LIMITS.read_text(encoding="utf-8")).items():
        lines = [f"| {row['limit']} | {row['effect']} | {row['instead']} |" for row in rows]
        head = "| limit | effect | do instead |\n|---|---|---|"
        parts.append("\n".join([f"## {command}\n", head, *lines, ""]))
    return "\n".join(parts)


def results() -> str:
    """The figures of the benchmarks, which stand beside them."""
    text = without_title((ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8"))
    return text.replace("](../docs/reference/", "](").replace("](../docs/", "](../")


def without_title(text: str) -> str:
    """A page without its first heading."""
    return re.sub(r"\A# .*\n+", "", text)


MAKERS: dict[str, Callable[[], str]] = {
    make.__name__: make
    for make in (
        commands,
        rules,
        schemas,
        settings,
        versions,
        operators,
        limits,
        llamafactory,
        results,
    )
}


def expand(text: str) -> str:
    """A page with its generated parts; KeyError where a part has no maker."""
    return MARK.sub(lambda found: MAKERS[found[1]](), text)


def write(folder: Path) -> None:
    """docs/ with its generated parts, as a new folder."""
    shutil.copytree(DOCS, folder)
    for page in folder.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        if MARK.search(text):
            page.write_text(expand(text), encoding="utf-8")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Of mkdocs: the generated parts."""
    return expand(markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """Of mkdocs: a page at every address that a page had before it moved."""
    for old, new in config["extra"]["moved"].items():
        there = Path(config["site_dir"], old).with_suffix(".html")
        to = posixpath.relpath(new.replace(".md", ".html"), posixpath.dirname(old) or ".")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(REDIRECT.format(to=html.escape(to)), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
