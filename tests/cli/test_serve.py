"""`joymigrate serve …` on the command line: exit codes, errors, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate.cli._main import run

GOOD = """\
listen: 127.0.0.1:8080
upstreams:
  gpu: {url: "http://127.0.0.1:1", role: primary}
  npu: {url: "http://127.0.0.1:2", role: standby, chip: ascend}
rollout: {start: auto, steps: [1, 5, 20, 50, 100], rule: cusum, min_step_seconds: 1, sticky: user}
"""


def test_a_model_folder_that_is_not_there_is_one_clear_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["serve", "./nowhere", "--device", "cpu"]) == 2
    assert "there is no such model folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("rule: cusum", "rule: eproces"), "Did you mean 'eprocess'"),
        (("min_step_seconds", "min_step_second"), "Did you mean 'min_step_seconds'"),
        (("role: standby", "role: stanby"), "Did you mean 'standby'"),
        (("start: auto", "start: now"), "one of auto, manual"),
        (("[1, 5, 20, 50, 100]", "[5, 1]"), "rising percentages"),
        (("127.0.0.1:8080", "nowhere"), "listen is host:port"),
        (("http://127.0.0.1:1", "gpu.example"), "starts with http://"),
        (("http://127.0.0.1:1", "http://127.0.0.1:99999"), "port from 1 to 65535"),
        (("http://127.0.0.1:1", "http://"), "names a host"),
        (("sticky: user", "sticky: usr"), "sticky is user, session, none or header:NAME"),
        (("rule: cusum", "rule: 'cusum:p0=0.5,p1=0.1'"), "write `rule: eprocess`"),
        (
            ("rule: cusum", "rule: 'literal:window=10000,min=1000'"),
            "'literal:window=10000,min=1000' is gone",
        ),
        (("rule: cusum", "rule: {name: cusum, p0: 0.1}"), "unknown key 'p0'"),
        (("rule: cusum", "rule: 'eprocess:alpha=2'"), "alpha is between 0 and 1"),
        (("rule: cusum", "burst_cap: true"), "unknown key 'burst_cap'"),
        (("listen:", "listne:"), "Did you mean 'listen'"),
        (
            ("min_step_seconds: 1", "min_step_seconds: soon"),
            "takes a number, got 'soon'",
        ),
        (
            ("min_step_seconds: 1", "min_step_seconds: -1"),
            "is -1, the least is 0",
        ),
        (("{start", "{{start"), "YAML"),
    ],
)
def test_a_mistake_in_the_file_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], says: str
) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(GOOD.replace(*change, 1))
    assert run(["serve", "--config", str(path)]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "help:" in error
    assert "Traceback" not in error


def test_the_file_of_the_design_is_understood(tmp_path: Path) -> None:
    from joymigrate.run.serve.gateway import settings

    path = tmp_path / "gateway.yaml"
    path.write_text(GOOD)
    loaded = settings.load(path)
    assert (loaded.host, loaded.port, loaded.rollout.sticky) == ("127.0.0.1", 8080, "user")
    assert loaded.plan.steps == (1, 5, 20, 50, 100)
    assert loaded.of_role("standby").chip == "ascend"


@pytest.mark.parametrize(
    ("text", "limit", "alpha"),
    [
        ("cusum", 0.001, 0.01),  # the old name of the default rule
        ("cusum, limit: 0.02", 0.02, 0.01),  # of the ramp: the rule names none of its own
        ("'eprocess:limit=0.002', limit: 0.02", 0.002, 0.01),
        ("{name: eprocess, alpha: 0.05}", 0.001, 0.05),
    ],
)
def test_a_rule_has_its_parameters(tmp_path: Path, text: str, limit: float, alpha: float) -> None:
    from joymigrate.run.serve.gateway import settings

    path = tmp_path / "gateway.yaml"
    path.write_text(GOOD.replace("rule: cusum", f"rule: {text}"))
    rule = settings.load(path).rule()
    assert (rule.limit, rule.alpha) == (limit, alpha)


def test_a_taken_port_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path = tmp_path / "gateway.yaml"
        path.write_text(GOOD.replace("8080", str(port)))
        assert run(["serve", "--config", str(path), "-q"]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_versions_are_ramped_over_one_server_of_each_role(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(GOOD.replace('"http://127.0.0.1:2"', '["http://a:1", "http://b:1"]'))
    assert run(["serve", "rollout", "versions", "--config", str(path)]) == 2
    assert "the standby has 2 servers" in capsys.readouterr().err


def test_rollout_without_a_gateway_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "rollout", "status", "--url", "http://127.0.0.1:9"]) == 2
    assert "no gateway answers" in capsys.readouterr().err


def test_simulate_answers_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "curves.html"
    arguments = ["serve", "simulate", "--rate", "1%", "--rate", "100%", "--runs", "50"]
    arguments += ["--traffic", "30000/day", "--shadow", "10", "--plot", str(picture)]
    assert run([*arguments, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "joymigrate.rollout-simulation/1"
    at = {(row["rule"], row["rate"]): row["median"] for row in found["rates"]}
    assert at["eprocess", 1.0] == 3
    assert found["calendar"]["steps"][0]["weight"] == 1
    assert picture.read_text().count('<svg class="plot"') == 2


def test_a_picture_of_another_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "simulate", "--rate", "1%", "--runs", "5", "--plot", "a.png"]) == 2
    assert "curves are written as a page, not as '.png'" in capsys.readouterr().err


def test_simulate_replays_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "stream.txt"
    record.write_text("0" * 500 + "1" * 20)
    assert run(["serve", "simulate", "--failures", str(record), "--runs", "5"]) == 0
    out = capsys.readouterr().out
    assert "eprocess would have rolled back at request 503" in out


@pytest.mark.parametrize(
    "arguments",
    [["--rate", "lots"], ["--traffic", "30000"], ["--rule", "cusom"], ["--failures", "nowhere"]],
)
def test_simulate_refuses_nonsense(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["serve", "simulate", "--runs", "1", *arguments])
    # 30000 alone is a rate per second and fine as a number of requests.
    assert code == (0 if arguments == ["--traffic", "30000"] else 2)


def test_the_group_needs_none_of_the_extras_for_its_help() -> None:
    code = "import sys; from joymigrate.cli._main import run; run(['serve', '--help']); " \
        "sys.exit(any(m in sys.modules for m in ('aiohttp', 'torch', 'matplotlib')))"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "drill" in done.stdout


@pytest.mark.parametrize(
    ("text", "size"),
    [("314572800", 314572800), ("300MiB", 314572800), ("1.5 GiB", 3 << 29), ("2KB", 2000)],
)
def test_sizes_have_units(text: str, size: int) -> None:
    from joymigrate.cli._serve_options import read_size

    assert read_size(text, "--kv-memory") == size


@pytest.mark.parametrize("text", ["300XiB", "iB", "0", "-3MiB", "1 2", "much"])
def test_a_size_of_no_unit_is_refused_by_its_option(
    text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["serve", str(tmp_path), "--device", "cpu", f"--kv-memory={text}"]) == 2
    assert capsys.readouterr().err
    from joymigrate.cli._serve_options import read_size
    from joymigrate.errors import JoyError

    with pytest.raises(JoyError, match="--kv-memory takes bytes or a size"):
        read_size(text, "--kv-memory")
