"""Which backend a request goes to, and which ones may stand in for it."""

from __future__ import annotations

import hashlib

from joymigrate.run.serve.evidence.events import PRIMARY, ROLLED_BACK, SECOND
from joymigrate.run.serve.evidence.rollout import Rollout
from joymigrate.run.serve.gateway.upstreams import Instance, Upstream

GOLDEN = 61.80339887498949  # percent: its multiples fill the range more evenly than chance


class Router:
    """Places requests by the rollout's weight; the same user keeps the same place."""

    def __init__(
        self, primary: Upstream, standby: Upstream, rollout: Rollout, last_resort: bool = False
    ) -> None:
        self.primary, self.standby, self.rollout = primary, standby, rollout
        self.last_resort = last_resort
        self.known_bad = False  # the ledger says that the standby computes wrongly
        self.next_point = 0.0

    def point(self, key: str) -> float:
        """A place between 0 and 100: fixed for a key, evenly spread without one."""
        if key:
            digest = hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=8).digest()
            return int.from_bytes(digest, "big") / 2**64 * 100
        self.next_point = (self.next_point + GOLDEN) % 100
        return self.next_point

    def allowed(self, upstream: Upstream) -> bool:
        """Whether clients may be served by it at all, now."""
        if upstream.role == PRIMARY:
            return True
        if self.rollout.state == ROLLED_BACK:
            return self.last_resort and not self.primary.up
        return not self.known_bad

    def choose(self, point: float, tried: list[Instance]) -> tuple[Upstream, Instance] | None:
        """The next server to try for a request at `point`; None when none is left.

        The ramp's choice first, the other backend next; one that is down only when both are.
        """
        to_standby = point < self.rollout.weight
        first, second = (self.standby, self.primary) if to_standby else (self.primary, self.standby)
        order = [first, second] if len(tried) % 2 == 0 else [second, first]
        if not order[0].up and order[1].up:
            order.reverse()
        for upstream in order:
            if self.allowed(upstream):
                instance = upstream.pick(tried)
                if instance is not None:
                    return upstream, instance
        return None

    def weights(self) -> dict[str, float]:
        """Percent of the requests by upstream name, as the rollout wants them."""
        weight = self.rollout.weight
        shares = {PRIMARY: 100 - weight, SECOND: weight}
        return {up.name: shares[up.role] for up in (self.primary, self.standby)}
