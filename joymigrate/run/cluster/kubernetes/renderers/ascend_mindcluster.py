"""MindCluster on Volcano: the vcjob with the annotations and labels that Huawei's plug-in reads."""

from __future__ import annotations

from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import GangJob, Workload
from joymigrate.run.cluster.kinds import ServerKind
from joymigrate.run.cluster.kubernetes.renderers import RenderedObjects, dns, kind_of, volcano

NAME = "mindcluster"
SAYS = volcano.SAYS
SHARES = volcano.SHARES
RINGS = True
SCHEMAS = {"one": "normal-schema", "fill": "large-model-schema", "any": "null"}


def render(workload: Workload, inventory: Inventory | None, out: RenderedObjects) -> None:
    """Volcano's objects; jobs on this vendor's cards carry what its plug-in wants to know."""
    volcano.render(workload, inventory, out)
    jobs = {dns(job.name): job for job in workload.jobs}
    for item in out.objects:
        if item["kind"] == "Job":
            adapt(item, jobs[item["metadata"]["name"]], inventory)
    out.note("Volcano's scheduler must load MindCluster's plug-in by the name of its file, which "
             "carries version and platform (volcano-npu_vVERSION_linux-ARCH)")  # fmt: skip


def adapt(item: dict[str, Any], job: GangJob, inventory: Inventory | None) -> None:
    """Add policy, node selector, super-pod block and leaf switch affinity to one vcjob."""
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    for task, rendered in zip(job.tasks, item["spec"]["tasks"], strict=True):
        kind = kind_of(job, task, inventory)
        if kind is None or kind.family != "npu":
            continue
        if not task.milli:
            check_size(job, task.cards, kind)
        super_pod = bool(job.sp_block)
        policy = kind.kubernetes.get("superpod_policy" if super_pod else "policy")
        selector = kind.kubernetes.get("superpod_labels" if super_pod else "labels")
        if policy:
            annotations["huawei.com/schedule_policy"] = policy
        mine = dict(kind.kubernetes.get("pod_labels") or {})
        labels |= mine
        template = rendered["template"]
        template["metadata"]["labels"] |= mine
        if selector:
            template["spec"]["nodeSelector"] = dict(selector)
        template["metadata"].setdefault("annotations", {}).update(annotations)
    if job.sp_block:
        annotations["sp-block"] = str(job.sp_block)
        labels["super-pod-affinity"] = job.superpod
    if annotations and job.leaf in SCHEMAS and job.pods > 1:
        labels["tor-affinity"] = SCHEMAS[job.leaf]
    if annotations:
        item["metadata"]["annotations"] = annotations
        annotations["huawei.com/schedule_minAvailable"] = str(job.pods)
        # The plug-in decides about switches and super-pods itself.
        item["spec"].pop("networkTopology", None)
        for task in item["spec"]["tasks"]:
            task.pop("partitionPolicy", None)
    if labels:
        item["metadata"]["labels"] = labels


def check_size(job: GangJob, cards: int, kind: ServerKind) -> None:
    """A request that the plug-in would refuse is refused here, with the legal sizes."""
    if cards in kind.legal and not (job.pods > 1 and cards in kind.alone):
        return
    legal = ", ".join(str(k) for k in kind.legal if not (job.pods > 1 and k in kind.alone))
    raise JoyError(
        f"job {job.name}: {cards} cards per pod is not legal on {kind.name}",
        help=f"ask for one of {legal}",
    )
