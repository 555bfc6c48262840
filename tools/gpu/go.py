"""Runs parts of the kit on the GPU machine (`go.sh`). Each part has a time limit, and a failure does not stop the
others.

The results are in `OUT`: `summary.txt`, written while the parts run; `results/*.json`, which may be committed; and a
log of each part in `logs/`. This script needs only Python and the other files of its folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import split

HERE = Path(__file__).parent
OUT = Path(os.environ["OUT"])
WORK = Path(os.environ.get("WORK", "/tmp/weft-gpu"))
SITE, KIT = WORK / "site", WORK / "kit"
TRITON_CACHE = WORK / "triton"
PYTHON = os.environ.get("PYTHON", sys.executable)
DEVICE = os.environ.get("DEVICE", "cuda")
ON_GPU = DEVICE == "cuda"
IN_ALL = 572
"""The time limit of all parts together, in seconds."""
INSTALL_LIMIT, IMPORT_LIMIT = 40, 45
GRACE = 8
"""The last seconds of a part's limit. At their beginning the part is interrupted, so that it can finish its report."""
MOST_CASES = 2
"""The maximum number of failed cases that the summary shows for each test."""
GPU_JOBS = 5
"""The number of test processes that share the GPU. Each has its own context, and they take turns."""

BEGAN = time.monotonic()

IMPORTS = """
import importlib.metadata, sys
for name in ("torch", "triton", "numpy", "transformers", "tokenizers"):
    print(name, importlib.metadata.version(name), end=", ")
import weft, xgrammar, llguidance, wasmtime, jsonschema, pydantic
print("python", sys.version.split()[0], "weft", weft.__version__, "from", weft.__path__[0])
"""
NVIDIA_SMI = split(
    "nvidia-smi --format=csv,noheader"
    " --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.max.sm,clocks.mem,pcie.link.gen.current"
)
# A test that stalls ends its process and prints all stacks. Nothing else can interrupt a wait for the device.
PYTEST = split(
    "-m pytest -v -W default -p no:cacheprovider --tb=short --maxfail=80 --timeout=60 --timeout-method=thread"
)
PYTEST_ALONE = split("-m pytest -q -W default -p no:cacheprovider --timeout=0 -m gpu_smoke")
SANITIZER = split("compute-sanitizer --launch-timeout 60 --tool")
PROFILER = split(
    "ncu --clock-control none --set detailed --page details --print-details header --launch-skip 200"
    " --launch-count 12 -k 'regex:linear_kernel|attend_few'"
)


@dataclass(frozen=True)
class Part:
    """A command with a time limit in seconds. The summary shows the last `shown` lines of its output, and more if it
    fails."""

    name: str
    limit: int
    command: Sequence[str]
    shown: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    tests: bool = False


def clock() -> float:
    """The seconds since the start."""
    return time.monotonic() - BEGAN


def say(line: str) -> None:
    """Add a line to the summary."""
    print(line, flush=True)
    with (OUT / "summary.txt").open("a") as file:
        file.write(f"{line[:300]}\n")


def script(name: str, limit: int, *command: str, environment: Mapping[str, str] | None = None) -> Part:
    """Make a part that runs a script of `parts`."""
    path = str(KIT / "parts" / f"{command[0]}.py")
    return Part(name, limit, (PYTHON, path, *command[1:]), environment=environment or {})


def tests(name: str, limit: int, *arguments: str) -> Part:
    """Make a part that runs tests of the checkout in several processes."""
    jobs = os.environ.get("GPU_JOBS", str(GPU_JOBS))
    command = (PYTHON, *PYTEST, "-n", jobs, *arguments)
    return Part(name, limit, command, environment={"OMP_NUM_THREADS": "1"}, tests=True)


def first() -> Iterator[Sequence[Part]]:
    """Yield groups of parts, which run one after another. The parts of a group run concurrently. The most valuable
    come first, so that early failures show how to use the remaining time. The limits add up to less than `IN_ALL`."""
    if ON_GPU:
        yield [Part("GPU", 15, NVIDIA_SMI, shown=2)]
        yield [Part("probe", 45, (str(KIT / "probe"),), shown=26)]
    yield [PARTS["runtime"]]
    # Correctness checks run concurrently, because they are not timed. Meanwhile, xgrammar's CUDA kernel is compiled
    # for `mask`.
    yield [
        script("compile", 125, "bench", "compile"),
        script("tokens, one graph", 120, "tokens", "one"),
        script("tokens, none and split", 120, "tokens", "none", "split"),
        script("tokens, polling", 100, "tokens", "polling"),
        PARTS["smoke"],
    ]
    yield from ([PARTS[name]] for name in ("step", "products", "mask", "hostfunc"))


SMOKE = split("tests/gpu tests/contracts/test_runtime.py tests/contracts/test_polled.py -m gpu_smoke")
REHEARSED = split(
    "tests/contracts/test_polled.py tests/gpu/test_slots_cuda.py -m 'not slow' -k 'order or copies'"
)
REST = split("tests/gpu -m 'gpu and not gpu_smoke' -k 'not (test_tokens_are_the or long_answers or the_way)'")
ENGINES = split(
    "tests/gpu/test_engine_cuda.py tests/gpu/test_executor_cuda.py -m gpu"
    " -k 'one-3-3 or split-3-3 or one-8-8 or one-1-8 or long_answers or the_way or polled'"
)
RACES = ["tests/gpu/test_truncation_cuda.py"]
CHECKED = [*RACES, "tests/gpu/test_token_mask_cuda.py", "tests/gpu/test_linear_cuda.py"]

PARTS = {
    part.name: part
    for part in (
        script("runtime", 60, "runtime"),
        script("tokens", 90, "tokens", "one"),
        tests("smoke", 130, *(SMOKE if ON_GPU else REHEARSED)),
        script("step", 120, "step", "quick"),
        script("products", 60, "products"),
        script("mask", 30, "bench", "mask"),
        script("hostfunc", 25, "bench", "hostfunc"),
        # If everything passes:
        script("variants", 110, "step", "variants"),
        script("step_more", 110, "step", "more"),
        script("overhead", 100, "bench", "overhead"),
        tests("rest", 170, *REST),
        # If something fails:
        tests("engine", 170, *ENGINES),
        script("unchained", 90, "tokens", "one", environment={"WEFT_KERNELS": "unchained"}),
        script("blocking", 90, "tokens", "none", environment={"CUDA_LAUNCH_BLOCKING": "1"}),
        Part("sanitize", 170, (*SANITIZER, "memcheck", PYTHON, *PYTEST_ALONE, *CHECKED), shown=6),
        Part("racecheck", 170, (*SANITIZER, "racecheck", PYTHON, *PYTEST_ALONE, *RACES), shown=6),
        Part("ncu", 120, (*PROFILER, PYTHON, str(KIT / "parts" / "products.py"), "chain"), shown=60),
    )
}


def environment() -> dict[str, str]:
    """The environment variables of all parts."""
    commit = HERE / "COMMIT"
    paths = [str(SITE)] * SITE.exists() + [str(KIT / "parts")]
    return {
        **os.environ,
        "DEVICE": DEVICE,
        "OUT": str(OUT),
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "4",
        "TRITON_CACHE_DIR": str(TRITON_CACHE),
        "TORCH_EXTENSIONS_DIR": str(WORK / "extensions"),
        "TORCH_CUDA_ARCH_LIST": "9.0",
        "WEFT_COMMIT": commit.read_text().strip() if commit.exists() else "",
    }


def run(part: Part) -> dict[str, object]:
    """Run a part within its limit and the remaining time. Returns its row of the report."""
    begin = clock()
    limit = min(part.limit, IN_ALL - begin)
    log = OUT / "logs" / f"{re.sub('[^a-z0-9]+', '-', part.name.lower())}.log"
    if limit <= GRACE:
        say(f"-- {part.name}: LEFT OUT, no time is left")
        return {"part": part.name, "left_out": True}
    variables = environment() | {"LIMIT": str(limit - GRACE)} | dict(part.environment)
    with log.open("w") as file:
        try:
            status = within(part.command, limit, variables, file.fileno())
        except OSError as error:
            file.write(f"{error}\n")
            status = 127
    seconds = clock() - begin
    lines = log.read_text(errors="replace").splitlines()
    ended = "" if status is not None else ", ENDED AT ITS LIMIT"
    say(f"-- {part.name}: status {status}, {seconds:.0f} s of {limit:.0f}, at {clock():.0f} s{ended}")
    row: dict[str, object] = {"part": part.name, "status": status, "seconds": round(seconds, 1)}
    if part.tests:
        row |= tests_in(lines)
    elif shown := max(part.shown, 4 * (status != 0)):
        for line in lines[-shown:]:
            say(f"   | {line[:180]}")
    return row


def within(command: Sequence[str], limit: float, variables: Mapping[str, str], output: int) -> int | None:
    """Run a command. Returns its status, or None if it was interrupted before its limit. All of its processes are
    killed at the end."""
    folder = KIT / "src"
    with subprocess.Popen(
        command,
        stdout=output,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=variables,
        cwd=folder if folder.exists() else HERE,
        start_new_session=True,
    ) as process:
        status = None
        try:
            status = process.wait(limit - GRACE)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return status


def tests_in(lines: Sequence[str]) -> dict[str, object]:
    """Read the counts and failed cases from pytest's output, even if the run was interrupted, and add them to the
    summary."""
    ended = (re.match(r"\[gw\d+\] \[ *\d+%\] (\w+) (tests/.*\S)", line) for line in lines)
    outcomes = {found[2]: found[1] for found in ended if found}
    counts = Counter(outcomes.values())
    failed = [case for case, outcome in outcomes.items() if outcome in ("FAILED", "ERROR")]
    reasons = Counter(line[4:150] for line in lines if line.startswith("E   "))
    say(f"   {', '.join(f'{count} {outcome.lower()}' for outcome, count in counts.items()) or 'no test ran'}")
    shown: Counter[str] = Counter()
    for case in failed:
        shown[case.partition("[")[0]] += 1
        if shown[case.partition("[")[0]] <= MOST_CASES and shown.total() <= 40:
            say(f"   FAILED {case}")
    for reason, count in reasons.most_common(6):
        say(f"   {count} x {reason}")
    return {**{outcome.lower(): count for outcome, count in counts.items()}, "failed_cases": failed}


def lay_out() -> None:
    """Unpack the wheels (if any), the tests, the parts and the Triton cache. Does nothing if an earlier call
    unpacked the same files."""
    digest = hashlib.sha256()
    for path in sorted(HERE.iterdir()):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    stamp = WORK / "stamp"
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    for folder in (SITE, KIT, TRITON_CACHE):
        shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(HERE / "kit.tar.gz") as archive:
        archive.extractall(KIT, filter="data")
    if wheels := sorted(map(str, HERE.glob("*.whl"))):
        options = ("-q", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--target", str(SITE))
        run(Part("install", INSTALL_LIMIT, (PYTHON, "-m", "pip", "install", *options, *wheels)))
    unpack_cache()
    stamp.write_text(digest.hexdigest())


def unpack_cache() -> None:
    """Unpack the Triton cache. The paths in its group files become absolute again."""
    cache = HERE / "triton.tar.xz"
    if cache.exists():
        with tarfile.open(cache) as archive:
            archive.extractall(TRITON_CACHE, filter="data")
        for group in TRITON_CACHE.rglob("__grp__*.json"):
            content = json.loads(group.read_text())
            content["child_paths"] = {
                name: str(group.parent / path) for name, path in content["child_paths"].items()
            }
            group.write_text(json.dumps(content))


def setup() -> bool:
    """Prepare the machine. Returns whether the packages can be imported."""
    for folder in (OUT / "logs", OUT / "results", WORK):
        folder.mkdir(parents=True, exist_ok=True)
    lay_out()
    return run(Part("import", IMPORT_LIMIT, (PYTHON, "-c", IMPORTS), shown=1))["status"] == 0


def main(which: str, names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in PARTS]
    if which not in ("first", "second") or unknown or (which == "second") != bool(names):
        print(f"go.sh first | second PART...; parts are {', '.join(PARTS)}")
        return 2
    rows: list[dict[str, object]] = []
    if setup():
        groups = first() if which == "first" else ([PARTS[name]] for name in names)
        for group in groups:
            with ThreadPoolExecutor(len(group)) as pool:
                rows += pool.map(run, group)
    else:
        say("nothing else was tried")
    commit = environment()["WEFT_COMMIT"]
    say(f"in all {clock():.0f} s, commit {commit}")
    report = {"name": f"{which}-parts", "rows": rows, "commit": commit, "seconds": round(clock(), 1)}
    (OUT / "results" / f"{which}-parts.json").write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "", sys.argv[2:]))
