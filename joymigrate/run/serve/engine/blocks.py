"""KV blocks: reference counts, a prefix cache by chained hashes, least-recently-used reuse.

Every operation takes time proportional to the blocks it names, never to the pool. A block is
held (reference count above zero) or free; a free block whose content can still be found by its
hash is cached, and is the last to be used again.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

ROOT = b""


def chain(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a full block: of everything before it, and of its own tokens."""
    return hashlib.blake2b(array("q", tokens).tobytes(), key=parent, digest_size=16).digest()


class BlockPool:
    """`count` blocks of `size` tokens each, numbered from 0."""

    def __init__(self, count: int, size: int, *, prefix_cache: bool = True) -> None:
        self.count = count
        self.size = size
        self.prefix_cache = prefix_cache
        self.references = [0] * count
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))  # oldest first
        self.digest: list[bytes | None] = [None] * count
        self.by_digest: dict[bytes, int] = {}
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
        return found

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
        if digest is not None:
            del self.by_digest[digest]
            self.digest[block] = None
            self.cached -= not self.references[block]

    def clear(self) -> None:
        """Forget every cached content; held blocks stay held."""
        for block in list(self.by_digest.values()):
            self.forget(block)
