"""The server: tools and resources over the protocol's own package, on stdio or on loopback."""

from __future__ import annotations

import hmac
import sys
import time
import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.stdio import stdio_server

from joymigrate import __version__
from joymigrate.agent.door import resources
from joymigrate.agent.door.answers import MOST_BYTES, dump, shorten
from joymigrate.agent.door.arguments import check, meet_roots
from joymigrate.agent.door.runs import CommandRun, Runs, describe
from joymigrate.agent.door.tools import BY_NAME, TOOLS, ToolSpec, schema_of
from joymigrate.errors import JoyError

WAIT_SECONDS = 45  # shorter than the limit of usual clients
TELL_SECONDS = 1.0
ROOTS_SECONDS = 10.0
MOST_ARGUMENTS = 64_000  # bytes of one call's arguments
ABOUT = """\
joymigrate moves AI programs from NVIDIA GPUs to other accelerators and proves that they still \
compute the same. Begin with `next`. Every yes says what it covers ("covers", "covered"); every \
error has `next`. A rehearsal runs on a simulated chip and is no chip's result. Success is a \
journey whose verdict is "pass" and whose `next` state is "passed": never a run alone. A long run \
answers with an id; `result` has the rest."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a server may do: folders, programs of the project, files of the project."""

    roots: tuple[Path, ...]
    run: bool = False
    write: bool = False


Context = ServerRequestContext[Runs]


def make_server(allowed: Allowed) -> Server[Runs]:
    """The server with its tools and resources."""

    @asynccontextmanager
    async def living(_: Server[Runs]) -> AsyncIterator[Runs]:
        async with anyio.create_task_group() as scope:
            yield Runs(scope)
            scope.cancel_scope.cancel()  # what still runs ends with the server

    async def list_tools(
        ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[describe_tool(one) for one in TOOLS])

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            answer, failed = await call(ctx, allowed, params.name, params.arguments or {})
        except JoyError as error:
            answer, failed = shorten(describe(error)), True
        text = types.TextContent(text=dump(answer).encode("utf-8", "replace").decode("utf-8"))
        return types.CallToolResult(content=[text], is_error=failed)

    async def list_resources(
        ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        found = [
            types.Resource(
                uri=one.uri, name=one.name, description=one.about, mime_type="text/plain"
            )
            for one in resources.list_pages()
        ]
        return types.ListResourcesResult(resources=found)

    async def list_templates(
        ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        found = [
            types.ResourceTemplate(uri_template=uri, name=uri, description=about)
            for uri, about in resources.TEMPLATES.items()
        ]
        return types.ListResourceTemplatesResult(resource_templates=found)

    async def read_resource(
        ctx: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri = str(params.uri)
        try:
            text = await anyio.to_thread.run_sync(resources.read_page, uri)
        except JoyError as error:
            text = dump(describe(error))
        part = types.TextResourceContents(uri=uri, text=text, mime_type="text/plain")
        return types.ReadResourceResult(contents=[part])

    return Server(
        "joymigrate",
        version=__version__,
        instructions=ABOUT,
        lifespan=living,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )


def describe_tool(tool: ToolSpec) -> types.Tool:
    """A tool as the protocol has it, with its hints."""
    hints = types.ToolAnnotations(
        read_only_hint=not (tool.writes or tool.starts),
        destructive_hint=tool.destructive or tool.starts,
        idempotent_hint=not tool.starts,
        open_world_hint=False,
    )
    return types.Tool(
        name=tool.name,
        description=tool.about,
        input_schema=schema_of(tool),
        annotations=hints,
    )


async def call(
    ctx: Context, allowed: Allowed, name: str, given: Mapping[str, Any]
) -> tuple[dict[str, Any], bool]:
    """The answer to one call, and whether it is an error."""
    tool = BY_NAME.get(name)
    if tool is None:
        raise JoyError(f"there is no tool '{name[:40]}'", help=f"one of {', '.join(BY_NAME)}")
    if len(dump(dict(given)).encode("utf-8", "replace")) > MOST_ARGUMENTS:
        raise JoyError("the arguments are too large", help=f"at most {MOST_ARGUMENTS:,} bytes")
    runs = ctx.lifespan_context
    if tool.name == "result":
        asked = check(tool, given, allowed.roots)
        return await give_result(ctx, runs, asked)
    asked = check(tool, given, await ask_roots(ctx, allowed))
    refuse(tool, asked, allowed)
    run = runs.begin(tool, asked)
    await wait(ctx, run, asked.get("wait", WAIT_SECONDS))
    return answer_of(run)


def refuse(tool: ToolSpec, asked: Mapping[str, Any], allowed: Allowed) -> None:
    """Refuse what this server was not allowed to do."""
    starts = tool.starts and bool(asked.get("command"))
    if tool.starts and not asked.get("command") and "target" not in asked:
        raise JoyError(f"{tool.name} needs 'command'", help="the program as words")
    if starts and not allowed.run:
        raise JoyError(
            f"{tool.name} starts a program, which this server may not do",
            help="a person starts it with `joymigrate mcp --allow-run`",
        )
    if tool.may_write(asked) and not allowed.write:
        raise JoyError(
            f"{tool.name} writes files, which this server may not do",
            help="a person starts it with `joymigrate mcp --allow-write`",
        )
    if not allowed.run and "folder" in asked and has_codemods(Path(asked["folder"])):
        raise JoyError(
            "this project brings codemods, which are its own code",
            help="a person starts the server with `joymigrate mcp --allow-run`",
        )


def has_codemods(folder: Path) -> bool:
    """Whether a project's configuration names code of its own that a scan would load."""
    from joymigrate import config

    return bool(config.load(folder)["codemods"])


async def ask_roots(ctx: Context, allowed: Allowed) -> list[Path]:
    """The folders that both sides allow; those of the server where the client names none."""
    has = ctx.session.client_capabilities
    if has is None or has.roots is None or not ctx.session.can_send_request:
        return list(allowed.roots)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer protocols have no roots; older clients do
        try:
            with anyio.fail_after(ROOTS_SECONDS):
                named = await ctx.session.list_roots()
        except Exception as error:
            raise JoyError(
                f"the client did not name its roots: {type(error).__name__}",
                help="answer roots/list, or don't say that there are roots",
            ) from None
    return meet_roots(allowed.roots, [str(one.uri) for one in named.roots])


async def give_result(
    ctx: Context, runs: Runs, asked: Mapping[str, Any]
) -> tuple[dict[str, Any], bool]:
    """A run by its id; without one, the list of runs."""
    if "id" not in asked:
        rows = [one.row() for one in runs.known.values()]
        document = {"schema": "joymigrate.server-runs/1", "runs": rows}
        return shorten(document, asked.get("cursor", 0)), False
    run = runs.find(asked["id"])
    if asked.get("cancel"):
        await runs.cancel(run)
    await wait(ctx, run, asked.get("wait", 0))
    return answer_of(run, asked.get("cursor", 0))


async def wait(ctx: Context, run: CommandRun, seconds: float) -> None:
    """Wait for a run, and tell the client that it goes on."""
    until = time.monotonic() + seconds
    while not run.ended.is_set() and time.monotonic() < until:
        with anyio.move_on_after(min(TELL_SECONDS, max(until - time.monotonic(), 0.01))):
            await run.ended.wait()
        if not run.ended.is_set():
            message = f"{run.id} {run.tool}: {run.last_line() or run.state}"
            await ctx.session.report_progress(time.monotonic() - run.began, None, message)


def answer_of(run: CommandRun, cursor: int = 0) -> tuple[dict[str, Any], bool]:
    """What a run answers now; its id where there is more to come."""
    if run.document is None:
        return {**run.row(), "schema": "joymigrate.server-run/1",
                "next": f"result with id {run.id} and a wait"}, False  # fmt: skip
    found = shorten(run.document, cursor, MOST_BYTES - 40)
    if "cursor" in found:
        found["run"] = run.id  # `result` with this id and the cursor has the next rows
    return found, run.failed


def serve_stdio(allowed: Allowed) -> None:
    """Serve one client on standard input and output, until it hangs up."""

    async def live() -> None:
        server = make_server(allowed)
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    try:
        anyio.run(live)
    except BaseException as error:
        if not is_hang_up(error):
            raise


def is_hang_up(error: BaseException) -> bool:
    """Whether a client that went away is all that an error says."""
    inner = getattr(error, "exceptions", None)
    return all(map(is_hang_up, inner)) if inner else isinstance(error, ConnectionError)


def serve_http(allowed: Allowed, port: int, token: str) -> None:
    """Serve clients on loopback that bring the token."""
    import uvicorn

    app = guard(make_server(allowed).streamable_http_app(host="127.0.0.1"), token)
    settings = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", lifespan="on")
    server = uvicorn.Server(settings)
    anyio.run(server.serve)


def guard(app: Any, token: str) -> Any:
    """The application behind `Authorization: Bearer TOKEN`; without it nothing answers."""
    wanted = f"Bearer {token}".encode()

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        given = dict(scope.get("headers") or ()).get(b"authorization", b"")
        if scope["type"] != "http" or hmac.compare_digest(given, wanted):
            await app(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b"a token is needed\n"})

    return checked


def tell_people(lines: Sequence[str]) -> None:
    """Words for the person at the terminal; standard output belongs to the protocol."""
    print("\n".join(lines), file=sys.stderr, flush=True)
