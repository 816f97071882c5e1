"""The pages of docs/ are true of the program: its commands, options, links, and the site itself."""

from __future__ import annotations

import functools
import json
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from joymigrate.cli import _main, _rehearse_setup
from scripts import pages

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "templates" not in page.parts)
NAMES = [page.relative_to(DOCS).as_posix() for page in PAGES]
# Programs of others whose options stand on our pages.
OTHERS = re.compile(
    r"\b(torchrun|pytest|pip|docker|podman|git|curl|sed|grep|vllm|kubectl|ray|npm|apt-get|yum|"
    r"python|npu-smi|accelerate|deepspeed|nsys|printf|chromium|litellm)\b"
)
# Options in backticks, alone, that belong to a program of the reader's or of others.
FOREIGN = {"--quick", "--durations", "--only", "--pytorch", "--extra-index-url", "--rm", "--no-amp"}
FOREIGN |= {"--token-auth-file", "--disable-admission-plugins"}  # of Kubernetes' API server
FOREIGN |= {"--plants", "--use-feature"}  # of a benchmark, and of pip
FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)


@functools.cache
def tree() -> dict[str, set[str]]:
    """Every command and sub-command with the options that it takes."""
    found: dict[str, set[str]] = {}

    def walk(command: Any, name: str) -> None:
        own = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
        found[name] = {flag for flag in own if flag.startswith("-")} | {"--help"}
        for key, child in getattr(command, "commands", {}).items():
            if key == "default":  # `serve DIR`: options of the group itself
                found[name] |= {f for p in child.params for f in (*p.opts, *p.secondary_opts)}
            else:
                walk(child, f"{name} {key}")

    for name in _main.command_names():
        walk(_main.load(name), name)
    walk(_rehearse_setup.parser(), "rehearse setup")
    return found


def all_options() -> set[str]:
    root = typer.main.get_command(_main.root)
    own = {flag for p in root.params for flag in (*p.opts, *p.secondary_opts)}
    return own.union(*tree().values())


def texts() -> dict[str, str]:
    return {page.relative_to(DOCS).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}


@pytest.mark.parametrize("command", sorted(tree()))
def test_every_command_stands_on_a_page(command: str) -> None:
    hidden = command.split()[-1]
    said = [name for name, text in texts().items() if spoken(text, command)]
    assert said, f"no page of docs/ shows `joymigrate {command}` ({hidden})"


PAGE_OF = {"serve": "serve-engine", "bundle": "first-hour", "schema": "../reference/schema"}


@pytest.mark.parametrize("command", _main.command_names())
def test_every_command_has_a_page_that_the_site_leads_to(command: str) -> None:
    page = posixpath.normpath(f"how-to/{PAGE_OF.get(command, command)}.md")
    head = (DOCS / page).read_text(encoding="utf-8").split("\n## ")[0]
    assert re.search(rf"\b{command}\b", head), f"{page} does not begin with {command}"
    assert f": {page}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert re.search(rf"`{command}`", (DOCS / "index.md").read_text(encoding="utf-8"))


def test_the_page_of_commands_has_every_option() -> None:
    said = pages.commands()
    lacks = {
        (name, option)
        for name, options in tree().items()
        for option in options
        if option.startswith("--") and not re.search(rf"(?<![\w-]){option}(?![\w-])", said)
    }
    assert lacks == set()


def spoken(text: str, command: str) -> bool:
    """Whether a page names a command in code or a heading: `joymigrate a b`, `a b`, `a x|b`."""
    head, _, last = command.partition(" ")
    if re.search(rf"(joymigrate |[`|]){re.escape(command)}(?![\w-])", text):
        return True
    # `chips list|show`, `### show`, `| `show [NAME]` |` on a page of the group's own.
    own = re.search(rf"joymigrate {head}\b", text) is not None
    alternatives = rf"\b{head} [\w|-]*\b{re.escape(last)}\b" if last else None
    return bool(
        last
        and (
            (alternatives and re.search(alternatives, text))
            or (own and re.search(rf"(^#+ .*|`){re.escape(last)}\b", text, re.M))
        )
    )


@pytest.mark.parametrize("name", NAMES)
def test_options_of_a_page_exist(name: str) -> None:
    wrong = []
    for words in our_words(texts()[name].partition("## Where it went")[0]):
        known = of_the_command(words) | FOREIGN
        wrong += [
            (option, words.strip()[:100])
            for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", words)
            if option not in known and "_" not in option  # ours have none
        ]
    assert wrong == []


def of_the_command(words: str) -> set[str]:
    """What the command on a line takes; without a command, what any of them takes."""
    named = ""
    for word in re.split(r"[\s|]+", words.strip()):
        if f"{named} {word}".strip() not in tree():
            break
        named = f"{named} {word}".strip()
    if not named:
        return all_options()
    below = (options for name, options in tree().items() if f"{name} ".startswith(f"{named} "))
    return {"--settings"}.union(*below)


def our_words(text: str) -> Iterator[str]:
    """Code of a page, line by line, up to where the command line of another program begins."""
    lines = []
    for block in re.findall(r"^ *```(?:bash|console|sh|text|)\n(.*?)^ *```$", text, re.M | re.S):
        lines += block.replace("\\\n", " ").splitlines()
    lines += re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    for line in lines:
        if "joymigrate" not in line and not line.startswith("--"):
            continue  # examples of other programs, and what they print
        line = line.split("joymigrate ", 1)[-1]
        line = re.sub(r"\"[^\"]*\"|'[^']*'", "…", line)
        line = re.split(r"\s--\s|#|\|\s|&&", line)[0]
        if not OTHERS.search(line.split("--")[0]):
            yield line


@functools.cache
def expanded(page: Path) -> str:
    """A page with its generated parts."""
    return pages.expand(page.read_text(encoding="utf-8"))


@functools.cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as the site makes them."""
    text = FENCE.sub("", expanded(page))
    found: dict[str, int] = {}
    names = set()
    for words in re.findall(r"^#+ +(.+?)\s*$", text, re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", words)
        slug = re.sub(r"[^\w\s-]", "", plain).strip().lower()
        slug = re.sub(r"[-\s]+", "-", slug)
        names.add(f"{slug}_{found[slug]}" if slug in found else slug)
        found[slug] = found.get(slug, 0) + 1
    return frozenset(names | {*re.findall(r'id="([^"]+)"', text)})


@pytest.mark.parametrize("name", NAMES)
def test_links_of_a_page_lead_somewhere(name: str) -> None:
    page = DOCS / name
    wrong = []
    words = re.sub(r"`[^`\n]*`", "", FENCE.sub("", expanded(page)))
    for target in re.findall(r"\]\(([^)\s]+)\)", words):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        lacks = anchor and there.suffix == ".md" and anchor not in anchors(there)
        if not there.is_file() or lacks:
            wrong.append(target)
    assert wrong == []


def test_a_wrong_option_and_a_wrong_link_are_found() -> None:
    assert [*our_words("```bash\njoymigrate scan . --no-such-thing -- x --theirs\n```\n")] == [
        "scan . --no-such-thing"
    ]
    assert [*our_words("`--neither` and `pytest --theirs`")] == ["--neither"]
    assert "undo" in anchors(DOCS / "tutorials" / "first-migration.md")


# Words by which a page was called before it moved, where its address does not say them.
CALLED = {
    "board": "public programs",
    "case-studies": "case studies nanoGPT dlrm",
    "completion": "shell completion",
    "continuous": "stream published versions",
    "fill": "run --fill",
    "glossary-zh": "术语",
    "port": "profile port triton",
    "rehearse-backtest": "backtest",
    "rehearse-cases": "rehearse",
    "samples": "recommendation features",
    "tables": "click models",
}
MOVED: dict[str, str] = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["extra"]["moved"]


def unfound(site: Path) -> list[str]:
    """Pages that moved and whose old words the site's search does not find on the new one."""
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    said: dict[str, str] = {}
    for entry in index["docs"]:
        page = entry["location"].partition("#")[0]
        said[page] = f"{said.get(page, '')} {entry['title']} {entry['text']}".lower()
    lost = []
    for old, new in MOVED.items():
        stem = old.removesuffix(".md")
        words = CALLED.get(stem, stem.replace("-", " ")).lower().split()
        found = said.get(new.replace(".md", ".html"), "")
        lost += [f"{old}: {word}" for word in words if word not in found]
        assert (site / old).with_suffix(".html").is_file()
    return lost


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'joymigrate[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    built = sorted(tmp_path.rglob("*.html"))
    assert len(built) >= len(MOVED)
    assert unfound(tmp_path) == []
    foreign = re.compile(
        r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=[\"']?(?:https?:)?//[^>]*>"
    )
    for page in built:
        assert foreign.findall(page.read_text(encoding="utf-8")) == [], page
    for sheet in tmp_path.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:", sheet.read_text(encoding="utf-8")), sheet
