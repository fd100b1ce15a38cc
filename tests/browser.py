"""A real browser for the tests: headless Chromium, driven by its own protocol over two pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--remote-debugging-pipe",
]  # fmt: skip
PATIENCE = 60  # seconds for an answer: two cores may have much else to do


class Browser:
    """One page. What it asked the network for and what its console complained of are kept."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._home = tempfile.mkdtemp(prefix="fastget-chromium-")
        ours_out, theirs_in = os.pipe(), os.pipe()  # its answers, our commands
        self._read, self._write = ours_out[0], theirs_in[1]

        def settle() -> None:
            """Chromium reads commands from descriptor 3 and answers on 4."""
            spare_in, spare_out = os.dup(theirs_in[0]), os.dup(ours_out[1])
            os.dup2(spare_in, 3)
            os.dup2(spare_out, 4)

        self._process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={self._home}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=settle,
        )
        os.close(theirs_in[0])
        os.close(ours_out[1])
        self._rest, self._last, self._session = b"", 0, ""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._events: list[str] = []
        pages = [info for info in self.call("Target.getTargets")["targetInfos"] if info["type"] == "page"]
        target = pages[0]["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._home, ignore_errors=True)

    def call(self, name: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and its answer; what happens in between is noted."""
        self._last += 1
        message = {"id": self._last, "method": name, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            answer = self._message(until)
            if answer.get("id") == self._last:
                assert "error" not in answer, (name, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def open(self, file: Path, width: int = 1280, height: int = 900, dark: bool = False, phone: bool = False) -> None:
        """Load a file and wait until the page says that it is ready."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self._events.clear()
        self.call("Page.navigate", url=file.resolve().as_uri())
        until = time.monotonic() + PATIENCE
        while "Page.loadEventFired" not in self._events:
            self._note(self._message(until))

    def ask(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, file: Path, whole: bool = True) -> None:
        """A PNG of the page, to its end."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        name, what = message.get("method", ""), message.get("params", {})
        self._events.append(name)
        if name == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
        elif name == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(what["exceptionDetails"]))
        elif (name == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert")) or (
            name == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning")
        ):
            self.complaints.append(json.dumps(what))

    def _message(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message
