"""The monitor as a running service: reads sources, keeps the last hour in memory, serves a page."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from joymigrate.errors import JoyError
from joymigrate.run.serve.monitor import derive, devices, snapshot
from joymigrate.run.serve.monitor.metrics import Metrics
from joymigrate.run.serve.monitor.snapshot import Snapshot

PAGE = Path(__file__).parent / "page.html"
DEVICE_SECONDS = 5.0
READ_SECONDS = 5.0
BOARD_SECONDS = 5.0  # between two looks at a cluster: every waiting job's reason is worked out
REST_SECONDS = 60.0  # before a backend without metrics is asked again
KEPT_SECONDS = 3600.0
POINTS = 600  # of a curve, at most; Prometheus keeps more, and for longer


class MetricSource(Protocol):
    """Something with metrics."""

    name: str

    async def read(self) -> Snapshot:
        """What it says now; raises `JoyError` or `OSError`."""

    async def status(self) -> dict[str, Any] | None:
        """The state of its rollout, where it has one."""


class Own:
    """The metrics of this process. `ask` gives the rollout's state."""

    def __init__(
        self, name: str, metrics: Metrics, ask: Callable[[], dict[str, Any]] | None = None
    ) -> None:
        self.name, self.metrics, self.ask = name, metrics, ask

    async def read(self) -> Snapshot:
        return snapshot.of_metrics(self.metrics, time.time())

    async def status(self) -> dict[str, Any] | None:
        return self.ask() if self.ask else None


class MonitorPage:
    """A `/metrics` page of another process: a gateway, an engine, a device exporter.

    With `only`, nothing but these keys is taken from it, and its absence is no trouble: the
    gateway knows the rest about its backends better than they do.
    """

    def __init__(
        self, name: str, url: str, key: str | None = None, only: frozenset[str] = frozenset()
    ) -> None:
        self.name, self.url, self.key, self.only = name, url, key, only
        self.session: Any = None
        self.has_rollout = not only
        self.resting_until = 0.0
        self.board_at = 0.0

    async def get(self, url: str) -> str:
        import aiohttp

        if self.session is None:
            self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=READ_SECONDS))
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            async with self.session.get(url, headers=headers) as response:
                if response.status != 200:
                    raise JoyError(
                        f"it answers {response.status}", where=url, help="name a /metrics page"
                    )
                text: str = await response.text()
                return text
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            raise JoyError(
                f"{type(error).__name__}: {error}", where=url, help="is the service running?"
            ) from None

    async def read(self) -> Snapshot:
        return snapshot.of_text(await self.get(self.url), time.time(), self.url)

    async def status(self) -> dict[str, Any] | None:
        """A gateway keeps its rollout beside its metrics; others have none."""
        if not self.has_rollout:
            return None
        try:
            text = await self.get(self.url.rsplit("/", 1)[0] + "/admin/rollout")
            found: dict[str, Any] = json.loads(text)
            return found
        except (JoyError, ValueError):
            self.has_rollout = False
            return None

    async def board(self, now: float) -> dict[str, Any] | None:
        """The state of a cluster, whose page is beside its metrics; asked for now and then."""
        if now - self.board_at < BOARD_SECONDS:
            return None
        self.board_at = now
        text = await self.get(self.url.rsplit("/", 1)[0] + "/cluster.json")
        try:
            found = json.loads(text)
        except ValueError as error:
            raise JoyError(f"no JSON: {error}", where=self.url, help="cluster metrics") from None
        return found if isinstance(found, dict) else None

    async def close(self) -> None:
        if self.session is not None:
            await self.session.close()


@dataclass(slots=True)
class Monitor:
    """Everything that the dashboard shows."""

    sources: Sequence[MetricSource]
    interval_seconds: float = 2.0
    devices: bool = True
    talk: Callable[[str], None] = lambda line: None
    before: dict[int, Snapshot] = field(default_factory=dict)
    latest: dict[str, float] = field(default_factory=dict)
    troubles: dict[str, str | None] = field(default_factory=dict)
    rollout: dict[str, Any] | None = None
    cluster: dict[str, Any] | None = None
    past: deque[tuple[float, dict[str, float]]] = field(default_factory=deque)

    async def run(self) -> None:
        """Look for ever."""
        looked = 0.0
        while True:
            now = time.time()
            read_devices = self.devices and now - looked >= DEVICE_SECONDS
            looked = now if read_devices else looked
            try:
                await self.look(now, read_devices)
            except Exception as error:  # the service that is watched must not die of its watcher
                self.talk(f"monitor: {type(error).__name__}: {error}")
            await asyncio.sleep(self.interval_seconds)

    async def look(self, now: float, read_devices: bool = False) -> None:
        """Read everything once."""
        values: dict[str, float] = {}
        for source in self.sources:
            if source in self.sources:  # not let go by a reload since the look began
                values |= await self.read(source)
        if read_devices:
            values |= await asyncio.to_thread(devices.local)
        self.latest |= values
        self.past.append((now, values))
        while self.past[0][0] < now - KEPT_SECONDS:
            self.past.popleft()

    async def read(self, source: MetricSource) -> dict[str, float]:
        """The readings of one source; none while it does not answer."""
        only = source.only if isinstance(source, MonitorPage) else frozenset()
        if isinstance(source, MonitorPage) and source.resting_until > time.time():
            return {}
        try:
            after = await source.read()
            status = await source.status()
            if isinstance(source, MonitorPage) and of_cluster(after):
                self.cluster = await source.board(time.time()) or self.cluster
        except (JoyError, OSError) as error:
            if isinstance(source, MonitorPage) and only:
                source.resting_until = time.time() + REST_SECONDS
            else:
                self.troubles[source.name] = str(error)
            return {}
        self.troubles[source.name] = None
        if status is not None:
            self.rollout = status
        before = self.before.get(id(source))
        self.before[id(source)] = after
        found = derive.readings(before, after, source.name) | devices.of_exporter(after)
        if only:
            return {key: value for key, value in found.items() if key.partition("|")[0] in only}
        return found

    # The page

    def page(self) -> str:
        """The dashboard, in one piece."""
        return PAGE.read_text(encoding="utf-8")

    def series(self, start: float) -> dict[str, list[list[float]]]:
        """`[seconds, value]` by key, from `start` on."""
        rows = [row for row in self.past if row[0] >= start]
        found: dict[str, list[list[float]]] = {}
        for time_s, values in rows[:: max(1, len(rows) // POINTS)]:
            for key, value in values.items():
                found.setdefault(key, []).append([round(time_s, 3), round(value, 6)])
        return found

    async def data(self, window_seconds: float) -> dict[str, Any]:
        """What the dashboard asks for every few seconds."""
        now = time.time()
        window = min(max(window_seconds, 10.0), KEPT_SECONDS)
        return {
            "schema": "joymigrate.monitor/1",
            "now": now,
            "window": window,
            "interval": self.interval_seconds,
            "titles": derive.describe(),
            "series": self.series(now - window),
            "latest": self.latest,
            "events": list(reversed((self.rollout or {}).get("events", ()))),
            "rollout": self.rollout,
            "cluster": self.cluster,
            "sources": [
                {"name": source.name, "trouble": self.troubles.get(source.name)}
                for source in self.sources
                if not (isinstance(source, MonitorPage) and source.only)
            ],
        }

    async def change(self, sources: Sequence[MetricSource]) -> None:
        """Read these from the next look on; what is known of one that stays is kept."""
        known = {place_of(source): source for source in self.sources}
        kept = [known.get(place_of(source), source) for source in sources]
        gone = [source for source in self.sources if source not in kept]
        self.sources = kept
        for source in gone:
            self.before.pop(id(source), None)
            if isinstance(source, MonitorPage):
                await source.close()

    async def close(self) -> None:
        """Let go of connections."""
        for source in self.sources:
            if isinstance(source, MonitorPage):
                await source.close()


def place_of(source: MetricSource) -> tuple[object, ...]:
    """What makes two sources the same one."""
    if isinstance(source, MonitorPage):
        return (source.name, source.url, source.key, source.only)
    return (source.name,)


def of_cluster(found: Snapshot) -> bool:
    """Whether a `/metrics` page is that of a cluster's controller."""
    return any(name.startswith("joymigrate_cluster_") for name in found.values)
