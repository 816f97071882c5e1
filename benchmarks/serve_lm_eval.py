"""Does lm-eval see the same model through the server as through its own Hugging Face backend?

    pip install lm_eval
    python -m benchmarks.serve_lm_eval

A tiny random model, and two tasks of our own data: multiple choice (log-likelihoods through
`echo`) and free generation. Prints how far the log-likelihoods of both lie from those of the same
model in float64, as a share of their size (float32 carries 24 bits: both round), how far from each
other, and how many generations are equal. Exit 1 where ours lie 1e-6 or more from float64 and
farther than a tenth more than theirs, or a generation differs by a token.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.run.serve.engine.http.conftest import WORDS, make_model, serving

TOLERANCE = 1e-6
TOKENS = 24


def rows(count: int) -> list[dict[str, Any]]:
    """Questions with three answers each, out of the words that the tokenizer knows."""
    source, words = random.Random(7), WORDS.split()
    made = []
    for _ in range(count):
        choices = [" " + " ".join(source.choices(words, k=source.randint(1, 4))) for _ in range(3)]
        made.append(
            {
                "question": " ".join(source.choices(words, k=source.randint(3, 30))),
                "choices": choices,
                "gold": source.randrange(3),
            }
        )
    return made


def tasks(file: Path) -> list[dict[str, Any]]:
    """Two tasks on one file."""
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(file)}},
            "test_split": "test", "doc_to_text": "{{question}}"}  # fmt: skip
    return [
        {**data, "task": "ours_choice", "output_type": "multiple_choice", "doc_to_target": "gold",
         "doc_to_choice": "{{choices}}", "metric_list": [{"metric": "acc"}]},
        {**data, "task": "ours_words", "output_type": "generate_until",
         "doc_to_target": "{{choices[0]}}",
         "generation_kwargs": {"until": ["\n\n\n"], "max_gen_toks": TOKENS, "do_sample": False,
                               "temperature": 0},
         "metric_list": [{"metric": "exact_match"}]},
    ]  # fmt: skip


def answers(model: Any, file: Path) -> dict[str, list[Any]]:
    """What a backend says to every request of each task."""
    import lm_eval

    found = lm_eval.simple_evaluate(model=model, tasks=tasks(file), log_samples=True)
    return {
        name: [sample["resps"] for sample in sorted(samples, key=lambda s: s["doc_id"])]
        for name, samples in found["samples"].items()
    }


def numbers(samples: Any) -> list[float]:
    """The log-likelihoods of all samples."""
    return [float(row[0][0]) for sample in samples for row in sample]


def apart(some: list[float], others: list[float]) -> float:
    """The largest difference, as a share of the size (of 1 where that is smaller)."""
    pairs = zip(some, others, strict=True)
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in pairs)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--questions", type=int, default=40)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as place:
        folder = make_model(Path(place) / "tiny")
        file = Path(place) / "rows.json"
        file.write_text(json.dumps(rows(given.questions)))
        from lm_eval.models.huggingface import HFLM
        from lm_eval.models.openai_completions import LocalCompletionsAPI

        theirs = answers(HFLM(str(folder), device="cpu", dtype="float32", batch_size=1), file)
        exact = answers(HFLM(str(folder), device="cpu", dtype="float64", batch_size=1), file)
        with serving(folder, dtype="float32") as server:
            client = LocalCompletionsAPI(
                base_url=server.url + "/v1/completions", model="tiny", tokenizer=str(folder),
                tokenizer_backend="huggingface", num_concurrent=4, max_length=511,
            )  # fmt: skip
            ours = answers(client, file)
    named = {"ours": ours, "theirs": theirs, "exact": exact}
    found = {name: numbers(made["ours_choice"]) for name, made in named.items()}
    worst, theirs_worst = (apart(found[name], found["exact"]) for name in ("ours", "theirs"))
    texts = list(zip(theirs["ours_words"], ours["ours_words"], strict=True))
    same = sum(one == other for one, other in texts)
    print(
        json.dumps(
            {
                "loglikelihoods": len(found["ours"]),
                "largest": max(map(abs, found["exact"])),
                "ours_from_float64": worst,
                "theirs_from_float64": theirs_worst,
                "ours_from_theirs": apart(found["ours"], found["theirs"]),
                "generations": len(texts),
                "generations_equal": same,
            }
        )
    )
    return 0 if worst < max(TOLERANCE, 1.1 * theirs_worst) and same == len(texts) else 1


if __name__ == "__main__":
    sys.exit(main())
