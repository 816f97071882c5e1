"""Kernels and bound operators, read from source: what runs on a chip, and what is to be written."""

from joymigrate.profile.port.check import KernelCheck, check, check_source, load
from joymigrate.profile.port.notes import Note
from joymigrate.profile.port.operators import BoundOperator, find_bound
from joymigrate.profile.port.port_writer import Ported, port_files
from joymigrate.profile.port.start import write

__all__ = [
    "BoundOperator",
    "KernelCheck",
    "Note",
    "Ported",
    "check",
    "check_source",
    "find_bound",
    "load",
    "port_files",
    "write",
]
