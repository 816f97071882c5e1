"""What is known about a name that a person meets: an API, an operator, a package, an error code.

`find(name, chip, origin)` gives one `Described` for each kind of thing that has this name. What
becomes of an API is what the rewriting engine itself answers for a program of one line.
"""

from joymigrate.lookup.kinds import find, suggest
from joymigrate.lookup.statements import Described, Statement

__all__ = ["Described", "Statement", "find", "suggest"]
