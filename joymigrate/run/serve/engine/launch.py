"""Starts an engine of somebody else, waits until it serves, and ends it with this process.

Which engines there are says `serve.yaml` in the chips' folders: program, module, how to install.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate import files
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.schema import document, read_file, setting

if TYPE_CHECKING:
    from joymigrate.chips.versions import Companion

FILE = "serve.yaml"
OWN = "joymigrate"
POLL_SECONDS = 0.25
TERM_SECONDS = 20.0
KEPT_LINES = 30
WORDS = (
    "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}", "--served-model-name", "{name}",
)  # fmt: skip
OPTIONS = {
    "dtype": "--dtype",
    "max_model_len": "--max-model-len",
    "tensor_parallel": "--tensor-parallel-size",
}


@dataclass(frozen=True, slots=True)
class EngineFile:
    """The settings that an engine reads from a file instead of options."""

    variable: str = setting(help="The environment variable that names the file.")
    base: str = setting(help="The installed file that it starts from; $NAME is filled in.")
    set: Mapping[str, Any] = setting(make=dict, help="Keys with dots, and values; {wish} is one.")


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """One engine of another project."""

    program: str = setting(help="The words that run it.")
    module: str = setting(help="Its Python module; empty for a program that is no Python.")
    install: str = setting(help="How to get it, in words.")
    start: tuple[str, ...] = setting((), "Modules to run where the program is not found.")
    words: tuple[str, ...] = setting(WORDS, "Its arguments; {model}, {name}, {port} are filled in.")
    options: Mapping[str, str] = setting(make=OPTIONS.copy, help="What it calls other wishes.")
    health: str = setting("/health", "The path that answers when it is ready.")
    settings: EngineFile | None = setting(None, "For an engine that reads a file.")
    source: str = setting("", "Where this was read.")
    date: str = setting("", "When it was read.")


@document("chip-serve", "Other projects' engines on a chip: `serve.yaml` in its folder.")
@dataclass(frozen=True, slots=True)
class EnginesFile:
    """A chip's serve.yaml."""

    engines: Mapping[str, EngineEntry] = setting(make=dict, help="Engines by name.")
    lost: tuple[str, ...] = setting((), "What errors say when the device is gone.")


@dataclass(frozen=True, slots=True)
class Launcher(EngineEntry):
    """An engine that can be started: what a chip's file says of it, and what releases it fits."""

    name: str = ""
    chip: str = ""
    fits: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What to start and where: `python` is an environment or an interpreter, `container` a command
    that runs its arguments inside a container."""

    model: str
    name: str  # as clients call it
    python: Path | None = None
    container: str | None = None
    dtype: str = "auto"
    max_model_len: int | None = None
    tensor_parallel: int = 1
    extra: tuple[str, ...] = ()  # options handed on as they are
    start_seconds: float = 1800.0


def launchers(wanted: str | None = None) -> dict[str, Launcher]:
    """All engines that the chips' folders know. An engine that several chips have is taken from
    the `wanted` one, else from the origin."""
    from joymigrate import chips

    found: dict[str, Launcher] = {}
    for chip in sorted(chips.all_chips().values(), key=lambda c: (c.name == wanted, c.origin)):
        path = chip.folder / FILE
        if path.is_file():
            found |= read_launchers(path, chip.name, chip.matrix().companions)
    return found


def read_launchers(
    path: Path, chip: str, companions: Mapping[str, Sequence[Companion]] | None = None
) -> dict[str, Launcher]:
    """The engines of one serve.yaml. What a release fits stands in versions.yaml."""
    return {
        name: launcher(name, chip, entry, (companions or {}).get(name, ()))
        for name, entry in read_file(EnginesFile, path).engines.items()
    }


def launcher(
    name: str, chip: str, entry: EngineEntry, companions: Sequence[Companion] = ()
) -> Launcher:
    """One engine of a chip."""
    said = {one.name: getattr(entry, one.name) for one in fields(EngineEntry)}
    return Launcher(**said, name=name, chip=chip, fits=tuple(row.parts() for row in companions))


def find_launcher(name: str, chip: str | None = None) -> Launcher:
    """The engine of this name, for a chip where it has one of its own; raises `JoyError`."""
    known = launchers(chip)
    if name not in known:
        names = [OWN, *known]
        raise JoyError(
            f"unknown engine '{name}'.{did_you_mean(name, names)}",
            help=f"one of {', '.join(names)}",
        )
    return known[name]


def command(launcher: Launcher, wish: LaunchRequest, port: int) -> list[str]:
    """The command line that starts the engine on a local port; raises `JoyError`."""
    held = {word for word in launcher.words if word.startswith("--")}
    clash = [word for word in wish.extra if word.partition("=")[0] in held]
    if clash:
        raise JoyError(
            f"{clash[0]} belongs to serve itself", help="use serve's own --host, --port, --name"
        )
    line = head(launcher, wish)
    line += [word.format(model=wish.model, name=wish.name, port=port) for word in launcher.words]
    for what, value in wishes(wish).items():
        option = launcher.options.get(what)
        if option is None and launcher.settings is None:
            raise JoyError(
                f"{launcher.name} takes no {what}={value} from serve",
                help=f"its own options stand behind --: serve MODEL --engine {launcher.name} -- …",
            )
        line += [option, str(value)] if option is not None else []
    return [*line, *wish.extra]


def wishes(wish: LaunchRequest) -> dict[str, Any]:
    """What a wish says beyond the usual."""
    found: dict[str, Any] = {}
    if wish.dtype != "auto":
        found["dtype"] = wish.dtype
    if wish.max_model_len is not None:
        found["max_model_len"] = wish.max_model_len
    if wish.tensor_parallel > 1:
        found["tensor_parallel"] = wish.tensor_parallel
    return found


def write_configuration(
    launcher: Launcher, wish: LaunchRequest, port: int, folder: Path
) -> dict[str, str]:
    """Write the file that an engine reads instead of options; returns the variable that names it.

    `settings` has the `variable`, the installed file that is its `base`, and what to `set` in it:
    a path of keys and places, and a value with the wishes in braces. Raises `JoyError`.
    """
    if launcher.settings is None:
        return {}
    if wish.container is not None:
        raise JoyError(f"{launcher.name} reads a file, which a container would not see",
                       help="start it by itself, and put a gateway before its address")  # fmt: skip
    base = Path(os.path.expandvars(launcher.settings.base))
    made = files.read_json(base, help=launcher.install)
    known = {"model": wish.model, "name": wish.name, "port": port,
             "length": wish.max_model_len, "tensor_parallel": wish.tensor_parallel,
             "device_lists": [list(range(wish.tensor_parallel))]}  # fmt: skip
    for path, value in launcher.settings.set.items():
        value = known[value[1:-1]] if isinstance(value, str) and value[:1] == "{" else value
        if value is not None:
            put(made, str(path).split("."), value, str(base))
    target = folder / "config.json"
    target.write_text(json.dumps(made, indent=2), encoding="utf-8")
    target.chmod(0o640)  # engines refuse settings that everybody may read
    return {launcher.settings.variable: str(target)}


def put(table: Any, path: Sequence[str], value: Any, where: str) -> None:
    """Set what a path of keys and places leads to; raises `JoyError` where there is no such way."""
    try:
        for key in path[:-1]:
            table = table[int(key)] if isinstance(table, list) else table[key]
        if path[-1] not in table:
            raise KeyError(path[-1])
        table[path[-1]] = value
    except (KeyError, IndexError, ValueError, TypeError):
        raise JoyError(
            f"the engine's settings have no {'.'.join(path)}", where=where,
            help="this version has another form; start it by itself",
        ) from None  # fmt: skip


def head(launcher: Launcher, wish: LaunchRequest) -> list[str]:
    """The words that run the engine's program: in a container, an environment, or here."""
    if wish.container is not None:
        words = shlex.split(wish.container)
        if not words or shutil.which(words[0]) is None:
            raise JoyError(
                f"--container: there is no program '{words[0] if words else ''}'",
                help="a command that runs its arguments: docker run --rm --network host IMAGE",
            )
        return [*words, *shlex.split(launcher.program)]
    program, *more = shlex.split(launcher.program)
    if not launcher.module:
        found = shutil.which(os.path.expandvars(program))
        if found is None:
            raise JoyError(f"there is no program '{program}' here", help=launcher.install)
        return [found, *more]
    python = interpreter(wish.python)
    beside = Path(python).parent / program
    if not has_module(python, launcher.module):
        raise JoyError(f"{launcher.name} is not installed for {python}", help=launcher.install)
    if os.access(beside, os.X_OK):
        return [str(beside), *more]
    return [python, "-m", *launcher.start]


def interpreter(given: Path | None) -> str:
    """The Python of an environment folder, a Python itself, or this one."""
    if given is None:
        return sys.executable
    if given.is_dir():
        given = given / "bin" / "python"
    if not os.access(given, os.X_OK):
        raise JoyError("--python is an environment's folder or a Python program", where=str(given))
    return str(given)


def has_module(python: str, module: str) -> bool:
    """Whether that Python finds the module."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    try:
        done = subprocess.run([python, "-c", code, module], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Child:
    """A started engine. Its output goes to `talk`, line by line; the last lines are kept."""

    def __init__(
        self, launcher: Launcher, wish: LaunchRequest, talk: Callable[[str], None]
    ) -> None:
        self.launcher, self.wish, self.talk = launcher, wish, talk
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.last: deque[str] = deque(maxlen=KEPT_LINES)
        self.process: asyncio.subprocess.Process | None = None
        self.reader: asyncio.Task[None] | None = None
        self.folder: tempfile.TemporaryDirectory[str] | None = None

    async def start(self) -> None:
        """Start it and wait until /health answers; raises `JoyError` when it ends before."""
        line = command(self.launcher, self.wish, self.port)
        self.folder = tempfile.TemporaryDirectory(prefix="joymigrate-engine-")
        more = write_configuration(self.launcher, self.wish, self.port, Path(self.folder.name))
        self.talk(f"starting {shlex.join(line)}")
        try:
            self.process = await asyncio.create_subprocess_exec(
                *line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its workers end with it
                env={**environment(), **more},
            )
        except OSError as error:
            raise JoyError(f"{line[0]} cannot be started: {error.strerror}") from None
        self.reader = asyncio.ensure_future(self.read())
        try:
            await asyncio.wait_for(self.healthy(), self.wish.start_seconds)
        except (TimeoutError, asyncio.TimeoutError):
            await self.stop()
            raise JoyError(
                f"{self.launcher.name} was not ready within {self.wish.start_seconds:g} s",
                help="--start-timeout SECONDS gives it longer",
            ) from None
        except BaseException:
            await self.stop()
            raise

    async def read(self) -> None:
        """Hand its lines on."""
        assert self.process is not None
        assert self.process.stdout is not None
        while True:
            try:
                line = await self.process.stdout.readline()
            except ValueError:  # a line longer than the reader's limit
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip()
            self.last.append(text)
            self.talk(f"{self.launcher.name}: {text}")

    async def healthy(self) -> None:
        """Return once it serves."""
        import aiohttp

        assert self.process is not None
        limit = aiohttp.ClientTimeout(total=2)
        async with aiohttp.ClientSession(timeout=limit) as session:
            while True:
                if self.process.returncode is not None:
                    raise self.died()
                with contextlib.suppress(aiohttp.ClientError, OSError, asyncio.TimeoutError):
                    async with session.get(self.url + self.launcher.health) as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(POLL_SECONDS)

    def died(self) -> JoyError:
        """What its end looks like to the user."""
        code = self.process.returncode if self.process else None
        tail = "\n    ".join(list(self.last)[-6:])
        return JoyError(
            f"{self.launcher.name} ended with exit code {code}"
            + (f":\n    {tail}" if tail else ""),
            help="`joymigrate serve --check` looks for versions that do not fit together",
        )

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.returncode is None

    async def wait(self) -> int:
        """Its exit code, once it ends."""
        assert self.process is not None
        return await self.process.wait()

    async def stop(self) -> None:
        """SIGTERM for it and its workers, SIGKILL for those that stay."""
        if self.process is None:
            return
        for name, patience in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, TERM_SECONDS)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, name)
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self.process.wait(), patience)
                break
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # workers that outlived it
        if self.reader is not None:
            with contextlib.suppress(asyncio.CancelledError, asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self.reader, 2)


def environment() -> dict[str, str]:
    """The environment as the user has it, without what was set for this process only."""
    made = dict(os.environ)
    before = made.pop("JOYMIGRATE_CALLER_AUTOLOAD", None)
    if before is not None:
        made.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
        made |= {"TORCH_DEVICE_BACKEND_AUTOLOAD": before} if before else {}
    return made
