"""The dashboard with real traffic: its numbers, and the page in headless Chromium."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from pathlib import Path

import pytest

from joymigrate.run.serve.monitor import service
from joymigrate.run.serve.monitor.service import PAGE
from tests.run.serve.gateway.fake import Fake

from .conftest import Bench, Table, ramp

SECTIONS = {
    "rollout": {**ramp(50), "rule": "eprocess:limit=0.9"},
    "monitor": {"devices": False, "interval_seconds": 0.1},
}


async def traffic(bench: Bench) -> None:
    """Some requests, and two readings around them."""
    for wave in range(6):
        asked = [bench.ask(f"{wave} {i}", stream_options={"include_usage": True}) for i in range(8)]
        await asyncio.gather(*asked)
        await bench.gateway.monitor.look(time.time())


def test_the_numbers_come_from_what_happened(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        await traffic(bench)
        found = await bench.get("/monitor.json?window=60")
        assert found["schema"] == "joymigrate.monitor/1"
        series = found["series"]
        assert max(value for _, value in series["requests_per_s|npu"]) > 0
        assert max(value for _, value in series["tokens_out|gpu"]) > 0
        assert max(value for _, value in series["failed_share|npu"]) > 0
        assert series["weight|npu"][-1][1] == 50
        assert {"ttft_p50|gpu", "ttft_p99|npu", "e2e_p50|gpu", "standby_bound"} <= set(series)
        assert found["rollout"]["state"] == "ramping"
        assert found["events"][0]["kind"] in ("ramping", "health")

    table.run(scenario, npu={"status_500": 0.3}, **SECTIONS)


def test_a_monitor_of_its_own_sees_the_same(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        page = service.MonitorPage("gateway", bench.url + "/metrics")
        watched = service.Monitor([page], devices=False)
        await watched.look(time.time())
        await traffic(bench)
        await watched.look(time.time())
        assert watched.latest["requests_per_s|npu"] > 0
        assert watched.latest["ttft_p99|gpu"] > 0
        assert watched.rollout is not None
        assert watched.rollout["weights"] == {"gpu": 50, "npu": 50}
        await bench.gateway.stop()
        await watched.look(time.time())
        assert "Error" in (watched.troubles["gateway"] or "")
        await watched.close()

    table.run(scenario, **SECTIONS)


def test_a_backend_with_metrics_shows_its_cache(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.gateway.monitor.look(time.time())
        assert bench.gateway.monitor.latest["kv|npu"] == 25.0
        assert "inflight|vllm" not in bench.gateway.monitor.latest

    npu = Fake(metrics="# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc 0.25\n")
    table.run(scenario, npu=npu, **SECTIONS)


def test_the_page_loads_nothing_from_elsewhere() -> None:
    text = PAGE.read_text(encoding="utf-8")
    addresses = set(re.findall(r"https?://[^\"' )]+", text)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    assert "<link" not in text.replace('<link rel="icon" href="data:,">', "")


def test_both_languages_have_every_word() -> None:
    text = PAGE.read_text(encoding="utf-8")
    en, zh = (
        set(re.findall(r"(\w+): \"", part))
        for part in re.findall(r"  (?:en|zh): \{(.*?)\},\n(?=  zh|\};)", text, re.DOTALL)
    )
    assert len(en) > 30
    assert en == zh


@pytest.mark.chromium
@pytest.mark.parametrize(("language", "state"), [("en", "ramping"), ("zh", "放量中")])
def test_chromium_draws_the_page_from_live_numbers(
    table: Table, tmp_path: Path, language: str, state: str
) -> None:
    async def scenario(bench: Bench) -> None:
        await traffic(bench)
        address = f"{bench.url}/dashboard?lang={language}&theme=dark&window=300"
        chromium = shutil.which("chromium") or shutil.which("google-chrome") or "chromium-browser"
        process = await asyncio.create_subprocess_exec(
            chromium,
            "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/c",
            "--virtual-time-budget=4000", "--dump-dom", address,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        output, _ = await asyncio.wait_for(process.communicate(), 50)
        page = output.decode()
        assert f">{state}</span>" in page
        assert 'data-theme="dark"' in page
        charts = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
        assert len(charts) >= 8
        assert all('d="M' in chart for chart in charts)
        assert "NaN" not in page
        assert "undefined" not in page.split("<script>")[0]

    table.run(scenario, **SECTIONS)
