"""`weft serve` in a process of its own, and a browser that looks at its page."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

KEY = "a key of the tests"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")

CONFIG = f"""
[server]
port = 0
[server.api_keys]
tests = "{KEY}"
[[models]]
name = "weft-tiny"
[models.speculation]
drafter = "eagle3"
[models.engine]
max_batch = 4
[models.guides.digits]
regex = "[0-9]{{3}}"
[[models]]
name = "plain"
thinking = ["<think>", "</think>"]
tool_style = "llama"
[models.engine]
max_batch = 2
"""


@contextmanager
def site(folder: Path, config: str = CONFIG) -> Iterator[str]:
    """The address of a server with two models, the first of which drafts; it asks for `KEY`."""
    (folder / "weft.toml").write_text(config)
    log = folder / "log"
    with log.open("w") as written:
        command = [sys.executable, "-m", "weft.cli", "serve", "--config", str(folder / "weft.toml")]
        process = subprocess.Popen(command, stdout=written, stderr=subprocess.STDOUT)
        try:
            yield f"http://127.0.0.1:{_port(process, log)}"
            assert process.poll() is None, f"the server has ended:\n{log.read_text()}"
        finally:
            process.terminate()
            process.wait(60)


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    limit = time.monotonic() + 120
    while time.monotonic() < limit and process.poll() is None:
        if found := re.search(r"page at http://[\d.]+:(\d+)", log.read_text()):
            return int(found[1])
        time.sleep(0.1)
    raise AssertionError(f"the server does not start:\n{log.read_text()}")


@contextmanager
def chromium() -> Iterator[Any]:
    """The system's browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A page that has been opened: `errors` are the browser's; `asked` are the bodies of its requests, `checks` those
    that only try a guide."""

    def __init__(self, context: Any, url: str, key: str | None) -> None:
        if key is not None:
            context.add_init_script(
                f"sessionStorage.getItem('weft-key') ?? sessionStorage.setItem('weft-key', '{key}')"
            )
        self.errors, self.asked, self.checks = list[str](), list[Any](), list[Any]()
        self.page = context.new_page()
        self.page.set_default_timeout(60_000)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._console)
        self.page.on("request", self._request)
        self.page.goto(url)

    def ready(self) -> Tab:
        """Wait until nothing is under way."""
        self.page.wait_for_selector("body[data-state=idle]")
        return self

    def example(self, name: str) -> Tab:
        """Begin with one."""
        self.page.locator("#examples").get_by_text(name, exact=True).click()
        return self

    def guide(self, kind: str, text: str = "") -> Tab:
        """Write a guide."""
        self.page.locator(f"#kinds label:has([value={kind}])").click()
        if text:
            self.page.fill("#guide", text)
        return self

    def run(self, button: str = "#run") -> Tab:
        """Press a button, and wait for the end."""
        self.page.click(button)
        return self.ready()

    def text(self, selector: str) -> str:
        """The visible text of an element."""
        found: str = self.page.inner_text(selector)
        return found

    def tokens(self, kind: str = "", where: str = "#turns") -> Any:
        """The tokens of the answer, all or those of a kind."""
        return self.page.locator(f"{where} .token{kind}")

    def answer(self, where: str = "#turns") -> str:
        """The text of the answer's tokens, without the end's."""
        texts: list[str] = self.tokens(":not(.special)", where).all_text_contents()
        return "".join(texts).replace("↵", "")

    def _console(self, message: Any) -> None:
        # Chromium reports each answer of 400 and 401 so; the page shows them.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.errors.append(message.text)

    def _request(self, request: Any) -> None:
        if request.method == "POST":
            body = request.post_data_json
            (self.asked if body.get("stream") else self.checks).append(body)
