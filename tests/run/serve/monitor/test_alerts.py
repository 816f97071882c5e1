"""What is exported for Prometheus and Grafana."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from joymigrate.cli.monitor import show_export
from joymigrate.errors import JoyError
from joymigrate.run.serve.monitor.derive import all_series

METRIC = re.compile(r"joymigrate_\w+")


def known() -> set[str]:
    """The metrics that the monitor reads, and the buckets of those that are histograms."""
    names = {name for one in all_series() for name in (*one.names, *one.over)}
    return names | {f"{name}_bucket" for name in names}


def export(kind: str, folder: Path) -> str:
    """What `monitor --export` writes."""
    show_export(kind, folder / kind)
    return (folder / kind).read_text()


def test_every_alert_asks_for_a_metric_that_there_is(tmp_path: Path) -> None:
    rules = yaml.safe_load(export("prometheus", tmp_path))["groups"][0]["rules"]
    by_name = {rule["alert"]: rule for rule in rules}
    assert by_name["BackendDown"]["expr"] == "joymigrate_upstream_up < 0.5"
    for rule in rules:
        asked = set(METRIC.findall(rule["expr"]))
        assert asked
        assert asked <= known()


def test_every_panel_for_grafana_asks_for_metrics_that_there_are(tmp_path: Path) -> None:
    board = json.loads(export("grafana", tmp_path))
    assert len(board["panels"]) > 5
    for panel in board["panels"]:
        asked = set(METRIC.findall(" ".join(target["expr"] for target in panel["targets"])))
        assert asked
        assert asked <= known()


def test_another_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="unknown export"):
        export("influx", tmp_path)
