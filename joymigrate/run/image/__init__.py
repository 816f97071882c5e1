"""Containers: a Dockerfile and a compose file out of a project's lock file. Nothing is built."""

from joymigrate.run.image.base import Base, choose, given
from joymigrate.run.image.lock import Lock, Pin, find, read
from joymigrate.run.image.render import Wanted, image_name, render
from joymigrate.run.image.translate import Line, torch_of, translate, with_server

__all__ = [
    "Base",
    "Line",
    "Lock",
    "Pin",
    "Wanted",
    "choose",
    "find",
    "given",
    "image_name",
    "read",
    "render",
    "torch_of",
    "translate",
    "with_server",
]
