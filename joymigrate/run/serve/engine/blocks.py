"""KV blocks: reference counts, a prefix cache by chained hashes, least-recently-used reuse.

Every operation takes time proportional to the blocks it names, never to the pool. A block is
held (reference count above zero) or free; a free block whose content can still be found by its
hash is cached, and is the last to be used again. Where a model's layers keep states, a prefix ends
at a block whose states behind it are kept, too.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

ROOT = b""


def chain(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a full block: of everything before it, and of its own tokens."""
    return hashlib.blake2b(array("q", tokens).tobytes(), key=parent, digest_size=16).digest()


class BlockPool:
    """`count` blocks of `size` tokens each, numbered from 0."""

    def __init__(
        self, count: int, size: int, *, prefix_cache: bool = True, states: int | None = None
    ) -> None:
        """`states`: how many blocks' states are kept at most; None for models without."""
        self.count = count
        self.size = size
        self.prefix_cache = prefix_cache
        self.references = [0] * count
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))  # oldest first
        self.digest: list[bytes | None] = [None] * count
        self.by_digest: dict[bytes, int] = {}
        self.most_states = states
        self.states: OrderedDict[int, Any] = OrderedDict()  # behind blocks, the oldest first
        self.cached = 0  # free blocks whose content can be found

    @property
    def available(self) -> int:
        """Number of free blocks, cached ones included."""
        return len(self.free)

    @property
    def used(self) -> int:
        """Number of held blocks."""
        return self.count - len(self.free)

    def needed(self, tokens: int) -> int:
        """Number of blocks that hold `tokens`."""
        return -(-tokens // self.size)

    def allocate(self) -> int:
        """Hold a free block, the longest unused one; forgets what it cached.

        Raises IndexError when there is none.
        """
        if not self.free:
            raise IndexError("no free block")
        block, _ = self.free.popitem(last=False)
        self.forget(block)
        self.references[block] = 1
        return block

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """Blocks with the content of the longest known prefix of `digests`; holds none of them."""
        found: list[int] = []
        for digest in digests:
            block = self.by_digest.get(digest)
            if block is None:
                break
            found.append(block)
        if self.most_states is not None:
            while found and found[-1] not in self.states:
                found.pop()
        return found

    def keep_states(self, digest: bytes, states: Any) -> None:
        """Keep what layers with states hold behind the block of a digest that can be found."""
        block = self.by_digest.get(digest)
        if block is None or not self.most_states:
            return
        self.states[block] = states
        self.states.move_to_end(block)
        if len(self.states) > self.most_states:
            self.states.popitem(last=False)

    def states_behind(self, block: int) -> Any:
        """What layers with states hold behind a block that `find` ended at."""
        self.states.move_to_end(block)
        return self.states[block]

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block."""
        for block in blocks:
            if not self.references[block]:
                del self.free[block]
                self.cached -= self.digest[block] is not None
            self.references[block] += 1

    def seal(self, block: int, digest: bytes) -> None:
        """Make a full block findable. The first block of a content stays the one that is found."""
        if self.prefix_cache and digest not in self.by_digest:
            self.digest[block] = digest
            self.by_digest[digest] = block

    def release(self, blocks: Sequence[int]) -> None:
        """Drop a reference to each block; the end of a prefix is reused before its beginning."""
        for block in reversed(blocks):
            self.references[block] -= 1
            if self.references[block]:
                continue
            self.free[block] = None
            if self.digest[block] is None:
                self.free.move_to_end(block, last=False)
            else:
                self.cached += 1

    def forget(self, block: int) -> None:
        """Make a block's content unfindable."""
        digest = self.digest[block]
        self.states.pop(block, None)
        if digest is not None:
            del self.by_digest[digest]
            self.digest[block] = None
            self.cached -= not self.references[block]

    def clear(self) -> None:
        """Forget every cached content; held blocks stay held."""
        for block in list(self.by_digest.values()):
            self.forget(block)
