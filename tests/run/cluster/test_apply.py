"""`cluster apply` over HTTP: the official client against a server of the few paths it needs.

The server is no Kubernetes: it lists three kinds, checks a body against the strict schemas of the
core kinds, and answers refusals in the API's own form (`Status`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from joymigrate.errors import JoyError
from joymigrate.run.cluster.kubernetes.apply import AppliedObject, apply
from joymigrate.run.cluster.kubernetes.validate import ManifestObject

pytest.importorskip("kubernetes", reason="pip install 'joymigrate[cluster]'")
kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="pip install 'joymigrate[cluster]'"
)

KINDS = {
    "api/v1": [("configmaps", "ConfigMap", True), ("namespaces", "Namespace", False)],
    "apis/batch/v1": [("jobs", "Job", True)],
}
VERBS = ["get", "list", "patch", "create"]


class Server(ThreadingHTTPServer):
    """Objects by path, and what was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, dict[str, Any]] = {}
        self.owners: dict[str, str] = {}
        self.asked: list[tuple[str, dict[str, list[str]]]] = []


class Handler(BaseHTTPRequestHandler):
    """Discovery and server-side apply."""

    server: Server

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def answer(self, code: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def refuse(self, code: int, reason: str, message: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
        self.answer(code, {**status, "reason": reason, "message": message})

    def do_GET(self) -> None:
        path = urlsplit(self.path).path.strip("/")
        if path == "version":
            self.answer(200, {"major": "1", "minor": "30", "gitVersion": "v1.30.0"})
        elif path == "api":
            self.answer(200, {"kind": "APIVersions", "versions": ["v1"]})
        elif path == "apis":
            version = {"groupVersion": "batch/v1", "version": "v1"}
            batch = {"name": "batch", "versions": [version], "preferredVersion": version}
            self.answer(200, {"kind": "APIGroupList", "groups": [batch]})
        elif path in KINDS:
            kinds = [
                {"name": n, "kind": k, "namespaced": inside, "verbs": VERBS, "singularName": ""}
                for n, k, inside in KINDS[path]
            ]
            group = path.partition("/")[2]
            listed = {"kind": "APIResourceList", "groupVersion": group, "resources": kinds}
            self.answer(200, listed)
        else:
            self.refuse(404, "NotFound", f"the server could not find {path}")

    def do_PATCH(self) -> None:
        split = urlsplit(self.path)
        query = parse_qs(split.query)
        body = yaml.safe_load(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((split.path, query))
        if self.headers["Content-Type"] != "application/apply-patch+yaml":
            self.refuse(415, "UnsupportedMediaType", "not an apply patch")
            return
        if "fieldManager" not in query:
            self.refuse(400, "BadRequest", "fieldManager is required for apply patch")
            return
        try:
            kubernetes_validate.validate(body, "1.30", strict=True)
        except kubernetes_validate.ValidationError as error:
            self.refuse(422, "Invalid", f"{body['kind']} is invalid: {error.message}")
            return
        owner = self.server.owners.get(split.path, query["fieldManager"][0])
        if owner != query["fieldManager"][0] and query.get("force") != ["true"]:
            self.refuse(409, "Conflict", f'Apply failed with 1 conflict: conflict with "{owner}"')
            return
        if "dryRun" not in query:
            self.server.objects[split.path] = body
        self.answer(200, body)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    configure(tmp_path, monkeypatch, f"http://127.0.0.1:{made.server_port}")
    yield made
    made.shutdown()
    made.server_close()


def configure(folder: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """A kubeconfig with one context, `test`, and discovery's cache in the folder."""
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    monkeypatch.setattr("tempfile.tempdir", str(folder))


def document(kind: str, name: str, version: str = "v1", **more: Any) -> ManifestObject:
    meta = {"name": name, **more.pop("metadata", {})}
    data = {"apiVersion": version, "kind": kind, "metadata": meta, **more}
    return ManifestObject(f"m.yaml: {kind}/{name}", data)


def applied(
    documents: Iterable[ManifestObject], context: str | None, dry_run: bool
) -> list[AppliedObject]:
    return list(apply(documents, context, dry_run))


SPACE = document("Namespace", "team")
MAP = document("ConfigMap", "a", metadata={"namespace": "team"}, data={"k": "v"})


def test_objects_are_applied_in_order_each_where_it_belongs(server: Server) -> None:
    plain = document("ConfigMap", "b", data={})
    done = applied([SPACE, MAP, plain], None, False)
    assert [(one.name, one.outcome) for one in done] == [
        ("m.yaml: Namespace/team", "applied"),
        ("m.yaml: ConfigMap/a", "applied"),
        ("m.yaml: ConfigMap/b", "applied"),
    ]
    assert list(server.objects) == [
        "/api/v1/namespaces/team",
        "/api/v1/namespaces/team/configmaps/a",
        "/api/v1/namespaces/default/configmaps/b",
    ]
    assert server.objects["/api/v1/namespaces/team/configmaps/a"] == MAP.data
    assert {query["fieldManager"][0] for _, query in server.asked} == {"joymigrate"}


def test_a_dry_run_asks_the_server_and_changes_nothing(server: Server) -> None:
    assert [one.outcome for one in applied([MAP], "test", True)] == ["would be applied"]
    assert server.asked[0][1]["dryRun"] == ["All"]
    assert server.objects == {}


def test_a_conflict_stops_with_the_servers_words_and_what_came_before_stays(
    server: Server,
) -> None:
    server.owners["/api/v1/namespaces/team/configmaps/a"] = "helm"
    with pytest.raises(JoyError, match='conflict with "helm"') as caught:
        applied([SPACE, MAP, document("ConfigMap", "late")], None, False)
    assert caught.value.where == "m.yaml: ConfigMap/a"
    assert "owner" in str(caught.value.help)
    assert list(server.objects) == ["/api/v1/namespaces/team"]


def test_what_the_server_calls_invalid_is_named(server: Server) -> None:
    with pytest.raises(JoyError, match="ConfigMap is invalid") as caught:
        applied([document("ConfigMap", "a", dat={})], None, False)
    assert caught.value.where == "m.yaml: ConfigMap/a"
    assert server.objects == {}


def test_a_kind_that_the_cluster_lacks_says_so(server: Server) -> None:
    queue = document("Queue", "q", "scheduling.volcano.sh/v1beta1")
    with pytest.raises(JoyError, match=r"no scheduling\.volcano\.sh/v1beta1 Queue") as caught:
        applied([queue], None, False)
    assert "install the engine" in caught.value.help


def test_a_context_that_does_not_exist_is_an_error(server: Server) -> None:
    with pytest.raises(JoyError, match=r"no Kubernetes cluster answers.*other"):
        applied([MAP], "other", False)


def test_a_cluster_that_does_not_answer_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(tmp_path, monkeypatch, "http://127.0.0.1:9")  # the discard port: nobody listens
    with pytest.raises(JoyError, match="no Kubernetes cluster answers"):
        applied([MAP], None, False)


def test_no_kubeconfig_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = str(tmp_path / "none")
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", nothing)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(JoyError, match="no Kubernetes cluster answers"):
        applied([MAP], None, False)


def test_a_server_that_goes_away_in_the_middle_is_one_error(server: Server) -> None:
    class Vanishing(list[ManifestObject]):
        def __iter__(self) -> Iterator[ManifestObject]:
            yield SPACE
            assert list(server.objects) == ["/api/v1/namespaces/team"]
            server.shutdown()
            server.server_close()
            yield MAP

    with pytest.raises(JoyError, match="no answer") as caught:
        applied(Vanishing(), None, False)
    assert caught.value.where == "m.yaml: ConfigMap/a"
