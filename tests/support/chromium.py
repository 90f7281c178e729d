"""A real Chromium without a screen in a test's hands, driven through the DevTools protocol.

Source: https://chromedevtools.github.io/devtools-protocol/.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

PATIENCE_S = 60.0
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server",
    "--disable-extensions", "--force-color-profile=srgb", "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36, "ArrowDown": 40}


class PageFailed(Exception):
    """What was waited for did not come, or a script of the page failed."""


class Chromium:
    """`with Chromium() as page:` has one tab. `requests` and `problems`: what it asked for, and what went wrong."""

    def __init__(self) -> None:
        self._profile = Path(tempfile.mkdtemp(prefix="qpid-ha-chromium-"))
        self._loop = asyncio.new_event_loop()
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._http: aiohttp.ClientSession
        self._socket: aiohttp.ClientWebSocketResponse
        self.requests: list[str] = []
        self.problems: list[str] = []

    def __enter__(self) -> Self:
        try:
            program = next(filter(None, map(shutil.which, PROGRAMS)))
            command = [program, *OPTIONS, f"--user-data-dir={self._profile}", "about:blank"]
            with (self._profile / "log").open("wb") as output:
                self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            self._loop.run_until_complete(self._connect())
        except BaseException:
            self.__exit__(None, None, None)
            raise
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            error.add_note(f"the page has: {self.problems}")
        if hasattr(self, "_http"):
            self._loop.run_until_complete(self._http.close())
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._loop.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    async def _connect(self) -> None:
        port_file = self._profile / "DevToolsActivePort"
        deadline_s = time.monotonic() + PATIENCE_S
        while not (port_file.exists() and len(port_file.read_text().splitlines()) == 2):
            if time.monotonic() > deadline_s or (self._process is not None and self._process.poll() is not None):
                words = (self._profile / "log").read_text(errors="replace")[-2000:]
                raise PageFailed(f"Chromium did not start: {words}")
            await asyncio.sleep(0.02)
        self._http = aiohttp.ClientSession()
        async with self._http.get(f"http://127.0.0.1:{port_file.read_text().splitlines()[0]}/json") as answer:
            tab = next(each for each in await answer.json() if each["type"] == "page")
        self._socket = await self._http.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0)

    # --- the protocol

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Have it do something; its answer. Raises PageFailed."""
        return self._loop.run_until_complete(self._call(method, params))

    async def _call(self, method: str, params: dict[str, object]) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(PATIENCE_S):
            while True:
                told = await self._socket.receive_json()
                if told.get("id") == number:
                    break
                self._happened(told)
        if "error" in told:
            raise PageFailed(f"{method}: {told['error']['message']}")
        result: dict[str, Any] = told["result"]
        return result

    def _happened(self, told: dict[str, Any]) -> None:
        params = told.get("params", {})
        match told.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(params["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled" if params["type"] == "error":
                self.problems.append(json.dumps(params["args"])[:500])
            case "Log.entryAdded" if params["entry"]["source"] == "security":
                self.problems.append(params["entry"]["text"])
            case "Page.javascriptDialogOpening":
                self.problems.append(f"a script ran: {params['message']}")

    # --- what a test does

    def open(self, url: str) -> None:
        """Show that page."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, or of the promise that it is. Raises PageFailed."""
        told = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in told:
            raise PageFailed(json.dumps(told["exceptionDetails"])[:1000])
        return told["result"].get("value")

    def wait(self, condition: str) -> Any:
        """Until an expression is true; its value. Raises PageFailed with what the page shows."""
        deadline_s = time.monotonic() + PATIENCE_S
        look = f"(() => {{ try {{ return ({condition}) || false }} catch {{ return false }} }})()"
        # One question for two seconds of waiting, and another one because a new page forgets the last.
        promise = f"""new Promise(done => {{ const until = Date.now() + 2000; (function again() {{
            const value = {look}; value || Date.now() > until ? done(value) : setTimeout(again, 30); }})(); }})"""
        while time.monotonic() < deadline_s:
            try:
                value = self.evaluate(promise)
            except PageFailed as error:
                if "navigated" not in str(error) and "context" not in str(error):
                    raise
                continue
            if value:
                return value
        raise PageFailed(f"not true: {condition}; the page shows: {self.text()[:2000]}")

    def text(self) -> str:
        """What can be read."""
        return str(self.evaluate("document.body.innerText"))

    def wait_text(self, text: str) -> None:
        """Until that can be read."""
        self.wait(f"document.body.innerText.includes({json.dumps(text)})")

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """A key, or Shift+key."""
        name = key.removeprefix("Shift+")
        given = {"key": name, "code": name, "windowsVirtualKeyCode": KEYS[name], "modifiers": 8 if name != key else 0}
        text = {"text": "\r"} if name == "Enter" else {"text": " "} if name == " " else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **given, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of it, once it is there and can be used."""
        one = f"document.querySelector({json.dumps(selector)})"
        self.wait(f"{one} && !{one}.disabled && {one}.getClientRects().length > 0")
        x, y = self.evaluate(
            f"(() => {{ const one = {one}; one.scrollIntoView({{block: 'center'}});"
            " const at = one.getBoundingClientRect(); return [at.x + at.width / 2, at.y + at.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def resize(self, width: int, height: int, scheme: str = "light") -> None:
        """The size of the window, in CSS pixels, and `light` or `dark`."""
        window = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **window)
        # Who measures a colour must not find it halfway to another one.
        wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wanted.items()]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path) -> None:
        """As a PNG or WebP, as its name ends."""
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = {".webp": {"format": "webp", "quality": 75}}.get(path.suffix, {"format": "png"})
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **kind)["data"]))
