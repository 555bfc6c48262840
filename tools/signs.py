"""Measures how easy the code is to read: the files that a request passes through, and counts of the source text.

    .venv/bin/python tools/signs.py [--json] [--static]

It measures the `weft` that this Python imports, and the repository that contains it. It uses few names of the package,
so that one copy can measure other commits, each with the Python of its own checkout. No test depends on the numbers. If
a measure and a reader disagree, the reader is right.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import tokenize
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import weft

PACKAGE = Path(weft.__file__).parent
ROOT = PACKAGE.parents[1]
PREFIX = str(PACKAGE) + "/"

DEVICE = {"_run_device", "CpuGraph.replay"}
"""Functions that stand for the device: a GPU or a captured graph does their work. Calls below them are not counted."""
STEP = "Engine.step"

NATIVE = {".h", ".cpp", ".cu", ".cuh"}
PRODUCT_FOLDERS = ("python/weft", "csrc")
OPENINGS = ("What", "Of", "Where", "Whoever")


# -- Traces -----------------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """A call of a Python function in the package, and the nearest function of the package that led to it."""

    file: str
    function: str
    caller: tuple[str, str] | None

    @property
    def changes_file(self) -> bool:
        return self.caller is not None and self.caller[0] != self.file


class Tracer:
    """Records the calls of all threads that start after it, while `is_on`."""

    def __init__(self) -> None:
        self.calls: dict[int, list[Call]] = {}
        self.is_on = False
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def take(self) -> list[list[Call]]:
        """Return the calls by thread, and clear them."""
        calls, self.calls = self.calls, {}
        return list(calls.values())

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if not self.is_on or event != "call":
            return
        place = _place(frame.f_code)
        if place is not None and not _is_below_device(frame):
            self.calls.setdefault(threading.get_ident(), []).append(Call(*place, _caller(frame)))


def _place(code: CodeType) -> tuple[str, str] | None:
    if not code.co_filename.startswith(PREFIX):
        return None
    return code.co_filename.removeprefix(PREFIX), code.co_qualname


def _outer_places(frame: FrameType | None) -> Iterator[tuple[str, str]]:
    while frame is not None:
        place = _place(frame.f_code)
        if place is not None:
            yield place
        frame = frame.f_back


def _caller(frame: FrameType) -> tuple[str, str] | None:
    return next(_outer_places(frame.f_back), None)


def _is_below_device(frame: FrameType) -> bool:
    return any(function in DEVICE for _, function in _outer_places(frame))


def guided_request() -> dict[str, object]:
    """Trace a warm guided EAGLE3 request from `LLM.generate` to its text, and its decode steps."""
    from weft import LLM, Guide, SamplingParams, Speculation

    guide, sampling = Guide.regex("[a-z]{24}"), SamplingParams(max_tokens=32)
    tracer = Tracer()
    with LLM("weft-tiny", speculation=Speculation.eagle3(), device="cpu") as llm:
        llm.warm_up()
        llm.generate("Name:", guide=guide, sampling=sampling)
        tracer.is_on = True
        output = llm.generate("Name:", guide=guide, sampling=sampling)
        tracer.is_on = False
    sys.setprofile(None)
    threads = tracer.take()
    if len(output.text) != 24:
        raise SystemExit(f"signs: the guide asks for 24 letters, the answer is {output.text!r}")

    files = {call.file for calls in threads for call in calls}
    steps: list[list[Call]] = []
    for calls in threads:
        begins = [index for index, call in enumerate(calls) if call.function == STEP]
        steps += [calls[begin:end] for begin, end in itertools.pairwise(begins)]
    decoding = steps[2:]  # the first is the prefill, the second fills the pipeline
    if not decoding:
        raise SystemExit(f"signs: no calls of {STEP}: what runs a step now?")
    return {
        "request_files": len(files),
        "step_files": int(statistics.median(len({call.file for call in step}) for step in decoding)),
        "step_changes": int(statistics.median(sum(call.changes_file for call in step) for step in decoding)),
        "request_file_names": sorted(files),
    }


CHAT = {
    "model": "weft-tiny",
    "messages": [{"role": "user", "content": "Name:"}],
    "temperature": 0,
    "max_tokens": 40,
    "guided_regex": "[a-z]{24}",
}
ROUNDS = 5


def http_chat() -> dict[str, object]:
    """Trace a warm HTTP chat without the engine. The server runs in a separate process and traces itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ended = subprocess.run(
        [sys.executable, __file__, "--serve", str(port)], capture_output=True, text=True, timeout=300
    )
    reports = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if not reports:
        raise SystemExit(f"signs: the server reported nothing\n{ended.stdout}\n{ended.stderr}")
    report: dict[str, object] = json.loads(reports[-1])
    return report


def serve_and_trace(port: int) -> None:
    """Run `weft serve weft-tiny` here, send requests from another thread, print the report, and end the server."""
    from weft.cli import main

    tracer = Tracer()
    thread = threading.Thread(target=_ask_and_report, args=(port, tracer), daemon=True)
    threading.setprofile(None)  # do not trace the client's thread
    thread.start()
    threading.setprofile(tracer._profile)
    sys.argv = ["weft", "serve", "weft-tiny", "--device", "cpu", "--port", str(port)]
    main()


def _ask_and_report(port: int, tracer: Tracer) -> None:
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(url)
        _post(f"{url}/v1/chat/completions", CHAT)
        rounds = []
        for _ in range(ROUNDS):
            tracer.is_on = True
            _post(f"{url}/v1/chat/completions", CHAT)
            tracer.is_on = False
            rounds.append(_chat_walk(tracer.take()))
        files = frozenset.intersection(*(files for files, _ in rounds))
        doors = frozenset.intersection(*(doors for _, doors in rounds))
        report = {
            "chat_files": len(files),
            "chat_rooms": len({file.rpartition("/")[0] for file in files}),
            "chat_stays": len(doors),
            "chat_file_names": sorted(files),
        }
        print("\n" + json.dumps(report), flush=True)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _chat_walk(threads: list[list[Call]]) -> tuple[frozenset[str], frozenset[tuple[object, ...]]]:
    """Return the files that a chat enters from its route on, and the distinct calls between files.

    Work on the engine's thread is left out. Each call counts once, because the number of wake-ups depends on the
    machine.
    """
    files: set[str] = set()
    doors: set[tuple[object, ...]] = set()
    for calls in threads:
        if any(call.function == STEP for call in calls):
            continue
        route = [index for index, call in enumerate(calls) if call.file.startswith("server/routes/")]
        for call in calls[route[0] :] if route else calls:
            files.add(call.file)
            if call.changes_file:
                doors.add((call.caller, call.file, call.function))
    return frozenset(files), frozenset(doors)


def _wait_until_ready(url: str) -> None:
    limit = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(f"{url}/ready", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > limit:
                raise
            time.sleep(0.1)


def _post(url: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json", "Connection": "close"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = json.load(answer)["choices"][0]["message"]["content"]
    if len(text) != 24:
        raise SystemExit(f"signs: the guide asks for 24 letters, the answer is {text!r}")


# -- Source text ------------------------------------------------------------------------------------------------------


def source_counts() -> dict[str, object]:
    """Return counts of the source text."""
    python = sorted(PACKAGE.rglob("*.py"))
    native = sorted(path for path in (ROOT / "csrc").rglob("*") if path.suffix in NATIVE)
    trees = {path: ast.parse(path.read_text()) for path in python}
    docstrings = [text for tree in trees.values() for text in _docstrings(tree)]
    code, comments = map(sum, zip(*(_code_and_comments(path) for path in python), strict=True))
    importers = _importers(trees)
    tests = sorted((ROOT / "tests").rglob("*.py"))
    return {
        "python_files": len(python),
        "native_files": len(native),
        "python_lines": _lines(python),
        "native_lines": _lines(native),
        "product_lines": _lines(python) + _lines(native),
        "benchmark_lines": _lines((ROOT / "benchmarks").rglob("*.py")),
        "docstrings": len(docstrings),
        "odd_docstrings": sum(re.match(r"\w*", text)[0] in OPENINGS for text in docstrings),  # type: ignore[index]
        "code_lines": code,
        "comment_lines": comments,
        "comments_in_100_lines": round(100 * comments / code, 2),
        "forwarders": sum(_is_forwarder(node) for tree in trees.values() for node in ast.walk(tree)),
        "imported_modules": len(importers),
        "modules_with_one_importer": sum(len(names) == 1 for names in importers.values()),
        "test_lines": _lines(tests),
        "test_support_lines": _lines((ROOT / "tests" / "support").rglob("*.py")),
        "private_names_in_tests": sum(len(private_names(path)) for path in tests),
    }


def _lines(paths: Any) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def _docstrings(tree: ast.AST) -> Iterator[str]:
    """Yield the docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        statements = getattr(node, "body", [])
        for statement in statements if isinstance(statements, list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                yield from [text.strip()] if isinstance(text, str) else []


def _code_and_comments(path: Path) -> tuple[int, int]:
    """Return the number of lines with code, and of lines with a comment that is not a directive for a tool."""
    code, comments = set(), set()
    skip = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                if not re.match(r"#\s*(noqa|type:|pragma|fmt:)", token.string):
                    comments.add(token.start[0])
            elif token.type not in skip and token.type != tokenize.ENCODING:
                code.update(range(token.start[0], token.end[0] + 1))
    return len(code), len(comments)


def _is_forwarder(node: ast.AST) -> bool:
    """Whether this is a method that only passes its arguments to a member of `self.something`, or returns such a
    member."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("__"):
        return False
    body = [
        each
        for each in node.body
        if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
    ]
    parameters = [each.arg for each in node.args.posonlyargs + node.args.args + node.args.kwonlyargs]
    if len(body) != 1 or parameters[:1] != ["self"] or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    value = body[0].value
    value = value.value if isinstance(value, ast.Await) else value
    if isinstance(value, ast.Attribute):
        return len(parameters) == 1 and _is_member_of_member(value)
    if not isinstance(value, ast.Call) or not _is_member_of_member(value.func):
        return False
    given = [*value.args, *(keyword.value for keyword in value.keywords)]
    given = [each.value if isinstance(each, ast.Starred) else each for each in given]
    names = [each.id for each in given if isinstance(each, ast.Name)]
    extra = [each.arg for each in (node.args.vararg, node.args.kwarg) if each is not None]
    return len(names) == len(given) and sorted(names) == sorted(parameters[1:] + extra)


def _is_member_of_member(node: ast.AST) -> bool:
    depth = 0
    while isinstance(node, ast.Attribute):
        node, depth = node.value, depth + 1
    return depth >= 2 and isinstance(node, ast.Name) and node.id == "self"


def _importers(trees: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """Return, for each imported module of the package, the modules that import it."""
    names = {_module(path): path for path in trees}
    importers: dict[str, set[str]] = {}
    for path, tree in trees.items():
        source = _module(path)
        for node in ast.walk(tree):
            wanted: list[str] = []
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                wanted = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in wanted:
                target = name if name in names else name.rpartition(".")[0]
                if target in names and target != source:
                    importers.setdefault(target, set()).add(source)
    return importers


def _module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


PRIVATE = re.compile(r"_[A-Za-z]\w*")
DEFINED = re.compile(r"(?:^|def |class |self\.|cls\.|    )(_[A-Za-z]\w*)\b(?=.*(?:=|:|\())", re.MULTILINE)


@cache
def private_names_of_the_product() -> frozenset[str]:
    """Return private names that the package or the benchmarks define, found by a search over lines."""
    paths = [*PACKAGE.rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    return frozenset(name for path in paths for name in DEFINED.findall(path.read_text())) - {"_core"}


def private_names(path: Path) -> list[tuple[int, str]]:
    """Return the lines where a test uses a private name of the product that its own file does not define."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    own = {node.attr for node in nodes if isinstance(node, ast.Attribute) and _is_self(node.value)}
    own |= {
        node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    found = []
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Attribute) and not _is_self(node.value):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("weft", "weft_bench"):
            names = [alias.name for alias in node.names] + (node.module or "").split(".")
        elif isinstance(node, ast.Call):
            names = _names_to_replace(node)
        found += [
            (node.lineno, name)  # type: ignore[attr-defined]
            for name in names
            if PRIVATE.fullmatch(name) and name not in own and name in private_names_of_the_product()
        ]
    return found


def _names_to_replace(node: ast.Call) -> list[str]:
    """Return the names in `setattr(owner, "name", …)`, `getattr`, and `monkeypatch.setattr("a.b.name", …)`."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name not in ("setattr", "getattr", "delattr"):
        return []
    texts = [
        each.value for each in node.args[:2] if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]
    return texts[0].split(".") if texts else []


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


# -- The command ------------------------------------------------------------------------------------------------------

MEANINGS = {
    "request_files": "Python files that a warm guided EAGLE3 request enters",
    "step_files": "Python files of one decode step (median)",
    "step_changes": "calls from one file into another in a decode step (median)",
    "chat_files": "Python files of an HTTP chat from its route to its bytes, without the engine's thread",
    "chat_rooms": "folders of these",
    "chat_stays": "different calls from one file into another of that chat",
    "python_files": "Python files of the package",
    "native_files": "C++ and CUDA files of csrc",
    "python_lines": "lines of python/weft",
    "native_lines": "lines of csrc",
    "product_lines": "lines of both",
    "benchmark_lines": "lines of Python in benchmarks",
    "docstrings": "docstrings of the package",
    "odd_docstrings": f"docstrings that begin with {', '.join(OPENINGS)}",
    "code_lines": "lines of Python with code, docstrings among them",
    "comment_lines": "lines with a comment",
    "comments_in_100_lines": "comments in 100 lines of code",
    "forwarders": "one-line methods that only call or return a member's member",
    "imported_modules": "modules that another module of the package imports",
    "modules_with_one_importer": "of these, with one importer",
    "test_lines": "lines of Python in tests",
    "test_support_lines": "lines of tests/support",
    "private_names_in_tests": "places where tests reach a private name",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Signs of how easily the code reads.")
    parser.add_argument(
        "--json", action="store_true", help="print JSON, with the names of files that were entered"
    )
    parser.add_argument("--static", action="store_true", help="count the source text only, run nothing")
    parser.add_argument("--private", action="store_true", help="list the private names that tests reach")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        serve_and_trace(arguments.serve)
        return
    if arguments.private:
        counts = Counter(
            (str(path.relative_to(ROOT)), name)
            for path in sorted((ROOT / "tests").rglob("*.py"))
            for _, name in private_names(path)
        )
        for (path, name), count in counts.items():
            print(f"{count:4}  {path}: {name}")
        return
    signs = source_counts() if arguments.static else {**guided_request(), **http_chat(), **source_counts()}
    if arguments.json:
        print(json.dumps(signs, indent=1))
    else:
        for name, meaning in MEANINGS.items():
            if name in signs:
                print(f"{signs[name]!s:>8}  {meaning}")


if __name__ == "__main__":
    main()
