"""The monitor as a running service: reads sources, keeps history, watches alerts, serves a page."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from joymigrate.errors import JoyError
from joymigrate.run.serve.monitor import alerts, derive, devices, notify, snapshot
from joymigrate.run.serve.monitor.history import History
from joymigrate.run.serve.monitor.metrics import Metrics
from joymigrate.run.serve.monitor.snapshot import Snapshot

PAGE = Path(__file__).parent / "page.html"
DEVICE_SECONDS = 5.0
COMPACT_SECONDS = 300.0
READ_SECONDS = 5.0
BOARD_SECONDS = 5.0  # between two looks at a cluster: every waiting job's reason is worked out
REST_SECONDS = 60.0  # before a backend without metrics is asked again
MAX_WINDOW_SECONDS = 90 * 86_400.0


class Source(Protocol):
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


class Page:
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

    sources: Sequence[Source]
    history: History
    watch: alerts.Alerts
    places: Sequence[alerts.Place] = ()
    interval_seconds: float = 2.0
    devices: bool = True
    talk: Callable[[str], None] = lambda line: None
    send: notify.Send | None = None
    before: dict[int, Snapshot] = field(default_factory=dict)
    latest: dict[str, float] = field(default_factory=dict)
    troubles: dict[str, str | None] = field(default_factory=dict)
    rollout: dict[str, Any] | None = None
    cluster: dict[str, Any] | None = None
    told: dict[tuple[str, str, str], float] = field(default_factory=dict)
    seen_events: set[tuple[float, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        saved = self.history.noted("alerts")
        if saved:
            self.watch.restore(saved)
            now = time.time()
            self.told = {
                (place.kind + place.url, name, who): now
                for place in self.places
                for (name, who), state in self.watch.states.items()
                if state.firing
            }

    async def run(self) -> None:
        """Look for ever."""
        looked = compacted = 0.0
        while True:
            now = time.time()
            read_devices = self.devices and now - looked >= DEVICE_SECONDS
            looked = now if read_devices else looked
            try:
                await self.look(now, read_devices)
                if now - compacted >= COMPACT_SECONDS:
                    compacted = now
                    await asyncio.to_thread(self.history.compact, now)
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
        await asyncio.to_thread(self.history.add, now, values)
        changes = self.watch.handle(now, values)
        if changes:
            self.history.note("alerts", self.watch.snapshot())
            for change in changes:
                kind = "alert" if change.firing else "resolved"
                self.history.event(now, kind, f"{change.name}: {change.text}")
        await self.tell(now, changes)

    async def read(self, source: Source) -> dict[str, float]:
        """The readings of one source; none while it does not answer."""
        only = source.only if isinstance(source, Page) else frozenset()
        if isinstance(source, Page) and source.resting_until > time.time():
            return {}
        try:
            after = await source.read()
            status = await source.status()
            if isinstance(source, Page) and of_cluster(after):
                self.cluster = await source.board(time.time()) or self.cluster
        except (JoyError, OSError) as error:
            if isinstance(source, Page) and only:
                source.resting_until = time.time() + REST_SECONDS
            else:
                self.troubles[source.name] = str(error)
            return {}
        self.troubles[source.name] = None
        if status is not None:
            self.rollout = status
            self.keep_events(status)
        before = self.before.get(id(source))
        self.before[id(source)] = after
        found = derive.readings(before, after, source.name) | devices.of_exporter(after)
        if only:
            return {key: value for key, value in found.items() if key.partition("|")[0] in only}
        return found

    def keep_events(self, status: Mapping[str, Any]) -> None:
        """Rollout events go to the history once."""
        until = float(self.history.noted("events_until") or 0.0)
        for event in status.get("events", ()):
            mark = (event["time"], event["text"])
            if mark in self.seen_events:
                continue
            self.seen_events.add(mark)
            if event["time"] > until:
                self.history.event(event["time"], event["kind"], event["text"])
        last = max((event["time"] for event in status.get("events", ())), default=0.0)
        if last > until:
            self.history.note("events_until", last)

    async def tell(self, now: float, changes: Sequence[alerts.Change]) -> None:
        """Each place hears of each change once, and of what goes on as often as it wants to."""
        for place in self.places:
            news = [change for change in changes if self.is_news(place, change, now)]
            if place.repeat_seconds:
                news += self.reminders(place, now)
            if news:
                done = asyncio.to_thread(notify.tell, news, [place], now, self.talk, self.send)
                for trouble in await done:
                    self.talk(f"monitor: could not tell {trouble}")

    def is_news(self, place: alerts.Place, change: alerts.Change, now: float) -> bool:
        """Whether this place has not heard it yet."""
        mark = (place.kind + place.url, change.name, change.who)
        if change.firing:
            fresh = mark not in self.told
            self.told[mark] = now
            return fresh
        return self.told.pop(mark, None) is not None

    def reminders(self, place: alerts.Place, now: float) -> list[alerts.Change]:
        """Alerts that go on for longer than the place wants to wait."""
        due = []
        for row in self.watch.firing():
            mark = (place.kind + place.url, row["name"], row["who"])
            if mark in self.told and now - self.told[mark] >= place.repeat_seconds:
                self.told[mark] = now
                due.append(
                    alerts.Change(
                        now,
                        row["name"],
                        row["who"],
                        True,
                        row["value"],
                        row["severity"],
                        row["text"],
                    )
                )
        return due

    # The page

    def page(self) -> str:
        """The dashboard, in one piece."""
        return PAGE.read_text(encoding="utf-8")

    async def data(self, window_seconds: float) -> dict[str, Any]:
        """What the dashboard asks for every few seconds."""
        now = time.time()
        window = min(max(window_seconds, 10.0), MAX_WINDOW_SECONDS)
        series = await asyncio.to_thread(self.history.read, now - window, now)
        return {
            "schema": "joymigrate.monitor/1",
            "now": now,
            "window": window,
            "interval": self.interval_seconds,
            "titles": derive.describe(),
            "series": series,
            "latest": self.latest,
            "events": self.history.events(),
            "alerts": self.watch.firing(),
            "rollout": self.rollout,
            "cluster": self.cluster,
            "sources": [
                {"name": source.name, "trouble": self.troubles.get(source.name)}
                for source in self.sources
                if not (isinstance(source, Page) and source.only)
            ],
        }

    async def change(self, sources: Sequence[Source]) -> None:
        """Read these from the next look on; what is known of one that stays is kept."""
        known = {place_of(source): source for source in self.sources}
        kept = [known.get(place_of(source), source) for source in sources]
        gone = [source for source in self.sources if source not in kept]
        self.sources = kept
        for source in gone:
            self.before.pop(id(source), None)
            if isinstance(source, Page):
                await source.close()

    async def close(self) -> None:
        """Let go of connections and the file."""
        for source in self.sources:
            if isinstance(source, Page):
                await source.close()
        with contextlib.suppress(Exception):
            self.history.close()


def place_of(source: Source) -> tuple[object, ...]:
    """What makes two sources the same one."""
    if isinstance(source, Page):
        return (source.name, source.url, source.key, source.only)
    return (source.name,)


def of_cluster(found: Snapshot) -> bool:
    """Whether a `/metrics` page is that of a cluster's controller."""
    return any(name.startswith("joymigrate_cluster_") for name in found.values)


def assemble(
    sources: Sequence[Source],
    *,
    history: Path,
    retention_days: float = 14.0,
    interval_seconds: float = 2.0,
    alert_file: Path | None = None,
    read_devices: bool = True,
    talk: Callable[[str], None] = lambda line: None,
) -> Monitor:
    """A monitor from what a user says. Without a file of alerts the built-in ones are logged."""
    rules, places = alerts.load(alert_file) if alert_file else alerts.load()
    return Monitor(
        sources,
        History(history, retention_days),
        alerts.Alerts(rules),
        places,
        interval_seconds,
        read_devices,
        talk,
    )
