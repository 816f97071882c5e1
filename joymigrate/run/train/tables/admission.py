"""Which new ids of a dynamic table get a row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from joymigrate.run.train.formats.first_rows import Ids, hash_ids, uniform
from joymigrate.run.train.tables.configs import AdmissionRule
from joymigrate.run.train.tables.hash_index import HashIndex

Seen = npt.NDArray[np.int64]


class IdCounter:
    """Counts the sightings of ids without a row, and says which are let in."""

    def __init__(self, rule: AdmissionRule) -> None:
        self.rule = rule
        self.index = HashIndex()
        self.ids = np.zeros(0, dtype=np.int64)
        self.seen = np.zeros(0, dtype=np.int64)

    def admit(self, ids: Ids, sightings: Seen) -> npt.NDArray[np.bool_]:
        """Which of distinct ids get a row, after so many sightings more of each."""
        if self.rule.count <= 1 and self.rule.probability >= 1:
            return np.ones(len(ids), dtype=bool)
        at = self._places(ids)
        before = self.seen[at]
        self.seen[at] = after = before + sightings
        admitted = after >= self.rule.count
        if self.rule.probability < 1:
            admitted &= self._draw(ids, np.maximum(before, self.rule.count - 1), after)
        self._forget(at[admitted])
        if len(self.index) > self.rule.candidates:
            self._forget_rare()
        return admitted

    def _draw(self, ids: Ids, before: Seen, after: Seen) -> npt.NDArray[np.bool_]:
        """One draw for each sighting in (before, after]; the first that says yes counts."""
        yes = np.zeros(len(ids), dtype=bool)
        number = before.copy()
        while (going := ~yes & (number < after)).any():
            number[going] += 1
            draw = uniform(hash_ids(ids[going] ^ (number[going] << 40), self.rule.seed))
            yes[going] = draw < self.rule.probability
        return yes

    def _places(self, ids: Ids) -> Seen:
        at = self.index.find(ids)
        new = at < 0
        if new.any():
            start = len(self.seen)
            at[new] = np.arange(start, start + int(new.sum()))
            self.index.insert(ids[new], at[new])
            self.ids = np.concatenate((self.ids, ids[new]))
            self.seen = np.concatenate((self.seen, np.zeros(int(new.sum()), dtype=np.int64)))
        return at

    def _forget(self, at: Seen) -> None:
        self.index.remove(self.ids[at])
        self.seen[at] = -1
        if 2 * len(self.index) + 1024 < len(self.ids):
            self.load(*self.items())

    def _forget_rare(self) -> None:
        ids, seen = self.items()
        order = np.lexsort((ids, -seen))[: self.rule.candidates // 2]
        self.load(ids[order], seen[order])

    def items(self) -> tuple[Ids, Seen]:
        """Candidates and their sightings, by id."""
        held = np.flatnonzero(self.seen >= 0)
        order = np.argsort(self.ids[held], kind="stable")
        return self.ids[held][order], self.seen[held][order]

    def load(self, ids: Ids, seen: Seen) -> None:
        """Take over what `items` gave."""
        self.ids, self.seen = ids.copy(), seen.copy()
        self.index = HashIndex(len(ids))
        self.index.insert(self.ids, np.arange(len(ids)))
