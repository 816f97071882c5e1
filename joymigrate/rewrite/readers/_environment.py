"""Environment variables in shell text: assignments, exports, options that hand them on, uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from joymigrate.chips import NameAdvice
from joymigrate.model import Tier
from joymigrate.rewrite.readers._migration_map import Sites, worse
from joymigrate.rewrite.readers._words import ASSIGNMENT, EXPANDED, Command, Expansion, Word

DECLARE = frozenset(("export", "declare", "typeset", "local", "readonly", "env", "setenv"))
NAMES_ONLY = frozenset(("unset", "printenv", "read", "mapfile", "readarray"))
SPEAKS = frozenset(("echo", "printf", "grep", "egrep", "sed", "awk", "log", "die", "warn", "rg"))
# Options whose value is `NAME=value` or `NAME`, in docker, podman, mpirun, kubectl, srun, qsub …
CARRIES = frozenset(("-e", "--env", "-x", "-genv", "-env", "--build-arg", "-v", "--export"))
TESTED = {"[[": "||", "[": "-o"}  # what joins two questions of a test
OTHERWISE = "?"  # a test that asks more than this
INDICES = re.compile(rf"[\d,\s{EXPANDED}-]*")


@dataclass(slots=True)
class VariableMention:
    """A variable's name in a word: `first:last` of the word's value; `value_at` behind the `=`."""

    word: Word
    first: int
    last: int
    value_at: int | None
    sure: bool
    option: str = ""  # that hands the variable on (`-e`, `-x`), or asks for it

    @property
    def name(self) -> str:
        """The variable."""
        return self.word.value[self.first : self.last]


def assignments(sites: Sites, command: Command) -> None:
    """Every variable that one command sets, unsets or hands on."""
    for mention in mentions(command):
        known = sites.moves.variable(mention.name)
        if known is not None:
            move(sites, command, mention, *known)
        elif mention.sure:
            deals_with(sites, mention.name)


def deals_with(sites: Sites, name: str) -> None:
    """Note that the file uses the variable `name` on its own account."""
    sites.deals_with(f"variable {name}", name)


def mentions(command: Command) -> Iterator[VariableMention]:
    """Variable names in the words of a command, sure ones and those that only look like it."""
    if command.kind == "pattern":
        return
    words = command.words
    name = command_name(words)
    leading = command.kind == "command"
    for index, word in enumerate(words):
        before = words[index - 1].value if index else ""
        match = ASSIGNMENT.match(word.value)
        if match and (leading or name in DECLARE or before in CARRIES):
            option = before if before in CARRIES and name not in DECLARE else ""
            yield VariableMention(word, 0, match.end(1), match.end(), True, option)
            continue
        # `sudo` and `env` take assignments before the command, options may stand between.
        leading = word.value in ("sudo", "env") or (leading and word.value.startswith("-"))
        if word.script or name in SPEAKS or (index == 0 and not match):
            continue
        if re.fullmatch(r"[A-Za-z_]\w*", word.value):
            bare = name in (*DECLARE, *NAMES_ONLY) or before in (*CARRIES, "-u", "-v")
            if bare:
                option = before if before in (*CARRIES, "-u") else ""
                if name in TESTED:  # `[[ -v NAME ]]`: one of both is set
                    option = f"{TESTED[name]} {before}" if len(words) == 4 else OTHERWISE
                yield VariableMention(word, 0, len(word.value), None, True, option)
            continue
        yield from inside(word, sure=before in CARRIES or word.value.startswith("--export="))


def inside(word: Word, sure: bool) -> Iterator[VariableMention]:
    """`NAME=` inside a longer word: `--export=ALL,NAME=1`, `"NAME=0 python train.py"`."""
    for match in re.finditer(r"(?<![\w$.{/-])([A-Za-z_]\w*)=(?!=)", word.value):
        yield VariableMention(
            word, match.start(1), match.end(1), match.end(), sure and not word.quoted
        )


def command_name(words: list[Word]) -> str:
    """What a simple command runs: the first word that is no assignment."""
    for word in words:
        if not ASSIGNMENT.match(word.value):
            return word.value.rpartition("/")[2]
    return ""


def move(
    sites: Sites, command: Command, mention: VariableMention, rule: str, advice: NameAdvice
) -> None:
    """Report or rename one mention of a variable."""
    span = mention.word.span(mention.first, mention.last)
    if span is None:
        return
    to, reason = advice.to, advice.note
    if to is None or to == mention.name:
        kept = "the name stays as it is" if to else "nothing takes its place"
        sites.add(rule, *span, reason=reason or kept)
        return
    if any(is_set(each, to) for each in command.words):
        return  # both names are set side by side: nothing is left to do
    tier = advice.tier
    subject = f"variable {to}"
    if not mention.sure:
        tier, reason = worse(tier, Tier.UNSAFE), "inside text whose reader is not known"
    elif doubtful(mention, rule):
        tier, reason = worse(tier, Tier.UNSAFE), "the value is not a list of card numbers"
        sites.weak.add(subject)
    if sites.moves.agnostic:
        both(sites, mention, rule, (to, *advice.also), tier, reason)
    else:
        sites.add(rule, *span, to, tier=tier, reason=reason or None, subject=subject)


def is_set(word: Word, name: str) -> bool:
    """Whether a word is `name` or `name=…`."""
    return word.value == name or word.value.startswith(f"{name}=")


def doubtful(mention: VariableMention, rule: str) -> bool:
    """Whether a list of visible cards holds something other than numbers, or hides every card."""
    if rule != "JM170" or mention.value_at is None:
        return False
    value = mention.word.value[mention.value_at :]
    return not INDICES.fullmatch(value) or value.strip() in ("", "-1")


def both(
    sites: Sites,
    mention: VariableMention,
    rule: str,
    names: tuple[str, ...],
    tier: Tier,
    reason: str,
) -> None:
    """Write the target's variables beside the origin's, with the same value."""
    word = mention.word
    text = sites.source.text[word.start : word.end]
    whole = mention.first == 0 and word.at and word.at[0] == word.start
    if not whole or not mention.sure:
        sites.add(rule, word.start, word.end, reason="sets one platform's variable inside a text")
        return
    if mention.option == OTHERWISE:
        sites.add(rule, word.start, word.end, reason="asks for one platform's variable")
        return
    if "$(" in text or "`" in text:
        sites.add(rule, word.start, word.end, reason="the value is computed by a command")
        return
    tail = text[mention.last - mention.first :]
    option = f"{mention.option} " if mention.option else ""
    after = " ".join([text, *(option + name + tail for name in names)])
    sites.add(rule, word.start, word.end, after, tier=tier, reason=reason or None)


def uses(sites: Sites, expansions: list[Expansion]) -> None:
    """`$NAME` and `${NAME…}`: they follow the assignments."""
    reported: set[str] = set()
    for each in expansions:
        known = sites.moves.variable(each.name)
        if known is None:
            deals_with(sites, each.name)
            continue
        rule, advice = known
        if advice.to is None or advice.to == each.name:
            if each.name not in reported and not is_assigned(sites, each.name):
                reported.add(each.name)
                sites.add(rule, each.start, each.end, reason=advice.note or None)
        elif sites.moves.agnostic:
            either(sites, each, rule, advice)
        else:
            subject = f"variable {advice.to}"
            sites.add(rule, each.start, each.end, advice.to, tier=advice.tier, subject=subject)


def is_assigned(sites: Sites, name: str) -> bool:
    """Whether the file sets `name` itself; then the use needs no word of its own."""
    return bool(re.search(rf"(?<![\w$]){re.escape(name)}\+?=", sites.source.text))


def either(sites: Sites, use: Expansion, rule: str, advice: NameAdvice) -> None:
    """Read whichever of two variables is set; nothing where the file sets the first one itself."""
    if advice.to is None or advice.to in sites.source.text or is_assigned(sites, use.name):
        return
    start, end = use.whole_start, use.whole_end
    if use.operator:
        sites.add(rule, start, end, reason="reads one platform's variable in a form of its own")
        return
    after = f"${{{use.name}:-${{{advice.to}-}}}}"
    reason = "unlike before, an unset variable reads as empty under `set -u`"
    sites.add(rule, start, end, after, tier=Tier.UNSAFE, reason=reason)
