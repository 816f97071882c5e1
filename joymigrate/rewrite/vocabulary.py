"""The words of a move inside Python code: what a name, a device string or a variable becomes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from joymigrate.chips import NameAdvice, NameRelation, relate
from joymigrate.model import Style
from joymigrate.rewrite.context import Context


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Names of the origin and the target, and patterns of the origin's strings."""

    relation: NameRelation
    style: Style
    version: str | None
    device: str  # the origin's: "cuda"
    backend: str  # the origin's: "nccl"
    module: str  # the origin's: "torch.cuda"
    to_device: str
    to_backend: str
    to_module: str
    packages: frozenset[str]  # the first words of all names that may move
    words: tuple[str, ...]  # lower case; a file without them has no site of the device rules
    target_words: re.Pattern[str] | None  # code that already serves the target
    target_signs: tuple[str, ...]  # lower case; one stands in every match of `target_words`
    target_string: re.Pattern[str]  # the target's device as a string
    exact_device: re.Pattern[str]
    device_prefix: re.Pattern[str]
    composite: re.Pattern[str]
    typed_tensor: re.Pattern[str]
    values: re.Pattern[str]  # texts that name a device or backend of the origin or the target

    @classmethod
    def of(cls, context: Context) -> Vocabulary:
        """The vocabulary of one move; made once per pair of chips, style and version."""
        key = (context.chip.folder, context.origin.folder, context.style, context.version)
        if key not in _MADE:
            _MADE[key] = cls._make(context)
        return _MADE[key]

    @classmethod
    def _make(cls, context: Context) -> Vocabulary:
        origin, chip = context.origin, context.chip
        device, backend = re.escape(origin.device), re.escape(origin.backend)
        devices = "|".join(map(re.escape, (origin.device, chip.device)))
        backends = "|".join(map(re.escape, (origin.backend, chip.backend)))
        target: re.Pattern[str] | None = None
        signs: tuple[str, ...] = ()
        if chip.device != origin.device:
            there = re.escape(chip.device)
            names = [rf"\btorch\.{there}\b", rf"\b{chip.tensor['is_cuda']}\b"]
            # is_<device>_available, is_torch_<device>_available, USE_<DEVICE>
            names += [rf"[\"']{re.escape(chip.backend)}[\"']", rf"\.{there.upper()}\b"]
            names += [rf"(?i:\b(?:is|use|has|on)_(?:[a-z]+_)?{there}(?:_[a-z]+)?\b)"]
            names += (
                [rf"[\"']{re.escape(chip.device)}[\"':]", rf"\b{re.escape(chip.package)}\b"]
                if chip.package
                else []
            )
            target = re.compile("|".join(names))
            # The device's name alone may be a part of everyday words.
            literals = [f"{sign}{chip.device}" for sign in (".", "_", "'", '"')]
            literals += [chip.backend, chip.package or "", chip.tensor["is_cuda"]]
            signs = tuple({word.lower() for word in literals if word})
        own = {origin.device, origin.backend, *origin.tensor.values(), origin.package or ""}
        lower = {word.lower() for word in own} - {""}
        relation = relate(origin, chip)
        heads = (name.partition(".")[0] for name in (*relation.moved, origin.module))
        return cls(
            relation=relation,
            packages=frozenset(("torch", *heads)),
            style=context.style,
            version=context.version,
            device=origin.device,
            backend=origin.backend,
            module=origin.module,
            to_device=chip.device,
            to_backend=chip.backend,
            to_module=chip.module,
            words=tuple(
                word for word in sorted(lower) if not any(each in word for each in lower - {word})
            ),
            target_words=target,
            target_signs=signs,
            target_string=re.compile(rf"[\"']{re.escape(chip.device)}[\"':]"),
            exact_device=re.compile(rf"{device}(?::(\d+))?$"),
            device_prefix=re.compile(rf"{device}:"),
            composite=re.compile(rf"(?:\w+:\w+,)*{device}:{backend}(?:,\w+:\w+)*$"),
            typed_tensor=re.compile(rf"torch\.{device}\.(\w+Tensor)$"),
            values=re.compile(
                rf"(?:{devices})(?::.*)?$|(?:{backends})$"
                rf"|(?:\w+:\w+,)*(?:{devices}):(?:{backends})(?:,\w+:\w+)*$",
                re.S,
            ),
        )

    @property
    def same_device(self) -> bool:
        """Whether the target keeps the origin's device name, so that Python code stays."""
        return self.device == self.to_device

    def name(self, rest: str) -> NameAdvice:
        """What becomes of a dotted name below the origin's module."""
        return self.relation.name(rest, self.version)

    def below(self, dotted: str) -> str | None:
        """What follows the origin's module in the name of a module that is imported.

        Empty for the module itself, None for any other module. Some packages offer parts of
        `torch.<device>` for import under names of their own.
        """
        origin = self.relation.origin
        for head, full in origin.import_modules.items():
            if dotted == full or dotted.startswith(f"{full}."):
                return head + dotted[len(full) :]
        for full in (origin.module, origin.import_module):
            if dotted == full or dotted.startswith(f"{full}."):
                return dotted[len(full) + 1 :]
        return None

    def moved(self, dotted: str) -> NameAdvice | None:
        """What becomes of a full dotted name outside the module; None when nothing is known."""
        return self.relation.moved.get(dotted)

    def known_prefix(self, rest: str) -> str:
        """The part of a dotted name that is a public name, without attributes of its value."""
        known = self.relation.origin.names(None)
        parts = rest.split(".")
        for length in range(len(parts), 0, -1):
            if ".".join(parts[:length]) in known:
                return ".".join(parts[:length])
        return parts[0]

    def string(self, text: str) -> str:
        """A device or backend string of the origin as the target writes it."""
        text = re.sub(rf"\b{re.escape(self.device)}\b", self.to_device, text)
        text = re.sub(rf"\b{re.escape(self.backend)}\b", self.to_backend, text)
        return re.sub(rf"\b{re.escape(self.backend.upper())}\b", self.to_backend.upper(), text)


_MADE: dict[tuple[object, ...], Vocabulary] = {}
