"""Answers that belong to other questions: a stock phrase, a stale cache, two users mixed up.

A few of them are lost among texts that differ for good reasons, and no client would call them so.
What a server says to many (one of three labels) is nobody's: only long texts count that the primary
gave to one question, or to none. Nor does a text that comes again where the primary's own comes
again: then the questions are alike (two users ask the same, a date in the prompt).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from joymigrate.run.serve.evidence.answers import DECLINES, BackendReply
from joymigrate.run.serve.evidence.aspects import CANNED

PHRASE = 20  # characters of a text that the primary never says, from which on it counts
ANSWER = 40  # of one that is the primary's answer to another question
KEPT = 1000  # texts of each side
MANY = b"many"  # of more than one question, or text


@dataclass(slots=True)
class Canned:
    """What each side said of late, and to which question: by digests."""

    primary: OrderedDict[bytes, bytes] = field(default_factory=OrderedDict)
    standby: OrderedDict[bytes, bytes] = field(default_factory=OrderedDict)
    beside: OrderedDict[bytes, bytes] = field(default_factory=OrderedDict)  # standby's -> primary's

    def judge(self, question: bytes, theirs: BackendReply, ours: BackendReply) -> dict[str, bool]:
        """Whether the standby's answer is another question's; nothing where that means nothing."""
        asked, said, other = digest(question), digest(ours.text), digest(theirs.text)
        found = {}
        if len(ours.spoken) >= PHRASE and not DECLINES.match(ours.spoken):
            before, owner = self.standby.get(said), self.primary.get(said)
            alike = self.beside.get(said) == other  # the primary, too, said one thing to all
            phrase = owner is None and before is not None and before != asked and not alike
            mixed = owner not in (None, MANY, asked) and len(ours.spoken) >= ANSWER
            found[CANNED] = said != other and (phrase or mixed)
        keep(self.primary, other, asked)
        keep(self.standby, said, asked)
        keep(self.beside, said, other)
        return found


def keep(texts: OrderedDict[bytes, bytes], said: bytes, belongs: bytes) -> None:
    """Remember to which question a text was given, or beside which text."""
    before = texts.pop(said, belongs)
    texts[said] = belongs if before == belongs else MANY
    if len(texts) > KEPT:
        texts.popitem(last=False)


def digest(value: bytes | str) -> bytes:
    """What stands for a text."""
    raw = value if isinstance(value, bytes) else value.encode(errors="surrogatepass")
    return hashlib.blake2b(raw, digest_size=12).digest()
