"""The cluster's state as Prometheus text, under our own names (prefix `joymigrate_cluster_`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from joymigrate.errors import JoyError

Sample = tuple[Mapping[str, str], float]


def exposition(status: Mapping[str, Any]) -> str:
    """Text format 0.0.4 of a status (schema `joymigrate.cluster/1`)."""
    jobs, nodes = status["jobs"], status["nodes"]
    states = ("waiting", "running", "done", "failed", "cancelled")
    queues = sorted({row["queue"] for row in jobs})
    kinds = {node["node"]: node["kind"] for node in nodes}
    held = {(queue, kind): 0.0 for queue in queues for kind in kinds.values()}
    for row in jobs:
        for pod in row["pods"]:
            key = row["queue"], kinds.get(pod["node"], "unknown")
            held[key] = held.get(key, 0.0) + len(pod["cards"])
    return "".join(
        family(*one)
        for one in (
            (
                "jobs",
                "gauge",
                "Jobs by queue and state.",
                [
                    (
                        {"queue": q, "state": s},
                        sum(r["queue"] == q and r["state"] == s for r in jobs),
                    )
                    for q in queues
                    for s in states
                ],
            ),
            (
                "cards_in_use",
                "gauge",
                "Cards held by running jobs, by queue and kind of server.",
                [({"queue": q, "kind": k}, number) for (q, k), number in sorted(held.items())],
            ),
            (
                "node_cards",
                "gauge",
                "Cards per node.",
                [({"node": n["node"], "kind": n["kind"]}, n["cards"]) for n in nodes],
            ),
            (
                "node_cards_free",
                "gauge",
                "Free cards per node.",
                [({"node": n["node"], "kind": n["kind"]}, n["free"]) for n in nodes],
            ),
            (
                "wait_seconds",
                "gauge",
                "How long jobs have waited, or did before they started.",
                [({"job": r["job"], "queue": r["queue"]}, r["waited_s"]) for r in jobs],
            ),
            (
                "evictions_total",
                "counter",
                "Times that a job's gang was stopped.",
                [({"job": r["job"], "queue": r["queue"]}, r["evictions"]) for r in jobs],
            ),
        )
    )


def family(name: str, form: str, help: str, samples: Iterable[Sample]) -> str:
    """One metric with its samples."""
    full = f"joymigrate_cluster_{name}"
    lines = [f"# HELP {full} {help}", f"# TYPE {full} {form}"]
    for labels, value in samples:
        inside = ",".join(f'{key}="{escape_label(text)}"' for key, text in labels.items())
        lines.append(f"{full}{{{inside}}} {value:g}")
    return "\n".join(lines) + "\n"


def escape_label(text: str) -> str:
    """A label value as the format wants it."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


TEXT = "text/plain; version=0.0.4; charset=utf-8"


def serve(
    host: str, port: int, pages: Mapping[str, Callable[[], str]], talk: Callable[[str], None]
) -> None:
    """Answer scrapes of `pages` (path → its text; `.json` is JSON) until interrupted."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            if path not in pages:
                self.send_error(404)
                return
            try:
                code, body = 200, pages[path]().encode("utf-8", "backslashreplace")
            except JoyError as error:  # the cluster is away; who asks is told, and may ask again
                code, body = 503, f"{error}\n".encode("utf-8", "backslashreplace")
            json_ = code == 200 and path.endswith(".json")
            self.send_response(code)
            self.send_header("Content-Type", "application/json" if json_ else TEXT)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Scrapes are not worth a line each."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise JoyError(f"cannot listen at {host}:{port}: {error.strerror}") from error
    talk(f"metrics at http://{host}:{server.server_address[1]}/metrics")
    with server:
        server.serve_forever()
