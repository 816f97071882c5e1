"""From a command line to the captain of a Ray cluster; an order starts one where there is none."""

from __future__ import annotations

import asyncio
import getpass
import importlib
import os
import socket
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.cluster.jobs import Workload
from joymigrate.run.cluster.on_ray.empty_cluster import Beforehand

ACTOR = "joymigrate-captain"
NAMESPACE = "joymigrate"
BEGINS = ("submit", "order", "set_quotas")  # what starts a controller where there is none
KNOCK_S = 5.0


def attach(address: str | None, embedded: bool = False) -> Any:
    """Connect to Ray; `embedded` starts one in this process when no address is given."""
    try:
        import ray
    except ImportError as error:
        raise JoyError("this needs ray", help="pip install 'joymigrate[cluster]'") from error
    where = address or os.environ.get("RAY_ADDRESS")
    if ray.is_initialized():  # a command that asks twice
        return ray
    if where is not None:
        knock(where)
    keep_stdout()
    options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False}
    options["logging_level"] = "ERROR"
    try:
        if where is None and embedded:
            ray.init(include_dashboard=False, **options)
        else:
            ray.init(address=where or "auto", **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise JoyError(
            f"no Ray cluster answers: {str(error).splitlines()[0][:200]}",
            where=where or "the local machine",
            help="start one with `ray start --head`, or name it with --address",
        ) from error
    return ray


def keep_stdout() -> None:
    """Let Ray say on stderr what its raylets report, such as a killed controller.

    It prints that to stdout, into our data, whatever `log_to_driver` says (ray 2.60,
    `listen_error_messages`); there is no setting for it.
    """
    worker = importlib.import_module("ray._private.worker")
    plain = getattr(worker, "print_to_stdstream", None)
    if plain is None or hasattr(plain, "aside"):
        return

    def print_aside(data: dict[str, Any], *more: Any, **named: Any) -> None:
        plain({**data, "is_err": True}, *more, **named)

    print_aside.aside = True  # type: ignore[attr-defined]
    worker.print_to_stdstream = print_aside  # type: ignore[attr-defined]


def knock(address: str) -> None:
    """Raise `JoyError` when nobody listens at HOST:PORT. Ray itself asks on for five minutes."""
    host, _, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if not host or not port.isdigit():
        return  # `auto`, `local`: Ray knows where to look
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_S).close()
    except (OSError, OverflowError) as error:
        raise JoyError(
            f"no Ray cluster answers: {getattr(error, 'strerror', None) or error}",
            where=address,
            help="start one with `ray start --head`, or name it with --address",
        ) from error


def whoami() -> str:
    """Who asks, as far as this machine knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


class ControllerClient:
    """The detached actor as a command line speaks to it.

    Before the first job there is none. What only looks is then answered from Ray's nodes and starts
    nothing; a job or an order starts it, on the head node. When it dies, Ray starts it anew and
    asks again what it was asked meanwhile. `store` is the folder of its log, "" for Ray's own.
    """

    def __init__(self, ray: Any, policy: str = "topology", store: str = "") -> None:
        self.ray, self.policy, self.store = ray, policy, store
        self.handle: Any = None
        self.find()

    def find(self) -> Any:
        """The running actor, or None."""
        if self.handle is None:
            try:
                self.handle = self.ray.get_actor(ACTOR, namespace=NAMESPACE)
            except ValueError:
                return None
        return self.handle

    def start(self, workload: Workload | None = None) -> Any:
        """The running actor, else a new one with the queues of `workload`."""
        from joymigrate.run.cluster.on_ray.controller import Controller

        if self.handle is None:
            options = {
                "name": ACTOR, "namespace": NAMESPACE, "lifetime": "detached",
                "get_if_exists": True, "num_cpus": 0, "max_concurrency": 64, "max_restarts": -1,
                "max_task_retries": -1,
                # The head node lives as long as Ray does; any other one may go.
                "resources": {"node:__internal_head__": 0.001},
            }  # fmt: skip
            actor = self.ray.remote(Controller).options(**options)
            self.handle = actor.remote(workload or Workload(()), self.policy, self.store)
        return self.handle

    def ask(self, method: str, *arguments: Any) -> Any:
        """The captain's answer; the user's mistakes come back as such."""
        if self.find() is None:
            before = Beforehand(self.ray)
            answer = asyncio.run(getattr(before, method)(*arguments))
            if method not in BEGINS:
                return answer
            self.start()
        try:
            return self.ray.get(getattr(self.handle, method).remote(*arguments))
        except Exception as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, JoyError):
                raise JoyError(cause.what, where=cause.where, help=cause.help) from None
            if isinstance(error, self.ray.exceptions.RayActorError):
                raise JoyError(
                    f"the scheduler on Ray is gone: {str(error).splitlines()[0][:200]}",
                    help="submit again; it is started anew",
                ) from error
            raise
