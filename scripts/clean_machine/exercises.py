"""What is tried in each environment, and what it must come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# What every extra with torch makes possible; tried with the first two.
TORCH = ("torch", "ascend", "serve", "train", "kernels")
ASK_COMPLETION = ("/v1/completions", {"prompt": "line", "max_tokens": 4})


@dataclass(frozen=True, slots=True)
class Exercise:
    """One command line.

    `extras`: any of them makes it work, none of them means that it works without. Where it cannot
    work it must be refused with the name of one of them. `only`: tried in these environments, for
    what it reads is made there. `says` stands in its output. `ask`: the command is a server; ask
    it this, and stop it.
    """

    line: str
    extras: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    code: int = 0
    says: str = ""
    ask: tuple[str, Any] | None = None


# In this order: a later one may use what an earlier one left.
EXERCISES = (
    # Source.
    Exercise("joymigrate scan project", code=1, says="fixable with joymigrate rewrite"),
    Exercise("joymigrate scan project --format json -o scan.json", code=1),
    Exercise("joymigrate scan project --format sarif", code=1, says="sarif"),
    Exercise("joymigrate scan project --format html -o scan.html", code=1),
    Exercise("joymigrate report scan.json -o page.html"),
    Exercise("joymigrate rewrite project --style agnostic"),
    Exercise("joymigrate status project", says="rewrite"),
    Exercise("joymigrate next project", says="judge: joymigrate migrate"),
    Exercise("joymigrate init project --agents", says="AGENTS.md"),
    Exercise("joymigrate mcp project", ("agent",)),
    Exercise("joymigrate report project --pull-request", says="What was not looked at"),
    Exercise("joymigrate rollback --project project"),
    Exercise("joymigrate explain JM101", says="JM101"),
    Exercise("joymigrate explain --list", says="JM101"),
    Exercise("joymigrate chips list", says="ascend"),
    Exercise("joymigrate chips validate"),
    Exercise("joymigrate doctor --format json", says="joymigrate.doctor/1"),
    Exercise("joymigrate schema", says="gateway"),
    Exercise("joymigrate schema job", says="2020-12"),
    # Operators.
    Exercise("joymigrate oplist show add --to ascend", says="aten::add"),
    Exercise("joymigrate oplist diff 2.7 2.13 --to ascend"),
    Exercise("joymigrate profile record -o cpu.jsonl -- python cpu.py", TORCH),
    Exercise("joymigrate profile coverage trace.jsonl --to ascend"),
    Exercise("joymigrate profile advise trace.jsonl --to ascend"),
    Exercise("joymigrate profile cost trace.jsonl --to ascend", TORCH),
    Exercise("joymigrate profile diff trace.jsonl trace.jsonl"),
    Exercise("joymigrate profile port project"),
    # Verdicts.
    Exercise("joymigrate verify record -o base.jmb -- python cpu.py", TORCH),
    Exercise("joymigrate verify show base.jmb", TORCH),
    Exercise(
        "joymigrate verify replay base.jmb --format json -o verdict.json -- python cpu.py", TORCH
    ),
    Exercise("joymigrate verify compare base.jmb base.jmb", TORCH),
    Exercise("joymigrate verify ops --from cpu.jsonl --device cpu", TORCH),
    Exercise("joymigrate verify pack base.jmb -o base.tar", only=("torch", "ascend")),
    Exercise("joymigrate kernels list", TORCH),
    Exercise("joymigrate kernels check rms_norm --device cpu", TORCH, says="rms_norm"),
    # Clusters and rollouts.
    Exercise("joymigrate cluster plan --inventory inventory.yaml --jobs jobs.yaml"),
    Exercise("joymigrate cluster simulate --inventory inventory.yaml --trace trace.csv"),
    Exercise("joymigrate cluster render jobs.yaml -o rendered.yaml"),
    Exercise("joymigrate cluster validate rendered.yaml"),
    Exercise("joymigrate cluster detect"),
    Exercise("joymigrate serve simulate --rate 1% --runs 50 --horizon 5000 --plot curves.html"),
    Exercise("joymigrate serve models", says="qwen2"),
    Exercise("joymigrate monitor --export prometheus"),
    Exercise("joymigrate migrate project --dry-run", says="rehearse"),
    # Training without its extra: what reads and writes files only.
    Exercise("joymigrate train init other.yaml"),
    Exercise("joymigrate train tasks"),
    Exercise("joymigrate train generate shop --rows 200", ("rec",)),
    Exercise("joymigrate train status absent", code=2),
    # The simulated chip.
    Exercise("joymigrate rehearse --migrate -- python step.py", ("ascend",), says="loss"),
    Exercise(
        "joymigrate verify replay base.jmb --rehearse -- python cpu.py",
        ("ascend",),
        only=("core", "ascend"),
    ),
    Exercise("joymigrate oplist show npu_rotary_mul --installed", ("ascend",), says="npu::"),
    Exercise(
        "joymigrate profile record --capture rehearse -o npu.jsonl --migrate -- python step.py",
        ("ascend",),
    ),
    # Serving.
    Exercise(
        "joymigrate serve model --port 0 --device cpu", ("serve",),
        says="listening", ask=ASK_COMPLETION,
    ),
    Exercise("joymigrate serve model --check --device cpu --port 0", ("serve",), says="ready"),
    Exercise("joymigrate serve rollout status --url http://127.0.0.1:9", code=2),
    Exercise(
        "joymigrate serve --config gateway.yaml", ("serve",), says="listening on http://",
        ask=("/admin/rollout", None),
    ),
    Exercise(
        "joymigrate monitor http://127.0.0.1:9/metrics --port 0", ("serve",), says="http://",
        ask=("/", None),
    ),
    Exercise(
        "joymigrate quantise model --data text.jsonl -o small --samples 16 --length 32 "
        "--max-perplexity-ratio 9 --min-top1 0", ("serve", "train"),
    ),
    # Training.
    Exercise("joymigrate train job.yaml", ("train",)),
    Exercise("joymigrate train status runs/tiny --plot", only=("train",), says="tiny"),
    Exercise("joymigrate train evaluate runs/tiny --data text.jsonl --limit 4", ("train",)),
    Exercise("joymigrate train predict runs/tiny --data prompts.jsonl -o said.jsonl", ("train",)),
    Exercise("joymigrate train export runs/tiny -o exported", ("train",)),
    Exercise("joymigrate train models --family llama", ("train",), says="llama"),
    Exercise(
        "joymigrate verify generate --record --model model --prompts prompts.jsonl "
        "-o said.jsonl --length 4", ("train", "serve"),
    ),
    # The others.
    Exercise(
        "joymigrate kernels check sub_mul_concat --device cpu --format json -o own.json", TORCH,
    ),
    Exercise(
        "joymigrate convert savedmodel project -o converted", ("tf",), code=2,
        says="no saved_model.pb",
    ),
    Exercise("joymigrate cluster submit ray.yaml", ("cluster",)),
    Exercise(
        "joymigrate cluster forecast --traffic traffic.csv --target 8 --cards 64", ("cluster",),
        says="cards run out",
    ),
    Exercise("joymigrate cluster status --address 127.0.0.1:9", ("cluster",), code=2),
    Exercise("joymigrate cluster apply manifest.yaml --dry-run", ("cluster",), code=2),
)  # fmt: skip
