"""`gateway.yaml` → `Settings`: upstreams, rollout, limits, keys; a mistake is one clear error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.serve.gateway.checks import (
    HELP,
    check_keys,
    checked,
    listed,
    mapping,
    number,
    record,
    secret,
    url_trouble,
)
from joymigrate.run.serve.gateway.events import PRIMARY, SECOND, Plan
from joymigrate.run.serve.gateway.evidence import Cusum, EProcess, Literal, Rule
from joymigrate.run.serve.gateway.fronts import (
    accepted,
    cors_of,
    forwarding,
    server_tls,
    upstream_tls,
)
from joymigrate.run.serve.web import limits as web_limits
from joymigrate.run.serve.web.cors import Cors
from joymigrate.run.serve.web.keys import Key
from joymigrate.run.serve.web.tls import Tls

RULES: dict[str, Callable[..., Rule]] = {"cusum": Cusum, "literal": Literal, "eprocess": EProcess}
PARAMETERS: dict[str, dict[str, type]] = {
    "cusum": {"p0": float, "p1": float, "h": float},
    "literal": {"limit": float, "window": int, "minimum": int},
    "eprocess": {"limit": float, "alpha": float},
}
ROLES = (PRIMARY, SECOND)
TOKEN_IDS = ("auto", "ask", "off")


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """One backend: one address or several equal ones. `token_ids` says how ids are asked for."""

    name: str
    role: str
    urls: tuple[str, ...]
    chip: str | None = None
    model: str | None = None  # what the verdict in the ledger is about
    ledger: str | None = None  # project whose ledger is asked
    key: str | None = None  # sent to the upstream instead of the client's
    connections: int = 4096
    health: str | None = None  # path; default: /health, else /v1/models
    token_ids: str = "auto"
    folder: str | None = None  # served by an engine in this process, instead of a url
    dtype: str = "auto"  # of that engine
    device: str = "cpu"
    serves: str | None = None  # what its clients call it; default: the folder's name
    tls: Tls | None = None  # beyond what https says: a CA, our certificate
    forward: tuple[str, ...] = ()  # of the client's: authorization, cookie


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may take. `attempts` counts what is tried before the first byte."""

    body_bytes: int = 16 * 2**20
    header_bytes: int = 16 * 2**10
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    connect_seconds: float = 2.0
    first_byte_seconds: float = 20.0
    idle_seconds: float = 10.0
    total_seconds: float = 600.0
    keepalive_seconds: float = 2.0  # shorter than what servers use, or idle connections go stale
    queue: int = 4096
    queue_seconds: float = 5.0
    drain_seconds: float = 30.0
    attempts: int = 3


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """How backends are checked, and how many equal answers change an opinion."""

    interval_seconds: float = 2.0
    timeout_seconds: float = 2.0
    down_after: int = 3
    up_after: int = 1


@dataclass(frozen=True, slots=True)
class ShadowSettings:
    """How much of the primary's traffic is mirrored to the standby, and how many at once."""

    percent: float = 0.0
    concurrency: int = 16


@dataclass(frozen=True, slots=True)
class MonitorSettings:
    """Where history goes, for how long, and which alerts are watched."""

    history: str | None = None
    interval_seconds: float = 2.0
    retention_days: float = 14.0
    alerts: str | None = None
    devices: bool = True
    backends: bool = True  # read the backends' own /metrics, where they have one


@dataclass(frozen=True, slots=True)
class Settings:
    """A whole gateway."""

    path: Path
    host: str
    port: int
    upstreams: tuple[UpstreamSettings, ...]
    plan: Plan
    rule: Callable[[], Rule]
    sticky: str = "user"
    last_resort: bool = False  # a rolled back standby answers when the primary is down
    limits: Limits = field(default_factory=Limits)
    health: HealthSettings = field(default_factory=HealthSettings)
    shadow: ShadowSettings = field(default_factory=ShadowSettings)
    monitor: MonitorSettings = field(default_factory=MonitorSettings)
    keys: tuple[Key, ...] = ()
    admin_key: str | None = None
    state: Path = Path("gateway.state.json")
    shared: str | None = None  # a Redis url, with the rollout's name behind '#'
    log: Path | None = None
    tls: Tls | None = None
    cors: Cors = field(default_factory=Cors)
    access_log: bool = False

    @property
    def front_limits(self) -> web_limits.Limits:
        """The limits of the address."""
        own = self.limits
        return web_limits.Limits(
            body_bytes=own.body_bytes, header_bytes=own.header_bytes,
            header_seconds=own.header_seconds, body_seconds=own.body_seconds,
            drain_seconds=own.drain_seconds,
        )  # fmt: skip

    def of_role(self, role: str) -> UpstreamSettings:
        """The upstream with this role."""
        return next(upstream for upstream in self.upstreams if upstream.role == role)


TOP = (
    "listen",
    "upstreams",
    "rollout",
    "limits",
    "health",
    "shadow",
    "monitor",
    "keys",
    "admin_key",
    "state",
    "log",
    "tls",
    "cors",
    "access_log",
)


def load(path: Path) -> Settings:
    """Read and check a gateway file. Relative paths in it are relative to its folder."""
    from joymigrate.chips import read_yaml

    if not path.is_file():
        raise JoyError("no such gateway file", where=str(path), help=HELP)
    return parse(read_yaml(path), path)


def parse(raw: Any, path: Path) -> Settings:
    """Settings from parsed YAML; `path` is named in errors."""
    table = mapping(raw, "the file", path)
    check_keys(table, TOP, "the file", path)
    host, port = address(table.get("listen", "127.0.0.1:8080"), path)
    plan, rule, rest = rollout(mapping(table.get("rollout") or {}, "rollout", path), path)
    log, state = table.get("log"), table.get("state")
    shared = str(state).startswith(("redis://", "rediss://"))
    folder = path.resolve().parent
    return Settings(
        path=path,
        host=host,
        port=port,
        upstreams=upstreams(table.get("upstreams"), path),
        plan=plan,
        rule=rule,
        limits=record(Limits, table.get("limits"), "limits", path),
        health=record(HealthSettings, table.get("health"), "health", path),
        shadow=record(ShadowSettings, table.get("shadow"), "shadow", path),
        monitor=record(MonitorSettings, table.get("monitor"), "monitor", path),
        keys=accepted(table.get("keys"), path),
        admin_key=secret(table["admin_key"], path) if table.get("admin_key") else None,
        state=folder / (str(state) if state and not shared else f"{path.stem}.state.json"),
        shared=str(state) if shared else None,
        log=folder / str(log) if log else None,
        tls=server_tls(table.get("tls"), path),
        cors=cors_of(table.get("cors"), path),
        access_log=checked(table.get("access_log", False), bool, "access_log", path),
        **rest,
    )


def upstreams(raw: Any, path: Path) -> tuple[UpstreamSettings, ...]:
    """One primary and one standby."""
    table = mapping(raw, "upstreams", path)
    found = tuple(upstream(str(name), item, path) for name, item in table.items())
    for role in ROLES:
        count = sum(1 for item in found if item.role == role)
        if count != 1:
            raise JoyError(
                f"a gateway has one {role} upstream, this one has {count}",
                where=f"{path} upstreams",
                help="give one upstream `role: primary` and one `role: standby`; "
                "several equal servers go into `urls:` of one upstream",
            )
    return found


def upstream(name: str, raw: Any, path: Path) -> UpstreamSettings:
    """One item of `upstreams`."""
    where = f"upstreams.{name}"
    table = mapping(raw, where, path)
    known = [*(f.name for f in fields(UpstreamSettings) if f.name != "name"), "url"]
    check_keys(table, known, where, path)
    urls = listed(table.get("urls") or table.get("url"), f"{where}.url", path)
    if not urls:
        table = embedded(table, where, path)
    for url in urls:
        trouble = url_trouble(str(url))
        if trouble:
            raise JoyError(
                f"an upstream's url {trouble}, got {url!r}", where=f"{path} {where}", help=HELP
            )
    values = {key: value for key, value in table.items() if key not in ("url", "urls", "key")}
    key = secret(table["key"], path) if table.get("key") else None
    addresses = tuple(str(url).rstrip("/") for url in urls) or (f"engine://{name}",)
    values |= {"name": name, "key": key, "urls": addresses}
    values["tls"] = upstream_tls(table.get("tls"), f"{where}.tls", path)
    values["forward"] = forwarding(table.get("forward"), f"{where}.forward", path)
    made: UpstreamSettings = record(UpstreamSettings, {"role": "", **values}, where, path)
    for key, value, allowed in (
        ("role", made.role, ROLES),
        ("token_ids", made.token_ids, TOKEN_IDS),
    ):
        if value not in allowed:
            raise JoyError(
                f"{key} is one of {', '.join(allowed)}, got {value!r}."
                f"{did_you_mean(str(value), allowed)}",
                where=f"{path} {where}",
                help=HELP,
            )
    return made


def embedded(table: Mapping[str, Any], where: str, path: Path) -> dict[str, Any]:
    """An upstream without a url: its `model` is a folder that an engine in this process serves."""
    model = table.get("folder") or table.get("model")
    if not model:
        raise JoyError(
            "an upstream needs a url, or a model folder", where=f"{path} {where}", help=HELP
        )
    folder = path.resolve().parent / str(model)
    if not folder.is_dir():
        raise JoyError(
            "there is no such model folder", where=f"{path} {where}: {folder}", help=HELP
        )
    return {**table, "folder": str(model), "model": folder.resolve().name}


PLAN_KEYS = tuple(f.name for f in fields(Plan))
ROLLOUT_KEYS = (*PLAN_KEYS, "rule", "sticky", "last_resort")


def rollout(
    table: Mapping[str, Any], path: Path
) -> tuple[Plan, Callable[[], Rule], dict[str, Any]]:
    """The plan, the rule, and what else `rollout` says."""
    check_keys(table, ROLLOUT_KEYS, "rollout", path)
    values = {key: value for key, value in table.items() if key in PLAN_KEYS}
    if "steps" in values:
        values["steps"] = steps(values["steps"], path)
    plan = record(Plan, values, "rollout", path)
    if plan.start not in ("auto", "manual"):
        raise JoyError(
            f"start is auto or manual, got {plan.start!r}", where=f"{path} rollout", help=HELP
        )
    sticky = str(table.get("sticky", "user"))
    if sticky not in ("user", "session", "none") and not sticky.startswith("header:"):
        raise JoyError(
            f"sticky is user, session, none or header:NAME, got {sticky!r}",
            where=f"{path} rollout",
            help=HELP,
        )
    last_resort = table.get("last_resort", False)
    return (
        plan,
        rule(table.get("rule", "cusum"), path),
        {
            "sticky": sticky,
            "last_resort": checked(last_resort, bool, "rollout.last_resort", path),
        },
    )


def steps(raw: Any, path: Path) -> tuple[float, ...]:
    """Rising percentages; a last step of 100 is added where it is missing."""
    good = (
        isinstance(raw, list)
        and raw
        and all(
            isinstance(x, (int, float)) and not isinstance(x, bool) and 0 < x <= 100 for x in raw
        )
    )
    if not good or sorted(set(raw)) != raw:
        raise JoyError(
            f"steps are rising percentages up to 100, got {raw!r}",
            where=f"{path} rollout",
            help="for example steps: [1, 5, 20, 50, 100]",
        )
    return tuple(raw) if raw[-1] == 100 else (*raw, 100)


def rule(raw: Any, path: Path) -> Callable[[], Rule]:
    """`cusum`, `literal:window=10000,minimum=1000`, or a mapping with `name` and parameters."""
    where = "rollout.rule"
    if isinstance(raw, str):
        name, _, rest = raw.partition(":")
        pairs = [part.partition("=") for part in rest.split(",") if part]
        table: dict[str, Any] = {key.strip(): number(value, where, path) for key, _, value in pairs}
    else:
        table = dict(mapping(raw, where, path))
        name = str(table.pop("name", ""))
    name = name.strip().replace("-", "")
    if name not in RULES:
        raise JoyError(
            f"unknown rule {name!r}.{did_you_mean(name, RULES)}",
            where=f"{path} {where}",
            help=f"one of {', '.join(RULES)}",
        )
    known = PARAMETERS[name]
    if "min" in table:
        table["minimum"] = table.pop("min")
    check_keys(table, known, where, path)
    values = {
        key: checked(value, known[key], f"{where}.{key}", path) for key, value in table.items()
    }
    made = partial(RULES[name], **values)
    sane(name, values, path)
    return made


def sane(name: str, values: Mapping[str, Any], path: Path) -> None:
    """Parameters that make no rule at all."""
    bad = [key for key, value in values.items() if value <= 0]
    p0, p1 = values.get("p0", Cusum().p0), values.get("p1", Cusum().p1)
    if name == "cusum" and not 0 < p0 < p1 < 1:
        bad = ["p0", "p1"]
    if values.get("minimum", 1) > values.get("window", 10_000):
        bad = ["minimum"]
    if bad:
        raise JoyError(
            f"{name}: {', '.join(bad)} make no rule: {dict(values)}",
            where=f"{path} rollout.rule",
            help="0 < p0 < p1 < 1, h > 0; minimum <= window",
        )


def address(raw: Any, path: Path) -> tuple[str, int]:
    """`host:port`, `:port` or a port."""
    host, _, port = str(raw).rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise JoyError(
            f"listen is host:port, got {raw!r}", where=str(path), help="listen: 127.0.0.1:8080"
        )
    return host.strip("[]") or "127.0.0.1", int(port)
