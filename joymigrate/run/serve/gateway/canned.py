"""Answers that belong to other questions: a stock phrase, a stale cache, two users mixed up.

A few of them are lost among texts that differ for good reasons, and no client would call them so.
What a server says to many (one of three labels) is nobody's: only long texts count that the primary
gave to one question, or to none.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from joymigrate.run.serve.gateway.answers import DECLINES, Said
from joymigrate.run.serve.gateway.aspects import CANNED

PHRASE = 20  # characters of a text that the primary never says, from which on it counts
ANSWER = 40  # of one that is the primary's answer to another question
KEPT = 1000  # texts of each side
MANY = b"many"  # asked by more than one question


@dataclass(slots=True)
class Canned:
    """What each side said of late, and to which question: by digests."""

    primary: OrderedDict[bytes, bytes] = field(default_factory=OrderedDict)
    standby: OrderedDict[bytes, bytes] = field(default_factory=OrderedDict)

    def judge(self, question: bytes, theirs: Said, ours: Said) -> dict[str, bool]:
        """Whether the standby's answer is another question's; nothing where that means nothing."""
        asked, said, other = digest(question), digest(ours.text), digest(theirs.text)
        found = {}
        if len(ours.spoken) >= PHRASE and not DECLINES.match(ours.spoken):
            before, owner = self.standby.get(said), self.primary.get(said)
            phrase = owner is None and before is not None and before != asked
            mixed = owner not in (None, MANY, asked) and len(ours.spoken) >= ANSWER
            found[CANNED] = said != other and (phrase or mixed)
        keep(self.primary, other, asked)
        keep(self.standby, said, asked)
        return found


def keep(texts: OrderedDict[bytes, bytes], said: bytes, asked: bytes) -> None:
    """Remember to which question a text was given."""
    before = texts.pop(said, asked)
    texts[said] = asked if before == asked else MANY
    if len(texts) > KEPT:
        texts.popitem(last=False)


def digest(value: bytes | str) -> bytes:
    """What stands for a text."""
    raw = value if isinstance(value, bytes) else value.encode(errors="surrogatepass")
    return hashlib.blake2b(raw, digest_size=12).digest()
