"""Write a rewrite that rules in data can't say: a libcst codemod of your own.

docs/how-to/codemods.md explains it.

    from joymigrate.codemods import Case, Codemod, Tier

A module that the configuration names (`codemods = ["tools/codemods"]`), or that a package gives
under the entry point `joymigrate.codemods`, holds subclasses of `Codemod`.
"""

from __future__ import annotations

from joymigrate.model import Case, Style, Tier
from joymigrate.rewrite.codemod import Codemod, CodemodView
from joymigrate.rewrite.codemod_check import ExampleCheck, check

__all__ = ["Case", "Codemod", "CodemodView", "ExampleCheck", "Style", "Tier", "check"]
