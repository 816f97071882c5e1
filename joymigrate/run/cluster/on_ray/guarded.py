"""The controller as command lines reach it: each request has a name, a role, and an audit line."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.cluster.controller import access
from joymigrate.run.cluster.controller.ledger import Fact
from joymigrate.run.cluster.controller.reports import read_audit
from joymigrate.run.cluster.on_ray.controller import Controller


class GuardedController(Controller):
    """The actor. `call` is the way in; what it refuses or changes is in the audit log."""

    async def call(self, token: str, said: str, method: str, arguments: Sequence[Any] = ()) -> Any:
        """Ask `method` for whoever has this token; `said` is the name that a command line says."""
        at, by, about = time.time(), said or "?", ""
        try:
            caller = access.find_caller(self.ledger, token, said)
            by = caller.name
            given, about = access.grant(self.ledger, caller, method, arguments)
        except JoyError as error:
            self._write([access.audit(by, method, about, f"refused: {error.what}", at)])
            raise
        try:
            answer = await getattr(self, method)(*given)
        except JoyError as error:
            if not access.RULES[method].quiet:
                self._write([access.audit(by, method, about, f"failed: {error.what}", at)])
            raise
        if not access.RULES[method].quiet:
            self._write([access.audit(by, method, about, "done", at)])
        return answer

    async def add_user(self, name: str, role: str, queues: Sequence[str], by: str = "") -> str:
        """Make a user; returns their token, which is shown this once."""
        user, token = access.new_user(self.ledger, name, role, queues)
        data = {"user": dataclasses.asdict(user)}
        self._write([Fact("user_added", time.time(), "", by, data)])
        return token

    async def remove_user(self, name: str, by: str = "") -> None:
        """Take a user's token back; their jobs stay."""
        access.check_removal(self.ledger, name)
        self._write([Fact("user_removed", time.time(), "", by, {"name": name})])

    async def users(self) -> list[dict[str, Any]]:
        """The users with their roles."""
        return [
            {"user": one.name, "role": one.role, "queues": list(one.queues)}
            for one in self.ledger.users.values()
        ]

    async def audit(self, count: int = 0) -> list[dict[str, Any]]:
        """Who asked for what, when, and whether it was done."""
        return await asyncio.to_thread(read_audit, self.store.folder, count)
