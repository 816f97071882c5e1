"""Releases of torch_npu in folders of their own, which only rehearsals see.

Installed beside other packages and without the chip's software, torch_npu breaks a plain
`import torch`, and libraries that look for it. So it lies in joymigrate's cache, one folder per
release and Python; a rehearsal puts the folder of the release that fits the program's torch on the
path of its processes. Nothing else in the environment changes.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from packaging.version import InvalidVersion, Version

from joymigrate.errors import JoyError

PACKAGE = "torch_npu"
DISTRIBUTION = "torch-npu"
LIBRARY = Path(PACKAGE) / "lib" / "libtorch_npu.so"
ORIGIN = "origin.json"  # in a release's folder: the wheel it came from, and its hash
UNREACHABLE = ("connection", "resolve", "timed out", "proxy", "from versions: none")


@dataclass(frozen=True, slots=True)
class InstalledRelease:
    """One release of torch_npu in its folder (which goes on a path)."""

    version: str
    folder: Path


def cache_root() -> Path:
    """joymigrate's cache: JOYMIGRATE_CACHE, else a folder in the user's cache directory."""
    named = os.environ.get("JOYMIGRATE_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "joymigrate"


def root() -> Path:
    """The folder that holds the releases."""
    return cache_root() / PACKAGE


def tag() -> str:
    """What a wheel is built for: this Python on this kind of machine."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}-{platform.machine()}"


def list_kept() -> list[InstalledRelease]:
    """The releases in the cache that this Python can load, the newest first."""
    found = [
        InstalledRelease(path.name.removesuffix(f"-{tag()}"), path)
        for path in root().glob(f"[0-9]*-{tag()}")
        if (path / LIBRARY).is_file()
    ]
    return sorted(found, key=lambda release: Version(release.version), reverse=True)


def torch_version() -> str:
    """The version of this environment's torch. Raises JoyError when there is none."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise JoyError("a rehearsal needs torch", help="pip install 'joymigrate[torch]'") from None


def fits(release: str, torch: str) -> bool:
    """Whether a torch_npu is made for a torch: the same major, minor and micro version.

    Its wheels require `torch==X.Y.Z` and are linked against that release's libraries.
    """
    try:
        return Version(release).release[:3] == Version(torch).release[:3]
    except InvalidVersion:
        return False


def installed_version() -> str | None:
    """The version of the torch_npu that lies in the environment itself."""
    spec = PathFinder.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return ""  # a build without metadata: the user's own


def choose() -> InstalledRelease | None:
    """The kept release that rehearsals here take; None where the environment has its own.

    One of the environment that does not fit its torch gives way to a kept one that does.
    """
    own = installed_version()
    try:
        torch = torch_version()
    except JoyError:
        return None
    if own is not None and (not own or fits(own, torch)):
        return None
    return next((release for release in list_kept() if fits(release.version, torch)), None)


def refuse_other_torch(version: str, where: Path) -> None:
    """One error for a torch_npu that another torch was meant for, before anything starts: loaded,
    it ends in undefined symbols. A build without metadata is the user's own affair."""
    torch = torch_version()
    if not version or fits(version, torch):
        return
    base = ".".join(map(str, Version(version).release[:3]))
    raise JoyError(
        f"torch_npu {version} is made for torch {base}, and this is torch {torch}",
        where=str(where),
        help="joymigrate rehearse setup gets the release that fits this torch; or "
        f"pip install 'torch=={base}'",
    )


def available() -> bool:
    """Whether a rehearsal finds a torch_npu."""
    return installed_version() is not None or choose() is not None


def requirement(release: str | None = None) -> str:
    """What pip is asked for: the newest build for this torch, or the release that is named."""
    if release:
        return f"{DISTRIBUTION}=={release}"
    micro = ".".join(map(str, (*Version(torch_version()).release, 0, 0)[:3]))
    return f"{DISTRIBUTION}=={micro}.*"


def pip_command(wanted: str, folder: Path) -> list[str]:
    """The command that puts one wheel into a folder, without what it requires.

    pip checks the file against the hash that the index gives.
    """
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--only-binary", ":all:"]
    return [*command, "--disable-pip-version-check", "--target", str(folder), wanted]


def set_up(release: str | None = None, tell: Callable[[str], None] = print) -> InstalledRelease:
    """Put a release into its folder unless it is there; whole or not at all.

    `release` is a version, else the one that fits this torch. Processes that start together wait
    for one download. Raises JoyError with what pip said.
    """
    wanted = requirement(release)
    try:
        root().mkdir(parents=True, exist_ok=True)
        lock = (root() / ".lock").open("w")
    except OSError as error:
        raise JoyError(
            f"cannot write the cache: {error.strerror}",
            where=str(root()),
            help="name a writable folder: JOYMIGRATE_CACHE=/path joymigrate rehearse setup",
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for one in list_kept():
            if one.version == release or (not release and fits(one.version, torch_version())):
                return one
        tell(f"getting {wanted} into {root()}")
        with tempfile.TemporaryDirectory(dir=root(), prefix=".part-") as temporary:
            part = Path(temporary) / "release"
            run_pip(wanted, part)
            version = version_in(part)
            folder = root() / f"{version}-{tag()}"
            part.rename(folder)
    return InstalledRelease(version, folder)


def run_pip(wanted: str, folder: Path) -> None:
    """Install one wheel into `folder`, and note where it came from."""
    report = folder.parent / "report.json"
    command = [*pip_command(wanted, folder), "--quiet", "--report", str(report)]
    environment = {**os.environ, "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise refusal(wanted, done.stderr)
    (item,) = json.loads(report.read_text(encoding="utf-8"))["install"]
    info = item["download_info"]
    origin = {
        "version": item["metadata"]["version"],
        "url": info["url"],
        "hashes": info.get("archive_info", {}).get("hashes", {}),
    }
    (folder / ORIGIN).write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")


def version_in(folder: Path) -> str:
    """The version of the torch_npu that pip put there."""
    found = [one.version for one in metadata.distributions(name=DISTRIBUTION, path=[str(folder)])]
    if len(found) != 1 or not (folder / LIBRARY).is_file():
        raise JoyError("the wheel holds no torch_npu that can be loaded", where=str(folder))
    return found[0]


def refusal(wanted: str, said: str) -> JoyError:
    """Why pip did not bring the release, for a user."""
    lines = [line for line in said.splitlines() if line.startswith("ERROR: ")]
    first = lines[0].removeprefix("ERROR: ") if lines else (said.strip() or "pip failed")
    if "No module named pip" in said:
        by_hand = shlex.join(pip_command(wanted, root() / f"VERSION-{tag()}"))
        return JoyError("this Python has no pip", help=f"python -m ensurepip; or {by_hand}")
    listed = re.search(r"\(from versions: ([^)]*)\)", said)
    if listed and listed[1] != "none":
        known = (Version(text.strip()) for text in listed[1].split(","))
        bases = {one.release[:3] for one in known if not one.is_prerelease}
        near = [".".join(map(str, base)) for base in sorted(bases)[-6:]]
        return JoyError(
            f"there is no {wanted} for this Python and machine",
            help=f"torch-npu has releases for torch {', '.join(near)}: use one of these torch "
            "versions, or name a release: joymigrate rehearse setup --release VERSION",
        )
    if any(sign in said.lower() for sign in UNREACHABLE):
        return JoyError(
            f"could not get {wanted}: the package index does not answer or does not have it",
            help=f"where there is network: pip download --no-deps '{wanted}' -d wheels; then here: "
            "PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels joymigrate rehearse setup",
        )
    return JoyError(f"pip could not install {wanted}: {first[:300]}")
