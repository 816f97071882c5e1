"""How a program wants its inputs: by position, by name, or both; under which names.

torch.export names placeholders in lower case, and its programs take arguments as they were given at
the export. Here every input has its placeholder's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joymigrate.errors import JoyError


@dataclass(frozen=True, slots=True)
class Calling:
    """The inputs by position, then those by keyword: (keyword, our name)."""

    positional: tuple[str, ...]
    keywords: tuple[tuple[str, str], ...]

    @property
    def plain(self) -> bool:
        """Whether keywords of our names do."""
        return not self.positional and all(key == name for key, name in self.keywords)

    def call(self, run: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:
        """Call a program with inputs by our names."""
        return run(
            *(inputs[name] for name in self.positional),
            **{key: inputs[name] for key, name in self.keywords},
        )


def calling_of(spec: Any, names: Sequence[str], where: str) -> Calling:
    """From a program's input specification. Raises `JoyError` for inputs inside of others."""
    given, keyed = spec.children() if callable(spec.children) else spec.children_specs
    count = given.num_leaves
    if (count, keyed.num_leaves) != (given.num_children, keyed.num_children) or (
        count + keyed.num_leaves != len(names)
    ):
        raise JoyError(
            f"the program takes {given.num_leaves + keyed.num_leaves} tensors in "
            f"{given.num_children + keyed.num_children} arguments, {len(names)} names are known",
            where=where,
            help="export it with one tensor for each argument, none left out",
        )
    keys = list(keyed.context or [])
    return Calling(tuple(names[:count]), tuple(zip(keys, names[count:], strict=True)))
