"""The settings of `weft bench serve`: loads and executors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from weft.config import EngineConfig, Speculation
from weft.errors import InputError
from weft.executor import (
    CapacitySchedulerPolicy,
    Executor,
    ExecutorConfig,
    GuidedDecodingConfig,
    KvCacheConfig,
    SchedulerConfig,
)
from weft.executor.types.config import Overlap
from weft_bench.serve.clients import Clients, Load
from weft_bench.serve.workload import Workload

T = TypeVar("T", int, float)

CLIENTS = (1, 2, 4, 8, 16, 32, 64, 128)
GUIDED_PERCENTS = (0, 50, 100)
KEPT_ITERATIONS = 200_000

DRAFTERS: dict[str, Callable[[int], Speculation]] = {
    "none": lambda k: Speculation.none(),
    "eagle3": lambda k: Speculation.eagle3(num_draft_tokens=k),
    "mtp": lambda k: Speculation.mtp(num_draft_tokens=k),
    "draft_model": lambda k: Speculation.draft_model(num_draft_tokens=k),
    "ngram": lambda k: Speculation.ngram(num_draft_tokens=k),
    "forced": lambda k: Speculation.forced(num_draft_tokens=k),
    "forced+eagle3": lambda k: Speculation.forced(Speculation.eagle3(num_draft_tokens=k)),
    "forced+ngram": lambda k: Speculation.forced(Speculation.ngram(num_draft_tokens=k)),
}
"""Drafters by name."""

POLICIES = {policy.name.lower(): policy for policy in CapacitySchedulerPolicy}
OVERLAPS: dict[str, Overlap] = {"auto": "auto", "on": True, "off": False}


@dataclass(frozen=True)
class Setup:
    """The settings of the measured executor.

    reuse: whether repeated prompts reuse cached prefixes.
    chunked: whether prompts may be split over steps, as in `weft serve`.
    max_batch: the number of slots. None: the largest number of clients.

    Raises `InputError` for a name that is not in `DRAFTERS`, `POLICIES` or `OVERLAPS`.
    """

    model: Path | None = None
    device: str = "auto"
    speculation: str = "none"
    num_drafts: int = 3
    policy: str = "guaranteed_no_evict"
    overlap: str = "auto"
    reuse: bool = False
    chunked: bool = False
    max_batch: int | None = None

    def __post_init__(self) -> None:
        tables: dict[str, Collection[str]] = {
            "speculation": DRAFTERS,
            "policy": POLICIES,
            "overlap": OVERLAPS,
        }
        for name, table in tables.items():
            value = getattr(self, name)
            if value not in table:
                raise InputError(f"{name} is {value!r}; it must be one of {', '.join(table)}")

    def config(self, max_seq_len: int, most_clients: int) -> ExecutorConfig:
        """Return the executor's configuration, for requests of `max_seq_len` tokens, prompt and answer together."""
        drafting = DRAFTERS[self.speculation](self.num_drafts)
        return ExecutorConfig(
            max_batch_size=self.max_batch if self.max_batch is not None else most_clients,
            max_seq_len=max_seq_len,
            scheduler_config=SchedulerConfig(POLICIES[self.policy]),
            kv_cache_config=KvCacheConfig(enable_block_reuse=self.reuse),
            enable_chunked_context=self.chunked,
            overlap=OVERLAPS[self.overlap],
            speculation=drafting if drafting.drafters else None,
            guided_decoding_config=GuidedDecodingConfig(),
            iter_stats_max_iterations=KEPT_ITERATIONS,
        )

    @contextmanager
    def serving(self, workload: Workload, most_clients: int) -> Iterator[Clients]:
        """Run an executor, and yield its clients after it has captured its graphs."""
        config = self.config(workload.longest, most_clients)
        with Executor(self.model, config, device=self.device) as executor:
            executor.client.warm_up()
            workload.prepare(executor)
            yield Clients(executor, workload)


@dataclass(frozen=True)
class Loads:
    """The loads to measure: a closed loop for each number of `clients`, and an open loop for each of `rates`
    (requests per second). Each runs with every share of guided requests, for `seconds`.

    `prompts` is the number of prompts. With `prompt_tokens`, their lengths are random between these two. With
    `fixed_tokens`, all answers have that length. `rounds` is the number of
    rounds of the comparisons at 32 clients and of the loop's own time (0: neither). Raises `InputError` for loads
    that can't be measured.
    """

    clients: Sequence[int] = CLIENTS
    rates: Sequence[float] = ()
    guided_percents: Sequence[int] = GUIDED_PERCENTS
    seconds: float = 4.0
    prompts: int = 1024
    fixed_tokens: int | None = None
    rounds: int = 5
    prompt_tokens: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not (self.clients or self.rates):
            raise InputError("there is nothing to measure; give numbers of clients, or rates")
        if any(count < 1 for count in self.clients) or any(rate <= 0 for rate in self.rates):
            raise InputError("clients must be at least 1, and rates above 0 requests a second")
        if not self.guided_percents or not all(0 <= percent <= 100 for percent in self.guided_percents):
            raise InputError(f"guided is {list(self.guided_percents)}; give shares of 0 to 100 percent")
        if self.seconds <= 0 or self.rounds < 0:
            raise InputError("seconds must be above 0, and rounds at least 0")
        if self.prompts < 1:
            raise InputError(f"prompts is {self.prompts}; it must be at least 1")
        if self.prompt_tokens is not None and not 1 <= self.prompt_tokens[0] <= self.prompt_tokens[1]:
            raise InputError(
                f"prompt_tokens is {list(self.prompt_tokens)}; give the fewest and the most tokens of a prompt, such "
                "as 100-600"
            )
        if self.fixed_tokens is not None and self.fixed_tokens < 2:
            raise InputError(
                f"fixed_tokens is {self.fixed_tokens}; between 2 tokens there is time, it must be at least 2"
            )

    @property
    def all(self) -> list[Load]:
        """All loads, closed loops first."""
        closed = [Load(clients=n, guided_percent=p) for p in self.guided_percents for n in self.clients]
        return closed + [Load(rate=r, guided_percent=p) for p in self.guided_percents for r in self.rates]

    @property
    def most_clients(self) -> int:
        """The largest number of clients. If there is no closed loop, it is the default batch size."""
        return max(self.clients, default=EngineConfig.max_batch)


def span(name: str, text: str) -> tuple[int, int] | None:
    """Parse two numbers with a dash between them, such as "100-600"; None for "". A single number is both. Raises
    `InputError` for any other text."""
    if not text:
        return None
    first, _, last = text.partition("-")
    try:
        return int(first), int(last or first)
    except ValueError:
        raise InputError(f"{name} is {text!r}; give two numbers with a dash, such as 100-600") from None


def numbers(name: str, text: str, kind: type[T]) -> list[T]:
    """Parse a list of numbers, such as "1,8,32". Raises `InputError` for any other text."""
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(f"{name} is {text!r}; give numbers with commas between them") from None
