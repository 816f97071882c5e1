"""From a command line to the captain of a Ray cluster; starts one where there is none yet."""

from __future__ import annotations

import getpass
import importlib
import os
import socket
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.cluster.jobs import Workload

ACTOR = "joymigrate-captain"
NAMESPACE = "joymigrate"
TOKEN = "JOYMIGRATE_TOKEN"
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


class ControllerClient:
    """The controller as a command line speaks to it: `captain.status.remote()` goes by `call`."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def __getattr__(self, method: str) -> ControllerCall:
        return ControllerCall(self, method)


class ControllerCall:
    """One method of the controller, under the name and the token of this command line."""

    def __init__(self, captain: ControllerClient, method: str) -> None:
        self.captain, self.method = captain, method

    def remote(self, *arguments: Any) -> Any:
        """A reference to the answer."""
        token = os.environ.get(TOKEN, "")
        return self.captain.handle.call.remote(token, whoami(), self.method, arguments)


def whoami() -> str:
    """Who asks, as far as this machine knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def captain(
    ray: Any, workload: Workload | None = None, policy: str = "topology", store: str = ""
) -> ControllerClient:
    """The detached actor: the one that runs, else a new one on the head node.

    `store` is the folder of its log, "" for Ray's own. Ray starts it anew when it dies, and asks
    again what it was asked meanwhile.
    """
    from joymigrate.run.cluster.on_ray.guarded import GuardedController

    if workload is None:
        try:
            return ControllerClient(ray.get_actor(ACTOR, namespace=NAMESPACE))
        except ValueError as error:
            raise JoyError(
                "nothing has been submitted to this Ray cluster",
                help="joymigrate cluster submit JOB.yaml --address …",
            ) from error
    handle = (
        ray.remote(GuardedController)
        .options(
            name=ACTOR, namespace=NAMESPACE, lifetime="detached", get_if_exists=True, num_cpus=0,
            max_concurrency=64, max_restarts=-1, max_task_retries=-1,
            # The head node lives as long as Ray does; any other one may go.
            resources={"node:__internal_head__": 0.001},
        )
        .remote(workload, policy, store)
    )  # fmt: skip
    return ControllerClient(handle)


def ask(ray: Any, reference: Any) -> Any:
    """The answer of the captain; the user's mistakes come back as such."""
    try:
        return ray.get(reference)
    except Exception as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, JoyError):
            raise JoyError(cause.what, where=cause.where, help=cause.help) from None
        if isinstance(error, ray.exceptions.RayActorError):
            raise JoyError(
                f"the scheduler on Ray is gone: {str(error).splitlines()[0][:200]}",
                help="submit again; it is started anew",
            ) from error
        raise
