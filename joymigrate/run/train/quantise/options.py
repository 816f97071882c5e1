"""What to quantise to, and how hard to search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from joymigrate.errors import JoyError, did_you_mean

SCHEMES = ("w8a8", "w4a16")
FORMATS = ("compressed-tensors", "msmodelslim")


@dataclass(frozen=True, slots=True)
class QuantiseOptions:
    """`static`: one input scale per layer, found in calibration (W8A8). `group`: inputs that share
    a scale (W4A16); None: the largest of 128, 64, 32, 16, 8 that fits every layer. `alpha`: how
    much of the inputs' range moves into the weights (W8A8), None: searched per block. `ignore`:
    patterns of linears that stay plain. `search`: without it, plain rounding to nearest."""

    scheme: str = "w8a8"
    format: str = "compressed-tensors"
    static: bool = False
    group: int | None = None
    alpha: float | None = None
    ignore: Sequence[str] = ()
    search: bool = True

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        if self.scheme not in SCHEMES:
            near = did_you_mean(self.scheme, SCHEMES)
            raise JoyError(
                f"there is no scheme '{self.scheme}'.{near}", help=f"one of {', '.join(SCHEMES)}"
            )
        if self.format not in FORMATS:
            near = did_you_mean(self.format, FORMATS)
            raise JoyError(
                f"there is no format '{self.format}'.{near}", help=f"one of {', '.join(FORMATS)}"
            )
        four = self.scheme == "w4a16"
        if four and self.format == "msmodelslim":
            raise JoyError(
                "msmodelslim has no form for four-bit weights with plain inputs",
                help="--format compressed-tensors",
            )
        if four and (self.static or self.alpha is not None):
            raise JoyError(
                "w4a16 leaves inputs as they are: --static and --alpha are for w8a8",
                help="leave them out",
            )
        if not four and self.group is not None:
            raise JoyError("--group is for w4a16; w8a8 has a scale per output", help="leave it out")
        if self.group is not None and (self.group < 8 or self.group % 8):
            raise JoyError(f"a group of {self.group} does not fill whole int32", help="--group 128")
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise JoyError(f"alpha is {self.alpha}", help="--alpha auto, or 0 to 1")
