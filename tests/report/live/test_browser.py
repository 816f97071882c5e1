"""The live page in headless Chromium while `joymigrate migrate` works in another process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from joymigrate.ledger import Ledger, Step
from scripts.browser import Browser

EXAMPLE = Path(__file__).parents[3] / "examples" / "ctr"
ENVIRONMENT = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
pytestmark = pytest.mark.chromium


def joymigrate(*words: object) -> list[str]:
    return [sys.executable, "-m", "joymigrate", *map(str, words)]


@contextmanager
def served(project: Path, port: int = 0) -> Iterator[str]:
    process = subprocess.Popen(
        joymigrate("report", project, "--serve", "--port", port),
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        assert process.stderr is not None
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found is not None
        yield found[0]
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "ctr"
    shutil.copytree(EXAMPLE, root)
    (root / "joymigrate.toml").touch()
    return root


def test_the_page_grows_while_a_project_is_migrated(project: Path) -> None:
    with served(project) as url, Browser() as browser:
        browser.open(url)
        browser.ask("window.before = true")
        browser.until("document.querySelector('#live.live') !== null")
        assert "No journey yet" in browser.ask("document.querySelector('#way').textContent")
        words = ("migrate", project, "--until", "rewrite", "-q")
        subprocess.run(joymigrate(*words), check=True, env=ENVIRONMENT, capture_output=True)
        browser.until("document.querySelector('[data-step=rewrite][data-status=done]') !== null")
        rows = "document.querySelectorAll('#ledger tbody tr').length"
        assert browser.until(f"{rows} === 3 && {rows}") == 3
        assert (
            browser.ask("document.querySelector('nav a[href=\"#ledger\"] .count').textContent")
            == "3"
        )
        assert browser.ask("window.before") is True  # nothing was loaded again
        link = "document.querySelector('#way a[href$=\"scan.json\"]').href"
        schema = f"fetch({link}).then(answer => answer.json()).then(found => found.schema)"
        assert browser.ask(schema) == "joymigrate.scan/1"


def test_what_a_reader_opened_sorted_and_scrolled_stays(project: Path) -> None:
    ledger = Ledger.of(project)
    for number in range(60):
        ledger.record(Step(kind=f"kind{number:02}", command=f"joymigrate {'x' * 90} {number}"))
    with served(project) as url, Browser(height=600) as browser:
        browser.open(url)
        browser.until("document.querySelector('#live.live') !== null")
        browser.ask("document.querySelector('[data-key=command-0001]').open = true")
        sort = "[...document.querySelectorAll('#ledger th button')][0].click()"
        browser.ask(sort)  # the column of numbers: ascending
        browser.ask("document.querySelector('#ledger tr[data-key=\"0030\"]').scrollIntoView()")
        at = "document.querySelector('#ledger tr[data-key=\"0030\"]').getBoundingClientRect().top"
        before = browser.ask(at)
        ledger.record(Step(kind="newcomer", verdict="pass"))  # grows the part above as well
        browser.until("document.querySelector('#ledger tr[data-key=\"0061\"]') !== null")
        browser.until("document.querySelector('#judgements tr[data-key=\"0061\"]') !== null")
        assert abs(browser.ask(at) - before) < 2
        assert browser.ask("document.querySelector('[data-key=command-0001]').open") is True
        keys = "[...document.querySelectorAll('#ledger tbody tr')].map(row => row.dataset.key)"
        shown = browser.ask(keys)
        assert shown == sorted(shown)


def test_it_says_when_the_server_is_gone_and_comes_back(project: Path) -> None:
    with Browser() as browser:
        with served(project) as url:
            browser.open(url)
            browser.until("document.querySelector('#live.live') !== null")
        browser.until("document.querySelector('#gone') !== null")
        assert "does not answer" in browser.ask("document.querySelector('#gone').textContent")
        Ledger.of(project).record(Step(kind="meanwhile"))
        with served(project, int(url.rstrip("/").rpartition(":")[2])):
            browser.until("document.querySelector('#live.live') !== null")
            assert browser.ask("document.querySelector('#gone')") is None
            assert "meanwhile" in browser.ask("document.querySelector('#ledger').textContent")


@pytest.mark.slow
def test_without_events_it_asks(project: Path) -> None:
    with served(project) as url, Browser() as browser:
        browser.open(f"{url}?poll&lang=zh")
        browser.until("document.querySelector('#live.polling') !== null")
        Ledger.of(project).record(Step(kind="asked"))
        browser.until("document.querySelector('#ledger tr[data-key=\"0001\"]') !== null")
        assert "轮询中" in browser.ask("document.querySelector('#live').textContent")
