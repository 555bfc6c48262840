"""Somebody who reads a page and does what it says, in a folder of their own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from support.docs.fences import Fence
from support.docs.processes import Interpreter, serving, start_shell

ROOT = Path(__file__).parents[3]
ADDRESS = "127.0.0.1:8000"
"""Where the pages say that a server is."""
SERVER = "weft serve"
"""The server that pages need. It is one for all of them."""


class Reader:
    """Runs the blocks of one page in their order: its Python in one process, each block of shell in a shell.

    `server` gives the address of a `SERVER` that runs; it is asked for when a block needs one, or starts it.
    """

    def __init__(self, folder: Path, server: Callable[[], str]) -> None:
        self.folder, self.server = folder, server
        self._printed = ""

    @cached_property
    def _python(self) -> Interpreter:
        return Interpreter(self.folder)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if "_python" in vars(self):
            self._python.close(kill=kind is not None)

    def do(self, fence: Fence) -> None:
        """Do what a block says. Raises `AssertionError` with what went wrong."""
        for name in (fence.mark("from") or "").split():
            shutil.copytree(ROOT / name, self.folder / name, dirs_exist_ok=True)
        if (file := fence.mark("file")) is not None:
            (self.folder / file).write_text(fence.code)
        elif fence.mark("prints") is not None:
            assert self._printed.strip() == fence.code.strip(), f"{fence.place}: it prints\n{self._printed}"
        elif fence.language == "python":
            self._printed = self._python.run(
                {"page": str(fence.page), "line": fence.line, "code": self._here(fence)}
            )
        elif fence.mark("serves") is not None:
            self._serve(fence)
        elif fence.language == "sh":
            self._printed = self._shell(fence)

    def _here(self, fence: Fence) -> str:
        """The block's code, with the address of the server that runs here."""
        return fence.code.replace(ADDRESS, self.server()) if fence.mark("needs") else fence.code

    def _shell(self, fence: Fence) -> str:
        with start_shell(self._here(fence), self.folder) as shell:
            printed = shell.communicate()[0]
        assert shell.returncode == 0, f"{fence.place}:\n{printed}"
        return printed

    def _serve(self, fence: Fence) -> None:
        """Each command of the block, at a port of the moment: until it says where it is, and to its end."""
        for line in fence.code.splitlines():
            command = re.sub(r"(^|\s+)#.*", "", line)
            if command == SERVER:
                self.server()
            elif command:
                with serving(start_shell(f"exec {command} --port 0", self.folder)):
                    pass
