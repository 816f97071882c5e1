"""Several gateways, one rollout: their events go through one Redis stream, and each of them feeds
the same events in the same order to its own state machine.

The machine is pure and the stream orders everything, times included (Redis' clock), so that two
gateways cannot decide differently. Events wait for at most FLUSH_SECONDS before they are written:
that is what is lost with a gateway that is killed. Snapshots let a new gateway begin near the end.

While Redis is away nothing moves up: a gateway goes on with the weight that it knows, tells its own
machine of failures only (it may roll back), keeps its events, and reads everything anew afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson

from joymigrate.errors import JoyError
from joymigrate.run.serve.evidence.events import (
    AnswersCompared,
    Event,
    Health,
    LedgerGate,
    Observed,
    RolloutChange,
    RolloutOrder,
    RolloutPlan,
    RolloutTick,
    Served,
)
from joymigrate.run.serve.evidence.rollout import Rollout

FLUSH_SECONDS = 0.1
BLOCK_MS = 500
SNAPSHOT_SECONDS = 1.0
KEPT_MS = 600_000  # events older than this may be dropped once a snapshot holds them
STALE_SECONDS = 120.0  # who did not read for so long begins again at the snapshot
HELD = 100_000  # events kept while Redis is away; then the oldest successes go
RETRY_SECONDS = 1.0
GONE = [("burst_cap", False)]  # of older plans, where it meant nothing
ORDER_SECONDS = 10.0
CLOSE_SECONDS = 2.0
KINDS = {
    kind.__name__: kind
    for kind in (Served, AnswersCompared, Observed, Health, RolloutTick, LedgerGate, RolloutOrder)
}
# A newer gateway's events may say more than this one knows.
NAMES = {name: set(kind.__dataclass_fields__) for name, kind in KINDS.items()}
# Replaces the snapshot unless a newer one is there. Ids are `milliseconds-number`.
SNAPSHOT = """
local old = redis.call('HGET', KEYS[1], 'id')
local function parts(id)
  local a, b = string.match(id, '(%d+)-(%d+)')
  return tonumber(a), tonumber(b)
end
if old then
  local a, b = parts(old)
  local c, d = parts(ARGV[1])
  if a > c or (a == c and b >= d) then return 0 end
end
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'state', ARGV[2], 'identity', ARGV[3])
redis.call('XTRIM', KEYS[2], 'MINID', ARGV[4])
return 1
"""


@dataclass(slots=True)
class SharedRollout:
    """The stream `name` at a Redis `url`. `changed` hears what the machine did; `identity` says
    whose rollout it is: gateways with another plan or other upstreams are refused."""

    url: str
    name: str
    rollout: Rollout
    identity: dict[str, Any]
    changed: Callable[[list[RolloutChange]], None]
    talk: Callable[[str], None]
    last: str = "0-0"  # the last event that was applied
    away: bool = False
    waiting: list[Event] = field(default_factory=list)
    orders: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    read_at: float = 0.0  # seconds on the process's clock
    saved_at: float = 0.0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    client: Any = None
    closing: bool = False

    @property
    def stream(self) -> str:
        return f"joymigrate:{self.name}:events"

    @property
    def state(self) -> str:
        return f"joymigrate:{self.name}:state"

    # Life

    async def start(self) -> None:
        """Read what is known, then follow; raises `JoyError` where Redis does not answer."""
        import redis.asyncio as redis

        self.client = redis.Redis.from_url(self.url, socket_connect_timeout=2, socket_timeout=5)
        try:
            await self.begin()
        except redis.RedisError as error:
            raise JoyError(
                f"the shared state cannot be read: {error}", where=self.url,
                help="start Redis, or give `state` a file",
            ) from None  # fmt: skip
        loop = asyncio.get_running_loop()
        self.tasks = [loop.create_task(self.follow()), loop.create_task(self.write())]

    async def begin(self) -> None:
        """Take up the snapshot and every event behind it; leave one where there is none."""
        saved = await self.client.hgetall(self.state)
        if saved:
            known = complete_identity(orjson.loads(saved[b"identity"]))
            if known != self.identity:
                raise JoyError(
                    f"'{self.name}' is the rollout of other gateways: {known}", where=self.url,
                    help="give this one a name of its own (redis://HOST/0#NAME), or the same file",
                )  # fmt: skip
            self.rollout.restore(orjson.loads(saved[b"state"]))
            self.last = saved[b"id"].decode()
        else:
            newest = await self.client.xrevrange(self.stream, count=1)
            self.last = newest[0][0].decode() if newest else "0-1"
            await self.snapshot()
        while await self.read(block=None):
            pass

    async def close(self) -> None:
        """Write what waits, and stop."""
        self.closing = True
        for task in self.tasks:
            task.cancel()
        if self.tasks:  # the client may take a cancellation for a time-out of its own
            await asyncio.wait(self.tasks, timeout=CLOSE_SECONDS)
        if self.client is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self.flush(), 1.0)
            await self.client.aclose()

    # Telling

    def put(self, event: Event) -> None:
        """An event of this gateway, for all of them."""
        if isinstance(event, RolloutTick) and any(
            isinstance(one, RolloutTick) for one in self.waiting
        ):
            return
        if isinstance(event, Served) and event.failure is None and self.waiting:
            before = self.waiting[-1]
            if isinstance(before, Served) and same_success(before, event):
                self.waiting[-1] = replace(before, count=before.count + event.count)
                return
        self.waiting.append(event)
        if self.away:
            self.guard(event)

    def guard(self, event: Event) -> None:
        """While Redis is away only failures are heard, and nothing moves up."""
        if len(self.waiting) > HELD:
            kept: list[Event] = [
                one for one in self.waiting if isinstance(one, Served) and one.failure
            ]
            self.waiting = kept[-HELD // 2 :]
        if not (isinstance(event, Served) and event.failure):
            return
        before, weight = self.rollout.snapshot(), self.rollout.weight
        changes = self.rollout.handle(event)
        if self.rollout.weight > weight:
            self.rollout.restore(before)
        elif changes:
            self.changed(changes)

    async def order(self, order: RolloutOrder) -> None:
        """Give an order; returns once it was carried out, raises `JoyError` where it is refused.
        Without Redis traffic can still be taken back: here, and from the others when it returns."""
        if self.away and order.what == "rollback":
            self.changed(self.rollout.handle(order))
            self.waiting.append(order)
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        token = uuid.uuid4().hex
        self.orders[token] = done
        try:
            await self.flush()
            await self.add([order], token)
            await asyncio.wait_for(done, ORDER_SECONDS)
        except JoyError:
            raise
        except Exception as error:
            raise JoyError(
                f"the order did not reach the other gateways: {type(error).__name__}",
                where=self.url, help="start Redis, then give the order again",
            ) from None  # fmt: skip
        finally:
            self.orders.pop(token, None)

    async def write(self) -> None:
        """Write what waits, for ever."""
        while not self.closing:
            await asyncio.sleep(RETRY_SECONDS if self.away else FLUSH_SECONDS)
            if self.away:
                continue  # the reader says when Redis is back
            with contextlib.suppress(Exception):
                await self.flush()

    async def flush(self) -> None:
        """Write what waits; what cannot be written waits on."""
        events, self.waiting = self.waiting, []
        if not events:
            return
        try:
            await self.add(events)
        except BaseException:
            self.waiting = [*events, *self.waiting]
            raise

    async def add(self, events: Sequence[Event], token: str = "") -> None:
        """Append events to the stream; `token` is heard again when they are applied."""
        rows = [[type(event).__name__, asdict(event)] for event in events]
        await self.client.xadd(self.stream, {"e": orjson.dumps(rows), "t": token})

    # Hearing

    async def follow(self) -> None:
        """Apply what all gateways say, for ever."""
        while not self.closing:
            try:
                if self.away or time.monotonic() - self.read_at > STALE_SECONDS:
                    await self.begin()
                    if self.away:
                        await self.flush()
                        await self.read(block=None)
                        self.away = False
                        self.talk("Redis is back: the rollout is shared again")
                await self.read(block=BLOCK_MS)
                if time.monotonic() - self.saved_at > SNAPSHOT_SECONDS:
                    await self.snapshot()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                if not self.away:
                    self.away = True
                    self.talk(
                        f"Redis does not answer ({type(error).__name__}): this gateway goes on "
                        f"alone at {self.rollout.weight:g} % and moves nothing up"
                    )
                await asyncio.sleep(RETRY_SECONDS)

    async def read(self, block: int | None) -> int:
        """Apply the next events; returns how many entries there were."""
        found = await self.client.xread({self.stream: self.last}, count=500, block=block)
        self.read_at = time.monotonic()
        entries = found[0][1] if found else []
        for id, fields in entries:
            self.apply(id.decode(), orjson.loads(fields[b"e"]), fields[b"t"].decode())
        return len(entries)

    def apply(self, id: str, rows: list[Any], token: str) -> None:
        """Feed one entry to the machine, at the time that Redis gave it."""
        now = int(id.partition("-")[0]) / 1000
        done = self.orders.get(token)
        self.last = id
        for name, values in rows:
            try:
                kind = KINDS[name]
                known = {key: value for key, value in values.items() if key in NAMES[name]}
                changes = self.rollout.handle(kind(**{**known, "time": now}))
            except JoyError as refusal:
                if done is not None and not done.done():
                    done.set_exception(refusal)
                continue
            if changes:
                self.changed(changes)
        if done is not None and not done.done():
            done.set_result(None)

    async def snapshot(self) -> None:
        """Leave the state for gateways to come, and let old events go."""
        self.saved_at = time.monotonic()
        oldest = max(0, int(self.last.partition("-")[0]) - KEPT_MS)
        state, identity = orjson.dumps(self.rollout.snapshot()), orjson.dumps(self.identity)
        await self.client.eval(
            SNAPSHOT, 2, self.state, self.stream, self.last, state, identity, str(oldest)
        )


def same_success(one: Served, other: Served) -> bool:
    """Whether two successes can be told as one."""
    return (
        one.failure is None
        and (one.role, one.instance, one.shadow) == (other.role, other.instance, other.shadow)
    )  # fmt: skip


def complete_identity(identity: dict[str, Any]) -> dict[str, Any]:
    """An identity as this version would write it: what an older gateway's plan did not name is the
    default, so that gateways can be renewed one after another."""
    plan = identity.get("plan")
    if not isinstance(plan, dict):
        return identity
    defaults = orjson.loads(orjson.dumps(asdict(RolloutPlan())))
    kept = {key: value for key, value in plan.items() if (key, value) not in GONE}
    return {**identity, "plan": {**defaults, **kept}}
