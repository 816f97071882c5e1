"""python run.py CASE [--direct] [--requests 2500]: primary + standby + gateway + clients; prints one JSON object.
--direct leaves the gateway out and asks the standby (shows the planted fault without the tool)."""
import argparse, json, os, signal, subprocess, sys, tempfile, time, urllib.request
a = argparse.ArgumentParser(); a.add_argument("case"); a.add_argument("--direct", action="store_true"); a.add_argument("--requests", type=int, default=2500)
a.add_argument("--joymigrate", default="joymigrate"); a.add_argument("--seed", type=int, default=1); a = a.parse_args()
here = os.path.dirname(os.path.abspath(__file__)); tmp = tempfile.mkdtemp(prefix="draw-serve-"); P = 18100 + os.getpid() % 400 * 3; hits = os.path.join(tmp, "hits.log"); ps = []
open(os.path.join(tmp, "gateway.yaml"), "w").write(f"""listen: 127.0.0.1:{P + 2}
upstreams:
  gpu: {{url: "http://127.0.0.1:{P}", role: primary}}
  npu: {{url: "http://127.0.0.1:{P + 1}", role: standby, chip: ascend, model: fake}}
rollout: {{start: auto, steps: [20, 50, 100], rule: "eprocess:limit=0.02,alpha=0.01", limit: 0.02, min_step_seconds: 2, proof_from: 50, sticky: user, pair_percent: 20}}
state: {tmp}/gateway.state.json
log: {tmp}/requests.jsonl
""")
def get(u, n=1):
    for _ in range(n):
        try: return json.loads(urllib.request.urlopen(u, timeout=5).read() or "null")
        except Exception as e: err = e; time.sleep(0.3)
    return {"error": str(err)}
try:
    env = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    for port, kind in ((P, "primary"), (P + 1, a.case)): ps.append(subprocess.Popen([sys.executable, here + "/fake.py", str(port), kind, hits]))
    for port in (P, P + 1): get(f"http://127.0.0.1:{port}/health", 60)
    url = f"http://127.0.0.1:{P + 1}"
    if not a.direct:
        url = f"http://127.0.0.1:{P + 2}"
        ps.append(subprocess.Popen([a.joymigrate, "serve", "--config", "gateway.yaml", "--unverified"], cwd=tmp, env=env, stdout=open(tmp + "/gateway.log", "w"), stderr=subprocess.STDOUT)); get(url + "/health", 120); time.sleep(3)
    c = subprocess.run([sys.executable, here + "/clients.py", url, a.case, str(a.requests), str(a.seed)], capture_output=True, text=True, timeout=540)
    out = {"case": a.case, "clients": json.loads(c.stdout) if c.stdout else c.stderr[-2000:], "management_hits": open(hits).read().splitlines() if os.path.exists(hits) else []}
    if not a.direct: time.sleep(4); out["rollout"] = get(url + "/admin/rollout"); out["folder"] = tmp
    print(json.dumps(out, indent=1))
finally:
    for p in reversed(ps): p.send_signal(signal.SIGTERM)
    for p in ps:
        try: p.wait(10)
        except subprocess.TimeoutExpired: p.kill()
