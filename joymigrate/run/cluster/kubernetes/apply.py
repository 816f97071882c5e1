"""`cluster apply`: create or replace objects through the official client, if a cluster answers."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.cluster.kubernetes.validate import ManifestObject

MANAGER = "joymigrate"
CONFLICT = 409


@dataclass(frozen=True, slots=True)
class AppliedObject:
    """One object and what the server answered."""

    name: str
    outcome: str


def apply(
    documents: Iterable[ManifestObject], context: str | None, dry_run: bool
) -> Iterator[AppliedObject]:
    """Server-side apply, in order; yields what is done before the first refusal, which raises."""
    client = connect(context)
    for document in documents:
        yield AppliedObject(document.where, apply_one(client, document, dry_run))


def connect(context: str | None) -> Any:
    """A dynamic client for the cluster of the kubeconfig; no cluster raises `JoyError`."""
    try:
        config: Any = importlib.import_module("kubernetes.config")
        dynamic: Any = importlib.import_module("kubernetes.dynamic")
        api_client: Any = importlib.import_module("kubernetes.client.api_client")
    except ImportError as error:
        raise JoyError(
            "cluster apply needs the kubernetes client", help="pip install 'joymigrate[cluster]'"
        ) from error
    try:
        if context is None:
            try:
                config.load_incluster_config()
            except config.ConfigException:
                config.load_kube_config()
        else:
            config.load_kube_config(context=context)
        return dynamic.DynamicClient(api_client.ApiClient())
    except Exception as error:  # the client raises urllib3's, yaml's and its own errors
        raise JoyError(
            f"no Kubernetes cluster answers: {str(error).splitlines()[0][:200]}",
            help="check `kubectl get nodes`, or write the manifests with `cluster render -o FILE`",
        ) from error


def apply_one(client: Any, document: ManifestObject, dry_run: bool) -> str:
    """Apply one object."""
    from kubernetes.client import ApiException
    from kubernetes.dynamic.exceptions import DynamicApiError, ResourceNotFoundError
    from urllib3.exceptions import HTTPError

    data = document.data
    meta = data.get("metadata") or {}
    options: dict[str, Any] = {"dry_run": "All"} if dry_run else {}
    try:
        api = client.resources.get(api_version=data["apiVersion"], kind=data["kind"])
        namespace = meta.get("namespace", "default") if api.namespaced else None
        client.server_side_apply(
            api, body=dict(data), name=meta.get("name"), namespace=namespace,
            field_manager=MANAGER, **options,
        )  # fmt: skip
    except ResourceNotFoundError as error:
        raise JoyError(
            f"the cluster has no {data['apiVersion']} {data['kind']}",
            where=document.where,
            help="install the engine that defines it",
        ) from error
    except (ApiException, DynamicApiError) as error:
        conflict = getattr(error, "status", 0) == CONFLICT
        raise JoyError(
            f"the cluster refuses it: {refusal(error)}",
            where=document.where,
            help=help_of(refusal(error), conflict),
        ) from error
    except HTTPError as error:
        raise JoyError(
            f"no answer from the cluster: {str(error)[:200]}",
            where=document.where,
            help="apply the file again: what was applied before stays as it is",
        ) from error
    return "would be applied" if dry_run else "applied"


def help_of(text: str, conflict: bool) -> str:
    """What to do about a refusal, where that is known."""
    if conflict:
        return "leave these fields to their owner, or let `kubectl` take them by force"
    if "field not declared in schema" in text:
        return (
            "the cluster's Kubernetes, or its engine, is older than this field: `kubectl version`"
        )
    return ""


def refusal(error: Exception) -> str:
    """The `message` of the server's answer, or as much of it as one line takes."""
    body = getattr(error, "body", b"") or str(error)
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body)
    with contextlib.suppress(ValueError, AttributeError):
        text = str(json.loads(text).get("message") or text)
    return text[:300]
