"""The one table of APIs: which paths there are, who may call them, and how their answers are read.

A path without a row is nobody's: a gateway refuses it, unless its operator lists it (`allow`);
then it is passed on `unjudged`, and is never a success of the proof. Whoever knows an API (the
allow-list, the keys, the judge of answers, the shadow, resuming, traces) reads it here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from joymigrate.run.serve.web import forms
from joymigrate.run.serve.web.forms import RequestForm

ANYONE, CLIENT, ADMIN = "anyone", "client", "admin"
OPENAI, ANTHROPIC, TRITON_WORDS = "openai", "anthropic", "triton"
PART = {"{}": r"[^/?#%\\;]+", "{**}": r"[^?#\\;]+"}  # of a path: one part, or all that is left


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One row. `paths` may hold `{}` for one part and `{**}` for the rest. `form`: how an answer
    is read; None: nobody judges it. `repeats`: asked twice it changes nothing, so that another
    backend may stand in. `pairs`: both backends may be asked it to compare. `resumes`: a broken
    stream can go on elsewhere. `answered_alike`: a server that stays the same says the same again.
    """

    name: str
    paths: tuple[str, ...]
    form: RequestForm | None = None
    who: str = CLIENT
    methods: tuple[str, ...] = ("POST",)
    repeats: bool = True
    pairs: bool = False
    resumes: bool = False
    answered_alike: bool = True
    operation: str = ""  # its name in traces
    words: str = OPENAI  # whose error objects its clients read

    @property
    def speaks(self) -> bool:
        """Whether its answers are words, which say why they end."""
        return self.form is not None and self.form.speaks


CHAT = ApiRoute("chat", ("/v1/chat/completions",), forms.CHAT, pairs=True, resumes=True,
                operation="chat")  # fmt: skip
TEXT = ApiRoute("text", ("/v1/completions",), forms.TEXT, pairs=True, resumes=True,
                operation="text_completion")  # fmt: skip
RESPONSES = ApiRoute("responses", ("/v1/responses",), forms.RESPONSES, pairs=True, operation="chat")
MESSAGES = ApiRoute("messages", ("/v1/messages",), forms.MESSAGES, pairs=True, operation="chat",
                    words=ANTHROPIC)  # fmt: skip
EMBEDDINGS = ApiRoute("embeddings", ("/v1/embeddings",), forms.VECTORS, pairs=True,
                      operation="embeddings")  # fmt: skip
SCORES = ApiRoute("scores", ("/v1/score", "/score", "/v1/rerank", "/v2/rerank", "/rerank"),
                  forms.SCORES, pairs=True)  # fmt: skip
RANK = ApiRoute("rank", ("/v1/rank",), forms.OUTPUTS, pairs=True, answered_alike=False)
INFER = ApiRoute("infer", ("/v2/models/{}/infer", "/v2/models/{}/versions/{}/infer"), forms.OUTPUTS,
                 pairs=True, answered_alike=False, words=TRITON_WORDS)  # fmt: skip
GENERATE = ApiRoute(
    "generate",
    ("/v2/models/{}/generate", "/v2/models/{}/versions/{}/generate",
     "/v2/models/{}/generate_stream", "/v2/models/{}/versions/{}/generate_stream"),
    forms.GENERATE, pairs=True, answered_alike=False, words=TRITON_WORDS,
)  # fmt: skip
OTHER = ApiRoute("unjudged", (), methods=("GET", "POST", "PUT", "DELETE", "PATCH"), repeats=False)
ROWS = (
    CHAT, TEXT, RESPONSES, MESSAGES, EMBEDDINGS, SCORES, RANK, INFER, GENERATE,
    ApiRoute("tokens", ("/tokenize", "/detokenize", "/v1/messages/count_tokens"), forms.TOKENS),
    ApiRoute("classes", ("/pooling", "/classify", "/v1/moderations"), forms.SOMETHING, pairs=True),
    ApiRoute("sound", ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech",
                       "/v1/images/generations", "/v1/images/edits")),
    ApiRoute("models", ("/v1/models", "/v1/models/{**}", "/version", "/openapi.json"),
             methods=("GET",)),
    ApiRoute("kept",
             ("/v1/responses/{}", "/v1/responses/{}/cancel", "/v1/responses/{}/input_items"),
             methods=("GET", "POST", "DELETE"), repeats=False),
    ApiRoute("kserve", ("/v2", "/v2/models/stats", "/v2/models/{}", "/v2/models/{}/versions/{}",
                        "/v2/models/{}/ready", "/v2/models/{}/versions/{}/ready",
                        "/v2/models/{}/config", "/v2/models/{}/versions/{}/config",
                        "/v2/models/{}/stats", "/v2/models/{}/versions/{}/stats"),
             methods=("GET",), words=TRITON_WORDS),
    ApiRoute("index", ("/v2/repository/index",), words=TRITON_WORDS),
    ApiRoute("health", ("/health", "/ready", "/ping", "/v2/health/live", "/v2/health/ready"),
             who=ANYONE, methods=("GET", "POST")),
    ApiRoute("metrics", ("/metrics",), who=ANYONE, methods=("GET",)),
    ApiRoute("rollout", ("/admin/{**}", "/dashboard", "/monitor.json"), who=ADMIN,
             methods=("GET", "POST"), repeats=False),
    # By these vLLM, SGLang, Triton and Dynamo change what a server does or keeps for all.
    ApiRoute("management",
             ("/shutdown", "/sleep", "/wake_up", "/is_sleeping", "/pause", "/resume", "/is_paused",
              "/collective_rpc", "/server_info", "/reset_{}", "/start_profile", "/stop_profile",
              "/scale_elastic_ep", "/is_scaling_elastic_ep", "/v1/load_lora_adapter",
         "/v1/unload_lora_adapter", "/load_lora_adapter", "/unload_lora_adapter", "/flush_cache",
              "/clear_hicache", "/clear_hicache_storage_backend", "/init_{}", "/update_{}",
              "/finish_weight_update", "/get_weights_by_name", "/get_server_info",
              "/release_memory_occupation", "/resume_memory_occupation", "/pause_generation",
              "/continue_generation", "/abort_request", "/abort_requests", "/open_session",
              "/close_session", "/set_internal_state", "/get_internal_state", "/configure_logging",
              "/set_trace_level", "/slow_down"),
             who=ADMIN, methods=("GET", "POST"), repeats=False),
    ApiRoute("triton_management",
             ("/v2/logging", "/v2/trace/setting", "/v2/models/{}/trace/setting",
              "/v2/repository/models/{}/load", "/v2/repository/models/{}/unload",
              "/v2/systemsharedmemory/{**}", "/v2/cudasharedmemory/{**}"),
             who=ADMIN, methods=("GET", "POST"), repeats=False, words=TRITON_WORDS),
)  # fmt: skip
OPEN = frozenset(path for row in ROWS if row.who == ANYONE for path in row.paths)


def pattern_of(path: str) -> re.Pattern[str]:
    """A row's path as an expression."""
    parts = re.split(r"(\{\}|\{\*\*\})", path)
    return re.compile("".join(PART.get(part) or re.escape(part) for part in parts))


FIXED = {path: row for row in ROWS for path in row.paths if "{" not in path}
VARYING = tuple((pattern_of(path), row) for row in ROWS for path in row.paths if "{" in path)


def find(path: str, allowed: Sequence[str] = ()) -> ApiRoute | None:
    """The row of a path as it was sent (without its query); None: nobody's.

    Nothing is decoded or tidied: a path that only some servers would take for another one has no
    row. `allowed` are more paths, and beginnings of paths that end in a slash.
    """
    found = FIXED.get(path)
    if found is not None:
        return found
    if any(part in ("", ".", "..") for part in path.lower().replace("%2e", ".").split("/")[1:]):
        return None
    for pattern, row in VARYING:
        if pattern.fullmatch(path):
            return row
    if any(path == one or (one.endswith("/") and path.startswith(one)) for one in allowed):
        return OTHER
    return None


def words_of(path: str) -> str:
    """Whose error objects the clients of a path read, also of one without a row."""
    row = find(path)
    if row is not None:
        return row.words
    return TRITON_WORDS if path == "/v2" or path.startswith("/v2/") else OPENAI
