"""How cards are asked for: container options, batch schedulers, cluster resources, base images."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from joymigrate.language import Text
from joymigrate.model import Tier
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.readers._environment import SPEAKS, command_name
from joymigrate.rewrite.readers._migration_map import Sites
from joymigrate.rewrite.readers._words import Command, Script, Word

CONTAINERS = frozenset(("docker", "podman", "nerdctl", "nvidia-docker", "singularity", "apptainer"))
BATCH = frozenset(("srun", "sbatch", "salloc"))
DIRECTIVE = re.compile(r"#(?:SBATCH|PBS|BSUB|\$|MSUB|FLUX:)\s")
GRES = re.compile(r"--gres(?:=|\s+)(?P<name>[A-Za-z_]\w*)(?P<rest>(?::[\w.()-]+)*)")
CARDS = re.compile(r"--gpus(?:-per-(?:node|task|socket)|-bind|-freq)?(?:[=\s]|$)|-G(?:[=\s]|$)")
# Cards in the lists of PBS (`select=1:ngpus=4`, `nodes=1:gpus=2`) and in LSF's option.
COUNTED = re.compile(r"(?<=[\s:,])n?gpus(?==)|(?<=\s)-gpu(?=\s)")
BY_SITE = "how the scheduler names the target's cards is up to the site"
RULE = "JM190"


def launch(sites: Sites, script: Script) -> None:
    """Every place of a script that asks for cards."""
    for command in script.commands:
        if command.kind == "pattern" or not command.words:
            continue
        name = command_name(command.words)
        resources(sites, command)
        if name in CONTAINERS or any(each.value in CONTAINERS for each in command.words[:3]):
            containers(sites, command)
        if name in BATCH or command.kind == "array":
            batch(sites, command)
        if name in ("module", "ml"):
            modules(sites, command)
        if name == "ray":
            ray(sites, command)
    for start, end in script.comments:
        if DIRECTIVE.match(sites.source.text, start):
            directive(sites, start, end)


def settings(sites: Sites) -> tuple[dict[str, Any], dict[str, Any]]:
    """`launch` of the origin and of the target."""
    return dict(sites.context.origin.launch), dict(sites.context.chip.launch)


def resources(sites: Sites, command: Command) -> None:
    """Cluster resource names and device files inside the words of a command."""
    if command_name(command.words) in SPEAKS:
        return
    for word in command.words:
        for first, last, after, reason in resource_spans(sites, word.value):
            span = word.span(first, last)
            if span and sites.moves.agnostic:
                sites.add(RULE, *span, reason="names one platform's cards")
            elif span:
                sites.add(RULE, *span, after, tier=Tier.UNSAFE, reason=reason)


def resource_spans(sites: Sites, text: str) -> list[tuple[int, int, str | None, str | None]]:
    """(start, end, replacement, reason) of resource names and device files in `text`."""
    if "/" not in text:
        return []
    theirs = settings(sites)[1]
    found: list[tuple[int, int, str | None, str | None]] = []
    for expression, to in resource_patterns(sites.context):
        note = theirs.get("resource_note") or ""
        for match in expression.finditer(text):
            seen = any(first <= match.start() < last for first, last, *_ in found)
            if to != match.group() and not seen:
                reason = note if to else Text.join(": ", ("no counterpart is known", note))
                found.append((*match.span(), to, reason or None))
    others = ", ".join(theirs.get("device_nodes") or ()) or "none known"
    for expression in node_patterns(tuple(settings(sites)[0].get("device_nodes") or ())):
        for match in expression.finditer(text):
            found.append(
                (*match.span(), None, Text("the target's device files: {others}", others=others))
            )
    return found


PATTERNS_OF: dict[tuple[Path, Path], list[tuple[re.Pattern[str], str | None]]] = {}


def resource_patterns(context: Context) -> list[tuple[re.Pattern[str], str | None]]:
    """Expressions for the origin's resource names, each with what takes its place."""
    key = (context.origin.folder, context.chip.folder)
    if key not in PATTERNS_OF:
        ours, theirs = context.origin.launch, context.chip.launch
        names = ours.get("resource_patterns") or [ours.get("resource")]
        PATTERNS_OF[key] = [
            (
                re.compile(rf"(?<![\w./-]){glob(str(name))}(?![\w./-])"),
                theirs.get("resource") if name == ours.get("resource") else None,
            )
            for name in names
            if name
        ]
        domain = str(ours.get("resource") or "").partition("/")[0]
        if domain:  # labels such as <domain>/gpu.product
            labels = rf"(?<![\w./:@-]){re.escape(domain)}/[a-z][\w.-]*(?![\w/])"
            PATTERNS_OF[key].append((re.compile(labels), None))
    return PATTERNS_OF[key]


def glob(pattern: str) -> str:
    """A name with `*` for the rest of a resource's name, as an expression."""
    return r"[\w.-]*".join(re.escape(part) for part in pattern.split("*"))


@functools.cache
def node_patterns(nodes: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    """Expressions for device files; a number at the end stands for any."""
    return tuple(
        re.compile(
            re.escape(node.rstrip("0123456789"))
            + (r"\d*" if node[-1].isdigit() else "")
            + r"(?![\w-])"
        )
        for node in nodes
    )


def containers(sites: Sites, command: Command) -> None:
    """`--gpus all`, `--runtime=nvidia` and images of `docker run`."""
    ours, theirs = settings(sites)
    words = command.words
    wanted = str(ours.get("docker") or "").split()
    to = theirs.get("docker")
    values = [each.value for each in words]
    option = re.split(r"[=\s]", wanted[0])[0] if wanted else None
    for index, word in enumerate(words):
        if wanted and values[index : index + len(wanted)] == wanted and to:
            end = words[index + len(wanted) - 1].end
            after = f"{sites.source.text[word.start : end]}" if sites.moves.agnostic else to
            reason = "needs the vendor's container runtime on the host"
            if sites.moves.agnostic:
                sites.add(RULE, word.start, end, reason=Text("on the other platform: {to}", to=to))
            else:
                sites.add(RULE, word.start, end, after, tier=Tier.UNSAFE, reason=reason)
        elif option and re.split(r"[=\s]", word.value)[0] == option == "--gpus":
            sites.add(
                RULE,
                word.start,
                word.end,
                reason=Text("on the other platform: {to}", to=to or "unknown"),
            )
        elif runtime_of(values, index) == ours.get("runtime") is not None:
            reason = Text(
                "the runtime there is called {runtime}",
                runtime=theirs.get("runtime") or "otherwise",
            )
            sites.add(RULE, word.start, word.end, reason=reason)
        else:
            image(sites, word, word.value)


def runtime_of(values: list[str], index: int) -> str | None:
    """The runtime named by `--runtime=x`, or by `x` behind `--runtime`."""
    if values[index].startswith("--runtime="):
        return values[index].partition("=")[2]
    return values[index] if index and values[index - 1] == "--runtime" else None


def image(sites: Sites, word: Word, text: str) -> None:
    """A container image that brings the origin's libraries."""
    found = image_of(sites, text)
    span = word.span(0, len(word.value)) if found else None
    if found and span:
        sites.add(RULE, *span, reason=found)


def image_of(sites: Sites, text: str) -> str | None:
    """Why an image reference can't stay, or None for any other image."""
    ours, theirs = settings(sites)
    plain = text.removeprefix("docker.io/").removeprefix("docker://")
    for known in ours.get("images") or ():
        if re.match(rf"{re.escape(known)}(?=[:/@#]|$)", plain.replace("#", "/")):
            to, note = theirs.get("image"), theirs.get("image_note")
            if not to:
                return "no image of the target is known"
            known_images = Text("images of the target: {to}", to=to)
            return Text("{to} ({note})", to=known_images, note=note) if note else known_images
    return None


def batch(sites: Sites, command: Command) -> None:
    """`srun --gres=gpu:8`, `sbatch --gpus-per-node=8`."""
    words = command.words
    for index, word in enumerate(words):
        if word.value == "--gres" and index + 1 < len(words):
            gres(sites, words[index + 1].start, f"--gres={words[index + 1].value}", 7)
        elif word.value.startswith("--gres=") and word.span(0, len(word.value)):
            gres(sites, word.at[0], word.value, 0)
        elif command.kind == "command" and CARDS.match(word.value + " "):
            sites.add(RULE, word.start, word.end, reason=cards_reason(sites))


def cards_reason(sites: Sites) -> str:
    """What to do about an option that counts cards of one kind."""
    name = settings(sites)[1].get("gres")
    if not name:
        return BY_SITE
    return Text("counts one kind of card; as a generic resource: --gres={name}:N", name=name)


def gres(sites: Sites, start: int, text: str, before: int) -> None:
    """`--gres=gpu:8` at `start`; the first `before` characters of `text` are not in the file."""
    ours, theirs = settings(sites)
    match = GRES.match(text)
    if match is None or match["name"] != ours.get("gres"):
        return
    first = start + match.start("name") - before
    last = start + match.end("rest") - before
    to = theirs.get("gres")
    parts = match["rest"].split(":")[1:]
    typed = len(parts) > 1 or (len(parts) == 1 and not parts[0].isdigit())
    if to is None or to == match["name"]:
        return
    if typed or sites.moves.agnostic:
        sites.add(
            RULE, first, last, reason=Text("the target's cards are asked for as {to}:N", to=to)
        )
        return
    end = first + len(match["name"])
    sites.add(RULE, first, end, to, tier=Tier.UNSAFE, reason=BY_SITE)


def directive(sites: Sites, start: int, end: int) -> None:
    """`#SBATCH --gres=gpu:8`: a comment to the shell, an option to the scheduler."""
    text = sites.source.text[start:end]
    for match in GRES.finditer(text):
        gres(sites, start + match.start(), match.group(), 0)
    for match in CARDS.finditer(text):
        if text[match.start() - 1 : match.start()].isspace():
            first = start + match.start()
            last = first + len(match.group().rstrip("= "))
            sites.add(RULE, first, last, reason=cards_reason(sites))
    for match in COUNTED.finditer(text) if settings(sites)[0].get("gres") else ():
        sites.add(RULE, start + match.start(), start + match.end(), reason=BY_SITE)


def modules(sites: Sites, command: Command) -> None:
    """`module load cuda/12.1`."""
    for word in command.words[1:]:
        if re.fullmatch(r"(?:\w+/)?(?:cuda|cudnn|nccl|nvhpc)(?:[/-].*)?", word.value, re.I):
            reason = Text("load the toolkit of {chip} instead", chip=sites.context.chip.title)
            sites.add(RULE, word.start, word.end, reason=reason)


def ray(sites: Sites, command: Command) -> None:
    """`ray start --num-gpus=8`."""
    ours, theirs = settings(sites)
    name = theirs.get("ray_resource")
    if not name or name == ours.get("ray_resource"):
        return
    for word in command.words:
        if re.match(r"--num-gpus(=|$)", word.value):
            reason = Text(
                "cards there are the resource {name}: --resources='{\"{name}\": N}'", name=name
            )
            sites.add(RULE, word.start, word.end, reason=reason)
