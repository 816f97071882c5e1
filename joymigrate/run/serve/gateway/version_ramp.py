"""New versions of a ranking model go through the gateway's ramp, as a standby does.

Two ranking servers follow the same published versions and hold what they are told (`serve --hold`).
A new version is given to the standby alone, ramped on evidence, and given to the primary when it is
promoted; then all traffic is the primary's again, and the next version may come. One that is rolled
back is refused: the standby returns to the primary's version.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate import files
from joymigrate.errors import JoyError
from joymigrate.run.serve.evidence.events import PAUSED, PROMOTED, RAMPING, ROLLED_BACK

log = logging.getLogger("joymigrate.serve")
PRIMARY, STANDBY, GATEWAY = "primary", "standby", "gateway"
DIFFERS = "differs"  # paused without traffic: the rankings differ, and nobody can say who is wrong


@dataclass(frozen=True, slots=True)
class RampView:
    """What is seen: both servers' versions, the newest that both can go to, the rollout's state."""

    primary: int
    standby: int
    newest: int
    state: str


@dataclass(frozen=True, slots=True)
class RampAction:
    """Tell a server to go to a version, or the gateway an order."""

    to: str
    version: int = 0
    order: str = ""


@dataclass(slots=True)
class VersionRamp:
    """Which step is next. Pure; `tried` and `refused` are all that it remembers."""

    tried: int = 0
    refused: set[int] = field(default_factory=set)

    def decide(self, view: RampView) -> RampAction | None:
        """The next step, or None while nothing is to be done."""
        if view.state == PROMOTED:
            if view.primary != view.standby:
                return RampAction(PRIMARY, view.standby)
            return RampAction(GATEWAY, order="rollback")  # both hold it: the ramp is free again
        if view.state == DIFFERS:  # of the two, the standby's version is the new one
            return RampAction(GATEWAY, order="rollback")
        if view.state in (RAMPING, PAUSED):
            return None
        if view.state == ROLLED_BACK and self.tried not in (0, view.primary):
            self.refused.add(self.tried)
            self.tried = 0
        if view.newest <= view.primary or view.newest in self.refused:
            return RampAction(STANDBY, view.primary) if view.standby != view.primary else None
        if view.standby != view.newest:
            return RampAction(STANDBY, view.newest)
        self.tried = view.newest
        return RampAction(GATEWAY, order="resume")


@dataclass(slots=True)
class RampServers:
    """Where the three servers are, and the keys of their orders."""

    gateway: str
    primary: str
    standby: str
    key: str = ""


async def follow(
    places: RampServers,
    memory: Path,
    poll_seconds: float,
    say: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    """Drive the ramp until `stop`; who is away is waited for."""  # fmt: skip
    import aiohttp

    ramp = read_memory(memory)
    trouble = ""
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while not stop.is_set():
            try:
                before = (ramp.tried, set(ramp.refused))
                view = await look(session, places)
                action = ramp.decide(view)
                if (ramp.tried, ramp.refused) != before:
                    remember(memory, ramp)
                if action is not None:
                    say(word_action(action, view))
                    await act(session, places, action)
                    trouble = ""
                    continue
                trouble = ""
            except (aiohttp.ClientError, OSError, ValueError, KeyError) as error:
                said = str(error) or type(error).__name__
                if said != trouble:
                    say(f"waiting: {said}")
                trouble = said
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(stop.wait(), poll_seconds)


async def look(session: Any, places: RampServers) -> RampView:
    """Ask all three how they are."""
    primary, standby = [
        await answer(session.get(f"{url}/ready")) for url in (places.primary, places.standby)
    ]
    rollout = await answer(
        session.get(f"{places.gateway}/admin/rollout", headers=bearer(places.key))
    )
    for said, name in ((primary, PRIMARY), (standby, STANDBY)):
        if "newest_version" not in said:
            raise ValueError(f"the {name} holds no versions: start it with --versions and --hold")
    state = str(rollout["state"])
    roles = {name: upstream["role"] for name, upstream in rollout["upstreams"].items()}
    given = sum(share for name, share in rollout["weights"].items() if roles[name] == STANDBY)
    if state == PAUSED and not given:
        state = DIFFERS
    return RampView(int(primary["model_version"]), int(standby["model_version"]),
                    min(int(primary["newest_version"]), int(standby["newest_version"])),
                    state)  # fmt: skip


async def act(session: Any, places: RampServers, action: RampAction) -> None:
    """Do one step."""
    if action.to == GATEWAY:
        await answer(session.post(f"{places.gateway}/admin/rollout", json={"order": action.order},
                                  headers=bearer(places.key)))  # fmt: skip
        return
    url = places.primary if action.to == PRIMARY else places.standby
    await answer(session.post(f"{url}/admin/version/go", json={"version": action.version},
                              headers={"X-Admin-Key": places.key}))  # fmt: skip


async def answer(asked: Any) -> Mapping[str, Any]:
    """The JSON of an answer; raises `ValueError` for any but 200."""
    async with asked as reply:
        body = await reply.read()
        if reply.status != 200:
            raise ValueError(
                f"{reply.url}: status {reply.status}: {body[:300].decode('utf-8', 'replace')}"
            )
        found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError(f"{reply.url}: no object came")
    return found


def bearer(key: str) -> dict[str, str]:
    """The gateway's admin key as a header."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def word_action(action: RampAction, view: RampView) -> str:
    """A step for the log."""
    if action.to != GATEWAY:
        return f"the {action.to} goes to version {action.version}"
    if action.order == "resume":
        return f"version {view.standby} begins its ramp"
    if view.state == DIFFERS:
        return f"version {view.standby} ranks otherwise than {view.primary}: it is taken back"
    return f"version {view.primary} is promoted and held by both: traffic is the primary's again"


def read_memory(path: Path) -> VersionRamp:
    """What an earlier process knew. Raises `JoyError` for a file that is none of ours."""
    try:
        found = json.loads(path.read_text())
        return VersionRamp(int(found["tried"]), {int(one) for one in found["refused"]})
    except FileNotFoundError:
        return VersionRamp()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JoyError(f"cannot read the state of version ramps: {error}", where=str(path),
                       help="remove the file: versions that were refused are tried again",
                       ) from None  # fmt: skip


def remember(path: Path, ramp: VersionRamp) -> None:
    """Write down what was tried and refused, before it is acted on."""
    data = json.dumps({"tried": ramp.tried, "refused": sorted(ramp.refused)}).encode()
    files.replace_file(path, data, durable=True)
