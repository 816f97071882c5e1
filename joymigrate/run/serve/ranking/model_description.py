"""What a ranking server says of its model: metadata, configuration, statistics (KServe, Triton)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from joymigrate.run.serve.monitor.metrics import Histogram
from joymigrate.run.serve.ranking import wire
from joymigrate.run.serve.ranking.lanes import RankingEngine
from joymigrate.run.serve.ranking.meters import RankingMeters
from joymigrate.run.serve.ranking.signature import DERIVED

PLATFORM = "joymigrate_ranking"
EXTENSIONS = ["binary_tensor_data", "model_repository", "model_configuration", "statistics"]


def metadata(engine: RankingEngine, meters: RankingMeters, name: str) -> dict[str, Any]:
    """Names, types and shapes of what goes in and out; with what a client may leave out."""
    signature = engine.program.signature
    return {
        "name": name,
        "versions": [engine.version],
        "platform": PLATFORM,
        "inputs": [
            {
                "name": one.name,
                "datatype": wire.datatype_of(one),
                "shape": [-1 if size is None else size for size in one.shape],
                "parameters": {"role": one.role, "optional": one.role in DERIVED},
            }
            for one in signature.inputs
        ],
        "outputs": [
            {"name": output, "datatype": "FP32", "shape": [-1]} for output in signature.outputs
        ],
    }


def config(engine: RankingEngine, meters: RankingMeters, name: str) -> dict[str, Any]:
    """The configuration as Triton words it. Shapes hold all dimensions: `max_batch_size` is 0."""
    found = metadata(engine, meters, name)

    def row(one: Mapping[str, Any]) -> dict[str, Any]:
        kind = "STRING" if one["datatype"] == "BYTES" else one["datatype"]
        return {"name": one["name"], "data_type": f"TYPE_{kind}", "dims": one["shape"]}

    return {
        "name": name, "platform": PLATFORM, "backend": PLATFORM, "max_batch_size": 0,
        "input": [{**row(one), "optional": one["parameters"]["optional"]}
                  for one in found["inputs"]],
        "output": [row(one) for one in found["outputs"]],
    }  # fmt: skip


def statistics(engine: RankingEngine, meters: RankingMeters, name: str) -> dict[str, Any]:
    """Counts and sums since the start. A batch's whole time is said to be its computing."""
    counts, outcomes = engine.counts, meters.outcomes
    nothing = {"count": 0, "ns": 0}
    failed = int(sum(outcomes[key].value for key in ("client_error", "error", "rejected")))
    batches = duration(counts.batch_seconds)
    row = {
        "name": name,
        "version": engine.version,
        "last_inference": int(1e3 * counts.last) if counts.last else 0,
        "inference_count": counts.requests,
        "execution_count": counts.batches,
        "inference_stats": {
            "success": duration(meters.seconds),
            "fail": {"count": failed, "ns": 0},
            "queue": duration(counts.wait_seconds),
            "compute_input": nothing,
            "compute_infer": batches,
            "compute_output": nothing,
        },
        "batch_stats": [
            {"batch_size": size, "compute_infer": {"count": count, "ns": int(1e9 * seconds)}}
            for size, (count, seconds) in sorted(counts.merged.items())
        ],
    }
    return {"model_stats": [row]}


def duration(histogram: Histogram) -> dict[str, int]:
    """Count and sum of a histogram as Triton says them."""
    return {"count": histogram.total, "ns": int(histogram.sum * 1e9)}


# What stands behind /v2/models/M, by the rest of the path
MODEL: dict[str, Callable[[RankingEngine, RankingMeters, str], dict[str, Any]]] = {
    "": metadata,
    "config": config,
    "stats": statistics,
}
