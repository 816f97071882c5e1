"""Dockerfiles and Containerfiles: base images, variables, and the shell text of RUN and CMD."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from joymigrate.model import Finding, Tier
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.readers import _commands, _environment, _json_tree, _launch, _options, shell
from joymigrate.rewrite.readers._migration_map import Sites
from joymigrate.rewrite.readers._tree import ScalarNode, SequenceNode
from joymigrate.rewrite.readers._words import Command, Word
from joymigrate.rewrite.source import SourceText, Unreadable

PATTERNS = (
    *("Dockerfile", "Dockerfile.*", "Dockerfile-*", "*.dockerfile", "*.Dockerfile", "Dockerfile_*"),
    *("Containerfile", "Containerfile.*", "*.containerfile"),
)
INSTRUCTION = re.compile(r"[ \t]*(?P<name>[A-Za-z]+)(?=[ \t])[ \t]*")
SHELL = frozenset(("RUN", "CMD", "ENTRYPOINT", "HEALTHCHECK"))
HEREDOC = re.compile(r"<<-?\s*[\"']?(?P<word>[A-Za-z_]\w*)[\"']?")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its name in capitals and the place of its arguments."""

    name: str
    start: int
    end: int


def read(source: SourceText, context: Context) -> Iterator[Finding]:
    """Findings of one file, instruction by instruction."""
    sites = Sites.of(source, context)
    for each in instructions(source.text):
        instruction(sites, each)
    yield from sites.ordered()


def instructions(text: str) -> Iterator[Instruction]:
    """Instructions with their continuation lines; comments between the lines stay inside."""
    at = 0
    while at < len(text):
        end = line_end(text, at)
        match = INSTRUCTION.match(text, at, end)
        line = text[at:end]
        if match is None or line.lstrip().startswith("#"):
            at = end + 1
            continue
        while continues(text[at:end]) and end < len(text):
            at = end + 1
            end = line_end(text, at)
            while text[at:end].strip().startswith("#") or not text[at:end].strip():
                if end >= len(text):
                    break
                at = end + 1
                end = line_end(text, at)
        heredoc = HEREDOC.search(text, match.end(), end)
        if heredoc and match["name"].upper() in ("RUN", "COPY", "ADD"):
            close = re.compile(rf"^[\t]*{heredoc['word']}[ \t\r]*$", re.M).search(text, end)
            end = close.end() if close else end
        yield Instruction(match["name"].upper(), match.end(), end)
        at = end + 1


def line_end(text: str, at: int) -> int:
    """Where the line of `at` ends."""
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def continues(line: str) -> bool:
    """Whether a line goes on in the next one."""
    return line.rstrip().endswith("\\") and not line.lstrip().startswith("#")


def instruction(sites: Sites, each: Instruction) -> None:
    """One instruction. Nobody saw what runs in the image, so every edit waits for a look."""
    floor, doubt = sites.floor, sites.doubt
    sites.floor, sites.doubt = Tier.UNSAFE, "what runs in the image is not known"
    if each.name == "FROM":
        base(sites, each)
    elif each.name in ("ENV", "ARG"):
        variables(sites, each)
    elif each.name in SHELL:
        run(sites, each)
    elif each.name == "ONBUILD":
        inner = INSTRUCTION.match(sites.source.text, each.start, each.end)
        if inner:
            instruction(sites, Instruction(inner["name"].upper(), inner.end(), each.end))
    sites.floor, sites.doubt = floor, doubt


def base(sites: Sites, each: Instruction) -> None:
    """`FROM [--platform=…] image [AS name]`."""
    text = sites.source.text
    for match in re.finditer(r"\S+", text[each.start : each.end]):
        if not match.group().startswith("--"):
            start = each.start + match.start()
            image(sites, start, match.group())
            return


def image(sites: Sites, start: int, name: str) -> None:
    """A base image that brings the origin's toolkit."""
    reason = _launch.image_of(sites, name)
    if reason:
        sites.add("JM190", start, start + len(name), reason=reason)


def variables(sites: Sites, each: Instruction) -> None:
    """`ENV NAME=value …`, `ENV NAME value`, `ARG NAME=value`."""
    source = sites.source
    script = _commands.read(source.text, each.start, each.end)
    words = [word for command in script.commands for word in command.words]
    if not words:
        return
    if "=" not in words[0].value:
        old_form(sites, words)
    else:
        command = Command(words=[marker(each.start), *words])
        _environment.assignments(sites, command)
        for word in words:
            default(sites, word)
    _environment.uses(sites, script.expansions)


def marker(at: int) -> Word:
    """A word that makes what follows a list of assignments."""
    return Word(at, at, "export", [at] * 6)


def old_form(sites: Sites, words: list[Word]) -> None:
    """`ENV NAME value`: one variable, the rest is its value."""
    known = sites.moves.variable(words[0].value)
    if known is None:
        return
    rule, advice = known
    start, end = words[0].start, words[0].end
    writes = advice.to not in (None, words[0].value) and not sites.moves.agnostic
    to = advice.to if writes else None
    sites.add(rule, start, end, to, tier=advice.tier, reason=advice.note or None)


def default(sites: Sites, word: Word) -> None:
    """`ARG BASE=nvidia/cuda:12.1`: an image; `ENV DEVICE=cuda`: a device."""
    name, found, value = word.value.partition("=")
    if not found:
        return
    span = word.span(len(name) + 1, len(word.value))
    if span and _launch.image_of(sites, value):
        image(sites, span[0], value)
        return
    kind = sites.moves.sink(name)
    if kind:
        _options.value(sites, word, len(name) + 1, kind, key=name)


def run(sites: Sites, each: Instruction) -> None:
    """`RUN …` in shell form or as a JSON list of arguments."""
    text = sites.source.text
    start = each.start
    while flag := re.compile(r"--[a-z]+=\S+\s+(?:\\\r?\n\s*)?").match(text, start, each.end):
        start = flag.end()
    if each.name == "HEALTHCHECK":
        match = re.compile(r"CMD\s+").search(text, start, each.end)
        if match is None:
            return
        start = match.end()
    if text[start : start + 1] == "[" and arguments(sites, start, each.end):
        return
    heredoc = HEREDOC.match(text, start, each.end)
    if heredoc:
        start = line_end(text, start) + 1
        end = text.rfind("\n", start, each.end) + 1
        shell.script(sites, start, end)
        return
    shell.script(sites, start, each.end)


def arguments(sites: Sites, start: int, end: int) -> bool:
    """The list form: words of one command."""
    try:
        node = _json_tree.JsonReader(sites.source.text[:end]).value(start, 0)
    except Unreadable:
        return False
    if not isinstance(node, SequenceNode):
        return False
    words = [item.word for item in node.items if isinstance(item, ScalarNode)]
    if words and re.fullmatch(r"(?:.*/)?(?:ba|da|z)?sh", words[0].value) and len(words) == 3:
        script = words[2]
        if len(script.at) == len(script.value) and script.at:
            shell.script(sites, script.at[0], script.at[-1] + 1)
        return True
    command = Command(words=words)
    _environment.assignments(sites, command)
    _options.options(sites, command)
    return True
