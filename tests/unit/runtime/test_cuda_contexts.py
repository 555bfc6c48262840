"""Calls of CUDA's driver from threads on which nobody used torch.cuda: each gets a context first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if not sys.platform.startswith("linux"):
    pytest.skip("a library in libcuda's place needs Linux's loader", allow_module_level=True)

TABLE = (Path(__file__).parents[3] / "csrc" / "driver" / "cuda.cpp").read_text()
# A driver of which every call does nothing, and is refused on a thread without a context.
FAKE = """
static __thread void *current;
static int primary[4];
int cuInit() { return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 4; return 0; }
int cuGetErrorName() { return 1; }
int cuGetErrorString() { return 1; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &primary[device]; return 0; }
int cuCtxGetCurrent(void **context) { *context = current; return 0; }
int cuCtxSetCurrent(void *context) { current = context; return 0; }
int weft_test_device() { return current ? (int)((int *)current - primary) : -1; }
"""
CALLS = """
import ctypes, os, threading
from weft import _core
driver = ctypes.CDLL("libcuda.so.1")
calls = {
    "event_create": lambda: _core.event_create(1, 2),
    "event_record": lambda: _core.event_record(1, 8, 8),
    "event_query": lambda: _core.event_query(1, 8),
    "event_synchronize": lambda: _core.event_synchronize(1, 8),
    "event_destroy": lambda: _core.event_destroy(1, 8),
    "stream_create": lambda: _core.stream_create(1, 1, -1),
    "stream_synchronize": lambda: _core.stream_synchronize(1, 0),
    "stream_wait_event": lambda: _core.stream_wait_event(1, 8, 8),
    "ctx_synchronize": lambda: _core.ctx_synchronize(1),
    "memcpy_async": lambda: _core.memcpy_async(1, 8, 8, 8, 8),
    "launch_native": lambda: _core.launch_native(1, 0, 8, 8, None, "task"),
    "launch_hostfunc": lambda: _core.launch_hostfunc(1, 0, True, print, (), {}),
}
assert _core.driver_version(1) == 13000 and driver.weft_test_device() == -1  # that needs none, and makes none
for number, (name, call) in enumerate(calls.items()):
    _core.use_device(number % 4)
    def run():
        try:
            call()
            said = "ok"
        except Exception as error:
            said = repr(error)
        print(name, said, driver.weft_test_device() == number % 4, flush=True)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
os._exit(0)  # what was launched never runs
"""


@pytest.mark.slow
def test_a_thread_without_a_context_gets_one(tmp_path: Path) -> None:
    symbols = set(re.findall(r'load\.required\([\w.]+, "(\w+)"\)', TABLE)) | {
        "cuStreamGetCaptureInfo_v3",
        "cuGraphGetEdges",
    }
    rest = sorted(symbol for symbol in symbols if f"int {symbol}(" not in FAKE)
    source = tmp_path / "libcuda.c"
    source.write_text(FAKE + "".join(f"int {name}() {{ return current ? 0 : 201; }}\n" for name in rest))
    command = ["cc", "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    paths = f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    ran = subprocess.run(
        [sys.executable, "-c", CALLS],
        env=os.environ | {"LD_LIBRARY_PATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = dict(line.split(maxsplit=1) for line in ran.stdout.splitlines())
    assert len(said) == 12, ran.stderr
    assert set(said.values()) == {"ok True"}, said
