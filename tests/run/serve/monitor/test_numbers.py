"""From metrics to readings: snapshots, rates, quantiles, devices."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.run.serve.monitor import derive, devices, snapshot
from joymigrate.run.serve.monitor.metrics import Histogram, Metrics

VLLM = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 3
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="m"} 0.25
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{model_name="m"} %d
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{model_name="m"} %d
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{model_name="m"} %d
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} %d
vllm:time_to_first_token_seconds_bucket{le="0.2",model_name="m"} %d
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} %d
"""


@given(st.lists(st.floats(2e-4, 90), min_size=1, max_size=300), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_quantile_is_within_its_bucket(values: list[float], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[max(0, -(-int(share * len(values) * 1000) // 1000) - 1)]
    found = derive.quantile(snapshot.buckets_of(histogram), share)
    assert found is not None
    # Buckets are a factor of 10**(1/20) = 1.122 wide; ranks may fall on either neighbour.
    neighbours = [v for v in values if exact / 1.26 <= v <= exact * 1.26] or [exact]
    assert min(neighbours) / 1.13 <= found <= max(values) * 1.13


def test_the_text_of_our_metrics_is_read_back() -> None:
    metrics = Metrics()
    metrics.counter("joymigrate_requests", "Requests", "outcome").of("ok").add(5)
    metrics.histogram("joymigrate_request_seconds", "Time", "upstream").of("gpu").add(0.2)
    metrics.gauge("joymigrate_inflight", "Now", "upstream", ask=lambda: {("gpu",): 2.0})
    read = snapshot.of_text(metrics.text().decode(), 1.0, "test")
    own = snapshot.of_metrics(metrics, 1.0)
    for name in ("joymigrate_requests_total", "joymigrate_inflight"):
        assert read.values[name] == own.values[name]
    assert read.buckets["joymigrate_request_seconds"][(("upstream", "gpu"),)][-1][1] == 1


def test_an_engine_that_we_know_is_understood() -> None:
    before = snapshot.of_text(VLLM % (100, 0, 0, 0, 0, 0), 0.0, "test")
    after = snapshot.of_text(VLLM % (300, 50, 40, 50, 100, 100), 10.0, "test")
    found = derive.readings(before, after, "npu")
    assert found["tokens_out|npu"] == 20.0
    assert found["kv|npu"] == 25.0
    assert found["prefix|npu"] == 80.0
    assert found["inflight|npu"] == 3.0
    assert found["ttft_p50|npu"] == pytest.approx(100.0)
    assert found["ttft_p99|npu"] == pytest.approx(198.0)


def test_a_restarted_service_counts_from_zero() -> None:
    before = snapshot.of_text(VLLM % (1000, 0, 0, 0, 0, 0), 0.0, "test")
    after = snapshot.of_text(VLLM % (40, 0, 0, 0, 0, 0), 10.0, "test")
    assert derive.readings(before, after, "npu")["tokens_out|npu"] == 4.0


def test_failure_rate_is_a_share_of_the_attempts() -> None:
    metrics = Metrics()
    attempts = metrics.counter("joymigrate_attempts", "", "upstream", "outcome")
    before = snapshot.of_metrics(metrics, 0.0)
    attempts.of("npu", "ok").add(95)
    attempts.of("npu", "failed").add(5)
    found = derive.readings(before, snapshot.of_metrics(metrics, 1.0), "gateway")
    assert found["failed_share|npu"] == pytest.approx(5.0)
    assert found["requests_per_s|npu"] == 100.0


def test_a_server_without_a_gateway_has_a_failure_rate_too() -> None:
    """A ranking server or an engine: its own errors of its own requests; a client's are not."""
    metrics = Metrics()
    requests = metrics.counter("joymigrate_requests", "", "outcome")
    before = snapshot.of_metrics(metrics, 0.0)
    for outcome, count in (("ok", 90), ("error", 4), ("client_error", 6)):
        requests.of(outcome).add(count)
    found = derive.readings(before, snapshot.of_metrics(metrics, 1.0), "ranker")
    assert found["failed_share|ranker"] == pytest.approx(4.0)


def test_what_is_no_metrics_page_is_one_clear_error() -> None:
    with pytest.raises(JoyError, match="not Prometheus text"):
        snapshot.of_text("<html>{}", 0.0, "http://x")


def test_every_quantity_has_both_languages() -> None:
    for series in derive.all_series():
        assert series.en
        assert series.zh


# What the tools print, shortened; sources are named in rules/<chip>/monitor.yaml.
NVIDIA = "0, 87, 40960, 81920\n1, [N/A], 0, 81920\n"
NPU_910B = """\
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B4-1             | OK            | 91.3        33                0    / 0             |
| 0                         | 0000:C1:00.0  | 42          0    / 0          32768/ 65536         |
+===========================+===============+====================================================+
"""
NPU_A3 = """\
| 0     Ascend910           | OK            | 178.5       36                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 7           0    / 0          3416 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           36                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          3195 / 65536         |
"""
NPU_310P = """\
| 1     310P3               | OK            | NA          43                0     / 0            |
| 0     0                   | 0000:01:00.0  | 5           1500 / 21527                           |
"""


@pytest.mark.parametrize(
    ("chip", "text", "expected"),
    [
        ("nvidia", NVIDIA, {"device_util|nvidia 0": 87, "device_memory|nvidia 0": 50,
                            "device_memory|nvidia 1": 0}),
        ("ascend", NPU_910B, {"device_util|ascend 0": 42, "device_memory|ascend 0": 50}),
        ("ascend", NPU_A3, {"device_util|ascend 0": 7, "device_util|ascend 0.1": 0}),
        ("ascend", NPU_310P, {"device_util|ascend 1": 5}),
    ],
)  # fmt: skip
def test_a_tools_output_is_read(chip: str, text: str, expected: dict[str, float]) -> None:
    probe = next(probe for probe in devices.probes() if probe.chip == chip)
    found = devices.parse(probe, text)
    assert {key: found[key] for key in expected} == expected


def test_exporters_are_read_like_the_tools() -> None:
    text = (
        'npu_chip_info_utilization{id="3"} 12\n'
        'npu_chip_info_hbm_used_memory{id="3"} 100\n'
        'npu_chip_info_hbm_total_memory{id="3"} 400\n'
        'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 30\n'
        'DCGM_FI_DEV_FB_USED{gpu="0"} 60\nDCGM_FI_DEV_FB_FREE{gpu="0"} 20\n'
    )
    assert devices.of_exporter(snapshot.of_text(text, 0.0, "test")) == {
        "device_util|ascend 3": 12.0,
        "device_memory|ascend 3": 25.0,
        "device_util|nvidia 0": 30.0,
        "device_memory|nvidia 0": 75.0,
    }


def test_a_missing_tool_is_no_error() -> None:
    found = devices.local(run=lambda command: "")
    assert set(found) == {"host_cpu", "host_memory"}


def test_histograms_forget_nothing() -> None:
    rng, histogram = random.Random(0), Histogram()
    values = [rng.lognormvariate(-3, 2) for _ in range(1000)]
    for value in values:
        histogram.add(value)
    assert histogram.total == 1000
    assert histogram.sum == pytest.approx(sum(values))
