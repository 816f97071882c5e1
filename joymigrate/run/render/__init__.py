"""Containers: a Dockerfile and a compose file out of a project's lock file. Nothing is built."""

from joymigrate.run.render.base import Base, choose, custom_base
from joymigrate.run.render.lock import Lock, Pin, find, read
from joymigrate.run.render.render import ContainerSpec, image_name, render
from joymigrate.run.render.translate import PackageLine, torch_of, translate, with_server

__all__ = [
    "Base",
    "ContainerSpec",
    "Lock",
    "PackageLine",
    "Pin",
    "choose",
    "custom_base",
    "find",
    "image_name",
    "read",
    "render",
    "torch_of",
    "translate",
    "with_server",
]
