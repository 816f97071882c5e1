"""Containers: a Dockerfile and a compose file out of a project's lock file. Nothing is built."""

from joymigrate.run.render.base import Base, choose, given
from joymigrate.run.render.lock import Lock, Pin, find, read
from joymigrate.run.render.render import Wanted, image_name, render
from joymigrate.run.render.translate import Line, torch_of, translate, with_server

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
