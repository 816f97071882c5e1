"""The web base of every server here: sockets, keys, limits, time-outs, drain, reload, TLS.

Two ways to stand on it.

A service that turns one whole request into one answer implements `server.Answering` (the attributes
`draining`, `limits` and `keys`; `answer(ask) -> Reply`, which never raises; `record(ask, status,
gone=…)` for metrics and log; `close()`) and is put on an address:

    from joymigrate.run.serve.web import keys, limits, logs, messages, server, site

    served = server.Server(service, host, port, front=site.Front(tls=…, cors=…))
    await server.run(served, opened=lambda: print(served.url))   # until SIGTERM; SIGHUP reloads

`messages` has `Ask` (method, path, headers, body, `json()`), `Reply` and `data(value, status)`;
`errors.Refusal(status, message, code=, param=)` is what a handler raises and `errors.refused` words
it for the OpenAI or the KServe clients. A body that is a stream is any `messages.Pieces`.

A server that relays bytes itself (the gateway) builds a `site.Site` around its own handler, calls
`enter` and `leave` for each request and `body.read` for its body.

Both get: `Connections` that answer in JSON what is no HTTP, a time limit for the head and the body
of a request, sizes, `X-Request-Id` in and out, keys with a rate and a number of requests at once,
CORS, TLS and client certificates, a drain whose deadline is one, spans and metrics where
OpenTelemetry is configured.
"""
