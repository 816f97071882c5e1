"""Commands that install packages: pip, uv, conda and the system's package manager."""

from __future__ import annotations

import re
from collections.abc import Iterator

from joymigrate.model import Tier
from joymigrate.rewrite.readers._migration_map import Sites
from joymigrate.rewrite.readers._packages import RULE, index_change, index_reason, package_advice
from joymigrate.rewrite.readers._words import ASSIGNMENT, Command, Script, Word

PIP = re.compile(r"(?:.*/)?(?:pip[\d.]*|uv|pipx|poetry|pdm)")
CONDA = frozenset(("conda", "mamba", "micromamba"))
SYSTEM = frozenset(("apt", "apt-get", "yum", "dnf", "zypper", "apk", "aptitude"))
SYSTEM_PACKAGE = re.compile(
    r"(?:cuda|libcudnn|libnccl|libcu(?:blas|fft|rand|solver|sparse|tensor)|libnvinfer|nvidia|"
    r"libnvidia|cudnn|nsight|datacenter-gpu-manager)[\w.:+*-]*(?:=.*)?"
)
INDEXES = frozenset(("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--index"))
TAKES_VALUE = INDEXES | {
    *("-r", "--requirement", "-c", "--constraint", "-e", "--editable", "-t", "--target"),
    *("--prefix", "--root", "--python", "-p", "--no-binary", "--only-binary", "--timeout"),
    *("--trusted-host", "--cache-dir", "--config-settings", "-C", "--platform", "-n", "--name"),
    *("--channel", "--proxy", "--retries", "--src", "--group", "--extra", "-o", "--python-version"),
    *("--no-install-package", "--torch-backend"),
}


def installs(sites: Sites, script: Script) -> None:
    """Every package that a script installs and that needs the origin."""
    for command in script.commands:
        words = find_installed(command)
        for index, word in enumerate(words):
            before = words[index - 1].value if index else ""
            argument(sites, command, word, before, beside(words))


def find_installed(command: Command) -> list[Word]:
    """The words behind `install` of an installing command; empty for any other one."""
    words = command.words
    head = [word for word in words if not ASSIGNMENT.match(word.value)]
    values = [word.value.rpartition("/")[2] for word in head[:12]]
    if not any(PIP.fullmatch(v) or v in CONDA or v in SYSTEM for v in values):
        return []
    for index, value in enumerate(values):
        if value in ("install", "add", "create", "update", "wheel", "download", "sync"):
            return head[index + 1 :]
    return []


def beside(words: list[Word]) -> frozenset[str]:
    """Names of the distributions that a command already installs."""
    return frozenset(re.split(r"[\[=<>!~;@ ]", word.value)[0].lower() for word in words)


def argument(
    sites: Sites, command: Command, word: Word, before: str, others: frozenset[str]
) -> None:
    """One word behind `install`: an index, a requirement, or something of no interest."""
    value = word.value
    option, _, inline = value.partition("=")
    if before in INDEXES or option in INDEXES:
        index_url(sites, word, 0 if before in INDEXES else len(value) - len(inline))
        return
    if before in ("-c", "--channel") and value == "nvidia":
        sites.add(RULE, word.start, word.end, reason="a channel of the old platform's vendor")
        return
    if before in TAKES_VALUE or value.startswith(("-", ".", "/")) or not value:
        return
    system = any(each.value in SYSTEM for each in command.words[:6])
    if system:
        if sites.context.origin.origin and SYSTEM_PACKAGE.fullmatch(value):
            sites.add(RULE, word.start, word.end, reason="libraries of the CUDA toolkit")
        return
    requirement(sites, word, others)


def index_url(sites: Sites, word: Word, at: int) -> None:
    """An index with wheels for the origin's toolkit."""
    found = index_change(word.value[at:], sites.context)
    span = word.span(at + found[0], at + found[1]) if found else None
    if found is None or span is None:
        return
    sites.add(RULE, *span, found[2], tier=Tier.UNSAFE, reason=index_reason(sites.context))


def requirement(sites: Sites, word: Word, others: frozenset[str]) -> None:
    """One requirement on a command line; `others` are the names beside it."""
    change = package_advice(word.value, sites.context)
    if change is None:
        return
    span = (word.start, word.end)
    also = [each for each in change.also if name_of(each) not in others]
    raw = sites.source.text[word.start : word.end]
    quote = raw[0] if raw[:1] in ("'", '"') and raw[-1:] == raw[:1] else ""
    plain = raw == f"{quote}{word.value}{quote}"
    if change.after is None or not plain:
        sites.add(RULE, *span, reason=change.reason)
        return
    if change.also and not also and change.after == word.value:
        return  # what belongs beside it is there
    after = " ".join(
        f"{quote}{each}{quote}" for each in quote_requirements([change.after, *also], quote)
    )
    sites.add(RULE, *span, after, tier=change.tier, reason=change.reason)


def quote_requirements(requirements: list[str], quote: str) -> Iterator[str]:
    """Requirements with the signs that a shell would read put into quotes."""
    for each in requirements:
        yield each if quote or not re.search(r"[<>*;()&|$ ]", each) else f"'{each}'"


def name_of(requirement: str) -> str:
    """The name at the head of a requirement."""
    return re.split(r"[\[=<>!~;@ ]", requirement)[0].lower()
