"""Beam search of fixed rounds over a trie of valid ids: the parts, from the smallest up.

    Trie.of(codes, items)       which code may follow which; AnyToken(V, rounds) allows all
    choose(…)                   one round's selection: beams × candidates at a bounded memory
    attend(…)                   attention on a prefix stored once and on what each beam wrote
    BeamSearch(writer, rules)   requests that come and go between rounds

A model takes part as a `BeamWriter` (writer.py): it reads a prompt once and gives logits for beams.
`causal.py` makes one of a language model of transformers.
"""

from joymigrate.run.beam.choose import BeamChoice, choose
from joymigrate.run.beam.prefix import attend, remember
from joymigrate.run.beam.search import BeamAnswer, BeamRequest, BeamSearch
from joymigrate.run.beam.trie import AnyToken, CodeTrie, Trie
from joymigrate.run.beam.writer import BeamWriter

__all__ = [
    "AnyToken",
    "BeamAnswer",
    "BeamChoice",
    "BeamRequest",
    "BeamSearch",
    "BeamWriter",
    "CodeTrie",
    "Trie",
    "attend",
    "choose",
    "remember",
]
