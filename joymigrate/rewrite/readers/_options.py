"""Device and backend values in shell text and argument lists: options, variables, comparisons.

An option or variable counts as a device when its name says so (`--device`, `DEVICE`), a variable
also when it is handed to such an option. Everything else that looks like a device is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

from joymigrate.language import Text
from joymigrate.model import Tier
from joymigrate.rewrite import flow_sinks
from joymigrate.rewrite.readers._environment import DECLARE, SPEAKS, command_name
from joymigrate.rewrite.readers._migration_map import Sites
from joymigrate.rewrite.readers._words import ASSIGNMENT, EXPANDED, Command, Expansion, Script, Word

PAIR = re.compile(r"(?P<key>-{1,2}[A-Za-z][\w.-]*|[+~]{0,2}[A-Za-z_][\w./@-]*)=(?P<value>.*)", re.S)
OPTION = re.compile(r"-{1,2}[A-Za-z][\w.-]*")
COMPARE = frozenset(("=", "==", "!=", "=~"))
TESTS = frozenset(("[", "[[", "test"))
RULES = {flow_sinks.DEVICE: "JM120", flow_sinks.BACKEND: "JM130"}
# Programs whose options never are torch devices.
OTHERS = frozenset(
    (
        *("nsys", "ncu", "apt", "apt-get", "yum", "dnf", "cmake", "make", "module", "conda"),
        *("mamba", "pip", "pip3", "git", "wget", "curl", "ln", "cp", "rm", "mv", "tar", "ls"),
        *("update-alternatives", "spack", "brew", "cd", "mkdir", "source", "."),
    )
)


@dataclass(slots=True)
class ShellFlow:
    """Which shell variables hold a device or a backend, and through what that was seen."""

    sites: Sites
    handed: dict[str, str] = field(default_factory=dict)  # variable → kind

    def kind(self, variable: str) -> str | None:
        """`device`, `backend` or None."""
        return self.handed.get(variable) or self.sites.moves.sink(variable)


def values(sites: Sites, script: Script) -> None:
    """Every device and backend value of a script."""
    flow = ShellFlow(sites)
    for command in script.commands:
        for key, word, at in pairs(command):
            kind = sites.moves.sink(key)
            only = only_expansion(word, at)
            if kind and only:
                flow.handed.setdefault(only.name, kind)
    for command in script.commands:
        if command.kind == "pattern":
            arms(flow, command)
            continue
        options(sites, command)
        set_variables(flow, command)
        comparisons(flow, command)
    for expansion in script.expansions:
        fallback(flow, expansion)


def pairs(command: Command) -> Iterator[tuple[str, Word, int]]:
    """Every option of a command as (name, word that holds the value, where the value begins)."""
    if command.kind == "pattern":
        return
    name = command_name(command.words)
    leading = command.kind == "command"
    for index, word in enumerate(command.words):
        if leading and ASSIGNMENT.match(word.value):
            continue
        if leading and name in DECLARE:
            return
        leading = False
        if match := PAIR.fullmatch(word.value):
            yield match["key"], word, match.start("value")
        elif OPTION.fullmatch(word.value) and index + 1 < len(command.words):
            yield word.value, command.words[index + 1], 0


def only_expansion(word: Word, at: int = 0) -> Expansion | None:
    """The expansion that `word.value[at:]` is, when it is nothing else."""
    if word.value[at:] != EXPANDED:
        return None
    place = word.at[at]
    return next((each for each in word.expansions if each.whole_start == place), None)


def options(sites: Sites, command: Command) -> None:
    """`--device cuda:0`, `--dist-backend=nccl`, `trainer.device=cuda`."""
    name = command_name(command.words)
    if name in SPEAKS or name in OTHERS:
        return
    for key, word, at in pairs(command):
        value(sites, word, at, sites.moves.sink(key), key=key)
        setting(sites, key, word.value[at:], word.start, word.end)
    for word, after in zip_longest(command.words, command.words[1:]):
        if OPTION.fullmatch(word.value) and (after is None or after.value.startswith("-")):
            setting(sites, word.value, "True", word.start, word.end)


def setting(sites: Sites, key: str, value: str, start: int, end: int) -> None:
    """A value of a well-known setting (`--attn_implementation flash_attention_2`) by its advice."""
    plain = key.strip("-+").rpartition(".")[2].replace("-", "_")
    text = value.strip("'\"")
    text = text.capitalize() if text.lower() in ("true", "false") else text
    advice = sites.context.chip.attributes().get(f"{plain}={text}")
    if advice is not None and sites.context.origin.origin:
        use = Text("use {to}", to=advice.to) if advice.to and advice.to != text else ""
        sites.add("JM192", start, end, reason=Text.join("; ", (use, advice.note)))


def value(sites: Sites, word: Word, at: int, kind: str | None, *, key: str, rule: str = "") -> None:
    """One value: moved when its kind is known, reported when it only looks like a device."""
    text = word.value[at:]
    quotes = len(text) - len(text.lstrip("'\""))
    at, text = at + quotes, text.strip("'\"")
    if kind == flow_sinks.DEVICE:
        device(sites, word, at, text, rule or RULES[kind])
    elif kind == flow_sinks.BACKEND:
        backend(sites, word, at, text, rule or RULES[kind])
    elif sites.moves.moves_device and sites.moves.device(text):
        lookalike(sites, word, at, text, key)


def lookalike(sites: Sites, word: Word, at: int, text: str, key: str) -> None:
    """A device's name under an option that no rule knows."""
    likely = re.search(r"(?:device|devices|accelerator)$", key.lower().replace("-", "_"))
    whole = word.span(at, at + len(text))
    name = word.span(at, at + len(sites.context.origin.device))
    if whole is None or name is None or not (likely or ":" in text) or key == "--gres":
        return
    if not likely or sites.moves.agnostic:
        sites.add("JM121", *whole, reason=Text("nothing says that {key} takes a device", key=key))
        return
    reason = Text("{key} reads like a device; look at what uses it", key=key)
    target = sites.context.chip.device
    sites.add("JM121", *name, target, tier=Tier.UNSAFE, reason=reason, subject="device")


def device(sites: Sites, word: Word, at: int, text: str, rule: str) -> None:
    """A device string that is known to be one."""
    moves = sites.moves
    target = moves.context.chip.device
    if not moves.moves_device:
        return
    if text == target or text.startswith(f"{target}:"):
        sites.deals_with("device", target)
    if moves.device(re.sub(r":?\*$", "", text)) is None:  # `cuda:*` is a pattern of the shell
        if re.search(rf"(?<![\w.]){re.escape(moves.context.origin.device)}(?![\w.])", text):
            sites.add("JM121", word.start, word.end, reason="a device inside a longer value")
        return
    span = word.span(at, at + len(moves.context.origin.device))
    if span is None:
        sites.add(rule, word.start, word.end, reason="written with escapes")
        return
    if moves.agnostic:
        sites.add(
            rule,
            *span,
            reason=Text("one platform's device: pass {target} on the other one", target=target),
        )
        return
    sites.add(rule, *span, target, tier=Tier.SAFE, subject="device")


def backend(sites: Sites, word: Word, at: int, text: str, rule: str) -> None:
    """A collective backend, alone or per device (`cpu:gloo,cuda:nccl`)."""
    moves = sites.moves
    old, new = moves.context.origin.backend, moves.context.chip.backend
    if new in text.split(","):
        sites.deals_with("backend", new)
    if old == new or old not in re.split(r"[,:]", text.lower()):
        return
    span = word.span(at, at + len(text))
    if span is None:
        sites.add(rule, word.start, word.end, reason="written with escapes")
        return
    if moves.agnostic:
        sites.add(
            rule, *span, reason=Text("one platform's backend: pass {new} on the other one", new=new)
        )
        return
    parts = [move_part(part, sites) for part in text.split(",")]
    sites.add(rule, *span, ",".join(parts), tier=Tier.SAFE, subject="backend")


def move_part(part: str, sites: Sites) -> str:
    """`nccl` or `cuda:nccl` in the target's words."""
    origin, chip = sites.context.origin, sites.context.chip
    names = {origin.device: chip.device, origin.backend: chip.backend}
    names[origin.backend.upper()] = chip.backend.upper()
    return ":".join(names.get(piece, piece) for piece in part.split(":"))


def set_variables(flow: ShellFlow, command: Command) -> None:
    """`DEVICE=cuda`, `export BACKEND=nccl`, `DEV=${1:-cuda}`, `for d in cuda cpu`."""
    words = command.words
    if command.kind != "command" or not words:
        return
    if words[0].value == "for" and len(words) > 3 and words[2].value == "in":
        kind = flow.kind(words[1].value)
        for word in words[3:] if kind else ():
            value(flow.sites, word, 0, kind, key=words[1].value, rule=flow_rule(kind))
        return
    declares = command_name(words) in DECLARE
    for word in words:
        match = ASSIGNMENT.match(word.value)
        if match is None:
            if not declares:
                return
            continue
        kind = flow.kind(match[1])
        if kind is None or word.array:
            continue
        value(flow.sites, word, match.end(), kind, key=match[1], rule=flow_rule(kind))
        only = only_expansion(word, match.end())
        if only and only.default and not flow.kind(only.name):
            value(flow.sites, only.default, 0, kind, key=match[1], rule=flow_rule(kind))


def flow_rule(kind: str | None) -> str:
    """The rule for a value that reaches its sink through a variable."""
    return "JM121" if kind == flow_sinks.DEVICE else RULES[flow_sinks.BACKEND]


def fallback(flow: ShellFlow, expansion: Expansion) -> None:
    """The default in `${DEVICE:-cuda}`."""
    kind = flow.kind(expansion.name)
    if kind and expansion.default is not None:
        value(flow.sites, expansion.default, 0, kind, key=expansion.name, rule=flow_rule(kind))


def comparisons(flow: ShellFlow, command: Command) -> None:
    """`[ "$DEVICE" = cuda ]`, `[[ $DEVICE == cuda* ]]`."""
    words = command.words
    if not words or words[0].value not in TESTS:
        return
    for left, middle, right in zip(words, words[1:], words[2:], strict=False):
        if middle.value in COMPARE:
            read_comparison(flow, left, (right,))
            read_comparison(flow, right, (left,))


def arms(flow: ShellFlow, command: Command) -> None:
    """The patterns of `case $DEVICE in cuda*) …`."""
    if command.words:
        read_comparison(flow, command.words[0], command.words[1:])


def read_comparison(flow: ShellFlow, subject: Word, others: Iterable[Word]) -> None:
    """Values that a device or backend variable is compared with."""
    only = only_expansion(subject)
    kind = flow.kind(only.name) if only else None
    if only is None or kind is None:
        return
    rule = "JM111" if kind == flow_sinks.DEVICE else RULES[flow_sinks.BACKEND]
    for word in others:
        value(flow.sites, word, 0, kind, key=only.name, rule=rule)
