"""Beam search through the engine: the texts and scores of transformers' `generate`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="pip install 'joymigrate[serve]'")

import torch

from joymigrate.run.serve.engine.asynchronous import AsyncEngine
from joymigrate.run.serve.engine.beams import BeamOptions, FinishedBeam, most_width, search
from joymigrate.run.serve.engine.types import EngineOptions, Request, Sampling

from .models import VOCABULARY, prompts, save

ROOM: dict[str, Any] = {"dtype": "float32", "block_size": 4, "kv_blocks": 200, "threads": 1}
ENDS = {"none": (), "rare": (11,), "several": tuple(range(8)), "most": tuple(range(60))}
WAYS = [(1, 1.0, False), (3, 1.0, False), (4, 0.0, True), (4, 2.0, False), (5, -0.5, False)]


def want(model: Any, ids: list[int], way: Any, ends: tuple[int, ...], limit: int) -> Any:
    """(tokens, score) of each text that transformers finds."""
    width, power, early = way
    made = model.generate(
        torch.tensor([ids]), num_beams=width, num_return_sequences=width, max_new_tokens=limit,
        length_penalty=power, early_stopping=early, do_sample=False, pad_token_id=VOCABULARY - 1,
        eos_token_id=list(ends) or None, output_scores=True, return_dict_in_generate=True,
    )  # fmt: skip
    rows = []
    scores = made.sequences_scores if width > 1 else [None]
    for row, score in zip(made.sequences[:, len(ids) :].tolist(), scores, strict=True):
        end = next((i + 1 for i, token in enumerate(row) if token in ends), limit)
        rows.append((row[:end], score if score is None else float(score)))
    return rows


@pytest.mark.parametrize(
    ("kind", "whole"),
    [
        ("qwen2", False),
        pytest.param("qwen2", True, marks=pytest.mark.slow),
        pytest.param("gpt_neox", True, marks=pytest.mark.slow),
    ],
)
def test_a_search_finds_what_transformers_finds(tmp_path: Path, kind: str, whole: bool) -> None:
    model = save(tmp_path, kind)
    engine = AsyncEngine.load(tmp_path, EngineOptions(**ROOM))
    compared = 0

    async def found(
        ids: list[int], way: Any, ends: tuple[int, ...], limit: int
    ) -> list[FinishedBeam]:
        sampling = Sampling(max_tokens=limit, stop_token_ids=ends, n=way[0])
        return await search(engine, Request("one", tuple(ids), sampling), BeamOptions(*way))

    try:
        for ids in prompts([5, 9] if whole else [5], seed=4):
            for ends in ENDS.values() if whole else [ENDS["several"]]:
                for way in WAYS if whole else WAYS[1:3]:
                    if way[0] > most_width(len(ends)):
                        continue
                    rows = want(model, ids, way, ends, 7)
                    ours = asyncio.run(found(ids, way, ends, 7))
                    assert [list(one.ids) for one in ours] == [row for row, _ in rows], (way, ends)
                    for one, (row, score) in zip(ours, rows, strict=True):
                        assert (one.reason == "stop") == (row[-1] in ends)
                        if score is not None:
                            assert one.score == pytest.approx(score, abs=1e-4)
                    compared += 1
        assert compared >= (30 if whole else 2)
        assert engine.stats().running == 0
    finally:
        engine.stop()


def test_the_engine_gives_enough_tokens_for_the_widest_search() -> None:
    assert [most_width(ends) for ends in (0, 1, 3)] == [32, 32, 16]
