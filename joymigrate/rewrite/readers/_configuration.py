"""What a configuration tree may hold: devices, variables, cluster resources, images, commands.

The same walk serves YAML, JSON, TOML and INI; the syntaxes differ only in how one more entry is
written (`Syntax.another`). Descriptions are never read, and a value counts as a device only under
a key that says so.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from joymigrate.chips import NameAdvice, relate
from joymigrate.language import Text
from joymigrate.model import Tier
from joymigrate.rewrite import flow_sinks
from joymigrate.rewrite.context import Context, once_per_rules
from joymigrate.rewrite.readers import _launch, _options, shell
from joymigrate.rewrite.readers._environment import VariableMention, deals_with, doubtful
from joymigrate.rewrite.readers._migration_map import Sites, worse
from joymigrate.rewrite.readers._tree import Mapping, MappingEntry, Node, ScalarNode, SequenceNode
from joymigrate.rewrite.readers._words import ASSIGNMENT, Command

DESCRIPTIONS = re.compile(
    r"(?:.*_)?(?:description|desc|help|doc|docs|docstring|comment|comments|note|notes|title|summary"
    r"|message|license|author|authors|copyright|changelog|keywords|classifiers|abstract|readme)",
    re.I,
)
COMMANDS = re.compile(
    r"(?:pre_|post_|before_|after_|test_)?(?:run|script|scripts|command|commands|cmd|entrypoint"
    r"|entry_?point|args|shell|bash|setup|launch|launcher|start_command|setup_commands|exec\w*)",
    re.I,
)
IMAGES = re.compile(
    r"(?:.*_)?(?:image|image_uri|docker_image|base_image|from_image|repository|container)", re.I
)
# Keys whose values are names that somebody chose, whatever they look like.
NAMES = re.compile(
    r"(?:.*_)?(?:name|id|label|labels|tag|tags|branch|branches|group|key|version|title|target)",
    re.I,
)
# Files of build services.
PIPELINES = re.compile(r"(?:^|/)(?:\.github/|\.gitlab-ci|\.circleci/|azure-)")
UNSET = ("", "0", "false", "null", "none", "~")  # values of a setting that is off
RUNTIMES = ("runtime", "runtimeClassName", "driver", "default_runtime")
DEVICE_LIKE = re.compile(r"(?:.*_)?(?:device|devices|accelerator|accelerators)", re.I)
KINDS = {
    "description": DESCRIPTIONS,
    "command": COMMANDS,
    "image": IMAGES,
    "device": DEVICE_LIKE,
}
Another = Callable[[MappingEntry, str], tuple[int, str] | None]


@functools.lru_cache(maxsize=4096)
def kinds(key: str) -> frozenset[str]:
    """What a key holds by its name, of `KINDS`."""
    return frozenset(kind for kind, pattern in KINDS.items() if pattern.fullmatch(key))


@once_per_rules
def find_settings(context: Context) -> list[tuple[str, dict[str, Any]]]:
    """The rules' lists of settings of frameworks, each with its rule."""
    rules = context.rules.values()
    return [(rule.id, item) for rule in rules for item in rule.match if "settings" in item]


@dataclass(slots=True)
class TreeWalk:
    """One walk over the trees of a file. `another` writes a second entry beside a given one."""

    sites: Sites
    another: Another
    floor: Tier = Tier.UNSAFE  # for variables and commands: nobody saw what reads them

    def node(self, node: Node, key: str = "") -> None:
        """A node and everything below it; `key` is the nearest key above."""
        if isinstance(node, Mapping):
            self.mapping(node, key)
        elif isinstance(node, SequenceNode):
            self.sequence(node, key)
        else:
            self.scalar(node, key)

    # --- mappings -----------------------------------------------------------------------------

    def mapping(self, node: Mapping, above: str = "") -> None:
        """Entries of a mapping; `{name: NAME, value: …}` is an entry of an environment.

        Below a key that holds devices (`device_map: {"": cuda}`) every value is one.
        """
        devices = bool(above) and self.sites.moves.sink(above) == flow_sinks.DEVICE
        names = {entry.key.value for entry in node.entries}
        self.framework_settings(node, above, names)
        for entry in node.entries:
            if "description" in kinds(entry.key.value.lstrip("-").replace("-", "_")):
                continue
            if entry.key.value == "name" and names & {"value", "valueFrom"}:
                self.pair(node, entry)
            elif devices and isinstance(entry.value, ScalarNode):
                self.scalar(entry.value, above)
            else:
                self.entry(entry, names)

    def entry(self, entry: MappingEntry, names: set[str]) -> None:
        """One entry: its key may be a variable or a resource, its value a device."""
        key = entry.key
        known = self.sites.moves.variable(key.value)
        if known is not None:
            self.variable(entry, known, names)
            if not isinstance(entry.value, ScalarNode):
                self.node(entry.value, key.value)
            return
        if isinstance(entry.value, ScalarNode):
            deals_with(self.sites, key.value)
        self.resource(key)
        self.node(entry.value, key.value)

    def framework_settings(self, node: Mapping, above: str, names: set[str]) -> None:
        """`gpus: [1]` among the arguments of Lightning's trainer, by the rules' own lists."""
        for rule, item in find_settings(self.sites.context):
            if item["above"] not in above.lower() and names.isdisjoint(item["beside"]):
                continue
            for entry in node.entries:
                value = entry.value
                off = isinstance(value, ScalarNode) and value.value.lower() in UNSET
                if entry.key.value in item["settings"] and not off:
                    self.sites.add(rule, entry.key.start, value.end)

    def variable(self, entry: MappingEntry, known: tuple[str, NameAdvice], names: set[str]) -> None:
        """`CUDA_VISIBLE_DEVICES: 0` in a block of variables."""
        rule, advice = known
        key, to = entry.key, advice.to
        if to is None or to == key.value or not key.verbatim:
            kept = "the name stays as it is" if to else "nothing takes its place"
            self.sites.add(rule, key.start, key.end, reason=advice.note or kept)
            return
        if to in names or (self.sites.moves.agnostic and to in self.sites.source.text):
            return
        tier = worse(advice.tier, self.floor)
        reason = advice.note or "what reads this block of variables is not known"
        span = key.word.at[0], key.word.at[-1] + 1
        if not self.sites.moves.agnostic:
            subject = f"variable {to}"
            self.sites.add(rule, *span, to, tier=tier, reason=reason, subject=subject)
            return
        added = self.another(entry, to)
        if added is None:
            self.sites.add(rule, *span, reason="sets one platform's variable only")
            return
        at, text = added
        after = self.sites.source.text[key.start : at] + text
        self.sites.add(rule, key.start, at, after, tier=tier, reason=reason, edits=[(at, at, text)])

    def pair(self, node: Mapping, entry: MappingEntry) -> None:
        """`- name: CUDA_VISIBLE_DEVICES` with `value:` beside it, as in Kubernetes."""
        named = entry.value
        known = self.sites.moves.variable(named.value) if isinstance(named, ScalarNode) else None
        if known is None or not isinstance(named, ScalarNode):
            for each in node.entries:
                self.node(each.value, each.key.value)
            return
        rule, advice = known
        to = advice.to
        if to is None or to == named.value or not named.verbatim:
            self.sites.add(rule, named.start, named.end, reason=advice.note or None)
            return
        span = named.word.at[0], named.word.at[-1] + 1
        reason = advice.note or "what reads this variable is not known"
        tier = worse(advice.tier, self.floor)
        if not self.sites.moves.agnostic:
            subject = f"variable {to}"
            self.sites.add(rule, *span, to, tier=tier, reason=reason, subject=subject)
            return
        if to in self.sites.source.text:
            return
        added = self.another(MappingEntry(entry.key, node), to)
        text = self.sites.source.text
        if added is None:
            self.sites.add(rule, *span, reason="sets one platform's variable only")
            return
        at = added[0]
        first, last = span[0] - node.start, span[1] - node.start
        copy = text[node.start : at]
        copy = added[1] + copy[:first] + to + copy[last:]
        after = text[node.start : at] + copy
        self.sites.add(
            rule, node.start, at, after, tier=tier, reason=reason, edits=[(at, at, copy)]
        )

    # --- sequences and scalars ----------------------------------------------------------------

    def sequence(self, node: SequenceNode, key: str) -> None:
        """Items; a list of plain ones is also read as the arguments of a program."""
        for item in node.items:
            if isinstance(item, ScalarNode) and self.assignment(item):
                continue
            plain = isinstance(item, ScalarNode) and not (item.block or " " in item.value)
            self.node(item, "" if plain and COMMANDS.fullmatch(key) else key)
        words = [
            each.word for each in node.items if isinstance(each, ScalarNode) and not each.block
        ]
        if len(words) == len(node.items) and words:
            _options.options(self.sites, Command(words=words, kind="array"))

    def assignment(self, item: ScalarNode) -> bool:
        """`- CUDA_VISIBLE_DEVICES=0` in a list."""
        match = ASSIGNMENT.match(item.value)
        known = self.sites.moves.variable(match[1]) if match else None
        if match is None or known is None:
            return False
        rule, advice = known
        span = item.word.span(0, match.end(1))
        if span is None or advice.to is None or advice.to == match[1]:
            self.sites.add(rule, item.start, item.end, reason=advice.note or None)
            return True
        if self.sites.moves.agnostic:
            self.second_item(item, rule, span, advice)
            return True
        mention = VariableMention(item.word, 0, match.end(1), match.end(), True)
        note = advice.note or "what reads this variable is not known"
        reason = "the value is not a list of card numbers" if doubtful(mention, rule) else note
        tier = worse(advice.tier, self.floor)
        subject = f"variable {advice.to}"
        self.sites.add(rule, *span, advice.to, tier=tier, reason=reason, subject=subject)
        return True

    def second_item(
        self, item: ScalarNode, rule: str, span: tuple[int, int], advice: NameAdvice
    ) -> None:
        """The same assignment for the target's variable, as one more item of the list."""
        source = self.sites.source
        text, to = source.text, advice.to or ""
        if to in text:
            return
        line = text.rfind("\n", 0, item.start) + 1
        head = text[line : item.start]
        between = source.newline + head if head.strip() == "-" else ", "
        copy = between + text[item.start : span[0]] + to + text[span[1] : item.end]
        if between == ", " and text[item.end : item.end + 50].lstrip()[:1] not in (",", "]"):
            self.sites.add(rule, item.start, item.end, reason="sets one platform's variable only")
            return
        tier = worse(advice.tier, self.floor)
        reason = advice.note or "what reads this variable is not known"
        self.sites.add(
            rule,
            item.start,
            item.end,
            text[item.start : item.end] + copy,
            tier=tier,
            reason=reason,
            edits=[(item.end, item.end, copy)],
        )

    def scalar(self, node: ScalarNode, key: str) -> None:
        """One value under its nearest key."""
        plain = key.strip("-").replace("-", "_")
        known = kinds(plain)
        if "command" in known and (node.block or " " in node.value):
            self.command(node)
            return
        if node.block:
            return
        self.resource(node)
        if "image" in known:
            reason = _launch.image_of(self.sites, node.value)
            if reason:
                self.sites.add("JM190", node.start, node.end, reason=reason)
            return
        self.launch_setting(node, plain)
        _options.setting(self.sites, plain, node.value, node.start, node.end)
        kind = self.sites.moves.sink(key) if key else None
        if PIPELINES.search(self.sites.source.path):
            self.value(node, None, plain)  # the matrix of a build: names that somebody chose
        elif kind is None and "device" in known:
            self.device_like(node, plain)
        elif kind is not None or key:
            self.value(node, kind, plain)

    def value(self, node: ScalarNode, kind: str | None, key: str) -> None:
        """A device or backend under a key that says so; a lookalike under any other."""
        moves = self.sites.moves
        if kind is not None:
            _options.value(self.sites, node.word, 0, kind, key=key)
        elif node.value.startswith(f"{moves.context.origin.module}."):
            self.class_path(node)
        elif moves.moves_device and moves.device(node.value) and not NAMES.fullmatch(key):
            reason = Text("nothing says that the key {key} holds a device", key=key)
            self.sites.add("JM121", node.start, node.end, reason=reason)

    def class_path(self, node: ScalarNode) -> None:
        """`_target_: torch.cuda.amp.GradScaler`: a name of the old platform's module."""
        origin, chip = self.sites.context.origin, self.sites.context.chip
        name = node.value.removeprefix(f"{origin.module}.")
        if origin.module == chip.module or not re.fullmatch(r"[\w.]+", name):
            return
        advice = relate(origin, chip).name(name, self.sites.context.version)
        span = node.word.span(0, len(node.value))
        if advice.to is None or span is None or self.sites.moves.agnostic:
            self.sites.add("JM101", node.start, node.end, reason=advice.note or None)
            return
        full = advice.to.split(".")[0] in ("torch", chip.package)
        to = advice.to if full else f"{chip.module}.{advice.to}"
        reason = advice.note or "a name that something imports"
        self.sites.add("JM101", *span, to, tier=worse(advice.tier, Tier.UNSAFE), reason=reason)

    def device_like(self, node: ScalarNode, key: str) -> None:
        """`model_device: cuda`, `accelerator: cuda`: very likely a device."""
        moves = self.sites.moves
        match = moves.device(node.value) if moves.moves_device else None
        if match is None:
            return
        span = node.word.span(0, len(moves.context.origin.device))
        reason = Text("the key {key} reads like a device; look at what uses it", key=key)
        if span is None or moves.agnostic:
            self.sites.add("JM121", node.start, node.end, reason=reason)
            return
        target = moves.context.chip.device
        self.sites.add("JM121", *span, target, tier=Tier.UNSAFE, reason=reason, subject="device")

    def command(self, node: ScalarNode) -> None:
        """Shell text as a value."""
        sites = self.sites
        if not node.verbatim:
            return
        floor, doubt = sites.floor, sites.doubt
        sites.floor = worse(floor, self.floor)
        sites.doubt = doubt or "a command inside a configuration file"
        first = node.word.at[0] if node.word.at else node.start
        shell.script(sites, first, first + len(node.word.value))
        sites.floor, sites.doubt = floor, doubt

    def resource(self, node: ScalarNode) -> None:
        """`nvidia.com/gpu` as a key or as a value."""
        if "/" not in node.value:
            return
        for first, last, after, reason in _launch.resource_spans(self.sites, node.value):
            span = node.word.span(first, last)
            if span is None:
                continue
            if self.sites.moves.agnostic:
                after, reason = None, "names one platform's cards; the other needs its own manifest"
            self.sites.add("JM190", *span, after, tier=Tier.UNSAFE, reason=reason)

    def launch_setting(self, node: ScalarNode, key: str) -> None:
        """Settings of container runtimes, of schedulers and of accelerate."""
        if key not in (*RUNTIMES, "distributed_type", "gres", "gpus", "options"):
            return
        ours, theirs = _launch.settings(self.sites)
        runtime = ours.get("runtime")
        if key == "gres":  # `gres: gpu:4`, as an option of the scheduler
            span = node.word.span(0, len(node.value))
            if span is not None:
                _launch.gres(self.sites, span[0], f"--gres={node.value}", len("--gres="))
        elif key in ("gpus", "options"):  # `gpus: all` of a compose file, options of a container
            given = node.value.replace("=", " ") if key == "options" else f"--{key} {node.value}"
            if (ours.get("docker") or "-") in given:
                to = theirs.get("docker") or "unknown"
                reason = Text("on the other platform: {to}", to=to)
                self.sites.add("JM190", node.start, node.end, reason=reason)
        elif key in RUNTIMES:
            if runtime and node.value == runtime:
                other = theirs.get("runtime") or "otherwise"
                reason = Text("the runtime there is called {other}", other=other)
                self.sites.add("JM190", node.start, node.end, reason=reason)
        else:
            mine = (ours.get("accelerate") or {}).get("distributed_type") or "MULTI_GPU"
            other = (theirs.get("accelerate") or {}).get("distributed_type") or "MULTI_GPU"
            span = node.word.span(0, len(node.value))
            if node.value == mine != other and span:
                to = None if self.sites.moves.agnostic else other
                self.sites.add(
                    "JM192",
                    *span,
                    to,
                    reason=Text("accelerate calls it {other} there", other=other),
                )
