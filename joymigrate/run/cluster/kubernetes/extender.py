"""A door into Volcano: answers of its `extender` plug-in, by our queues and placement.

Volcano asks over HTTP (pkg/scheduler/plugins/extender: one POST a verb, the body in its own types).
`onSessionOpen` brings the whole cluster, from which a scheduler is made anew: nothing is kept here,
so that a restart loses nothing. Limits may be on `cards`, over pools of different cards, which no
queue of Volcano can say. Which cards of a node a pod gets stays the device plug-in's choice.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import ThreadingHTTPServer
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.cluster.http_door import JSON, Answer, open_door
from joymigrate.run.cluster.kubernetes import live, quantity
from joymigrate.run.cluster.kubernetes.nodes import Object, resources
from joymigrate.run.cluster.queues import Queue

PERMIT, REJECT = 1, -1  # votes of a plug-in (pkg/scheduler/plugins/util)
UNSCHEDULABLE = 2  # a pod may fit when others have gone (pkg/scheduler/api, Status)
CHOSEN = 100.0  # the score of a node that the gang was placed on
GROUP = "scheduling.k8s.io/group-name"


class Extender:
    """Answers the verbs. `queues` replace Volcano's own of their names."""

    def __init__(
        self,
        clock: Callable[[], float],
        queues: Sequence[Queue] = (),
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.clock, self.queues, self.weights = clock, tuple(queues), dict(weights or {})
        self.session: live.LiveDecision | None = None
        self.verbs: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "onSessionOpen": self.open_session,
            "onSessionClose": self.close_session,
            "predicate": self.judge_node,
            "prioritize": self.score_nodes,
            "preemptable": self.choose_victims,
            "reclaimable": self.choose_victims,
            "queueOverused": self.judge_queue,
            "jobEnqueueable": self.judge_job,
        }

    def answer(self, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one verb; `JoyError` where nothing is known to answer from."""
        if verb not in self.verbs:
            raise JoyError(f"no verb '{verb}'", help=", ".join(self.verbs))
        return self.verbs[verb](body)

    def _opened(self) -> live.LiveDecision:
        if self.session is None:
            raise JoyError(
                "no session is open here", help="extender.onSessionOpenVerb: onSessionOpen"
            )
        return self.session

    def open_session(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Decide the whole cycle at once."""
        now = self.clock()
        found = live.read(read_session(body), now)
        self.session = live.decide(found, now, self.queues, self.weights)
        return {}

    def close_session(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The next cycle brings everything again."""
        self.session = None
        return {}

    def judge_node(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Whether a pod may go to a node: of a gang with cards, where it was placed."""
        session, name = self._opened(), find_gang(body["task"])
        node = str(body["node"]["Name"])
        if name in session.starts:
            places = session.pods_on(name)
            if node in places:
                return {"status": "", "code": 0}
            return {"status": f"{name} was placed on {', '.join(places)}", "code": UNSCHEDULABLE}
        if name in session.reasons:
            return {"status": session.reasons[name].reason, "code": UNSCHEDULABLE}
        return {"status": "", "code": 0}  # it asks for no card, or is not waiting: not ours

    def score_nodes(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The nodes that the gang was placed on first, those with more of its pods before."""
        session, name = self._opened(), find_gang(body["task"])
        places = session.pods_on(name) if name in session.starts else {}
        most = max(places.values(), default=1)
        names = [str(one["Name"]) for one in body.get("nodes") or ()]
        scores = {name: CHOSEN * places.get(name, 0) / most for name in names}
        return {"nodeScore": scores, "errorMessage": ""}

    def choose_victims(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Of those that may be stopped, the pods of gangs whose stop lets this claim start."""
        session = self._opened()
        allowed = session.stops.get(find_gang(body["evictor"]), ())
        victims = [one for one in body.get("evictees") or () if find_gang(one) in allowed]
        return {"status": PERMIT if victims else REJECT, "victims": victims}

    def judge_queue(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Whether a queue, or one above it, has no card left under its MAX."""
        quotas = self._opened().scheduler.quotas
        name = str(body["queue"].get("Name") or body["queue"]["Queue"]["metadata"]["name"])
        limits = [one for queue in quotas.chain(name) for one in quotas.account(queue).max]
        return {"overused": any(one.used >= one.bound for one in limits)}

    def judge_job(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Whether a job may have its pods made: not one that the limits keep back, or for good."""
        session = self._opened()
        name = f"{body['job'].get('Namespace') or 'default'}/{body['job']['Name']}"
        why = session.reasons.get(name)
        kept = why is not None and (why.permanent or why.code in ("max", "min"))
        return {"status": REJECT if kept else PERMIT}


def read_session(body: Mapping[str, Any]) -> live.Objects:
    """A session's nodes, pods and queues as the objects that they were made of.

    A job whose pods are not made before it is let in waits with what its PodGroup says.
    """
    nodes: list[Object] = [
        one["Node"] for one in (body.get("Nodes") or {}).values() if one.get("Node")
    ]
    pods: list[Object] = []
    kept_back: list[Object] = []
    for job in (body.get("Jobs") or {}).values():
        for task in (job.get("Tasks") or {}).values():
            pod = task.get("Pod")
            if pod:
                pods.append(mark_pod(pod, task, str(job.get("Queue") or "")))
        if not job.get("Tasks") and job.get("PodGroup"):
            kept_back.append(read_group(job))
    queues = [one["Queue"] for one in (body.get("Queues") or {}).values() if one.get("Queue")]
    return {
        ("v1", "Node"): nodes,
        ("v1", "Pod"): pods,
        ("batch.volcano.sh/v1alpha1", "Job"): kept_back,
        ("scheduling.volcano.sh/v1beta1", "Queue"): queues,
    }


def read_group(job: Mapping[str, Any]) -> Object:
    """A job without pods as a vcjob of equal ones: its PodGroup knows what all of them ask."""
    spec = job["PodGroup"].get("spec") or {}
    least = spec.get("minResources") or {}
    asked = {name: quantity.parse(text) or 0.0 for name, text in least.items()}
    most = int(spec.get("minMember") or 1)
    whole = [int(amount) for name, amount in asked.items() if name in resources()]
    pods = next(n for n in range(most, 0, -1) if n == 1 or not any(one % n for one in whole))
    each = {name: f"{amount / pods:.15g}" for name, amount in asked.items()}
    template = {"spec": {"containers": [{"resources": {"requests": each}}]}}
    return {
        "metadata": {"name": job["Name"], "namespace": job.get("Namespace") or "default"},
        "spec": {
            "queue": job.get("Queue") or spec.get("queue"),
            "priorityClassName": spec.get("priorityClassName", ""),
            "tasks": [{"replicas": pods, "template": template}],
        },
    }


def mark_pod(pod: Mapping[str, Any], task: Mapping[str, Any], queue: str) -> Object:
    """A pod that names its gang, its queue and, in a cycle under way, its node."""
    meta = pod["metadata"]
    group = find_gang(task).partition("/")[2]
    notes = {"scheduling.volcano.sh/queue-name": queue, **(meta.get("annotations") or {})}
    notes[GROUP] = group
    spec = dict(pod["spec"])
    if task.get("NodeName"):
        spec["nodeName"] = task["NodeName"]
    return {**pod, "metadata": {**meta, "annotations": notes}, "spec": spec}


def find_gang(task: Mapping[str, Any]) -> str:
    """Namespace and name of a task's gang: Volcano's job id is just that."""
    return str(task.get("Job") or f"{task.get('Namespace') or 'default'}/{task.get('Name')}")


def serve(host: str, port: int, extender: Extender) -> ThreadingHTTPServer:
    """Answer one verb after the other.

    What cannot be answered is an HTTP error: with `extender.ignorable` Volcano goes on by its own
    rules, and says so in its log.
    """
    lock = threading.Lock()

    def answer(path: str, body: bytes) -> Answer:
        try:
            with lock:
                data = extender.answer(path.rpartition("/")[2], json.loads(body or b"{}"))
        except JoyError as error:
            return 503, JSON, json.dumps({"error": str(error)})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return 400, JSON, json.dumps({"error": f"not a request of Volcano: {error!r}"})
        return 200, JSON, json.dumps(data)

    return open_door(host, port, answer)
