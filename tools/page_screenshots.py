"""Takes the screenshots of docs/playground.md from a server that runs weft-tiny:

weft serve --port 8200 & python tools/page_screenshots.py http://127.0.0.1:8200 docs/images
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

WIDE: dict[str, Any] = {"viewport": {"width": 1180, "height": 900}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def run(page: Any, button: str) -> None:
    """Press a button, and wait until the run ends."""
    page.click(button)
    page.wait_for_selector("body[data-state=idle]")
    page.wait_for_timeout(700)  # for a recording, and for smooth scrolling
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(700)


def shoot(
    browser: Any, url: str, path: Path, example: str, theme: str, races: bool = False, **options: Any
) -> None:
    """Take a screenshot of an example's run, and with `races` of its race. If the guide overruled the model for a
    token, its tooltip is shown."""
    context = browser.new_context(color_scheme=theme, **options)
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("body[data-state=idle]")
    page.locator("#examples").get_by_text(example, exact=True).click()
    page.wait_for_selector("#verdict.good")
    run(page, "#run")
    if races:
        run(page, "#race")
    if "has_touch" not in options:
        height = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({**options["viewport"], "height": height})
    if "has_touch" in options:
        page.locator("#answer-card").scroll_into_view_if_needed()
        page.evaluate("document.querySelector('#answer-card').scrollIntoView()")
        page.locator("#turns .token").nth(1).tap()
        page.wait_for_timeout(300)
    elif page.locator(".token.overruled").count():
        page.locator("#turns .token.overruled").first.hover()
    page.screenshot(path=path)
    context.close()
    Image.open(path).convert("RGB").quantize(256, Image.Quantize.MEDIANCUT, kmeans=4).save(
        path, optimize=True
    )


FRUITS = """Two fruits, and their **colours**:

| Fruit | Colour | Weight |
|---|:-:|--:|
| Apple | red | 180 g |
| Pear | green | 170 g |

1. Sum their weights:
   ```python
   total = 180 + 170
   ```
2. Round to `100 g`.
"""


def shoot_chat(browser: Any, url: str, path: Path, theme: str, **options: Any) -> None:
    """Take a screenshot of a chat. weft-tiny knows no Markdown, so a guide that allows one text writes it."""
    context = browser.new_context(color_scheme=theme, **options)
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("body[data-state=idle]")
    page.click("#modes label:has([value=chat])")
    page.locator("#examples").get_by_text("Schema", exact=True).click()
    page.wait_for_selector("#verdict.good")
    run(page, "#run")
    page.click("#kinds label:has([value=ebnf])")
    page.fill("#guide", f"root ::= {json.dumps(FRUITS)}")
    page.wait_for_selector("#verdict.good")
    page.fill("#prompt", "Compare two fruits.")
    run(page, "#run")
    card = page.locator("#answer-card").bounding_box()
    page.set_viewport_size({**options["viewport"], "height": int(card["y"] + card["height"]) + 16})
    page.evaluate("document.querySelector('#turns').scrollTop = 1e6")
    page.screenshot(path=path)
    context.close()
    Image.open(path).convert("RGB").quantize(256, Image.Quantize.MEDIANCUT, kmeans=4).save(
        path, optimize=True
    )


def main(url: str, folder: Path) -> None:
    """Take all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        shoot(browser, url, folder / "playground-light.png", "Longer", "light", races=True, **WIDE)
        shoot(browser, url, folder / "playground-dark.png", "Overruled", "dark", **WIDE)
        shoot_chat(browser, url, folder / "playground-chat.png", "light", **WIDE)
        shoot(browser, url, folder / "playground-phone.png", "Schema", "light", **PHONE)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
