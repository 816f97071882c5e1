"""Health, metrics, the description, logs, templates: what operators and tools read."""

from __future__ import annotations

import inspect
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.http import routes
from joymigrate.run.serve.engine.http.templates import RESERVED, Templates
from joymigrate.run.serve.web import logs
from joymigrate.run.serve.web.errors import HttpRefusal


def numbers(server: Any) -> dict[str, float]:
    """The metrics page as a table."""
    lines = server.get("/metrics")[2].decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def test_health_and_readiness(server: Any) -> None:
    assert json.loads(server.get("/health")[2]) == {"status": "ok"}
    assert json.loads(server.get("/ready")[2])["status"] == "ready"


def test_metrics_count_tokens_under_both_names(server: Any) -> None:
    before = numbers(server)
    server.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True})
    after = numbers(server)
    for name, more in (
        ("joymigrate_prompt_tokens_total", 3),
        ('vllm:prompt_tokens_total{model_name="tiny"}', 3),
        ("joymigrate_generation_tokens_total", 4),
        ('vllm:generation_tokens_total{model_name="tiny"}', 4),
        ('joymigrate_requests_total{outcome="ok"}', 1),
        ("joymigrate_request_seconds_count", 1),
        ("joymigrate_time_to_first_token_seconds_count", 1),
        ("joymigrate_time_per_output_token_seconds_count", 3),
    ):
        assert after[name] - before[name] == more, name


@pytest.mark.parametrize(
    "name",
    ["joymigrate_kv_cache_usage", "joymigrate_prefix_cache_hits_total",
     "joymigrate_prefix_cache_queries_total", "joymigrate_inflight", "joymigrate_waiting",
     'vllm:kv_cache_usage_perc{model_name="tiny"}', 'vllm:num_requests_running{model_name="tiny"}',
     'vllm:num_requests_waiting{model_name="tiny"}',
     'vllm:prefix_cache_hits_total{model_name="tiny"}'],
)  # fmt: skip
def test_the_names_that_dashboards_read_are_there(server: Any, name: str) -> None:
    assert name in numbers(server)


def test_the_monitor_reads_the_engine(server: Any) -> None:
    from joymigrate.run.serve.monitor import derive

    assert derive is not None
    text = server.get("/metrics")[2].decode()
    from prometheus_client.parser import text_string_to_metric_families

    kinds = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert kinds["joymigrate_prefix_cache_hits"] == "counter"
    assert kinds["joymigrate_time_to_first_token_seconds"] == "histogram"


def test_the_description_names_every_path(server: Any) -> None:
    found = json.loads(server.get("/openapi.json")[2])
    assert found["openapi"].startswith("3.1")
    told = set(found["paths"])
    fixed = set(routes.ROUTES.fixed)
    assert fixed - told <= {
        "/openapi.json", "/ping", "/v2/models/stats",
        "/rerank", "/v2/rerank", "/score",  # further names of paths below /v1
    }  # fmt: skip
    chat = found["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]
    assert "messages" in chat["application/json"]["schema"]["required"]


def test_the_description_admits_what_the_server_takes(server: Any) -> None:
    import jsonschema

    found = json.loads(server.get("/openapi.json")[2])
    body = found["paths"]["/v1/completions"]["post"]["requestBody"]["content"]
    schema = body["application/json"]["schema"]
    good = {"prompt": [1, 2], "max_tokens": None, "stop": "x", "temperature": 0.5, "logprobs": 2}
    jsonschema.validate(good, schema)
    assert server.post("/v1/completions", {**good, "max_tokens": 2})[0] == 200
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"prompt": {"a": 1}}, schema)


def test_a_log_line_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "GET /a\nb", (), None)
    record.fields = {"model": "m\r\nfake line", "seconds": 0.25, "method": "GET"}
    text = logs.TextLines().format(record)
    assert "\n" not in text
    assert "seconds=0.250" in text
    found = json.loads(logs.JsonLines().format(record))
    assert found["model"] == "m\r\nfake line"
    assert "\n" not in logs.JsonLines().format(record)


# Templates


def render(source: str, **more: Any) -> str:
    return Templates({"default": source}, {"bos_token": "<s>"}).render(
        [{"role": "user", "content": "hi"}], **more
    )


@pytest.mark.parametrize(
    "source",
    ["{{ messages.__class__ }}", "{{ ''.__class__.__mro__ }}", "{{ raise_exception.__globals__ }}",
     "{% set x = messages.append(1) %}", "{{ messages[0].update({}) }}",
     "{% for i in range(10000000) %}{% endfor %}", "{{ cycler.__init__.__globals__.os }}",
     "{{ strftime_now.__globals__ }}"],
)  # fmt: skip
def test_a_template_stays_in_its_sandbox(source: str) -> None:
    try:
        found = render(source)
    except HttpRefusal:
        found = ""
    assert found == "", "what is not there prints nothing"


def test_a_templates_complaint_reaches_the_client() -> None:
    with pytest.raises(HttpRefusal, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_what_published_templates_use_is_there() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{% generation %}{{ m.content | trim }}"
        "{% endgeneration %}{% if loop.last %}{% break %}{% endif %}{% endfor %}"
        "{{ {'a': '<ü>'} | tojson }}{{ strftime_now('%Y') | length }}"
        "{{ flag }}{% if add_generation_prompt %}>{% endif %}"
    )
    assert render(source, variables={"flag": "!"}) == '<s>hi{"a": "<ü>"}4!>'


def test_a_request_sets_every_name_but_those_of_the_rendering_function() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    assert render("{{ source }}", variables={"source": "a page"}) == "a page"
    names = {*inspect.signature(render_jinja_template).parameters} - {"documents", "kwargs"}
    assert names <= {*RESERVED}


def test_a_broken_template_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{% for %}")
    with pytest.raises(JoyError, match="chat template is not valid"):
        Templates.of(tmp_path, tmp_path / "t.jinja")


@pytest.mark.parametrize(
    "named", [3, {"default": "d"}, ["d"], [{"name": "d"}], [{"name": "d", "template": None}]]
)
def test_what_is_no_template_is_one_clear_error(tmp_path: Path, named: Any) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    with pytest.raises(JoyError, match=r"chat_template is .*, but must be a text") as caught:
        Templates.of(tmp_path)
    assert str(caught.value.where).endswith("tokenizer_config.json")


def test_templates_are_found_where_models_keep_them(tmp_path: Path) -> None:
    assert Templates.of(tmp_path).sources == {}
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    tokens = {"eos_token": {"content": "</s>"}, "bos_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named, **tokens}))
    found = Templates.of(tmp_path)
    assert found.source(tools=True) == "t"
    assert found.tokens == {"eos_token": "</s>", "bos_token": "<s>"}
    (tmp_path / "chat_template.jinja").write_text("file")
    assert Templates.of(tmp_path).source() == "file"


def test_a_model_without_template_refuses_chats() -> None:
    with pytest.raises(HttpRefusal) as caught:
        Templates({}).render([{"role": "user", "content": "x"}])
    assert caught.value.code == "no_chat_template"
