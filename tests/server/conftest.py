from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("openai")

from openai import OpenAI

from support.server.browser import KEY, Tab, chromium, site
from support.server.running import Running, running
from weft import EngineConfig, Guide, Speculation
from weft.server.models import ServedModel, ServedModelConfig, build
from weft.server.settings import ServerConfig


@pytest.fixture(scope="session")
def models() -> Iterator[dict[str, ServedModel]]:
    """Two engines: one with every drafter that tests need, one with beams and without drafts."""
    drafting = ServedModelConfig(
        name="tiny",
        speculation=Speculation.given(Speculation.forced(Speculation.eagle3(num_draft_tokens=3))),
        engine=EngineConfig(max_batch=8, kv_cache_dtype="float32"),  # as transformers
        handles={"digits": Guide.regex("[0-9]{3}")},
    )
    plain = ServedModelConfig(
        name="plain", engine=EngineConfig(max_batch=8, max_beam_width=4, kv_cache_dtype="float32")
    )
    served = {one.name: one for one in map(build, (drafting, plain))}
    yield served
    for one in served.values():
        one.close()


@pytest.fixture(scope="session")
def server(models: dict[str, ServedModel]) -> Iterator[Running]:
    with running(models, ServerConfig(stream_interval_ms=0)) as started:
        yield started


@pytest.fixture(scope="session")
def two_keys(models: dict[str, ServedModel]) -> Iterator[Running]:
    """A server of ada and bo that takes little."""
    config = ServerConfig(
        api_keys={"ada": "key-of-ada", "bo": "key-of-bo"},
        max_requests=8,
        max_connections=16,
        max_bodies_bytes=8 << 20,
        max_body_bytes=1 << 20,
    )
    with running(models, config) as started:
        yield started


@pytest.fixture(scope="session")
def client(server: Running) -> Iterator[Any]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="nobody asks", max_retries=0, timeout=60) as made:
        yield made


# -- the page in a browser


@pytest.fixture(scope="module")
def page_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with site(tmp_path_factory.mktemp("site")) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Ends with its module: playwright keeps an event loop running, beside which other tests can start none."""
    with chromium() as opened:
        yield opened


@pytest.fixture
def open_tab(page_url: str, browser: Any) -> Iterator[Callable[..., Tab]]:
    """Opens tabs of the page, or of another server's; at the end none of them may have had an error."""
    tabs, contexts = list[Tab](), list[Any]()

    def opened(key: str | None = KEY, url: str = page_url, **options: Any) -> Tab:
        contexts.append(browser.new_context(**options))
        tabs.append(Tab(contexts[-1], url, key))
        return tabs[-1]

    yield opened
    for context in contexts:
        context.close()
    assert not [error for tab in tabs for error in tab.errors]


@pytest.fixture
def tab(open_tab: Callable[..., Tab]) -> Tab:
    return open_tab().ready()
