"""Which tools this machine has; tests that need a missing one say so, and what to install."""

from __future__ import annotations

import os
import shutil

import pytest

# With torch_npu installed and no CANN a plain `import torch` fails (see docs/limits.md).
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

TOOLS = {
    "compiler": (("cc", "gcc", "clang"), "apt-get install gcc libc6-dev"),
    "chromium": (("chromium", "chromium-browser", "google-chrome"), "apt-get install chromium"),
}
REQUIRED = os.environ.get("JOYMIGRATE_REQUIRE_TOOLS") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip marked tests whose tool is missing; where tools are required, let them fail."""
    for mark, (programs, remedy) in TOOLS.items():
        if REQUIRED or any(shutil.which(program) for program in programs):
            continue
        skip = pytest.mark.skip(reason=f"no {mark}: {remedy}")
        for item in items:
            if item.get_closest_marker(mark):
                item.add_marker(skip)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests don't read the developer's environment."""
    for name in ("JOYMIGRATE_TO", "JOYMIGRATE_SETTINGS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
