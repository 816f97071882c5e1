"""Drafts from the command line: the same answers, and the metrics say what drafts brought."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Running, call, free_port, process, wait_ready

ASKED: list[dict[str, Any]] = [
    {"prompt": "xyz", "max_tokens": 60, "temperature": 0, "guided_regex": "(hello world ){3,9}"},
    {"prompt": "xyz", "max_tokens": 60, "seed": 3, "n": 2, "guided_regex": "(hello world ){3,9}"},
    {"prompt": "Hello world, this is a text. " * 4, "max_tokens": 40, "temperature": 0},
]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["lookup", "model"])
def test_drafts_change_no_answer_and_are_counted(way: str, folder: Path, server: Running) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = (
        ("--prompt-lookup", "5")
        if way == "lookup"
        else ("--draft-model", str(folder), "--draft-tokens", "4")
    )
    start = (str(folder), "--device", "cpu", "--threads", "1", "--port", str(port), *words)
    with process(*start) as (made, lines):
        wait_ready(url, made, lines)
        for asked in ASKED:
            texts = []
            for base in (server.url, url):
                status, _, raw = call(f"{base}/v1/completions", json.dumps(asked).encode())
                assert status == 200, raw
                texts.append([choice["text"] for choice in json.loads(raw)["choices"]])
            assert texts[0] == texts[1]
        page = call(f"{url}/metrics")[2].decode()
    counts = {
        line.partition("{")[0]: float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line.startswith("vllm:spec_decode_num_")
    }
    drafts, tried, accepted = (
        counts[f"vllm:spec_decode_num_{name}_total"]
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    assert 0 < accepted <= tried
    assert 0 < drafts <= tried
    assert f"joymigrate_drafts_total {drafts:g}" in page
    assert any("drafts of up to" in line for line in lines)
