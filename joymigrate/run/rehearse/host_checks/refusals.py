"""What a refusal of host code says: which dtypes or which shape it wants of which tensor."""

from __future__ import annotations

import re
from collections.abc import Mapping

from joymigrate.run.rehearse.host_checks.ask import NUMBERS

LISTED = re.compile(
    r"[Tt]ensor (?P<name>[\w.>-]+) not implemented for (?P<dtype>DT_\w+), "
    r"should be in dtype support list \[(?P<takes>[^\]]*)\]"
)
EXPECTED = re.compile(r"[Tt]ensor (?P<name>[\w.>-]+) expected dtype is (?P<takes>DT_\w+) but found")
# Refusals of a shape that say which one is wanted, or how many dimensions.
SIZED = re.compile(
    r"(?:tensor for|[Ss]hape of) (?P<name>[\w.>-]+) "
    r"(?:to have same size as|to be|is|should be|must be) \[(?P<sizes>[\d, ]*)\]"
)
DEEP = re.compile(
    r"[Ee]xpected (?P<depth>\d) dimension input, but got (?P<name>[\w.>-]+) with sizes"
)
LARGER = re.compile(
    r"(?P<name>\w+) dim \[\d+\] (?:should|to) be (?:one larger|1 greater) than \w+ dim(?:ension)? "
    r"\[(?P<below>\d+)\]"
)
COUNTED = re.compile(r"(?P<name>\w+) (?:len|length|size) to be (?P<count>\d), but got")
SHAPED = (SIZED, DEEP, LARGER, COUNTED)
SPELLED = {
    "DT_FLOAT": "float32", "DT_DOUBLE": "float64", "DT_FLOAT16": "float16", "DT_BF16": "bfloat16",
    "DT_BFLOAT16": "bfloat16", **{f"DT_{name.upper()}": name for name in NUMBERS},
}  # fmt: skip
SIDE = 4  # of every dimension of a question


def shape_in(found: Mapping[str, str]) -> tuple[int, ...]:
    """The shape that a refusal asks for, from the parts of its text."""
    if "sizes" in found:
        return tuple(int(one) for one in found["sizes"].replace(",", " ").split())
    depth = int(found["depth"]) if "depth" in found else int(found["below"]) + 1
    return (SIDE,) * depth


def dtypes_of(text: str) -> tuple[str, ...]:
    """torch's names of the dtypes in a list of a message; unknown ones are left out."""
    return tuple(SPELLED[word] for word in re.findall(r"DT_\w+", text) if word in SPELLED)


def dtype_text(text: str) -> bool:
    """Whether a refusal is about dtypes."""
    return "DT_" in text or "dtype" in text


def bare(name: str) -> str:
    """A name without what headers add to it."""
    return name.removesuffix("Ref").removesuffix("Optional").lower().strip("_")
