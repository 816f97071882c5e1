"""Advice on a recording: what would be slow, missing or wrong on a chip, and what to do."""

from joymigrate.profile.advice.advise import Advice, AdviceSubject, Hit, advise, rank
from joymigrate.profile.advice.rules import AdviceRule, load_rules
from joymigrate.profile.advice.sources import advise_all

__all__ = [
    "Advice",
    "AdviceRule",
    "AdviceSubject",
    "Hit",
    "advise",
    "advise_all",
    "load_rules",
    "rank",
]
