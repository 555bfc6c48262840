from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from support.docs.processes import serving, start_shell
from support.docs.reader import SERVER


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """The address of a server, which begins when it is first asked for."""
    folder: Path = tmp_path_factory.mktemp("server")
    with ExitStack() as stack:

        @cache
        def address() -> str:
            return stack.enter_context(serving(start_shell(f"exec {SERVER} --port 0", folder)))

        yield address
