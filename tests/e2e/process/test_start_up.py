"""What is imported before it is needed, and the processor's time until a program answers."""

from __future__ import annotations

import re
import resource
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

HEAVY = (
    "torch",
    "transformers",
    "numpy",
    "xgrammar",
    "llguidance",
    "tokenizers",
    "safetensors",
    "jinja2",
)
QUICK = (
    ["--help"],
    ["-h"],
    ["--version"],
    ["generate", "--help"],
    ["inspect", "-h"],
    ["bench", "-h"],
    ["serve", "-h"],
    ["models", "-h"],
    ["genrate"],
    ["--helo"],
    ["generate", "--tols", "x"],
    ["generate", "--speculation", "eagel", "x"],
)
FIRST_TOKEN = """
from weft import LLM, SamplingParams
LLM(device="cpu").generate("Text: Ada is 31.", sampling=SamplingParams(max_tokens=1))
"""
GUIDED = """
from weft import LLM, Guide, SamplingParams
guide = Guide.json_schema({"type": "object", "properties": {"age": {"type": "integer"}}})
LLM(device="cpu").generate("Text: Ada is 31.", guide=guide, sampling=SamplingParams(max_tokens=4))
"""
MODULE = re.compile(r"import time: +\d+ \| +\d+ \| +(\w+)", re.MULTILINE)


def imported(*arguments: str) -> set[str]:
    """The packages that a run of Python imported."""
    run = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, timeout=120
    )
    return set(MODULE.findall(run.stderr))


@pytest.mark.parametrize("arguments", QUICK, ids=" ".join)
def test_help_and_mistakes_import_nothing_heavy(arguments: list[str]) -> None:
    found = imported("-m", "weft.cli", *arguments)
    assert "weft" in found and not found & set(HEAVY)


def test_importing_weft_imports_nothing_heavy() -> None:
    names = "Guide, SamplingParams, EngineConfig, Speculation, Output, WeftError, __version__"
    found = imported("-c", f"import weft; from weft import {names}")
    assert "weft" in found and not found & {"torch", "transformers", "xgrammar", "llguidance"}


@pytest.mark.parametrize("program", [FIRST_TOKEN, GUIDED], ids=["free", "guided"])
def test_an_answer_needs_no_part_of_transformers(program: str) -> None:
    found = imported("-c", program)
    assert "torch" in found
    assert not found & {"transformers", "huggingface_hub", "xgrammar", "sympy", "rich", "jinja2"}


def cpu_seconds(*command: str) -> float:
    """User and system time of a process: the least of three runs."""
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], capture_output=True, timeout=120)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(spent)


@pytest.mark.serial
@pytest.mark.parametrize("arguments", [*QUICK[:4], ["genrate"], ["--helo"]], ids=" ".join)
def test_help_and_mistakes_take_a_moment(arguments: list[str]) -> None:
    """0.14 to 0.22 s where importing typer, which reads the command line, takes 0.06; a busy machine slows both."""
    assert cpu_seconds("-m", "weft.cli", *arguments) < 5 * cpu_seconds("-c", "import typer")


@pytest.mark.serial
def test_the_first_token_takes_little_beside_torch() -> None:
    """Half of what it took when transformers was imported for its tokenizers: 4.9 s, 1.5 s of them torch's import."""
    assert cpu_seconds("-c", FIRST_TOKEN) < 1.7 * cpu_seconds("-c", "import torch")
