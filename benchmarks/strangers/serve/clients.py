"""Ordinary clients (and, for x cases, a hostile one). python clients.py URL CASE N SEED -> one JSON line of what clients saw."""
import asyncio, json, random, sys, time
import aiohttp

URL, CASE, N, SEED = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
R = random.Random(SEED); seen = {}
def count(k): seen[k] = seen.get(k, 0) + 1
TOPICS = "tides bread whales taxes bridges opera chess comets bees glaciers trams coffee paper volcanoes maps".split()

def request(i):
    k = R.random(); user = f"u{R.randrange(30):02d}"
    q = f"Tell me about {R.choice(TOPICS)} number {R.randrange(400)}."
    if k > 0.9: q = "Here is a document. " + " ".join(R.choice(TOPICS) for _ in range(450)) + " " + q      # long prompts: 10 %
    b = {"model": "fake", "user": user, "temperature": 0, "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": q}], "max_tokens": 200}
    if R.random() < 0.15: b["max_tokens"] = R.choice([8, 16, 30])
    if R.random() < 0.5: b["stream"] = True
    j = R.random()
    if j < 0.12: b["tools"] = [{"type": "function", "function": {"name": "weather", "description": "forecast", "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}]
    elif j < 0.24: b["response_format"] = {"type": "json_object"}
    elif j < 0.36: b["logprobs"] = True; b["top_logprobs"] = 1
    return b

async def one(s, b, note=True):
    t = time.perf_counter()
    try:
        async with s.post(URL + "/v1/chat/completions", json=b) as r:
            raw = (await r.read()).decode("utf-8", "replace"); count(f"status_{r.status}")
            if r.status >= 500: count("client_sees_5xx_" + b.get("user", "-"))
            if r.status != 200: return
            if b.get("stream"):
                ev = [l[6:] for l in raw.split("\n") if l.startswith("data: ")]
                if not ev or ev[-1].strip() != "[DONE]": count("stream_without_DONE")
                if any('"error"' in e[:12] for e in ev): count("stream_error_event")
                ds = [json.loads(e) for e in ev if e.strip() != "[DONE]" and '"error"' not in e[:12]]
                fin = [c["finish_reason"] for d in ds for c in d.get("choices", []) if c.get("finish_reason")]
                text = "".join(c["delta"].get("content") or "" for d in ds for c in d.get("choices", []))
                args = "".join(t["function"].get("arguments", "") for d in ds for c in d.get("choices", []) for t in c["delta"].get("tool_calls") or [])
            else:
                m = json.loads(raw)["choices"][0]; fin = [m["finish_reason"]]; text = m["message"].get("content") or ""
                args = "".join(t["function"]["arguments"] for t in m["message"].get("tool_calls") or [])
            count("finish_" + ",".join(map(str, fin)))
            if b.get("tools"):
                try: json.loads(args)["city"]
                except Exception: count("bad_tool_call")
            elif b.get("response_format"):
                try: json.loads(text)
                except Exception: count("bad_json")
            elif not text: count("empty")
    except Exception as e: count("client_error_" + type(e).__name__)
    finally:
        if note: times.append(time.perf_counter() - t)
times = []

async def odd(s):
    """x19: one client asks for forty equal words, one-token answers, odd stops; ten times as often as others"""
    for i in range(N // 2):
        b = {"model": "fake", "user": "u99", "temperature": 0, "messages": [{"role": "user", "content": f"Repeat the word yes forty times. {i}"}], "max_tokens": R.choice([1, 41, 256])}
        if i % 5 == 0: b["stop"] = ["e"]
        if i % 7 == 0: b["stream"] = True
        await one(s, b, False); await asyncio.sleep(0.002)

async def attack(s):
    """x20: management paths, path tricks, big heads, half requests; other clients go on meanwhile"""
    paths = ["/shutdown", "/v1/load_lora_adapter", "/update_weights_from_disk", "/v1/../shutdown", "//shutdown", "/%73hutdown", "/v1/chat/completions/../../shutdown", "/v1/chat/completions%2f..%2f..%2fshutdown",
             "/v1/unload_lora_adapter", "/sleep", "/reset_prefix_cache", "/collective_rpc", "/SHUTDOWN", "/shutdown/", "/v1/models/../../shutdown?x=1", "/;/shutdown"]
    from yarl import URL as Y
    for n in range(6):
        for p in paths:
            try:
                async with s.post(Y(URL + p, encoded=True), json={}) as r: count(f"admin_path_{r.status}")
            except Exception as e: count("admin_path_" + type(e).__name__)
        for meth, p in (("POST", "/admin/rollout"), ("GET", "/admin/rollout")):
            try:
                async with s.request(meth, URL + p, json={"order": "rollback"}, headers={"Origin": "http://evil.example", "Host": "evil.example", "X-Forwarded-For": "203.0.113.9"}) as r: count(f"rollback_order_{meth}_{r.status}")
            except Exception as e: count("rollback_order_" + type(e).__name__)
    host, port = URL.split("//")[1].split(":"); slow = []
    for k in range(40):                                    # slow loris
        try: rd, w = await asyncio.open_connection(host, int(port)); w.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\nX-A: " + b"b" * k * 100); await w.drain(); slow.append(w)
        except Exception as e: count("loris_" + type(e).__name__)
    for k in range(20):                                    # streams that are left at once
        try:
            async with s.post(URL + "/v1/chat/completions", json=request(0) | {"stream": True, "user": "u66"}) as r: await r.content.read(20); r.close()
        except Exception as e: count("left_" + type(e).__name__)
    for bad in (b"", b"[]", b"\xff\xfe", b'{"messages": 5}', b'{"model":"fake","messages":[{"role":"user","content":"' + b"a" * 3_000_000 + b'"}]}', b"{" * 100_000):
        try:
            async with s.post(URL + "/v1/chat/completions", data=bad, headers={"Content-Type": "application/json"}) as r: count(f"bad_body_{r.status}")
        except Exception as e: count("bad_body_" + type(e).__name__)
    await asyncio.sleep(3)
    for w in slow: w.close()

async def main():
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=32), timeout=aiohttp.ClientTimeout(total=60)) as s:
        extra = asyncio.create_task(odd(s) if CASE == "x19" else attack(s) if CASE == "x20" else asyncio.sleep(0))
        sem = asyncio.Semaphore(8)
        async def go(i):
            async with sem: await one(s, request(i))
        await asyncio.gather(*[go(i) for i in range(N)]); await extra
    ts = sorted(times); print(json.dumps({"seen": dict(sorted(seen.items())), "p50_ms": round(1e3 * ts[len(ts) // 2], 1), "p99_ms": round(1e3 * ts[int(len(ts) * .99)], 1)}))
asyncio.run(main())
