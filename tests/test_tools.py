"""What the test run says about a missing compiler or browser, and what CI makes of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

@pytest.mark.compiler
def test_with_a_compiler():
    pass

def test_without():
    pass

def test_that_looks_for_itself():
    pytest.skip("git is not installed")
"""


def pytest_over(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run our conftest over a few tests on a machine without any program."""
    shutil.copy(Path(__file__).parent / "conftest.py", folder)
    (folder / "test_a.py").write_text(TESTS)
    (folder / "pytest.ini").write_text(
        "[pytest]\naddopts = -q\nmarkers =\n  compiler: c\n  slow: s\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JOY", "PYTEST"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=folder,
        env={**environment, "PATH": "", **settings},
        capture_output=True,
        text=True,
    )


def test_a_missing_tool_is_named_at_the_end_with_the_remedy(tmp_path: Path) -> None:
    done = pytest_over(tmp_path)
    assert done.returncode == 0
    assert (
        "1 test skipped for want of a compiler: apt-get install gcc libc6-dev\n  test_a.py (1)\n"
    ) in done.stdout


def test_where_tools_are_required_a_skip_for_want_of_one_fails(tmp_path: Path) -> None:
    done = pytest_over(tmp_path, JOYMIGRATE_REQUIRE_TOOLS="1")
    assert done.returncode == 1
    assert "but 1 test was skipped" in done.stdout
    assert "git is not installed" in done.stdout


def test_a_second_run_of_what_failed_heals_no_missing_tool(tmp_path: Path) -> None:
    again = ("--last-failed", "--last-failed-no-failures", "none")
    once = "import os\ndef test_once():\n    assert 'AGAIN' in os.environ\n"
    (tmp_path / "test_b.py").write_text(once)
    assert pytest_over(tmp_path).returncode == 1
    assert pytest_over(tmp_path, *again, AGAIN="1").returncode == 0
    assert pytest_over(tmp_path, JOYMIGRATE_REQUIRE_TOOLS="1").returncode == 1
    assert pytest_over(tmp_path, *again, AGAIN="1", JOYMIGRATE_REQUIRE_TOOLS="1").returncode == 5


def test_a_worker_imports_a_file_in_its_turn_and_reports_each_test(tmp_path: Path) -> None:
    """Module fixtures end with their file, and a file that can't be imported is an error."""
    (tmp_path / "test_b.py").write_text("import missing\n")
    log = "\n    open('log', 'a').write(__name__ + '{}')\n"
    for name in ("test_c", "test_d"):
        (tmp_path / f"{name}.py").write_text(
            f"import pytest\n@pytest.fixture(scope='module')\ndef held():{log.format(' begin ')}"
            f"    yield{log.format(' end ')}\ndef test_one(held): ...\ndef test_two(held): ...\n"
        )
    slow = "import pytest\n@pytest.mark.slow\ndef test_slow(): ...\n"
    one = "def test_one(): ...\n"
    for name, text in (("p/test_e", one), ("p/test_f", slow), ("q/test_g", one)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).with_name("__init__.py").touch()
        (tmp_path / f"{name}.py").write_text(text)
    done = pytest_over(tmp_path, "-n", "1", "--dist", "loadfile", "-m", "not slow")
    assert done.returncode == 1
    assert "ERROR test_b.py - ImportError" in done.stdout
    assert "7 passed, 2 skipped, 1 error" in done.stdout
    assert "  test_a.py (1)\n" in done.stdout
    assert (tmp_path / "log").read_text() == ("test_c begin test_c end test_d begin test_d end ")
    done = pytest_over(tmp_path, "-n", "1", "--dist", "loadfile", "-k", "one")
    assert "4 passed" in done.stdout
