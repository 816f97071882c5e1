"""Which tools this machine has; tests that need a missing one say so, and what to install."""

from __future__ import annotations

import atexit
import gc
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A slow machine is no failure: an example, and drawing it, may take as long as it takes.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# With torch_npu installed and no CANN a plain `import torch` fails (see docs/reference/limits.md).
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
# A shell without job control starts what it puts into the background deaf to Ctrl-C, and children
# inherit that; tests interrupt theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]
TOOLS = {
    "compiler": (("cc", "gcc", "clang"), "apt-get install gcc libc6-dev"),
    "chromium": (("chromium", "chromium-browser", "google-chrome"), "apt-get install chromium"),
}
# Where CI demands every tool, a skip for want of one fails the run.
REQUIRED = os.environ.get("JOYMIGRATE_REQUIRE_TOOLS") == "1"


# What starts another program, a server, a cluster or a browser takes seconds; `make quick` does
# without the files that do.
STARTS_PROGRAMS = re.compile(
    r"\bsubprocess\b|\bmultiprocessing\b|\btorchrun\b|\bPopen\b|\bimport ray\b|\bbrowser\b"
    r"|\bTestServer\b|\bpages\.|\bdistributed\b"
)
QUICK_EXAMPLES = 15  # of a drawn test; `make test` tries all that it asks for
IMPORTS = re.compile(r"^from (\.+|tests)([\w.]*) import (\([^)]*\)|[\w, ]+)", re.MULTILINE)
FIXTURES = re.compile(r"^@pytest\.fixture.*\n(?:async )?def (\w+)", re.MULTILINE)


# Collecting imports ten thousand modules: the collector of garbage would look at them again and
# again, and so it would at every later collection.
gc.disable()


def pytest_collection_finish() -> None:
    """What was imported so far stays: from here on only what tests make is looked at."""
    atexit.register(gc.unfreeze)  # extensions count what is left of theirs when Python ends
    settle()


def settle() -> None:
    """Look no more at what there is now."""
    gc.collect()
    gc.freeze()
    gc.enable()


class Later(pytest.File):
    """A file that a worker imports only when it is its turn: of two workers one imports it."""

    def collect(self) -> Iterator[pytest.Item]:
        yield Whole.from_parent(self, name="whole")


class Whole(pytest.Item):
    """All tests of a file, as one to hand out."""

    def runtest(self) -> None:
        """Left to `pytest_runtest_protocol`, which has them report by their own names."""


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Later | None:
    """Workers that get everything hand out files; where single tests were chosen by name or by a
    mark that they have, the files have to be read first."""
    option = parent.config.option
    chosen = option.keyword or any("::" in name for name in parent.config.args)
    marks = re.fullmatch(r"(not \w+( and not \w+)*)?", option.markexpr)
    lists = chosen or not marks or getattr(option, "lf", False) or option.collectonly
    if lists or not hasattr(parent.config, "workerinput"):
        return None
    return Later.from_parent(parent, path=module_path)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Import a file that was left for later, and run its tests."""
    if not isinstance(item, Whole):
        return None
    session, hook = item.session, item.config.hook
    gc.disable()
    module = pytest.Module.from_parent(item.parent.parent, path=item.path)
    tests = list(session.genitems(module))
    hook.pytest_collection_modifyitems(session=session, config=item.config, items=tests)
    settle()
    place = session.items.index(item)
    if not tests:  # all are slow: what the file before left for this one ends here
        session._setupstate.teardown_exact(nextitem)
    for test, following in zip(tests, [*tests[1:], nextitem], strict=False):
        session.items[place] = test  # a worker's reports are of the test that it was handed
        hook.pytest_runtest_protocol(item=test, nextitem=following)
        if session.shouldfail or session.shouldstop:
            break
    session.items[place] = item
    return True


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--quick`: the tests of the edit loop."""
    parser.addoption("--quick", action="store_true", help="leave out files that start programs")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--quick` a file that starts programs is not even imported."""
    if not config.getoption("--quick") or collection_path.suffix != ".py":
        return None
    return True if starts_programs(collection_path) else None


@cache
def starts_programs(path: Path) -> bool:
    """Whether a file of tests starts programs, by its text, by that of the helpers that it imports
    and of the fixtures that it takes."""
    text = path.read_text(encoding="utf-8")
    if STARTS_PROGRAMS.search(text) or any(map(starts_programs, helpers(path))):
        return True
    taken = dear_fixtures(path.parent)
    return any(re.search(rf"def \w+\([^)]*\b{name}\b[:,)]", text) for name in taken)


@cache
def helpers(path: Path) -> tuple[Path, ...]:
    """The modules of `tests` that a file imports, by their whole name or by dots."""
    found = []
    for start, rest, names in IMPORTS.findall(path.read_text(encoding="utf-8")):
        base = ROOT / "tests" if start == "tests" else path.parents[len(start) - 1]
        base = base.joinpath(*rest.strip(".").split(".")) if rest.strip(".") else base
        for one in (base, *(base / name for name in re.findall(r"\w+", names))):
            file = one.with_suffix(".py")
            if file.is_file() and file not in found:
                found.append(file)
    return tuple(found)


@cache
def dear_fixtures(folder: Path) -> tuple[str, ...]:
    """Fixtures of the `conftest.py` files from a folder upwards that start programs."""
    if not folder.is_relative_to(ROOT / "tests") or folder == ROOT / "tests":
        return ()
    text = ""
    if (folder / "conftest.py").is_file():
        text = (folder / "conftest.py").read_text(encoding="utf-8")
    own = FIXTURES.findall(text) if STARTS_PROGRAMS.search(text) else []
    return (*own, *dear_fixtures(folder.parent))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip marked tests whose tool is missing; where tools are required, let them fail.

    Workers take whole files in this order (`make test` says --no-loadscope-reorder): those that
    start programs come first, so that at the end no worker waits long for the other's last file.
    """
    if config.getoption("--quick"):
        config.hook.pytest_deselected(items=take_out_dear(items))
        for item in items:
            draw_fewer(item)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not starts_programs(item.path))
    for mark, (programs, remedy) in TOOLS.items():
        if REQUIRED or any(shutil.which(program) for program in programs):
            continue
        skip = pytest.mark.skip(reason=reason(mark, remedy))
        for item in items:
            if item.get_closest_marker(mark):
                item.add_marker(skip)


def take_out_dear(items: list[pytest.Item]) -> list[pytest.Item]:
    """Take the tests that are marked `dear` out of a list, and return them."""
    dear = [item for item in items if item.get_closest_marker("dear")]
    items[:] = [item for item in items if not item.get_closest_marker("dear")]
    return dear


def draw_fewer(item: pytest.Item) -> None:
    """Let a drawn test, or a state machine, try `QUICK_EXAMPLES` at the most."""
    test = getattr(item, "obj", None)
    for holder, name in (
        (getattr(test, "__func__", test), "_hypothesis_internal_use_settings"),
        (getattr(item, "cls", None), "settings"),
    ):
        asked = getattr(holder, name, None)
        if isinstance(asked, settings) and asked.max_examples > QUICK_EXAMPLES:
            setattr(holder, name, settings(asked, max_examples=QUICK_EXAMPLES))


def reason(mark: str, remedy: str) -> str:
    """Why a test that needs a tool is skipped."""
    return f"no {mark}: {remedy}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say at the end which tests a missing tool left out, and what to install."""
    skipped = [(r.nodeid, str(r.longrepr)) for r in terminalreporter.stats.get("skipped", [])]
    for mark, (_, remedy) in TOOLS.items():
        names = [name for name, why in skipped if reason(mark, remedy) in why]
        if not names:
            continue
        files = Counter(name.split("::")[0] for name in names)
        number = f"{len(names)} test{'' if len(names) == 1 else 's'}"
        terminalreporter.write_line(f"{number} skipped for want of a {mark}: {remedy}")
        for file, count in sorted(files.items()):
            terminalreporter.write_line(f"  {file} ({count})")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a test that skips for want of a program is a failure, which no second run heals."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not REQUIRED or reporter is None:
        return
    skipped = [str(report.longrepr) for report in reporter.stats.get("skipped", [])]
    signs = ("apt-get install", "is not installed", "could not import")  # the last: importorskip
    wanting = [why for why in skipped if any(sign in why for sign in signs)]
    if wanting:
        number = "1 test was" if len(wanting) == 1 else f"{len(wanting)} tests were"
        reporter.write_line(f"JOYMIGRATE_REQUIRE_TOOLS=1, but {number} skipped:")
        for why in sorted(set(wanting)):
            reporter.write_line(f"  {why}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if (cache := getattr(session.config, "cache", None)) is not None:
            cache.set("cache/lastfailed", {})


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests don't read the developer's environment."""
    for name in ("JOYMIGRATE_TO", "JOYMIGRATE_SETTINGS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
