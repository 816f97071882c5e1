"""Shell and batch scripts, and shell text inside other files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from joymigrate.language import Text
from joymigrate.model import Finding, Tier
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.readers import (
    _commands,
    _environment,
    _install,
    _launch,
    _options,
    _tools,
    _words,
)
from joymigrate.rewrite.readers._migration_map import Sites, worse
from joymigrate.rewrite.source import SourceText

PATTERNS = ("*.sh", "*.bash", "*.zsh", "*.ksh", "*.slurm", "*.sbatch", "*.pbs", "*.lsf", "*.args")
# Programs that run the heredoc that they are fed.
RUNS = re.compile(r"(?:ba|z|k|da)?sh|ssh|sbatch|qsub|bsub|sudo|srun|tee|cat")


SHELL = re.compile(r"(?:ba|z|k|da)?sh")
RUNS_TEXT = frozenset(("ssh", "eval", "watch", "tmux", "screen", "pdsh", "parallel"))


def read(source: SourceText, context: Context) -> Iterator[Finding]:
    """Findings of one script. Where its quotes don't balance, everything is only reported."""
    sites = Sites.of(source, context)
    script(sites, 0, len(source.text))
    yield from sites.ordered()


def script(sites: Sites, start: int, end: int, depth: int = 0) -> None:
    """Find the sites of the shell text `start:end` of a file."""
    text = _commands.read(sites.source.text, start, end)
    floor, doubt = sites.floor, sites.doubt
    if text.broken is not None and text.broken < end:
        line, _ = sites.source.position(text.broken)
        sites.floor = Tier.REPORT
        sites.doubt = Text("the quotes or brackets that open on line {line} don't close", line=line)
    inner = [word for command in text.commands for word in scripts_in(command)]
    for command in text.commands:
        _environment.assignments(sites, command)
    _environment.uses(sites, text.expansions)
    _options.values(sites, text)
    _tools.tools(sites, text)
    _launch.launch(sites, text)
    _install.installs(sites, text)
    sites.floor, sites.doubt = floor, doubt
    if depth < 3:
        heredocs(sites, text, depth)
        strings(sites, inner, depth)


def scripts_in(command: _words.Command) -> list[_words.Word]:
    """Words that a shell will read as a script: `bash -c '…'`, `ssh host '…'`, `eval '…'`."""
    words = command.words
    values = [word.value.rpartition("/")[2] for word in words]
    found = []
    for index, word in enumerate(words):
        text = word.quoted and word.span(0, len(word.value)) is not None
        if not text or not index:
            continue
        option = re.fullmatch(r"-[a-z]*c", values[index - 1])
        shell = option and any(SHELL.fullmatch(value) for value in values[:index])
        if shell or (values[0] in RUNS_TEXT and " " in word.value):
            word.script = True
            found.append(word)
    return found


def strings(sites: Sites, words: list[_words.Word], depth: int) -> None:
    """Scripts inside quotes: what they hold is moved only on request."""
    floor, doubt = sites.floor, sites.doubt
    for word in words:
        sites.floor, sites.doubt = worse(floor, Tier.UNSAFE), doubt or "a command inside quotes"
        script(sites, word.at[0], word.at[-1] + 1, depth + 1)
    sites.floor, sites.doubt = floor, doubt


def heredocs(sites: Sites, text: _words.Script, depth: int) -> None:
    """Scripts inside heredocs: what they hold is moved only on request."""
    floor, doubt = sites.floor, sites.doubt
    for command in text.commands:
        names = [word.value.rpartition("/")[2] for word in command.words]
        runs = any(RUNS.fullmatch(name) for name in names)
        to_script = any(t.value.endswith((".sh", ".sbatch", ".slurm")) for t in command.targets)
        to_script |= any(name.endswith((".sh", ".sbatch", ".slurm")) for name in names)
        feeds = any(re.fullmatch(r"(?:ba|z|k|da)?sh|ssh|sbatch|qsub|bsub", n) for n in names)
        piped = command.ends == "|"
        if runs and (feeds or to_script or piped):
            for each in command.heredocs:
                sites.floor = worse(floor, Tier.UNSAFE)
                sites.doubt = doubt or "a script inside a heredoc"
                script(sites, each.start, each.end, depth + 1)
    sites.floor, sites.doubt = floor, doubt
