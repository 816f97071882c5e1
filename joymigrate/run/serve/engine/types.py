"""The nouns of the engine that its callers see: what is asked, what comes back, how it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from joymigrate.errors import JoyError

FinishReason = Literal["stop", "length", "abort", "error"]
ATTENTION = ("auto", "gather", "varlen", "vendor", "reference")
DTYPES = ("auto", "float32", "bfloat16", "float16")
MAX_LOGPROBS = 64
MAX_DRAFTS = 32
# Of a request's sampling, both ends included; below 0.01 a repetition penalty lets float32 scores
# overflow. `top_k` 0 and -1 are all.
BOUNDS: dict[str, tuple[float, float]] = {
    "max_tokens": (0, math.inf), "min_tokens": (0, math.inf), "temperature": (0, 100),
    "top_k": (-1, math.inf), "min_p": (0, 1), "repetition_penalty": (0.01, 100),
    "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2), "n": (1, 128),
    "logprobs": (0, MAX_LOGPROBS), "prompt_logprobs": (0, MAX_LOGPROBS),
}  # fmt: skip


class Lost(RuntimeError):
    """The engine cannot go on: no further step would succeed."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen, and when a request ends. Raises `JoyError` for values out of range.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 leave everything. With a `seed` the tokens
    do not depend on what else runs. `logprobs` n gives the chosen token and the n most probable
    ones (0: only the chosen one; None: nothing). `stop` strings end the text before themselves
    unless `include_stop`; `stop_token_ids` end it too, the token itself is not part of the text.
    """

    max_tokens: int | None = None  # None: up to the model's length
    min_tokens: int = 0  # no end of sequence and no stop before so many tokens
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output, as in transformers
    presence_penalty: float = 0.0  # over the output, as in the OpenAI API
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    skip_special: bool = True  # leave special tokens out of the text
    n: int = 1

    def __post_init__(self) -> None:
        for name, (low, high) in BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                wanted = f"≥ {low}" if high == math.inf else f"in [{low}, {high}]"
                raise JoyError(f"{name} is {value!r}, but must be {wanted}", where=name)
        if not 0 < self.top_p <= 1:
            raise JoyError(f"top_p is {self.top_p!r}, but must be in (0, 1]", where="top_p")
        if not all(self.stop):
            raise JoyError(f"stop is {self.stop!r}, but must be without empty strings",
                           where="stop")  # fmt: skip

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken."""
        return self.temperature == 0


class Guide(Protocol):
    """What may come next in one text, as a grammar says."""

    def mask(self) -> Any:
        """int32 `[ceil(vocabulary / 32)]`: bit i % 32 of word i // 32 is set when token i may."""
        ...

    def accept(self, token: int) -> None:
        """Tell the token that was chosen."""
        ...


@dataclass(frozen=True, slots=True)
class Resume:
    """What another engine has generated already: `ids` behind the prompt. `text` is what of it was
    given out (None: nobody says), so that a text which differs is refused. `calls` are the names
    and arguments of the tool calls that were given out: the API that reads calls compares them."""

    ids: tuple[int, ...]
    text: str | None = None
    calls: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """Tokens to continue, and how. A smaller `priority` goes first; equal ones by arrival.

    `images` are RGB PIL images, in the order of their placeholders in the prompt: `prompt` holds
    one placeholder per image, which the engine widens to the image's number of tokens. `guide`
    makes the guide of each of the texts. `adapter` is the name of one of the model's. `resume` has
    one entry a text, None for one of which nothing was generated, or none at all. `pooling` asks
    for a vector instead of a continuation: the last state of the prompt, or the mean of all.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    images: tuple[Any, ...] = ()
    priority: int = 0
    guide: Callable[[], Guide] | None = None
    resume: tuple[Resume | None, ...] = ()
    adapter: str | None = None
    pooling: Literal["mean", "last"] | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token at one place, its rank (1 is the most probable), and the best.

    `top` holds (token id, log-probability), most probable first. They are those of the model's
    own distribution, before temperature, penalties and bias.
    """

    id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request: its prompt (images widened), its output, the prompt's cached part."""

    prompt: int
    completion: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What one step added to one of a request's `n` texts; `text` never holds half a character.

    `new_ids` may be empty when only held-back text comes, `text` when a character or a possible
    stop string is not complete yet. `logprobs` goes with `new_ids`; `prompt_logprobs` comes once,
    with the first output (its first entry is None: nothing precedes the first token). The output
    with `finish_reason` is the last of its `index`. `stop` is the stop string or token that hit, or
    why a guided text is stuck.
    """

    request_id: str
    index: int = 0
    new_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: FinishReason | None = None
    stop: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    usage: Usage | None = None  # with the last output of an index
    cached_tokens: int = 0
    error: str | None = None
    vector: list[float] | None = None  # what `pooling` asked for


class Stuck(Exception):
    """Nothing may follow a text by its guide, and it is not complete: the end of this text, said
    with `finish_reason` "error", and no fault of the engine."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How the engine runs. None and "auto" are chosen from the machine and the model."""

    dtype: str = "auto"  # of DTYPES; auto: the model's own
    device: str = "cpu"  # cpu, cuda, cuda:1, or a chip's device type
    block_size: int | None = None  # tokens of one KV block; auto: 16 on a CPU, 128 elsewhere
    kv_blocks: int | None = None
    kv_memory_bytes: int | None = None
    pretouch: bool = False  # take the cache's memory on a CPU at load, not as blocks are used
    max_model_len: int | None = None
    max_batch_tokens: int = 512  # token budget of one step: decodes first, then prefill
    max_running: int = 64  # requests that hold blocks
    max_waiting: int = 4096  # more are refused
    prefix_cache: bool = True
    attention: str = "auto"  # of ATTENTION
    generic: bool = False  # run the model through transformers even where a fast path exists
    prepack: bool = True  # reorder linear weights for the CPU at load
    compile: bool = False
    threads: int | None = None  # torch threads on a CPU
    tensor_parallel: int = 1
    adapters: tuple[tuple[str, str], ...] = ()  # LoRA: (name, folder)
    prompt_lookup: int = 0  # tokens that a step tries behind a text, as it went on before
    draft_model: str | None = None  # folder of a smaller model that says what a step tries
    draft_tokens: int = 4  # of it, behind a text
    trust_remote_code: bool = False
    probe: bool = False  # try a shrunk copy beyond the model's limits at load; `serve` does

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise JoyError(f"dtype {self.dtype!r} is none of {', '.join(DTYPES)}")
        if self.attention not in ATTENTION:
            raise JoyError(f"attention {self.attention!r} is none of {', '.join(ATTENTION)}")
        sizes = {
            "block_size": self.block_size,
            "kv_blocks": self.kv_blocks,
            "kv_memory_bytes": self.kv_memory_bytes,
            "max_model_len": self.max_model_len,
            "max_batch_tokens": self.max_batch_tokens,
            "max_running": self.max_running,
            "threads": self.threads,
            "tensor_parallel": self.tensor_parallel,
        }
        for name, value in sizes.items():
            if value is not None and value < 1:
                raise JoyError(f"{name} is {value}, but must be at least 1", where=name)
        for name, count in (("prompt_lookup", self.prompt_lookup), ("draft_tokens", self.drafts)):
            if not 0 <= count <= MAX_DRAFTS:
                raise JoyError(f"{name} is {count}, but must be in [0, {MAX_DRAFTS}]", where=name)
        if self.draft_model is not None and self.prompt_lookup:
            raise JoyError(
                "drafts come from the prompt or from a draft model, not from both",
                help="leave --prompt-lookup or --draft-model out",
            )

    @property
    def drafts(self) -> int:
        """Tokens that a step tries behind a text."""
        return self.draft_tokens if self.draft_model is not None else self.prompt_lookup


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the start, and gauges of now."""

    running: int
    waiting: int
    blocks_total: int
    blocks_used: int  # held by requests
    blocks_cached: int  # free, but their content can still be found
    steps: int
    prompt_tokens: int
    generated_tokens: int
    prefix_queries: int  # prompt tokens looked up in the prefix cache
    prefix_hits: int  # of these, tokens found
    preemptions: int
    finished: Mapping[str, int]  # by finish reason
    step_seconds: float  # of the last step
    last_step: float  # time.monotonic() when it ended
    failures: int = 0  # forward passes that failed
    drafted: int = 0  # tokens tried behind a text
    accepted: int = 0  # of these, those that followed
    drafts: int = 0  # texts of a step behind which tokens were tried

    @property
    def kv_usage(self) -> float:
        """Share of the blocks held by requests."""
        return self.blocks_used / max(1, self.blocks_total)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What was loaded, in the words of a report."""

    name: str
    family: str
    path: str  # decoder or transformers
    dtype: str
    device: str
    parameters: int
    weight_bytes: int
    kv_bytes: int
    block_size: int
    blocks: int
    max_model_len: int
    attention: str
    linear: str
    quantisation: str | None = None
    rehearsal: bool = False
    load_seconds: float = 0.0
    notes: Sequence[str] = ()
