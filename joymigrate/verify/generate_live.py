"""Asks a model for generated text: a transformers folder on a device, or an OpenAI-style server."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from joymigrate.errors import JoyError
from joymigrate.verify.generate import PromptOutcome, TokenScores, top_of

if TYPE_CHECKING:
    from joymigrate.device import Device

TOP = 20  # most probable tokens that are kept per position
TIMEOUT_S = 300.0


class AskedModel(Protocol):
    """A model that can be asked."""

    def free(self, prompt: PromptOutcome) -> PromptOutcome:
        """Greedy output of a prompt."""

    def forced(self, base: PromptOutcome) -> TokenScores:
        """What it says at every position of the baseline's output."""


def read_prompts(path: Path) -> list[PromptOutcome]:
    """Prompts: lines of `{"id", "prompt"}` or `{"id", "prompt_tokens"}`, or plain lines."""
    try:
        rows = [row for row in path.read_text(encoding="utf-8").splitlines() if row.strip()]
    except OSError as error:
        raise JoyError(f"cannot read the prompts: {error.strerror}", where=str(path)) from None
    found = [prompt_of(row, index, path) for index, row in enumerate(rows)]
    if not found:
        raise JoyError("there is no prompt in this file", where=str(path))
    return found


def prompt_of(row: str, index: int, path: Path) -> PromptOutcome:
    """One prompt."""
    if not row.lstrip().startswith("{"):
        return PromptOutcome(str(index), (), prompt=row)
    try:
        raw = json.loads(row)
    except ValueError as error:
        raise JoyError(f"not a JSON line: {error}", where=f"{path}:{index + 1}") from None
    text, tokens = raw.get("prompt"), tuple(raw.get("prompt_tokens") or ())
    if text is None and not tokens:
        shape = '{"id": "1", "prompt": "…"}'
        raise JoyError(
            "a prompt needs prompt or prompt_tokens", where=f"{path}:{index + 1}", help=shape
        )
    return PromptOutcome(str(raw.get("id", index)), (), prompt=text, prompt_tokens=tokens)


def ask(
    source: AskedModel, prompts: Sequence[PromptOutcome], *, forced: bool, free: bool
) -> dict[str, PromptOutcome]:
    """The source's side for all prompts (or lines of the baseline, where it is forced)."""
    found = {}
    for prompt in prompts:
        line = source.free(prompt) if free else PromptOutcome(prompt.id, ())
        found[prompt.id] = replace(line, forced=source.forced(prompt) if forced else None)
    return found


def as_json(line: PromptOutcome) -> dict[str, Any]:
    """One line of the file that a baseline is kept in."""
    return {
        "id": line.id,
        "prompt": line.prompt,
        "prompt_tokens": list(line.prompt_tokens),
        "tokens": list(line.token_ids or line.tokens),
        "logprobs": list(line.said.logprobs),
        "top_logprobs": [list(top.items()) for top in line.said.top],
    }


@dataclass(slots=True)
class LocalModel:
    """A causal language model of transformers on a device."""

    path: Path
    device: Device
    dtype: str = "auto"
    length: int = 32
    model: Any = None
    tokenizer: Any = None

    def __post_init__(self) -> None:
        import importlib.util

        if not self.path.is_dir():
            raise JoyError("there is no such model folder", where=str(self.path))
        if importlib.util.find_spec("transformers") is None:
            raise JoyError(
                "reading a model needs transformers", help="pip install 'joymigrate[train]'"
            )
        from joymigrate.chips import hide_driverless

        hide_driverless()
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]

        kind = "auto" if self.dtype == "auto" else getattr(torch, self.dtype, None)
        if kind is None:
            raise JoyError(
                f"there is no dtype '{self.dtype}'", help="auto, float32, bfloat16, float16"
            )
        try:
            self.model = AutoModelForCausalLM.from_pretrained(self.path, dtype=kind)
        except (OSError, ValueError) as error:
            first = str(error).strip().splitlines()[0]
            raise JoyError(f"cannot load the model: {first}", where=str(self.path)) from None
        self.model = self.model.to(self.device.at()).eval()
        if any(
            (self.path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")
        ):
            self.tokenizer = AutoTokenizer.from_pretrained(self.path)

    def prompt_ids(self, prompt: PromptOutcome) -> list[int]:
        """The prompt's tokens."""
        if prompt.prompt_tokens:
            return list(prompt.prompt_tokens)
        if self.tokenizer is None:
            raise JoyError(
                "the model folder has no tokenizer",
                where=str(self.path),
                help="give prompts as prompt_tokens",
            )
        return list(self.tokenizer(prompt.prompt)["input_ids"])

    def logits(self, ids: Sequence[int]) -> Any:
        """(positions, vocabulary) log-probabilities in float32 on the CPU."""
        import torch

        with torch.no_grad():
            made = self.model(torch.tensor([list(ids)], device=self.device.at())).logits[0]
        return torch.log_softmax(made.to("cpu", torch.float32), dim=-1)

    def free(self, prompt: PromptOutcome) -> PromptOutcome:
        """Greedy decoding, then one forward pass over all of it for the probabilities."""
        import torch

        ids = self.prompt_ids(prompt)
        start = torch.tensor([ids], device=self.device.at())
        with torch.no_grad():
            made = self.model.generate(
                start,
                attention_mask=torch.ones_like(start),
                max_new_tokens=self.length,
                do_sample=False,
                num_beams=1,
                pad_token_id=self.model.config.eos_token_id or 0,
            )
        tokens = made[0, len(ids) :].tolist()
        line = PromptOutcome(
            prompt.id, tuple(map(str, tokens)), prompt=prompt.prompt, prompt_tokens=tuple(ids),
            token_ids=tuple(tokens),
        )  # fmt: skip
        return replace(line, said=self.forced(line))

    def forced(self, base: PromptOutcome) -> TokenScores:
        """One forward pass over prompt and output. The baseline's listed tokens are asked for by
        name, so that both sides speak of the same ones."""
        if not base.token_ids:
            raise JoyError(
                f"the baseline's output '{base.id}' has no token numbers",
                help="make the baseline with --model, or compare two files",
            )
        ids = self.prompt_ids(base)
        tokens = list(base.token_ids)
        table = self.logits([*ids, *tokens])[len(ids) - 1 : -1]
        logprobs, choices, tops = [], [], []
        for place, token in enumerate(tokens):
            row = table[place]
            logprobs.append(float(row[token]))
            choices.append(int(row.argmax()) == token)
            wanted = [int(name) for name in base.said.top[place]] if base.said.top else []
            if not wanted:
                wanted = row.topk(min(TOP, row.numel())).indices.tolist()
            tops.append({str(name): float(row[name]) for name in wanted})
        return TokenScores(logprobs, choices, tops)


@dataclass(slots=True)
class RemoteModel:
    """An OpenAI-style completions endpoint. Forcing needs one that echoes log-probabilities."""

    url: str
    model: str | None = None
    key: str | None = None
    length: int = 32

    def post(self, body: Mapping[str, Any]) -> Any:
        """One request; errors of the server as `JoyError` with its message."""
        base = self.url.rstrip("/")
        address = (
            base if base.endswith("/completions") else f"{base.removesuffix('/v1')}/v1/completions"
        )
        if not address.startswith(("http://", "https://")):
            raise JoyError(f"not an address: {self.url}", help="--url http://HOST:PORT")
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = json.dumps({"model": self.model or "default", **body}).encode()
        request = urllib.request.Request(address, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return json.loads(answer.read())["choices"][0]
        except urllib.error.HTTPError as error:
            text = error.read().decode("utf-8", "replace")[:300]
            raise JoyError(f"the server says {error.code}: {text}", where=address) from None
        except (OSError, ValueError, KeyError, IndexError) as error:
            what = f"no answer of a completions endpoint: {error}"
            raise JoyError(what, where=address, help="check --url and --served-model") from None

    def prompt_of(self, line: PromptOutcome) -> Any:
        """The prompt as text, else as token numbers."""
        return line.prompt if line.prompt is not None else list(line.prompt_tokens)

    def free(self, prompt: PromptOutcome) -> PromptOutcome:
        """Greedy completion with log-probabilities."""
        said = self.post(
            {
                "prompt": self.prompt_of(prompt),
                "max_tokens": self.length,
                "temperature": 0,
                "logprobs": 5,
            }
        )
        listed = said.get("logprobs") or {}
        tokens = tuple(map(str, listed.get("tokens") or [said.get("text", "")]))
        return PromptOutcome(
            prompt.id, tokens, said_in(listed, 0), prompt=prompt.prompt,
            prompt_tokens=prompt.prompt_tokens,
        )  # fmt: skip

    def forced(self, base: PromptOutcome) -> TokenScores:
        """The baseline's output as part of the prompt, echoed with log-probabilities."""
        text = "".join(base.tokens)
        numbers = [*base.prompt_tokens, *base.token_ids]
        whole: Any = numbers if base.token_ids and base.prompt_tokens else f"{base.prompt}{text}"
        body = {"prompt": whole, "max_tokens": 1, "temperature": 0, "logprobs": 5, "echo": True}
        listed = self.post(body).get("logprobs") or {}
        tokens = listed.get("tokens") or []
        first = len(base.prompt_tokens) if isinstance(whole, list) else start_of(listed, base)
        end = first + len(base.tokens)
        if len(tokens) < end:
            raise JoyError(
                "the server does not echo the prompt's log-probabilities",
                where=self.url,
                help="compare two files of free outputs instead, or use a server with echo",
            )
        return said_in({name: values[:end] for name, values in listed.items() if values}, first)


def start_of(listed: Mapping[str, Any], base: PromptOutcome) -> int:
    """The place of the first token behind the prompt's text."""
    length = len(base.prompt or "")
    offsets = listed.get("text_offset") or []
    return next((i for i, offset in enumerate(offsets) if offset >= length), len(offsets))


def said_in(listed: Mapping[str, Any], first: int) -> TokenScores:
    """An answer's log-probabilities from place `first` on."""
    logprobs = [float("nan") if v is None else float(v) for v in listed.get("token_logprobs") or ()]
    tops = [top_of(item or {}) for item in listed.get("top_logprobs") or ()]
    choices = list(first_choices(logprobs, tops))
    return TokenScores(logprobs[first:], choices[first:], tops[first:])


def first_choices(logprobs: Sequence[float], tops: Sequence[Mapping[str, float]]) -> Iterator[bool]:
    """Whether each token is as probable as any that is listed."""
    for logprob, top in zip(logprobs, tops, strict=False):
        yield not top or logprob >= max(top.values()) - 1e-6
