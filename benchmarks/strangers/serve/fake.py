"""A small fake of an OpenAI server: python fake.py PORT primary|CASE [SECRET_LOG]. Deterministic; answers are chains of words."""
import asyncio, hashlib, json, random, sys, time
from aiohttp import web

PORT, CASE = int(sys.argv[1]), sys.argv[2]; LOG = sys.argv[3] if len(sys.argv) > 3 else None
V = ("time year people way day man thing woman life child world school state family student group country problem hand part place case week company system "
     "program question work government number night point home water room mother area money story fact month lot right study book eye job word business issue side "
     "kind head house service friend father power hour game line end member law car city community name president team minute idea body information back parent "
     "face others level office door health person art war history party result change morning reason research girl guy moment air teacher force education").split()
ZH = [chr(0x4e00 + 37 * i % 6000) + chr(0x4e00 + 91 * i % 6000) for i in range(len(V))]
served = 0
R = random.Random(4)

def h(*a): return int.from_bytes(hashlib.sha1("|".join(map(str, a)).encode()).digest()[:8], "big")
def step(q, words):
    x = h(q, *words[-3:], len(words)); return V[x % len(V)], V[(x >> 16) % len(V)], (x >> 40) % 150 == 0
def length(q): return 20 + h("len", q) % 120

def chain(q, limit, case):
    """words, finish"""
    n = length(q); words = []
    if case == "s01": n = max(3, n // 2)
    while len(words) < n:
        if len(words) >= limit: return words, ("stop" if case == "s13" else "length")
        top, second, tie = step(q, words); w = top
        if tie and case == "h16": w = second
        if case == "s02" and len(words) >= 60: w = V[h("noise", q, len(words)) % len(V)]
        if case == "s03" and len(q) > 1500: w = V[h("noise", q, len(words)) % len(V)]
        if case == "s11" and h(q) % 5 == 0: w = ZH[V.index(top)]
        if case == "s14" and len(words) >= 40: w = words[39 - 39 % 3 + len(words) % 3 - 3]
        words.append(w)
    return words, "stop"

def question(b):
    m = b.get("messages")
    if m is None:
        p = b.get("prompt", ""); return (p if isinstance(p, str) else json.dumps(p)), ""
    def text(c): return c if isinstance(c, str) else "" if c is None else "".join(p.get("text", "") for p in c)
    last = m[-1]; cont = text(last.get("content")) if last["role"] == "assistant" else ""
    if last["role"] == "assistant": m = m[:-1]
    return "\n".join(f"{x['role']}: {text(x.get('content'))}" for x in m), cont

def scores(q, cont):
    out = [None]
    for w in q.split()[1:]: out.append({str(h(w) % 50000): {"logprob": -2.0, "rank": 5, "decoded_token": " " + w}})
    words = []
    for w in cont.split():
        top, second, tie = step(q, words)
        lp, rank = (-0.05, 1) if w == top else (-0.75, 2) if tie and w == second else (-11.0, 4000)
        out.append({str(h(w) % 50000): {"logprob": lp, "rank": rank, "decoded_token": " " + w}}); words.append(w)
    return out

def failed(b):
    global served
    if CASE == "s10" and b.get("user") == "u07": return web.json_response({"error": {"message": "internal error", "type": "server_error"}}, status=500)
    if CASE == "h18" and R.random() < 0.003:
        return web.json_response({"error": {"message": "busy", "type": "overloaded"}}, status=503, headers={"Retry-After": "1"})
    return None

async def wait():
    global served
    served += 1; t = 0.003
    if CASE == "s04": t += 0.0015 * served
    if CASE == "h17": t *= 1.6 * R.lognormvariate(0, 0.4)
    await asyncio.sleep(t)

def base(b, kind, q): return {"id": "x-" + hashlib.sha1((q + str(time.time_ns())).encode()).hexdigest()[:12], "object": kind, "created": int(time.time()), "model": b.get("model", "fake")}

async def guarded(req, ischat):
    try: return await answer(req, ischat)
    except ConnectionError: raise                       # the client went away
    except (TypeError, KeyError, ValueError, AttributeError, IndexError): return web.json_response({"error": {"message": "bad request", "type": "invalid_request_error"}}, status=400)
async def chat(req): return await guarded(req, True)
async def comp(req): return await guarded(req, False)

async def answer(req, ischat):
    try: b = await req.json()
    except Exception: return web.json_response({"error": {"message": "no JSON", "type": "invalid_request_error"}}, status=400)
    bad = failed(b)
    await wait()
    if bad is not None: return bad
    q, cont = question(b); limit = int(b.get("max_completion_tokens") or b.get("max_tokens") or 256); case = CASE
    u = lambda n: {"prompt_tokens": len(q.split()), "completion_tokens": n, "total_tokens": len(q.split()) + n}
    done = [w for w in cont.split()]
    words, fin = chain(q, limit + len(done), case); words = words[len(done):] if cont else words
    msg, calls = " ".join(words), None
    if "Repeat the word" in q:
        words = (["yes"] * 40)[:limit]; msg, fin = " ".join(words), ("stop" if limit >= 40 else "length")
    for s in ([b["stop"]] if isinstance(b.get("stop"), str) else b.get("stop") or []):
        if s and s in msg: msg = msg[:msg.index(s)]; words = msg.split(); fin = "stop"
    fmt = (b.get("response_format") or {}).get("type")
    if fmt in ("json_object", "json_schema"):
        msg = json.dumps({"answer": " ".join(words[:6]), "score": h(q) % 100}); fin = "stop"
        if case == "s06": msg = "```json\n" + msg[:-1] + ",}\n```" if h(q) % 2 else msg[:-1] + ",}"
        words = msg.split()
    if b.get("tools") and b.get("tool_choice") != "none":
        f = b["tools"][0]["function"]["name"]; a = json.dumps({"city": V[h(q) % len(V)], "days": h(q) % 9})
        if case == "s05": a = a[: len(a) - 4] if h(q) % 2 else a.replace('"city"', '"town"')
        calls = [{"id": "call_" + str(h(q) % 10 ** 8), "type": "function", "function": {"name": f, "arguments": a}}]; fin, msg, words = "tool_calls", None, []
    if case == "s12" and h(q) % 33 == 0 and not calls: msg, words, fin = "", [], "stop"
    lps = None
    if b.get("logprobs"):
        lps = []
        for i, w in enumerate(words):
            lp = -0.02 - (h(q, i) % 1000) / 700
            if case == "s07": lp = 0.0
            lps.append({"token": (" " if i else "") + w, "logprob": lp, "bytes": list(w.encode()), "top_logprobs": [{"token": (" " if i else "") + w, "logprob": lp, "bytes": list(w.encode())}]})
    if not b.get("stream"):
        ch = {"index": 0, "finish_reason": fin}
        if ischat:
            ch["message"] = {"role": "assistant", "content": msg} | ({"tool_calls": calls} if calls else {})
            if lps is not None: ch["logprobs"] = {"content": lps}
        else:
            ch["text"] = msg
            if lps is not None: ch["logprobs"] = {"tokens": [x["token"] for x in lps], "token_logprobs": [x["logprob"] for x in lps], "top_logprobs": None, "text_offset": []}
        r = base(b, "chat.completion" if ischat else "text_completion", q) | {"choices": [ch], "usage": u(len(words))}
        if b.get("prompt_logprobs") is not None: r["prompt_logprobs"] = scores(q, cont); ch["prompt_logprobs"] = r["prompt_logprobs"]
        return web.json_response(r)
    s = web.StreamResponse(headers={"Content-Type": "text/event-stream"}); await s.prepare(req)
    head = base(b, "chat.completion.chunk" if ischat else "text_completion", q)
    async def ev(d, fr=None, lp=None):
        c = {"index": 0, "finish_reason": fr} | ({"delta": d} if ischat else {"text": d.get("content", "")})
        if lp is not None: c["logprobs"] = {"content": [lp]}
        await s.write(b"data: " + json.dumps(head | {"choices": [c]}).encode() + b"\n\n")
    if ischat: await ev({"role": "assistant", "content": ""})
    if calls:
        c = calls[0]; await ev({"tool_calls": [{"index": 0, "id": c["id"], "type": "function", "function": {"name": c["function"]["name"], "arguments": ""}}]})
        a = c["function"]["arguments"]
        for i in range(0, len(a), 9): await ev({"tool_calls": [{"index": 0, "function": {"arguments": a[i:i + 9]}}]})
    elif msg:
        parts = msg.split(" ")
        for i, w in enumerate(parts):
            t = (" " if i else "") + w; await ev({"content": t}, lp=lps[i] if lps and i < len(lps) else None)
            if case == "s08" and i % 10 == 9: await ev({"content": t}, lp=lps[i] if lps and i < len(lps) else None)
    await ev({}, fin)
    if (b.get("stream_options") or {}).get("include_usage"): await s.write(b"data: " + json.dumps(head | {"choices": [], "usage": u(len(words))}).encode() + b"\n\n")
    if case != "s09": await s.write(b"data: [DONE]\n\n")
    await s.write_eof(); return s

async def emb(req):
    b = await req.json(); await wait(); xs = b["input"] if isinstance(b["input"], list) else [b["input"]]
    return web.json_response({"object": "list", "model": b.get("model"), "data": [{"object": "embedding", "index": i, "embedding": [((h(x, k) % 2001) - 1000) / 1000 for k in range(16)]} for i, x in enumerate(xs)],
                              "usage": {"prompt_tokens": 4, "total_tokens": 4}})
async def models(req): return web.json_response({"object": "list", "data": [{"id": "fake", "object": "model", "owned_by": "x", "max_model_len": 8192}]})
async def health(req): return web.json_response({})
async def danger(req):
    if LOG: open(LOG, "a").write(f"{CASE} {req.method} {req.raw_path if hasattr(req, 'raw_path') else req.path_qs}\n")
    return web.json_response({"done": True})

app = web.Application(client_max_size=1 << 26)
app.add_routes([web.post("/v1/chat/completions", chat), web.post("/v1/completions", comp), web.post("/v1/embeddings", emb), web.get("/v1/models", models), web.get("/health", health), web.get("/ready", health)])
app.router.add_route("*", "/{rest:.*}", danger)     # shutdown, load_lora_adapter, update_weights, whatever else reaches it
web.run_app(app, host="127.0.0.1", port=PORT, print=None, access_log=None)
