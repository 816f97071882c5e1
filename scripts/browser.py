"""A Chromium that tests and screenshots look through: open a page, ask it, take its picture.

Speaks the DevTools protocol over its WebSocket (https://chromedevtools.github.io/devtools-protocol/).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
START_S = 30.0
ANSWER_S = 30.0


class Browser:
    """One headless browser with one page. Use it in a `with` block."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        self.size = (width, height)
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.mkdtemp(prefix="browser-")
        self.number = 0
        self.session = ""

    def __enter__(self) -> Browser:
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if program is None:
            raise FileNotFoundError("no Chromium: apt-get install chromium")
        self.process = subprocess.Popen(
            [
                program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                "--force-color-profile=srgb", "--font-render-hinting=none", "--no-first-run",
                f"--window-size={self.size[0]},{self.size[1]}", "--remote-debugging-port=0",
                f"--user-data-dir={self.folder}", "about:blank",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.loop.run_until_complete(self.connect())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(Exception):
            self.loop.run_until_complete(self.client.close())
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def connect(self) -> None:
        """Find the port that the browser took, and attach to a page."""
        place = Path(self.folder) / "DevToolsActivePort"
        ends = time.monotonic() + START_S
        while not place.is_file() or len(place.read_text().splitlines()) < 2:
            if time.monotonic() > ends or self.process.poll() is not None:
                raise TimeoutError("Chromium did not start")
            await asyncio.sleep(0.05)
        port, path = place.read_text().splitlines()[:2]
        self.client = aiohttp.ClientSession()
        self.socket = await self.client.ws_connect(
            f"ws://127.0.0.1:{port}{path}", max_msg_size=0, origin=None
        )
        target = await self.send("Target.createTarget", url="about:blank")
        attached = await self.send(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        self.session = attached["sessionId"]
        await self.send("Page.enable")
        width, height = self.size
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events are passed over."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        await self.socket.send_json(message)
        while True:
            answer = await asyncio.wait_for(self.socket.receive_json(), ANSWER_S)
            if answer.get("id") == self.number:
                break
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return dict(answer["result"])

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol."""
        return self.loop.run_until_complete(self.send(method, **parameters))

    def open(self, url: str) -> None:
        """Go to a page and wait until it is loaded."""
        self.do("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def ask(self, script: str) -> Any:
        """What an expression is in the page. The page's own policy does not bind it."""
        answer = self.do(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, script: str, seconds: float = 60.0) -> Any:
        """What an expression is once it is true; `TimeoutError` when it never is."""
        ends = time.monotonic() + seconds
        while True:
            with contextlib.suppress(RuntimeError):
                if found := self.ask(script):
                    return found
            if time.monotonic() > ends:
                raise TimeoutError(f"never true: {script}")
            time.sleep(0.05)

    def picture(self, *, height: int | None = None) -> bytes:
        """A PNG of what is in view, or of the page's first `height` pixels."""
        clip = {}
        if height is not None:
            area = {"x": 0, "y": 0, "width": self.size[0], "height": height, "scale": 1}
            clip = {"clip": area, "captureBeyondViewport": True}
        return base64.b64decode(self.do("Page.captureScreenshot", format="png", **clip)["data"])
