"""The files of a container: Dockerfile, its ignore file, requirements, compose file."""

from __future__ import annotations

import json
import posixpath
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from joymigrate import __version__
from joymigrate.chips import Chip
from joymigrate.run.render.base import Base
from joymigrate.run.render.lock import Lock
from joymigrate.run.render.translate import PackageLine

MARK = "Written by `joymigrate render image`"
NOT_BUILT = (
    "Not built and not run by joymigrate: no container engine took part. What is known of the base "
    "image, the devices and the packages is documented, not measured."
)
WIDTH = 96
SHARED_MEMORY = "8gb"  # torch's data loaders hand batches over in /dev/shm; Docker gives 64 MB
IGNORED = (
    ".git", ".joymigrate", ".venv", "venv", "**/__pycache__", "**/*.pyc", ".env", "**/.env",
    "**/*.pem", "**/*.key", "**/*.pt", "**/*.pth", "**/*.ckpt", "**/*.safetensors", "runs", "out",
    "wandb", "node_modules",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """What the container shall do. `command` starts it; `port` is what it serves, None for none;
    `model` a folder of the host that is mounted read-only at /model; `folder` is where the files
    will lie, relative to the project, POSIX."""

    name: str
    folder: str
    command: tuple[str, ...] = ()
    port: int | None = None
    model: str | None = None
    cards: int = 1
    vendor_runtime: bool = False


def image_name(folder: str) -> str:
    """A folder's name as an image's name: lower case, with nothing that a registry refuses."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")
    return name or "project"


def render(
    lock: Lock, lines: Sequence[PackageLine], chip: Chip, base: Base, wanted: ContainerSpec
) -> dict[str, str]:
    """Every file's text by its name."""
    return {
        "requirements.txt": requirements(lock, lines, chip),
        "Dockerfile": dockerfile(lock, lines, chip, base, wanted),
        "Dockerfile.dockerignore": "\n".join([f"# {MARK}", *IGNORED]) + "\n",
        "compose.yaml": compose(chip, base, wanted),
    }


def comment(text: str, *, indent: str = "# ") -> str:
    """Text as comment lines."""
    return "\n".join(
        textwrap.wrap(
            " ".join(text.split()), WIDTH, initial_indent=indent, subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )
    )  # fmt: skip


def requirements(lock: Lock, lines: Sequence[PackageLine], chip: Chip) -> str:
    """The packages of the image, and why others are not among them."""
    head = [
        f"# {MARK} {__version__} for {chip.title}",
        f"# from {lock.path.name}, SHA-256 {lock.sha256[:16]}",
    ]
    body: list[str] = []
    for one in lines:
        if one.kind == "left out":
            body.append(comment(f"left out: {one.was}: {one.reason}"))
        elif one.kind == "changed":
            body.append(
                comment(f"{one.was} becomes: {one.reason}" if one.reason else f"was {one.was}")
            )
            body.append(one.requirement)
        else:
            if one.reason:
                body.append(comment(one.reason))
            body.append(one.requirement)
    return "\n".join([*head, *body]) + "\n"


def dockerfile(
    lock: Lock, lines: Sequence[PackageLine], chip: Chip, base: Base, wanted: ContainerSpec
) -> str:
    """The Dockerfile; the project's folder is its context."""
    user: Mapping[str, Any] = base.data.get("user") or {"uid": 1000, "gid": 1000}
    kinds = [one.kind for one in lines]
    counts = ", ".join(
        f"{kinds.count(kind)} {kind}" for kind in ("kept", "changed", "added", "left out")
    )
    parts = [
        f"# {MARK} {__version__} from {lock.path.name} for {chip.title}.",
        comment(NOT_BUILT),
        comment(f"Packages: {counts}; requirements.txt says why."),
        f"#   docker build -f {wanted.folder}/Dockerfile -t {wanted.name} .",
        "",
        *([comment(f"Holds {base.data['holds']}.")] if base.data.get("holds") else []),
        *([comment(f"Source: {base.source}")] if base.source else []),
        f"FROM {base.image}",
        "",
        *([comment(str(base.data["index"]))] if base.data.get("index") else []),
        'ARG PIP_EXTRA_INDEX_URL=""',
        "ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1",
        "WORKDIR /app",
        "",
        "# Packages first: a change of the sources does not install them again.",
        f"COPY {wanted.folder}/requirements.txt /tmp/requirements.txt",
        "RUN python -m pip install -r /tmp/requirements.txt",
        "",
        comment("Not root." + (f" {user['note']}." if user.get("note") else "")),
        f"ARG UID={user['uid']}",
        f"ARG GID={user['gid']}",
        'RUN groupadd --non-unique --gid "$GID" app \\',
        ' && useradd --non-unique --uid "$UID" --gid "$GID" --create-home app \\',
        ' && chown "$UID:$GID" /app',
        "COPY --chown=$UID:$GID . /app",
        "USER $UID:$GID",
    ]
    if wanted.port is not None:
        check = (
            "import urllib.request as u; "
            f"u.urlopen('http://127.0.0.1:{wanted.port}/health', timeout=4)"
        )
        parts += [
            "",
            f"EXPOSE {wanted.port}",
            "# Loading weights takes its time; after that every half minute.",
            "HEALTHCHECK --interval=30s --timeout=5s --start-period=10m --retries=3 \\",
            f'  CMD ["python", "-c", "{check}"]',
        ]
    if wanted.command:
        parts += ["", f"CMD {json.dumps(list(wanted.command))}"]
    return "\n".join(parts) + "\n"


def card_nodes(devices: Mapping[str, Any], cards: Sequence[str]) -> list[str]:
    """The device node of every card; none where the pattern is not known."""
    pattern = str(devices.get("card") or "")
    return [pattern.format(card=card) for card in cards] if pattern else []


def compose(chip: Chip, base: Base, wanted: ContainerSpec) -> str:
    """The compose file: build, devices, driver, shared memory."""
    up = posixpath.relpath(".", wanted.folder)
    service: dict[str, Any] = {
        "build": {"context": up, "dockerfile": f"{wanted.folder}/Dockerfile"},
        "image": wanted.name,
        "init": True,
        "shm_size": SHARED_MEMORY,
        "security_opt": ["no-new-privileges:true"],
    }
    volumes: list[str] = []
    cards = [str(card) for card in range(wanted.cards)]
    devices, runtime = base.data["devices"], base.data.get("runtime")
    source = devices.get("source", "")
    if wanted.vendor_runtime and runtime:
        service["runtime"] = runtime["name"]
        service["environment"] = {
            name: str(value).format(cards=",".join(cards))
            for name, value in runtime["environment"].items()
        }
        source = runtime.get("source", "")
    elif devices.get("reservation"):
        reserved = {**devices["reservation"], "count": wanted.cards}
        service["deploy"] = {"resources": {"reservations": {"devices": [reserved]}}}
    else:
        service["devices"] = [
            *(f"{path}:{path}" for path in card_nodes(devices, cards)),
            *(f"{path}:{path}" for path in devices.get("shared", ())),
        ]
        volumes += [f"{path}:{path}:ro" for path in devices.get("mounts", ())]
    if wanted.model is not None:
        volumes.append(f"{wanted.model}:/model:ro")
    if volumes:
        service["volumes"] = volumes
    if wanted.port is not None:
        service["ports"] = [f"127.0.0.1:{wanted.port}:{wanted.port}"]
        service["restart"] = "unless-stopped"
    head = [
        f"# {MARK} {__version__} for {chip.title}.",
        comment(NOT_BUILT),
        *([comment(f"Devices: {source}")] if source else []),
        f"#   docker compose -f {wanted.folder}/compose.yaml up --build",
    ]
    body = yaml.safe_dump({"services": {"app": service}}, sort_keys=False, width=WIDTH)
    return "\n".join(head) + "\n" + body
