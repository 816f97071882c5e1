"""Shell and batch scripts, and shell text inside other files."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
from joymigrate.rewrite.readers._moves import Sites
from joymigrate.rewrite.source import Source

PATTERNS = ("*.sh", "*.bash", "*.zsh", "*.ksh", "*.slurm", "*.sbatch", "*.pbs", "*.lsf", "*.args")
# Programs that run the heredoc that they are fed.
RUNS = re.compile(r"(?:ba|z|k|da)?sh|ssh|sbatch|qsub|bsub|sudo|srun|tee|cat")


def read(source: Source, context: Context) -> Iterator[Finding]:
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
        sites.doubt = f"the quotes or brackets that open on line {line} don't close"
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
                sites.floor, sites.doubt = Tier.UNSAFE, "a script inside a heredoc"
                script(sites, each.start, each.end, depth + 1)
    sites.floor, sites.doubt = floor, doubt
