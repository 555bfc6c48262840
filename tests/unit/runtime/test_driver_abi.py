"""csrc/driver/driver.h against NVIDIA's own declarations: every constant, and the size of the one struct."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

cuda = pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")

HEADER = (Path(__file__).parents[3] / "csrc" / "driver" / "driver.h").read_text()
ENUMS = {
    name: {key: int(value) for key, value in re.findall(r"(\w+) = (\d+)", body)}
    for name, body in re.findall(r"enum (\w+) : int \{(.*?)\};", HEADER, re.DOTALL)
}
FLAGS = {
    key: int(value)
    for line in re.findall(r"inline constexpr unsigned (.*?);", HEADER, re.DOTALL)
    for key, value in re.findall(r"(\w+) = (\d+)", line)
}
FLAG_ENUMS = [
    "CUstream_flags",
    "CUevent_flags",
    "CUuserObject_flags",
    "CUuserObjectRetain_flags",
    "CUstreamWaitValue_flags",
    "CUstreamWriteValue_flags",
]


def test_the_header_was_read() -> None:
    assert {name: len(values) for name, values in ENUMS.items()} == {
        "CUresult": 26,
        "CUstreamCaptureStatus": 3,
        "CUstreamCaptureMode": 3,
        "CUgraphNodeType": 9,
        "CUdevice_attribute": 1,
    }
    assert len(FLAGS) == 14


@pytest.mark.parametrize("enum", sorted(ENUMS))
def test_enums_have_cudas_values(enum: str) -> None:
    theirs = getattr(cuda, enum)
    assert ENUMS[enum] == {name: int(getattr(theirs, name)) for name in ENUMS[enum]}


@pytest.mark.parametrize("flag", sorted(FLAGS))
def test_flags_have_cudas_values(flag: str) -> None:
    enums = [cuda, *(getattr(cuda, enum) for enum in FLAG_ENUMS)]  # those of memory are in no enum
    assert [int(getattr(enum, flag)) for enum in enums if hasattr(enum, flag)] == [FLAGS[flag]]


def test_edge_data_has_cudas_size() -> None:
    (size,) = re.findall(r"static_assert\(sizeof\(CUgraphEdgeData\) == (\d+)", HEADER)
    assert int(size) == cuda.sizeof(cuda.CUgraphEdgeData)


def test_the_table_names_calls_of_the_driver() -> None:
    table = HEADER[HEADER.index("struct Driver {") :]
    calls = re.findall(r"CUresult \(\*(\w+)\)", table)
    # Later than the oldest driver that weft runs on; the table marks it optional.
    assert [call for call in calls if not hasattr(cuda, call)] in ([], ["cuLaunchHostFunc_v2"])
    assert len(calls) == 43
