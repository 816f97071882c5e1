"""Which operators a chip has, in which version, and where that is known from.

`of(chip, version)` gives an `OpList`; its `status(op, overload, dtype)` answers for one operator.
"""

from joymigrate.profile.oplist.lists import OpList, from_wheel, of
from joymigrate.profile.support import Support, SupportStatus

__all__ = ["OpList", "Support", "SupportStatus", "from_wheel", "of"]
