"""`gateway.yaml` → `GatewaySettings`: upstreams, rollout, limits, keys. A mistake is one error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.serve.evidence.events import LIMIT, PRIMARY, SECOND, RolloutPlan
from joymigrate.run.serve.evidence.rule import EProcess
from joymigrate.run.serve.gateway.checks import HELP, secret, url_trouble
from joymigrate.run.serve.gateway.fronts import (
    FORWARD,
    ServerTls,
    UpstreamTls,
    read_keys,
    server_tls,
    upstream_tls,
)
from joymigrate.run.serve.web import apis
from joymigrate.run.serve.web.cors import Cors
from joymigrate.run.serve.web.keys import FROM_ENVIRONMENT, Key
from joymigrate.run.serve.web.limits import HttpLimits
from joymigrate.run.serve.web.tls import Tls
from joymigrate.schema import DocumentSource, document, load_file, read, setting

ROLES = (PRIMARY, SECOND)
TOKEN_IDS = ("auto", "ask", "off")


@dataclass(frozen=True, slots=True)
class GatewayLimits(HttpLimits):
    """What a request may take."""

    body_bytes: int = setting(16 * 2**20, "of a request's body", least=0)
    header_bytes: int = setting(16 * 2**10, "of its head", least=0)
    header_seconds: float = setting(10.0, "until the head is here", least=0)
    body_seconds: float = setting(30.0, "between two parts of the body", least=0)
    connect_seconds: float = setting(2.0, "until a backend takes the connection", least=0)
    first_byte_seconds: float = setting(20.0, "until it begins to answer", least=0)
    idle_seconds: float = setting(10.0, "between two parts of the answer", least=0)
    total_seconds: float = setting(600.0, "for the whole", least=0)
    keepalive_seconds: float = setting(  # shorter than servers use, or idle connections go stale
        2.0, "how long a connection to a backend is kept", least=0
    )
    queue: int = setting(4096, "requests that wait at most", least=0)
    queue_seconds: float = setting(5.0, "how long one waits at most", least=0)
    drain_seconds: float = setting(30.0, "for running requests when the gateway ends", least=0)
    attempts: int = setting(3, "what is tried before the first byte", least=0)
    stall_seconds: float = setting(60.0, hidden=True)
    retry_after_seconds: int = setting(1, hidden=True)


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """How backends are checked, and how many equal answers change an opinion."""

    interval_seconds: float = setting(2.0, "between two checks", least=0)
    timeout_seconds: float = setting(2.0, "for one", least=0)
    down_after: int = setting(3, "failed checks in a row", least=0)
    up_after: int = setting(1, "good ones in a row", least=0)


@dataclass(frozen=True, slots=True)
class ShadowSettings:
    """How much of the primary's traffic is mirrored to the standby, and how many at once."""

    percent: float = setting(0.0, "of the primary's requests", least=0)
    concurrency: int = setting(16, "at once", least=0)


@dataclass(frozen=True, slots=True)
class MonitorSettings:
    """What the dashboard reads, and how often."""

    interval_seconds: float = setting(2.0, "between two points", least=0)
    devices: bool = setting(True, "read the cards of this machine")
    backends: bool = setting(True, "read the backends' own /metrics, where they have one")


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """One backend: one address or several equal ones, or an engine in this process."""

    role: str = setting(help="who answers until the other is proven", choices=ROLES)
    url: tuple[str, ...] = setting((), "its address, or several equal ones", single=True)
    urls: tuple[str, ...] = setting((), "several equal addresses", single=True)
    chip: str | None = setting(None, "what it runs on", words=True)
    model: str | None = setting(None, "what the ledger's verdict is about; a folder to serve")
    ledger: str | None = setting(None, "the project whose ledger is asked", words=True)
    key: str | None = setting(
        None, f"sent in place of the client's, {FROM_ENVIRONMENT}", words=True
    )
    connections: int = setting(4096, "at most so many", least=0)
    health: str | None = setting(None, "path; default: /health, else /v1/models")
    token_ids: str = setting("auto", "whether token ids are asked for", choices=TOKEN_IDS)
    folder: str | None = setting(None, "a model folder for an engine in this process, no url")
    dtype: str = setting("auto", "of that engine")
    device: str = setting("cpu", "of that engine")
    serves: str | None = setting(None, "what its clients call it; default: the folder's name")
    tls: UpstreamTls | None = setting(None, "a CA, our certificate")
    forward: tuple[str, ...] = setting(
        (), "what of the client's credentials it sees", choices=FORWARD, single=True
    )
    name: str = setting("", hidden=True)
    secured: Tls | None = setting(None, hidden=True)  # `tls` with its files

    def __post_init__(self) -> None:
        given = () if self.name else (("url", self.url), ("urls", self.urls))  # a name: looked up
        for key, url in ((key, url) for key, urls in given for url in urls):
            if trouble := url_trouble(url):
                raise JoyError(f"an upstream's url {trouble}, got {url!r}", where=key, help=HELP)
        if not (self.url or self.urls or self.folder or self.model):
            raise JoyError("an upstream needs a url, or a model folder", help=HELP)


@dataclass(frozen=True, slots=True)
class RuleTable:
    """When a rollout is taken back."""

    SHORT = "name"

    name: str = setting(help="eprocess, or eprocess:limit=0.001,alpha=0.01")
    limit: float | None = setting(None, "the share of failures that is too much", above=0, most=1)
    alpha: float | None = setting(None, "how often it may be wrong", above=0, most=1)


@dataclass(frozen=True, slots=True)
class RolloutTable(RolloutPlan):
    """The plan of a rollout, its rule, and who keeps to which backend."""

    rule: RuleTable = setting(make=lambda: RuleTable("eprocess"), help="when it is taken back")
    sticky: str = setting("user", "user, session, none or header:NAME")
    last_resort: bool = setting(False, "a rolled back standby answers when the primary is down")

    def __post_init__(self) -> None:
        if not self.steps or sorted(set(self.steps)) != list(self.steps):
            raise JoyError(
                f"steps are rising percentages up to 100, got {list(self.steps)!r}",
                where="steps",
                help="for example steps: [1, 5, 20, 50, 100]",
            )
        if self.sticky not in ("user", "session", "none", *self.headers):
            raise JoyError(
                f"sticky is user, session, none or header:NAME, got {self.sticky!r}",
                where="sticky",
                help=HELP,
            )
        rule(self.rule, "rule")

    @property
    def headers(self) -> tuple[str, ...]:
        """`sticky` where it names a header."""
        return (self.sticky,) if self.sticky.startswith("header:") else ()

    def plan(self) -> RolloutPlan:
        """The plan alone; a last step of 100 is added where it is missing."""
        values = {one.name: getattr(self, one.name) for one in fields(RolloutPlan)}
        steps = self.steps if self.steps[-1] == 100 else (*self.steps, 100.0)
        return RolloutPlan(**{**values, "steps": steps})


@document("gateway", "Two services behind one address: `serve --config gateway.yaml`.")
@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """A gateway's file. Relative paths in it are relative to its folder."""

    upstreams: Mapping[str, UpstreamSettings] = setting(help="one primary and one standby")
    listen: str = setting("127.0.0.1:8080", "host:port, :port or a port", words=True)
    rollout: RolloutTable = setting(make=RolloutTable, help="how the standby takes over")
    limits: GatewayLimits = setting(make=GatewayLimits, help="what a request may take")
    health: HealthSettings = setting(make=HealthSettings, help="how backends are checked")
    shadow: ShadowSettings = setting(make=ShadowSettings, help="mirrored requests")
    monitor: MonitorSettings = setting(make=MonitorSettings, help="what the dashboard reads")
    keys: tuple[Key, ...] = setting((), "who may come in; nobody named: all", single=True)
    admin_key: str | None = setting(None, f"for /admin, {FROM_ENVIRONMENT}", words=True)
    state: str | None = setting(None, "where the rollout is kept: a file, or a Redis url")
    log: str | None = setting(None, "where its steps are written", words=True)
    tls: ServerTls | None = setting(None, "the certificate to listen with")
    cors: Cors = setting(make=Cors, help="pages that a browser may let in")
    access_log: bool = setting(False, "one JSON line a request on stdout")
    envoy: str | None = setting(None, "host:port where Envoy's ext_proc filter asks", words=True)
    allow: tuple[str, ...] = setting(
        (), "more paths that are passed on, unjudged; all below one that ends in /", single=True
    )
    path: Path = setting(Path("gateway.yaml"), hidden=True)

    def __post_init__(self) -> None:
        for role in ROLES:
            count = sum(one.role == role for one in self.upstreams.values())
            if count != 1:
                raise JoyError(
                    f"a gateway has one {role} upstream, this one has {count}",
                    where="upstreams",
                    help="give one upstream `role: primary` and one `role: standby`; "
                    "several equal servers go into `urls:` of one upstream",
                )
        address(self.listen)
        check_paths(self.allow)

    @property
    def folder(self) -> Path:
        """Where the file lies."""
        return self.path.resolve().parent

    @property
    def host(self) -> str:
        """Where to listen."""
        return address(self.listen)[0]

    @property
    def port(self) -> int:
        """On which port."""
        return address(self.listen)[1]

    @property
    def log_file(self) -> Path | None:
        """Where the rollout's steps are written."""
        return self.folder / self.log if self.log else None

    @property
    def shared(self) -> str | None:
        """A Redis url, with the rollout's name behind '#'."""
        return self.state if str(self.state).startswith(("redis://", "rediss://")) else None

    @property
    def state_file(self) -> Path:
        """Where the rollout is kept here."""
        named = self.state if self.shared is None else None
        return self.folder / (named or f"{self.path.stem}.state.json")

    @property
    def secured(self) -> Tls | None:
        """The certificate to listen with."""
        return server_tls(self.tls, self.folder)

    @property
    def plan(self) -> RolloutPlan:
        """How the standby takes over."""
        return self.rollout.plan()

    @property
    def rule(self) -> Callable[[], EProcess]:
        """What takes it back."""
        return rule(self.rollout.rule, str(self.path), self.rollout.limit)

    def of_role(self, role: str) -> UpstreamSettings:
        """The upstream with this role."""
        return next(one for one in self.upstreams.values() if one.role == role)


def load(path: Path) -> GatewaySettings:
    """Read and check a gateway file. Relative paths in it are relative to its folder."""
    if not path.is_file():
        raise JoyError("no such gateway file", where=str(path), help=HELP)
    raw, source = load_file(path, "gateway file", HELP)
    return resolve(read(GatewaySettings, raw, source, help=HELP), path, source)


def parse(raw: Any, path: Path) -> GatewaySettings:
    """Settings from parsed YAML; `path` is named in errors."""
    file = read(GatewaySettings, raw, str(path), help=HELP)
    return resolve(file, path, DocumentSource(str(path)))


def resolve(file: GatewaySettings, path: Path, source: DocumentSource) -> GatewaySettings:
    """What a file names, looked up: secrets, files, folders of models."""
    return replace(
        file,
        path=path,
        upstreams={
            name: resolve_upstream(name, one, path, source.at(("upstreams", name)))
            for name, one in file.upstreams.items()
        },
        keys=read_keys(file.keys, path),
        admin_key=secret(file.admin_key, path) if file.admin_key else None,
        cors=Cors.of(file.cors.origins, str(path)),
    )


def check_paths(paths: tuple[str, ...]) -> None:
    """More paths that are passed on: none that the table of APIs keeps for operators."""
    for path in paths:
        known = apis.find(path)
        kept = known is not None and known.who == apis.ADMIN
        if not path.startswith("/") or path == "/" or kept:
            why = "is for operators, with the admin key" if kept else "is no path below /"
            raise JoyError(f"allow: {path!r} {why}", where="allow",
                           help="for example allow: [/v1/files, /my/api/]")  # fmt: skip


def resolve_upstream(
    name: str, given: UpstreamSettings, path: Path, where: str | None
) -> UpstreamSettings:
    """One item of `upstreams`. One without a url is a model folder that an engine serves here."""
    urls = tuple(url.rstrip("/") for url in given.urls or given.url)
    folder, model = given.folder, given.model
    if not urls:
        folder = given.folder or given.model
        inside = path.resolve().parent / str(folder)
        if not inside.is_dir():
            raise JoyError("there is no such model folder", where=f"{where}: {inside}", help=HELP)
        model = inside.resolve().name
    return replace(
        given,
        name=name,
        url=(),
        urls=urls or (f"engine://{name}",),
        model=model,
        folder=folder,
        key=secret(given.key, path) if given.key else None,
        secured=upstream_tls(given.tls, path.resolve().parent),
    )


def rule(given: RuleTable | str, where: str | None, limit: float = LIMIT) -> Callable[[], EProcess]:
    """`eprocess`, `eprocess:alpha=0.001`, or a table with `name` and parameters.

    `limit` is the one that the ramp has to prove: the rule's own where it names none.
    `cusum` is the old name of the default rule. Its parameters, and the rule `literal`, are gone.
    """
    table = RuleTable(given) if isinstance(given, str) else given
    name, _, rest = table.name.partition(":")
    name = name.strip().replace("-", "")
    if name == "literal" or (name == "cusum" and rest):
        raise JoyError(f"rule: '{table.name}' is gone", where=where,
                       help="write `rule: eprocess`, or `rule: eprocess:limit=0.001,alpha=0.01`: "
                            "the failures allowed, and how often it may be wrong")  # fmt: skip
    if name not in ("eprocess", "cusum"):
        raise JoyError(f"unknown rule {name!r}.{did_you_mean(name, ['eprocess'])}", where=where,
                       help="write `rule: eprocess`")  # fmt: skip
    values: dict[str, float | None] = {"limit": table.limit or limit, "alpha": table.alpha}
    for part in filter(None, rest.split(",")):
        key, _, text = part.partition("=")
        key = key.strip()
        if key not in values:
            raise JoyError(f"eprocess has no '{key}'.{did_you_mean(key, values)}", where=where,
                           help=f"one of {', '.join(values)}")  # fmt: skip
        values[key] = share(key, text, where)
    return partial(EProcess, **{key: value for key, value in values.items() if value is not None})


def share(key: str, text: str, where: str | None) -> float:
    """A parameter of the rule's short form: between 0 and 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise JoyError(f"eprocess: {key} is between 0 and 1, got {text!r}", where=where,
                       help="for example eprocess:limit=0.001,alpha=0.01")  # fmt: skip
    return value


def address(raw: str) -> tuple[str, int]:
    """`host:port`, `:port` or a port."""
    host, _, port = raw.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise JoyError(
            f"listen is host:port, got {raw!r}", where="listen", help="listen: 127.0.0.1:8080"
        )
    return host.strip("[]") or "127.0.0.1", int(port)
