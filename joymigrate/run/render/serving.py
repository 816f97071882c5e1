"""A server as a service: a systemd unit, or a Helm chart. What is written is not started here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from joymigrate import __version__

UNIT_MARK = "Written by `joymigrate render unit`"
CHART_MARK = "Written by `joymigrate render chart`"
NOT_RUN = "Not installed and not run by joymigrate: no systemd and no cluster took part."
MARGIN_SECONDS = 15  # after the drain, before the process is killed
FILES = 65536  # open files: a stream through a gateway holds two
LABEL = re.compile(r"[a-z]([a-z0-9-]{0,51}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class SystemdUnit:
    """A server under systemd. `command` is its absolute program and arguments; `writes` are folders
    that it may write to, all others are read-only to it."""

    name: str
    command: tuple[str, ...]
    user: str
    folder: str
    writes: tuple[str, ...] = ()
    drain_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Chart:
    """A server in a cluster. `config` is a gateway's file, or `claim` the volume claim whose root
    is the model's folder; `resource` is what the cluster calls a card."""

    name: str
    image: str
    port: int
    config: str = ""
    claim: str = ""
    resource: str = ""
    cards: int = 0
    replicas: int = 1
    arguments: tuple[str, ...] = ()
    secret: str = ""  # its keys become environment variables
    drain_seconds: float = 30.0
    limits: Mapping[str, str] = field(default_factory=dict)


def unit(wanted: SystemdUnit) -> str:
    """The text of a systemd unit (systemd.service(5), systemd.exec(5))."""
    writes = " ".join(quote_word(path) for path in wanted.writes)
    lines = [
        f"# {UNIT_MARK} {__version__}. {NOT_RUN}",
        "[Unit]",
        f"Description=joymigrate serve: {wanted.name}".replace("%", "%%"),
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        "Type=exec",
        f"User={wanted.user}",
        f"WorkingDirectory={quote_word(wanted.folder)}",
        f"EnvironmentFile=-/etc/joymigrate/{wanted.name}.env",
        "ExecStart=" + " ".join(quote_word(word) for word in wanted.command),
        "ExecReload=/bin/kill -HUP $MAINPID",
        "KillMode=mixed",
        f"TimeoutStopSec={round(wanted.drain_seconds) + MARGIN_SECONDS}",
        "Restart=on-failure",
        "RestartSec=2",
        f"LimitNOFILE={FILES}",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "ProtectHome=read-only",
        "PrivateTmp=yes",
        *([f"ReadWritePaths={writes}"] if writes else []),
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def quote_word(word: str) -> str:
    """A word of a unit: `%` and `$` stand for themselves, spaces and quotes do not divide it."""
    plain = word.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$").replace('"', '\\"')
    return f'"{plain}"' if re.search(r"[\s'\";\\]", word) or not word else plain


def chart(wanted: Chart) -> dict[str, str]:
    """Every file of a chart by its name."""
    return {
        "Chart.yaml": head(CHART_MARK)
        + dump_yaml(
            {
                "apiVersion": "v2",
                "name": wanted.name,
                "description": "joymigrate serve",
                "type": "application",
                "version": "0.1.0",
                "appVersion": __version__,
            }
        ),
        "values.yaml": head(CHART_MARK) + dump_yaml(values(wanted)),
        "values.schema.json": json.dumps({"$comment": CHART_MARK, **SCHEMA}, indent=2) + "\n",
        **{
            f"templates/{name}": f"{{{{- /* {CHART_MARK} */}}}}\n{text}"
            for name, text in TEMPLATES.items()
        },
        ".helmignore": f"# {CHART_MARK}\n.git/\n*.swp\n",
    }


def head(mark: str) -> str:
    """The first lines of a file."""
    return f"# {mark} {__version__}. {NOT_RUN}\n"


def dump_yaml(value: Any) -> str:
    """YAML in the order of the keys, texts of many lines as such."""
    return yaml.dump(value, Dumper=Readable, sort_keys=False, allow_unicode=True, width=96)


class Readable(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


Readable.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def values(wanted: Chart) -> dict[str, Any]:
    """values.yaml: everything that a user of the chart may want otherwise."""
    limits: dict[str, Any] = dict(wanted.limits)
    if wanted.cards:
        limits[wanted.resource] = wanted.cards
    return {
        "image": {"repository": repository(wanted.image), "tag": tag(wanted.image),
                  "pullPolicy": "IfNotPresent"},
        "replicas": wanted.replicas,
        "arguments": list(start_command(wanted)),
        "port": wanted.port,
        "config": wanted.config,
        "model": {"claim": wanted.claim, "path": "/model"},
        "secret": wanted.secret,
        "resources": {"limits": limits},
        "user": 1000,
        "stopSeconds": round(wanted.drain_seconds) + MARGIN_SECONDS,
        "startSeconds": 1800,
        "service": {"type": "ClusterIP"},
        "nodeSelector": {},
        "tolerations": [],
    }  # fmt: skip


def start_command(wanted: Chart) -> Sequence[str]:
    """What the container runs behind `joymigrate`."""
    what = ["--config", "/etc/joymigrate/gateway.yaml"] if wanted.config else ["/model"]
    listens = [] if wanted.config else ["--host", "0.0.0.0", "--port", str(wanted.port)]
    drain = [] if wanted.config else ["--drain", f"{wanted.drain_seconds:g}"]
    return ("serve", *what, *listens, *drain, "--log-format", "json", *wanted.arguments)


def repository(image: str) -> str:
    """An image without its tag; a port of its registry is no tag."""
    name, colon, last = image.rpartition(":")
    return name if colon and "/" not in last else image


def tag(image: str) -> str:
    """The tag of an image."""
    return image[len(repository(image)) + 1 :] or "latest"


SCHEMA: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "additionalProperties": False,
    "required": ["image", "replicas", "arguments", "port"],
    "properties": {
        "image": {
            "type": "object",
            "additionalProperties": False,
            "required": ["repository", "tag"],
            "properties": {
                "repository": {"type": "string", "minLength": 1},
                "tag": {"type": "string", "minLength": 1},
                "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
            },
        },
        "replicas": {"type": "integer", "minimum": 0},
        "arguments": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "port": {"type": "integer", "minimum": 1, "maximum": 65535},
        "config": {"type": "string"},
        "model": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"claim": {"type": "string"}, "path": {"type": "string"}},
        },
        "secret": {"type": "string"},
        "resources": {"type": "object"},
        "user": {"type": "integer", "minimum": 1},
        "stopSeconds": {"type": "integer", "minimum": 1},
        "startSeconds": {"type": "integer", "minimum": 10},
        "service": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]}},
        },
        "nodeSelector": {"type": "object"},
        "tolerations": {"type": "array"},
        "global": {"type": "object"},
    },
}
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .Release.Name }}
  labels:
    app.kubernetes.io/name: {{ .Chart.Name }}
    app.kubernetes.io/instance: {{ .Release.Name }}
spec:
  replicas: {{ .Values.replicas }}
  selector:
    matchLabels:
      app.kubernetes.io/instance: {{ .Release.Name }}
  template:
    metadata:
      labels:
        app.kubernetes.io/name: {{ .Chart.Name }}
        app.kubernetes.io/instance: {{ .Release.Name }}
      annotations:
        checksum/config: {{ .Values.config | sha256sum }}
    spec:
      terminationGracePeriodSeconds: {{ .Values.stopSeconds }}
      securityContext:
        runAsNonRoot: true
        runAsUser: {{ .Values.user }}
        fsGroup: {{ .Values.user }}
      containers:
        - name: serve
          image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
          imagePullPolicy: {{ .Values.image.pullPolicy }}
          command: ["joymigrate"]
          args:
            {{- toYaml .Values.arguments | nindent 12 }}
          {{- if .Values.secret }}
          envFrom:
            - secretRef:
                name: {{ .Values.secret | quote }}
          {{- end }}
          ports:
            - name: http
              containerPort: {{ .Values.port }}
          startupProbe:
            httpGet:
              path: /health
              port: http
            periodSeconds: 10
            failureThreshold: {{ div .Values.startSeconds 10 }}
          livenessProbe:
            httpGet:
              path: /health
              port: http
            periodSeconds: 10
            failureThreshold: 6
          readinessProbe:
            httpGet:
              path: /ready
              port: http
            periodSeconds: 5
          resources:
            {{- toYaml .Values.resources | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            capabilities:
              drop: ["ALL"]
          volumeMounts:
            - name: state
              mountPath: /var/lib/joymigrate
            {{- if .Values.config }}
            - name: config
              mountPath: /etc/joymigrate
              readOnly: true
            {{- end }}
            {{- if .Values.model.claim }}
            - name: model
              mountPath: {{ .Values.model.path | quote }}
              readOnly: true
            {{- end }}
            - name: shared-memory
              mountPath: /dev/shm
      volumes:
        - name: state
          emptyDir: {}
        {{- if .Values.config }}
        - name: config
          configMap:
            name: {{ .Release.Name }}
        {{- end }}
        {{- if .Values.model.claim }}
        - name: model
          persistentVolumeClaim:
            claimName: {{ .Values.model.claim | quote }}
            readOnly: true
        {{- end }}
        - name: shared-memory
          emptyDir:
            medium: Memory
      nodeSelector:
        {{- toYaml .Values.nodeSelector | nindent 8 }}
      tolerations:
        {{- toYaml .Values.tolerations | nindent 8 }}
"""
SERVICE = """\
apiVersion: v1
kind: Service
metadata:
  name: {{ .Release.Name }}
  labels:
    app.kubernetes.io/instance: {{ .Release.Name }}
spec:
  type: {{ .Values.service.type }}
  selector:
    app.kubernetes.io/instance: {{ .Release.Name }}
  ports:
    - name: http
      port: {{ .Values.port }}
      targetPort: http
"""
CONFIGMAP = """\
{{- if .Values.config }}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}
  labels:
    app.kubernetes.io/instance: {{ .Release.Name }}
data:
  gateway.yaml: |
    {{- .Values.config | nindent 4 }}
{{- end }}
"""
NOTES = """\
{{ .Release.Name }} serves at http://{{ .Release.Name }}.{{ .Release.Namespace }}:{{ .Values.port }}
It is ready when /ready answers 200. Keys belong into the secret that `secret` names.
"""
TEMPLATES = {
    "deployment.yaml": DEPLOYMENT,
    "service.yaml": SERVICE,
    "configmap.yaml": CONFIGMAP,
    "NOTES.txt": NOTES,
}
