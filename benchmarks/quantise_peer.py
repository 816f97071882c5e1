"""Whether two servers compute the same from one model folder: ours and, say, vLLM with its W8A8.

    joymigrate serve ./model-w8a8 --port 8000 --name m &
    vllm serve ./model-w8a8 --port 8001 --served-model-name m &
    python -m benchmarks.quantise_peer http://127.0.0.1:8000 http://127.0.0.1:8001 --model m

Random prompts are scored by both (`prompt_logprobs`), and continued greedily. Printed are: how far
the log-probabilities of the prompts' tokens are apart, how often the most probable token is the
same, and how many greedy tokens agree before the first that does not. `--against URL` scores the
plain model as well: how far quantising moved it, to compare the difference of the servers with.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import urllib.request
from typing import Any

Scores = list[tuple[float, int]]  # of each token of a prompt but the first: its own, and the best


def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """One completion."""
    request = urllib.request.Request(
        url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        found: dict[str, Any] = json.load(response)["choices"][0]
    return found


def scored(url: str, model: str, ids: list[int], length: int) -> tuple[Scores, list[int]]:
    """The scores of a prompt, and its greedy continuation."""
    body = {"model": model, "prompt": ids, "temperature": 0, "ignore_eos": True,
            "repetition_penalty": 1.0}  # fmt: skip
    choice = ask(url, {**body, "max_tokens": 1, "prompt_logprobs": 1})
    rows = choice["prompt_logprobs"][1:]
    scores = []
    for token, row in zip(ids[1:], rows, strict=True):
        best = max(row, key=lambda key: row[key]["logprob"])
        scores.append((float(row[str(token)]["logprob"]), int(best)))
    made = ask(url, {**body, "max_tokens": length, "return_token_ids": True})["token_ids"]
    return scores, made


def agreed(first: list[int], second: list[int]) -> int:
    """How many tokens are the same before one differs."""
    pairs = zip(first, second, strict=True)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(first))


def compared(name: str, pairs: list[tuple[Scores, Scores]]) -> str:
    """Differences of the scores of the same tokens."""
    rows = [(a, b) for first, second in pairs for a, b in zip(first, second, strict=True)]
    apart = [abs(a[0] - b[0]) for a, b in rows]
    same = sum(a[1] == b[1] for a, b in rows)
    return (
        f"{name}: log-probabilities apart {statistics.mean(apart):.4f} on average, "
        f"{max(apart):.4f} at most; the same first choice {same} of {len(rows)} "
        f"({100 * same / len(rows):.1f} %)"
    )


def main() -> None:
    """Score, continue, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("servers", nargs=2, metavar="URL")
    parser.add_argument("--model", required=True)
    parser.add_argument("--against", metavar="URL", help="a server of the plain model")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=8000)
    asked = parser.parse_args()
    source = random.Random(0)
    prompts = [
        [source.randrange(8, asked.vocabulary) for _ in range(asked.prompt_tokens)]
        for _ in range(asked.prompts)
    ]
    urls = [*asked.servers, *([asked.against] if asked.against else [])]
    found = [
        [scored(url, asked.model, ids, asked.output_tokens) for ids in prompts] for url in urls
    ]
    scores = [[row[0] for row in rows] for rows in found]
    print(compared("the two servers", list(zip(scores[0], scores[1], strict=True))))
    if asked.against:
        print(
            compared("the first and the plain model", list(zip(scores[0], scores[2], strict=True)))
        )
    lengths = [agreed(a[1], b[1]) for a, b in zip(found[0], found[1], strict=True)]
    whole = sum(length == asked.output_tokens for length in lengths)
    print(f"greedy: {whole} of {len(lengths)} texts equal, {sum(lengths)} tokens before they part")


if __name__ == "__main__":
    main()
