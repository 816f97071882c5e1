"""The fire drill of the benchmarks, in short."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks import gateway_drill


def test_a_drill_passes_and_reports(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(
        "requests: 120\nconcurrency: 8\ntokens: 10\nseed: 5\n"
        "primary: [{kind: reset, share: 0.05}]\n"
        "standby: [{kind: status_500, share: 0.5}, truncate]\n"
        "gateway: {rollout: {steps: [50, 100]}}\n"
    )
    found = asyncio.run(gateway_drill.run(gateway_drill.read(path))).to_json()
    assert found["passed"], found["disagreements"]
    assert found["clients"]["corrupt"] == found["clients"]["silently cut"] == 0
    # The standby is rolled back soon: what the primary resets then is asked of the primary again.
    assert found["clients"]["ok"] == 120
    assert found["rollout"]["state"] == "rolled_back"
    assert found["after_decision"] == 0
