"""Vendor tools in shell text: monitors, compilers, profilers, and the toolkit's folder."""

from __future__ import annotations

import re

from joymigrate.chips import NameAdvice
from joymigrate.language import Text
from joymigrate.model import Tier
from joymigrate.rewrite.readers import _inline
from joymigrate.rewrite.readers._environment import SPEAKS
from joymigrate.rewrite.readers._migration_map import Sites, worse
from joymigrate.rewrite.readers._words import ASSIGNMENT, EXPANDED, Command, Script, Word

WRAPPERS = frozenset(
    (
        *("sudo", "nohup", "exec", "env", "time", "command", "watch", "timeout", "nice"),
        *("stdbuf", "xargs", "eval", "srun", "mpirun", "mpiexec", "unbuffer", "numactl"),
        *("taskset", "chronic"),
    )
)
ELSEWHERE = frozenset(("docker", "podman", "ssh", "pdsh", "kubectl", "parallel", "bash", "sh"))
ASKS = frozenset(("which", "type", "hash", "whereis"))
INSTALLS = frozenset(
    ("apt", "apt-get", "yum", "dnf", "pip", "pip3", "conda", "mamba", "cp", "ln", "rm", "mv")
)
TOOLKIT = re.compile(r"/(?:usr/local|opt)/cuda(?:-[\d.]+)?(?=[/:\s\"']|$)")


def tools(sites: Sites, script: Script) -> None:
    """Every command that runs, or asks for, a tool of the origin's vendor."""
    for command in script.commands:
        if command.kind == "pattern" or not command.words:
            continue
        found = tool_in(sites, command)
        if found is not None:
            tool(sites, command, *found)
        _inline.python_code(sites, command)
    toolkit(sites, script)


def tool_in(sites: Sites, command: Command) -> tuple[int, int, NameAdvice] | None:
    """(first word, behind the last word, advice) of the tool that a command names."""
    words = command.words
    if words[0].value in SPEAKS or words[0].value in INSTALLS:
        return None
    for index, word in enumerate(words):
        if ASSIGNMENT.match(word.value):
            continue
        for length in (2, 1) if index + 1 < len(words) else (1,):
            named = " ".join(each.value for each in words[index : index + length])
            advice = sites.moves.tools.get(named.rpartition("/")[2] if length == 1 else named)
            if advice is not None and reachable(words[:index]):
                return index, index + length, advice
        if not passes(words, index):
            return None
    return None


def reachable(before: list[Word]) -> bool:
    """Whether the word behind these ones is a command, runs elsewhere, or is asked for."""
    head = next((each.value for each in before if not ASSIGNMENT.match(each.value)), "")
    return not head or head in WRAPPERS or head in ELSEWHERE or head in ASKS


def passes(words: list[Word], index: int) -> bool:
    """Whether a command may still follow behind `words[index]`."""
    head = next((each.value for each in words[: index + 1] if not ASSIGNMENT.match(each.value)), "")
    return not head or head in WRAPPERS or head in ELSEWHERE or head in ASKS


def tool(sites: Sites, command: Command, first: int, last: int, advice: NameAdvice) -> None:
    """Replace a plain call, report any other use."""
    words = command.words
    start, end = words[first].start, words[last - 1].end
    to = advice.to
    if to is None or to == advice.name:
        sites.add("JM180", start, end, reason=advice.note or "nothing takes its place")
        return
    plain = last == len(words) and not command.nested and command.ends not in ("|", "|&")
    asked = words[0].value in ASKS or (words[0].value == "command" and first > 1)
    if not plain or asked or "/" in words[first].value or advice.tier is Tier.REPORT:
        reason = Text.join(": ", (Text("the nearest is `{to}`", to=to), advice.note))
        sites.add("JM180", start, end, reason=reason)
        return
    text = sites.source.text
    if sites.moves.agnostic:
        if to in text:
            return
        after = f"{text[start:end]} || {to}"
        if first:
            sites.add(
                "JM180", start, end, reason=Text("on the other platform this is `{to}`", to=to)
            )
            return
    else:
        after = to
    tier = worse(advice.tier, Tier.UNSAFE)
    sites.add("JM180", start, end, after, tier=tier, reason=advice.note or None)


def toolkit(sites: Sites, script: Script) -> None:
    """The first mention of the toolkit's folder in every command."""
    if not sites.context.origin.origin:
        return
    for command in script.commands:
        for word in (*command.words, *command.targets):
            match = TOOLKIT.search(word.value.replace(EXPANDED, "?"))
            span = word.span(*match.span()) if match else None
            if span:
                reason = Text("the folder of {origin}'s toolkit", origin=sites.context.origin.title)
                sites.add("JM180", *span, reason=reason)
