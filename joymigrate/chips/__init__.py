"""Chips as data: what joymigrate knows about each family of accelerators, and where it comes from.

A chip is a vocabulary: how programs, shells and manifests name things on it. Two vocabularies make
a relation (`relate`), and rules are written against that relation, so the same rules run forwards
and backwards and no chip's name occurs in code.
"""

from joymigrate.chips.advice import NameAdvice, PackageAdvice
from joymigrate.chips.chip import Chip, Sku
from joymigrate.chips.load import (
    SCHEMA,
    all_chips,
    first_marked,
    get,
    load_folder,
    origin,
    target,
)
from joymigrate.chips.names import NameList
from joymigrate.chips.presence import driverless, hide_driverless
from joymigrate.chips.relation import NameRelation, relate
from joymigrate.data import ENTRY_POINT_GROUP, folders, rules_root
from joymigrate.schema import read_yaml

__all__ = [
    "ENTRY_POINT_GROUP",
    "SCHEMA",
    "Chip",
    "NameAdvice",
    "NameList",
    "NameRelation",
    "PackageAdvice",
    "Sku",
    "all_chips",
    "driverless",
    "first_marked",
    "folders",
    "get",
    "hide_driverless",
    "load_folder",
    "origin",
    "read_yaml",
    "relate",
    "rules_root",
    "target",
]
