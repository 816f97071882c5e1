"""Whether `@triton.jit` kernels run on a chip: read from source, held against documented limits."""

from joymigrate.profile.port.check import Checked, Note, check, check_source, load

__all__ = ["Checked", "Note", "check", "check_source", "load"]
