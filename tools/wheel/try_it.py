"""Use weft's wheel like a user who has only Python (`make test-wheel`).

    python tools/wheel/try_it.py [WHEEL] [--torch "torch==2.13.0 --index-url ..."]

A new environment outside the repository gets torch and the wheel, with no package built from source and no compiler on
PATH. Then the commands, the library and the server must answer. Needs network. The environment is removed at the end,
unless `--keep` is given.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[2]
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "nvcc")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPT = 'Text: Ada Berg is 31 years old.\nSchema: {"name": string, "age": integer}\nJSON: '
ANSWER = {"name": "Ada Berg", "age": 31}
LIBRARY = """
import json, sys
from pathlib import Path
import weft
from weft import LLM, Guide, SamplingParams, Speculation, _core
assert Path(weft.__file__).is_relative_to(sys.prefix), weft.__file__
prompt, schema = json.loads(sys.argv[1])
llm = LLM(speculation=Speculation.eagle3(num_draft_tokens=3))
output = llm.generate(prompt, SamplingParams(max_tokens=64), guide=Guide.json_schema(schema))
stats = output.stats
assert stats.iterations < stats.output_tokens, stats
print(output.text)
print(f"{stats.output_tokens} tokens in {stats.iterations} iterations", file=sys.stderr)
print("CUDA kernels for:", _core.cuda_architectures() or "none", file=sys.stderr)
"""


class Installed:
    """An environment with the wheel. It runs commands without a compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        self.environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))
        }
        self.environment["PATH"] = str(self.bin)

    def install(self, torch: list[str], wheel: Path) -> None:
        """Make the environment. torch is installed first, so that it is the requested build."""
        venv.create(self.folder / "venv", with_pip=True)
        for needs in (torch, [f"{wheel}[serve]"]):
            begin, before = time.monotonic(), processor_time()
            self.run("python", "-m", "pip", "install", "-q", "--only-binary=:all:", *needs)
            seconds, spent = time.monotonic() - begin, processor_time() - before
            print(f"{Path(needs[0]).name}: installed in {seconds:.0f} s, {spent:.0f} s of processor time")

    def run(self, name: str, *arguments: str) -> str:
        """Run a command of the environment, and return its output. Its standard error is not captured."""
        command = [str(self.bin / name), *arguments]
        run = subprocess.run(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True
        )
        if run.returncode != 0:
            sys.exit(f"{' '.join(command)} ended with {run.returncode}:\n{run.stdout}")
        return run.stdout.strip()

    @contextmanager
    def server(self) -> Iterator[str]:
        """Run `weft serve` on weft-tiny, and yield its address."""
        log = self.folder / "serve.log"
        with log.open("w") as sink:
            command = [str(self.bin / "weft"), "serve", "--port", "0"]
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=sink, stderr=sink
            )
            try:
                yield listening(log, process)
            finally:
                process.terminate()
                process.wait(60)


def processor_time() -> float:
    """Return the seconds of processor time of all commands that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def listening(log: Path, process: subprocess.Popen[bytes]) -> str:
    """Return the address in a server's log."""
    for _ in range(600):
        for word in log.read_text().split():
            if word.startswith("http://") and process.poll() is None:
                return word.rstrip("/.,")
        if process.poll() is not None:
            break
        time.sleep(0.1)
    sys.exit(f"weft serve does not listen:\n{log.read_text()}")


def try_all(installed: Installed, version: str) -> None:
    """Check that the commands, the library and the server answer."""
    found = [name for name in COMPILERS if shutil.which(name, path=installed.environment["PATH"])]
    assert not found, found
    assert installed.run("weft", "--version") == f"weft {version}"
    schema = installed.folder / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    said("weft generate", installed.run("weft", "generate", PROMPT, "--json-schema", str(schema)))
    said("LLM with EAGLE3", installed.run("python", "-c", LIBRARY, json.dumps([PROMPT, SCHEMA])))
    with installed.server() as address:
        said("weft serve", asked(address))


def said(who: str, text: str) -> None:
    """Check that the answer is the expected JSON."""
    assert json.loads(text) == ANSWER, f"{who}: {text}"
    print(f"{who}: {text}")


def asked(address: str) -> str:
    """Request a guided completion over HTTP."""
    body = {"model": "weft-tiny", "prompt": PROMPT, "max_tokens": 64, "structured_outputs": {"json": SCHEMA}}
    request = Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=60) as response:
        return str(json.load(response)["choices"][0]["text"])


def wheel_here() -> Path:
    """Return the wheel in dist that fits this Python."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    found = sorted(
        (ROOT / "dist").glob(f"weft*-{python}-*manylinux*.whl"), key=lambda path: path.stat().st_mtime_ns
    )
    if not found:
        sys.exit(f"dist has no wheel for {python}; make wheel builds one")
    return found[-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path, nargs="?", help="default: the newest in dist")
    parser.add_argument("--torch", default="torch==2.13.0", help="what pip installs as torch")
    parser.add_argument("--keep", action="store_true", help="leave the environment where it is")
    options = parser.parse_args()
    wheel = (options.wheel or wheel_here()).resolve()
    folder = Path(tempfile.mkdtemp(prefix="weft-wheel-"))
    installed, begin = Installed(folder), time.monotonic()
    try:
        installed.install(shlex.split(options.torch), wheel)
        try_all(installed, wheel.name.split("-")[1])
    finally:
        if options.keep:
            print(folder)
        else:
            shutil.rmtree(folder)
    print(f"{time.monotonic() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
