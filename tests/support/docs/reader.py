"""Follows the instructions of a page in a folder of its own."""

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
"""The address of the server in the pages' commands. It is replaced by the real one."""
SERVER = "weft serve"
"""The command of the server that pages need. All pages share one server."""


class Reader:
    """Runs the blocks of one page in order: Python blocks in one process, each shell block in a shell of its own.

    `server` starts the shared `SERVER` if necessary and returns its address. It is called when a block needs the
    server or starts it.
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
        """Run a block, or check or write it, as its marks say. Raises `AssertionError` with the output if it fails."""
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
        """The block's code, with the address of the running server."""
        return fence.code.replace(ADDRESS, self.server()) if fence.mark("needs") else fence.code

    def _shell(self, fence: Fence) -> str:
        with start_shell(self._here(fence), self.folder) as shell:
            printed = shell.communicate()[0]
        assert shell.returncode == 0, f"{fence.place}:\n{printed}"
        return printed

    def _serve(self, fence: Fence) -> None:
        """Start each command of the block on a free port, wait for its address, and stop it. The shared server keeps
        running."""
        for line in fence.code.splitlines():
            command = re.sub(r"(^|\s+)#.*", "", line)
            if command == SERVER:
                self.server()
            elif command:
                with serving(start_shell(f"exec {command} --port 0", self.folder)):
                    pass
