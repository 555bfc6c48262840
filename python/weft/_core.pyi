"""
weft's native code: drivers, host tasks, the mask kernel, sampling, attention, guided state.
"""

from collections.abc import Mapping, Sequence
import enum
from typing import Annotated, Any, overload

import numpy
from numpy.typing import NDArray

def stream_create(driver: int, flags: int = 1, priority: int = 0) -> int: ...
def stream_destroy(arg0: int, arg1: int, /) -> None: ...
def stream_synchronize(arg0: int, arg1: int, /) -> None: ...
def stream_query(arg0: int, arg1: int, /) -> bool: ...
def stream_wait_event(arg0: int, arg1: int, arg2: int, /) -> None: ...
def ctx_synchronize(arg: int, /) -> None: ...
def memcpy_async(arg0: int, arg1: int, arg2: int, arg3: int, arg4: int, /) -> None: ...
def stream_begin_capture(driver: int, stream: int, mode: int = 1) -> None: ...
def stream_end_capture(arg0: int, arg1: int, /) -> int: ...
def stream_is_capturing(arg0: int, arg1: int, /) -> bool: ...
def stream_capture_info(arg0: int, arg1: int, /) -> tuple[int, int, int]: ...
def event_create(driver: int, flags: int = 2) -> int: ...
def event_destroy(arg0: int, arg1: int, /) -> None: ...
def event_record(arg0: int, arg1: int, arg2: int, /) -> None: ...
def event_query(arg0: int, arg1: int, /) -> bool: ...
def event_synchronize(arg0: int, arg1: int, /) -> None: ...
def event_elapsed_time(arg0: int, arg1: int, arg2: int, /) -> float: ...
def graph_instantiate(arg0: int, arg1: int, /) -> int: ...
def graph_launch(driver: int, exec: int, stream: int, polled: int = 0) -> None: ...
def graph_launch_and_copy(
    arg0: int, arg1: int, arg2: int, arg3: int, arg4: int, arg5: int, arg6: int, arg7: int, /
) -> None: ...
def graph_destroy(arg0: int, arg1: int, /) -> None: ...
def graph_exec_destroy(arg0: int, arg1: int, /) -> None: ...
def graph_nodes(arg0: int, arg1: int, /) -> list[tuple[int, str, str]]: ...
def graph_edges(arg0: int, arg1: int, /) -> list[tuple[int, int]]: ...
def cpu_set_schedule(name: str, seed: int = 0) -> None: ...
def cpu_trace_start() -> None: ...
def cpu_trace_stop() -> list[tuple[str, str, int, int, float, float]]: ...
def label_next(arg: str, /) -> None: ...
def cuda_unavailable_reason() -> str | None: ...
def use_device(ordinal: int) -> None: ...
def driver_version(arg: int, /) -> int: ...
def launch_hostfunc(
    driver: int, stream: int, free_after_run: bool, fn: object, args: tuple, kwargs: dict
) -> int | None: ...
def launch_device(stream: int, fn: object, args: tuple, kwargs: dict, name: str) -> None: ...
def launch_native(
    driver: int,
    stream: int,
    function: int,
    data: int,
    owner: object | None,
    name: str,
    skippable: bool = False,
    polled: bool = False,
) -> None: ...
def prepare_polling(driver: int) -> str | None: ...
def polled_tasks(driver: int, capture: int) -> int: ...
def expect_polled(driver: int, runs: int) -> None: ...
def check(driver: int | None = None) -> None: ...
def exchange_failure_scope(scope: int) -> int: ...
def drain() -> None: ...
def hostfunc_handles() -> list[int]: ...
def free_hostfunc_user_data(handle: int) -> None: ...
def hostfunc_stats() -> dict: ...
def in_task() -> bool: ...
def set_watchdog(seconds: float, signal: int) -> None: ...

WATCHDOG_SIGNAL: int = 41

class AwakeWatch:
    """A stopwatch that runs from here on, while this process does."""

    def __init__(self) -> None: ...
    @property
    def seconds(self) -> float:
        """The time that passed, without pauses of the process."""

def end_process_after(seconds: float) -> None:
    """
    End this process by SIGALRM where it has run for so long; 0: never mind.
    """

class Kernel:
    def run(self) -> None: ...

def launch_kernel(stream: int, kernel: object, owner: object | None, name: str) -> None: ...
def chain_kernels(chains: bool) -> None: ...
def linear_cpu(
    arg0: int,
    arg1: int,
    arg2: Sequence[int],
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: int,
    arg10: int,
    arg11: int,
    arg12: int,
    arg13: int,
    arg14: int,
    arg15: int,
    arg16: float,
    arg17: bool,
    arg18: int,
    arg19: float,
    arg20: float,
    arg21: float,
    arg22: float,
    arg23: float,
    arg24: int,
    arg25: int,
    arg26: int,
    arg27: int,
    arg28: int,
    arg29: float,
    arg30: int,
    arg31: int,
    /,
) -> Kernel: ...
def experts_cpu(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: Sequence[int],
    arg6: int,
    arg7: Sequence[int],
    arg8: int,
    arg9: int,
    arg10: bool,
    arg11: int,
    arg12: float,
    arg13: float,
    arg14: float,
    arg15: int,
    arg16: int,
    arg17: int,
    arg18: int,
    arg19: int,
    arg20: int,
    arg21: int,
    arg22: int,
    arg23: int,
    arg24: int,
    arg25: int,
    arg26: int,
    /,
) -> Kernel: ...
def choose_cpu(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: bool,
    arg8: bool,
    arg9: float,
    arg10: int,
    arg11: int,
    arg12: int,
    arg13: int,
    arg14: int,
    arg15: int,
    arg16: int,
    arg17: int,
    arg18: int,
    arg19: int,
    arg20: int,
    arg21: int,
    arg22: float,
    arg23: int,
    arg24: int,
    /,
) -> Kernel: ...
def pack_cpu(
    arg0: int,
    arg1: int,
    arg2: Sequence[int],
    arg3: Sequence[int],
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: bool,
    /,
) -> Kernel: ...
def pack_blocks_cpu(
    arg0: int,
    arg1: int,
    arg2: Sequence[int],
    arg3: Sequence[int],
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    /,
) -> Kernel: ...
def widen_blocks_cpu(
    arg0: int, arg1: int, arg2: Sequence[int], arg3: Sequence[int], arg4: int, arg5: int, arg6: int, /
) -> Kernel: ...
def num_formats() -> int: ...
def block_size(arg: int, /) -> tuple[int, int, int]: ...
def panel_bytes(arg0: int, arg1: int, arg2: int, /) -> int: ...
def has_fast_bfloat16() -> bool: ...
def can_multiply(arg0: int, arg1: int, /) -> bool: ...
def instruction_set() -> str: ...
def rms_norm_cpu(
    arg0: int, arg1: int, arg2: int, arg3: int, arg4: int, arg5: int, arg6: int, arg7: float, arg8: int, /
) -> Kernel: ...
def add_norm_cpu(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: float,
    arg10: int,
    arg11: int,
    /,
) -> Kernel: ...
def attend_cpu(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: int,
    arg10: int,
    arg11: int,
    arg12: int,
    arg13: int,
    arg14: int,
    arg15: int,
    arg16: int,
    arg17: int,
    arg18: int,
    arg19: int,
    arg20: int,
    arg21: int,
    arg22: int,
    arg23: int,
    arg24: int,
    arg25: int,
    arg26: int,
    arg27: int,
    arg28: int,
    arg29: int,
    arg30: int,
    arg31: int,
    arg32: int,
    arg33: int,
    arg34: float,
    arg35: float,
    arg36: float,
    arg37: int,
    /,
) -> Kernel: ...
def latent_queries_cpu(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: Sequence[int],
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: float,
    arg8: int,
    arg9: int,
    arg10: int,
    arg11: int,
    arg12: int,
    arg13: int,
    arg14: int,
    arg15: int,
    arg16: int,
    arg17: int,
    arg18: int,
    arg19: int,
    arg20: float,
    arg21: int,
    arg22: int,
    /,
) -> Kernel: ...
def multiply_heads_cpu(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: int,
    arg10: int,
    arg11: int,
    arg12: int,
    /,
) -> Kernel: ...
def embed_cpu(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: float,
    arg9: int,
    /,
) -> Kernel: ...
def join_norms_cpu(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: int,
    arg10: int,
    arg11: int,
    arg12: float,
    arg13: float,
    arg14: int,
    /,
) -> Kernel: ...
def take_rows_cpu(
    arg0: int, arg1: int, arg2: int, arg3: int, arg4: int, arg5: int, arg6: int, /
) -> Kernel: ...
def strided_copy_cpu(
    to: int,
    source: int,
    sizes: Sequence[int],
    to_strides: Sequence[int],
    source_strides: Sequence[int],
    element: int,
    live: int = 0,
) -> Kernel: ...

class StateRows:
    pass

def state_rows(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: int,
    arg10: int,
    arg11: int,
    arg12: int,
    /,
) -> StateRows: ...

class RecurrentCache:
    pass

def recurrent_cache(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: int,
    arg10: int,
    arg11: int,
    /,
) -> RecurrentCache: ...
def recur_cpu(
    arg0: StateRows,
    arg1: RecurrentCache,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: int,
    arg10: int,
    arg11: int,
    arg12: int,
    arg13: int,
    arg14: int,
    arg15: int,
    arg16: int,
    arg17: int,
    /,
) -> Kernel: ...
def gated_norm_cpu(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: float,
    arg10: int,
    arg11: int,
    /,
) -> Kernel: ...
def settle_recurrence_cpu(
    arg0: RecurrentCache,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: int,
    /,
) -> Kernel: ...

class ConvolutionCache:
    pass

def convolution_cache(
    arg0: int, arg1: int, arg2: int, arg3: int, arg4: int, arg5: int, arg6: int, arg7: int, /
) -> ConvolutionCache: ...
def convolve_cpu(
    arg0: StateRows,
    arg1: ConvolutionCache,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: bool,
    arg10: int,
    /,
) -> Kernel: ...
def settle_window_cpu(
    arg0: ConvolutionCache, arg1: int, arg2: int, arg3: int, arg4: int, arg5: int, arg6: int, /
) -> Kernel: ...

class StatesCall:
    pass

def states_call(
    arg0: int, arg1: int, arg2: int, arg3: int, arg4: int, arg5: int, arg6: int, /
) -> StatesCall: ...
def open_states_cpu(arg0: StatesCall, arg1: int, arg2: int, /) -> Kernel: ...
def load_states_cpu(arg0: StatesCall, arg1: int, arg2: int, arg3: int, /) -> Kernel: ...
def branch_states_cpu(arg0: StatesCall, arg1: int, arg2: int, arg3: int, /) -> Kernel: ...

class OpenCall:
    pass

def open_call(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: int,
    arg10: int,
    arg11: int,
    arg12: int,
    arg13: int,
    arg14: int,
    arg15: int,
    arg16: int,
    arg17: int,
    /,
) -> OpenCall: ...
def open_slots_cpu(arg: OpenCall, /) -> Kernel: ...
def open_slots_cuda(arg0: OpenCall, arg1: int, /) -> str: ...

class InputsCall:
    pass

def inputs_call(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: int,
    arg10: int,
    arg11: int,
    arg12: int,
    /,
) -> InputsCall: ...
def read_slots_cpu(arg: InputsCall, /) -> Kernel: ...
def read_slots_cuda(arg0: InputsCall, arg1: int, /) -> str: ...

class ProposalsCall:
    pass

def proposals_call(
    arg0: int, arg1: int, arg2: int, arg3: int, arg4: int, arg5: int, arg6: int, /
) -> ProposalsCall: ...
def take_proposals_cpu(arg: ProposalsCall, /) -> Kernel: ...
def take_proposals_cuda(arg0: ProposalsCall, arg1: int, /) -> str: ...
def cuda_architectures() -> str: ...

class ApplyCall:
    pass

def apply_slots_call(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: int,
    arg10: int,
    arg11: int,
    arg12: int,
    arg13: int,
    arg14: int,
    /,
) -> ApplyCall: ...
def apply_rows_call(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: int,
    arg10: bool,
    arg11: int,
    arg12: int,
    /,
) -> ApplyCall: ...
def apply_slot_masks_cpu(arg0: ApplyCall, arg1: int, /) -> Kernel: ...
def apply_slot_masks_cuda(arg0: ApplyCall, arg1: int, arg2: int, /) -> str: ...

class MaskCopyCall:
    pass

def copy_slots_call(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: int,
    arg10: int,
    arg11: int,
    arg12: int,
    arg13: int,
    arg14: int,
    /,
) -> MaskCopyCall: ...
def copy_rows_call(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: bool,
    arg10: int,
    arg11: int,
    arg12: int,
    /,
) -> MaskCopyCall: ...
def copy_slot_masks_cpu(arg: MaskCopyCall, /) -> Kernel: ...
def copy_slot_masks_cuda(arg0: MaskCopyCall, arg1: int, /) -> str: ...
def apply_token_bitmask_cpu(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: int,
    arg10: bool,
    arg11: int,
    arg12: int,
    arg13: int,
    /,
) -> int: ...
def apply_token_bitmask_cuda(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: int,
    arg10: bool,
    arg11: int,
    arg12: int,
    arg13: int,
    arg14: int,
    /,
) -> str: ...
def copy_mask_rows_cpu(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: bool,
    arg10: int,
    arg11: int,
    arg12: int,
    /,
) -> int: ...
def copy_mask_rows_cuda(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: bool,
    arg10: int,
    arg11: int,
    arg12: int,
    arg13: int,
    /,
) -> str: ...

LOWEST_TEMPERATURE: float = 9.999999747378752e-06

HELD_SLOT: int = -4611686018427387904

class BiasKind(enum.IntEnum):
    """Whether a slot's bias is read."""

    NONE = 0

    PLAIN = 1

    WIDE = 2
    """Beyond what the draw's noise can be added to in float32."""

class SlotRecord:
    """
    The numbers that a request puts on its slot's logits. `bytes(record)` is the device's form.
    """

    def __init__(self) -> None: ...
    @property
    def seed(self) -> int:
        """Seed of the noise."""

    @seed.setter
    def seed(self, arg: int, /) -> None: ...
    @property
    def ends_allowed_from(self) -> int:
        """First position at which an end token may be drawn."""

    @ends_allowed_from.setter
    def ends_allowed_from(self, arg: int, /) -> None: ...
    @property
    def temperature(self) -> float:
        """
        Divides the logits. Below 1e-5, or NaN: the largest logit wins, without noise.
        """

    @temperature.setter
    def temperature(self, arg: float, /) -> None: ...
    @property
    def top_p(self) -> float:
        """Top-p of the token after the slot's text; 1 or more cuts nothing."""

    @top_p.setter
    def top_p(self, arg: float, /) -> None: ...
    @property
    def top_p_start(self) -> float:
        """Top-p of the first token, and of the token after top_p_reset_id."""

    @top_p_start.setter
    def top_p_start(self, arg: float, /) -> None: ...
    @property
    def top_p_decay(self) -> float:
        """Factor by which each token changes top_p."""

    @top_p_decay.setter
    def top_p_decay(self, arg: float, /) -> None: ...
    @property
    def top_p_min(self) -> float:
        """Lower bound of top_p after each token."""

    @top_p_min.setter
    def top_p_min(self, arg: float, /) -> None: ...
    @property
    def min_p(self) -> float:
        """
        Tokens less than this times as likely as the likeliest are cut; 0 or less cuts nothing.
        """

    @min_p.setter
    def min_p(self, arg: float, /) -> None: ...
    @property
    def repetition_penalty(self) -> float:
        """
        Divides positive and multiplies other logits of tokens in prompt or output.
        """

    @repetition_penalty.setter
    def repetition_penalty(self, arg: float, /) -> None: ...
    @property
    def presence_penalty(self) -> float:
        """Subtracted from the logits of counted tokens, once."""

    @presence_penalty.setter
    def presence_penalty(self, arg: float, /) -> None: ...
    @property
    def frequency_penalty(self) -> float:
        """Subtracted from the logits of counted tokens, once for each count."""

    @frequency_penalty.setter
    def frequency_penalty(self, arg: float, /) -> None: ...
    @property
    def top_k(self) -> int:
        """Number of largest logits that are kept; 0 or less keeps all."""

    @top_k.setter
    def top_k(self, arg: int, /) -> None: ...
    @property
    def top_p_reset_id(self) -> int:
        """Token after which top_p is top_p_start again; -1 for none."""

    @top_p_reset_id.setter
    def top_p_reset_id(self, arg: int, /) -> None: ...
    @property
    def changes_logits(self) -> int:
        """Whether the slot has penalties, a bias, bad words or an n-gram limit."""

    @changes_logits.setter
    def changes_logits(self, arg: int, /) -> None: ...
    @property
    def bias_kind(self) -> BiasKind:
        """Whether the slot's bias is read, and whether it is a wide one."""

    @bias_kind.setter
    def bias_kind(self, arg: BiasKind, /) -> None: ...
    @property
    def penalties_after_temperature(self) -> int:
        """Whether bias and temperature act before the penalties."""

    @penalties_after_temperature.setter
    def penalties_after_temperature(self, arg: int, /) -> None: ...
    @property
    def no_repeat_ngram_size(self) -> int:
        """Length of n-grams that may not repeat; 0 for none."""

    @no_repeat_ngram_size.setter
    def no_repeat_ngram_size(self, arg: int, /) -> None: ...
    @property
    def max_drafts(self) -> int:
        """Number of drafts that the slot may have."""

    @max_drafts.setter
    def max_drafts(self, arg: int, /) -> None: ...
    @property
    def wants_logprobs(self) -> int:
        """Whether the request wants log-probabilities."""

    @wants_logprobs.setter
    def wants_logprobs(self, arg: int, /) -> None: ...
    @property
    def is_held(self) -> int:
        """
        Whether the host chooses the tokens: verification leaves the slot in place.
        """

    @is_held.setter
    def is_held(self, arg: int, /) -> None: ...
    def top_p_after(self, tokens: Sequence[int]) -> float:
        """Top-p after an answer's tokens, as the device computes it."""

    def __bytes__(self) -> bytes: ...
    @staticmethod
    def fields() -> dict[str, tuple[str, int]]:
        """Numpy format and offset in bytes of each field, by name."""

class SlotTables:
    pass

def slot_tables(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: int,
    arg10: int,
    arg11: int,
    /,
) -> SlotTables: ...

class SlotCall:
    pass

def target_call(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: SlotTables,
    arg7: int,
    arg8: int,
    arg9: int,
    arg10: int,
    arg11: int,
    arg12: int,
    /,
) -> SlotCall: ...
def draft_call(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: SlotTables,
    arg7: int,
    arg8: int,
    arg9: int,
    arg10: int,
    arg11: int,
    arg12: int,
    arg13: int,
    arg14: int,
    arg15: int,
    arg16: int,
    /,
) -> SlotCall: ...
def sample_slots_cpu(arg0: SlotCall, arg1: int, /) -> Kernel: ...
def sample_slots_cuda(arg0: SlotCall, arg1: int, arg2: int, /) -> str: ...

class AdvanceCall:
    pass

def advance_call(
    arg0: int,
    arg1: int,
    arg2: SlotTables,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: bool,
    arg8: int,
    arg9: int,
    arg10: int,
    arg11: int,
    arg12: int,
    arg13: int,
    arg14: int,
    arg15: int,
    arg16: int,
    arg17: int,
    /,
) -> AdvanceCall: ...
def advance_slots_cpu(arg: AdvanceCall, /) -> Kernel: ...
def advance_slots_cuda(arg0: AdvanceCall, arg1: int, /) -> str: ...

class KeepCall:
    pass

def keep_call(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    arg9: int,
    /,
) -> KeepCall: ...
def keep_logits_cpu(arg: KeepCall, /) -> Kernel: ...
def keep_logits_cuda(arg0: KeepCall, arg1: int, /) -> str: ...
def has_torch_calls() -> bool: ...

class TorchTensor:
    def __init__(self, arg0: int, arg1: Sequence[int], arg2: Sequence[int], arg3: int, /) -> None: ...

class TorchArgument:
    @staticmethod
    def none() -> TorchArgument: ...
    @staticmethod
    def integer(arg0: int, arg1: bool, /) -> TorchArgument: ...
    @staticmethod
    def number(arg0: float, arg1: bool, /) -> TorchArgument: ...
    @staticmethod
    def tensor(arg0: TorchTensor, arg1: bool, /) -> TorchArgument: ...
    @staticmethod
    def list(arg0: Sequence[TorchArgument], arg1: bool, /) -> TorchArgument: ...

def torch_call(
    arg0: str, arg1: str, arg2: Sequence[TorchArgument], arg3: Sequence[TorchTensor], arg4: int, /
) -> Kernel: ...
def torch_add(arg0: TorchTensor, arg1: TorchTensor, arg2: float, arg3: TorchTensor, /) -> Kernel: ...

class TokenTexts:
    """The tokens of a vocabulary by their bytes; spells forced text."""

    def __init__(self, tokens: Sequence) -> None:
        """From the bytes of each id, b"" for special and unused ones."""

    def encode(self, text: bytes) -> list[int]:
        """The tokens of a text's first 256 bytes, by byte-pair merging."""

class Matcher:
    """Follows one sequence of tokens. Used by one thread at a time."""

    def accept(self, token: int) -> bool:
        """Take a token; False if it is refused, with the state unchanged."""

    def validate(self, tokens: Sequence[int]) -> int:
        """
        How many of the tokens would be taken one after another; the state does not change.
        """

    def fill(
        self, row: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu")]
    ) -> bool:
        """
        Write the mask of what may follow, int32 [words]; False where nothing is blocked.
        """

    def rollback(self, count: int = 1) -> None:
        """Take back the last tokens."""

    def fork(self) -> Matcher:
        """An independent matcher in the same state."""

    def reset(self) -> None:
        """Back to the start."""

    def forced(self, capacity: int) -> list[int]:
        """
        A guess of tokens that spell what must follow whatever is sampled; the state does not change.
        """

    def walk(
        self,
        tokens: Sequence[int],
        row: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu")],
        timed: bool = False,
    ) -> tuple:
        """
        Fill a mask and take a token, one after another. Returns the number of tokens taken, the number for
        which mask and accept disagree, and the ns of each call.
        """

    def temperature(self) -> float | None:
        """The temperature for the next token; None: the request's own."""

    def edit(self, capacity: int) -> tuple[int, list[int]]:
        """
        The edit after the last token, where `has_edit`: drop this many of the last tokens, then append these.
        """

    @property
    def has_edit(self) -> bool:
        """Whether the last `accept` asks for an edit of the text."""

    def report(self, num_tokens: int) -> tuple[str, dict[str, bytes]] | None:
        """
        The log and the variables that a program wrote in the first `num_tokens` tokens of its answer. None for a
        matcher that is no program. At any time, on any thread.
        """

    def is_terminated(self) -> bool: ...
    @property
    def slot(self) -> int:
        """The slot it is attached to, or -1."""

    @property
    def serial(self) -> int:
        """No other matcher of the process has it."""

    @property
    def position(self) -> int:
        """
        The number of tokens taken for good. While it has a slot, the number when it got the slot.
        """

def python_matcher(object: object, factory: object | None = None) -> Matcher:
    """
    A matcher over a Python object with accept, fill and is_terminated, and rollback, reset or a factory.
    """

def hush_xgrammar() -> None:
    """Keep XGrammar's warnings from standard error, from now on."""

def xgrammar_bind(tvm_ffi_path: str, xgrammar_path: str) -> str:
    """Resolve XGrammar's C interface; what is missing, or an empty text."""

def xgrammar_matcher(
    handle: int, vocab_size: int, end_tokens: Sequence[int], texts: TokenTexts | None = None
) -> Matcher:
    """
    A matcher over an xgrammar GrammarMatcher's handle; `texts` spells forced text.
    """

class GuideClock:
    """
    Measures the time of a guide within one token, for guides that are called from Python.
    """

    def __init__(self, limit_s: float) -> None:
        """A limit of 0 means no limit: nothing is measured."""

    def restart(self, tokens: int = 1) -> None:
        """
        Start the time of the next token from 0; the time until now was for `tokens` tokens.
        """

    def begin(self) -> None:
        """Begin to measure the time of this thread."""

    def lap(self, part: str) -> None:
        """
        Add the time since `begin` or the last lap to `part`, "masks" or "tokens".
        """

    def problem(self) -> str | None:
        """
        A message with the time of each part if the total is over the limit, else None.
        """

class OperationCounters:
    """The cost of one operation since the state was made."""

    @property
    def calls(self) -> int: ...
    @property
    def fills(self) -> int:
        """The number of mask rows that were filled."""

    @property
    def seconds(self) -> float:
        """The total time of all calls."""

    @property
    def max_seconds(self) -> float:
        """The time of the longest call."""

class GuidedState:
    """
    Matchers and mask rows of S slots, with up to K drafts each, over V tokens; W = ceil(V / 32).

    csrc/guided/state.h has its theory of operation.
    """

    def __init__(
        self,
        *,
        num_slots: int,
        max_drafts: int,
        vocab_size: int,
        end_tokens: Sequence[int],
        drafts: Annotated[
            NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu", writable=False)
        ],
        verified: Annotated[
            NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu", writable=False)
        ],
        masks: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu")],
        token_mask: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu")],
        temperatures: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu")],
        workers: int = 0,
        mask_time_limit_s: float = 0.0,
        max_pending: int = 64,
    ) -> None:
        """
        The state works on these host arrays and keeps them alive. It reads `drafts` int64 [K, S+1] (-1: no
        draft) and `verified` int64 [S+1, K+2] (the number of accepted drafts, then the tokens of positions
        0..K). It writes `masks` int32 [(S+1)*(K+1), W], `token_mask` int32 [(S+1)*(K+1)] (0: the row's mask is
        not applied) and `temperatures` float32 [(S+1)*(K+1)] (the matcher's; negative: the request's own
        applies). Row slot*(K+1) + j is for the token after the committed text and j drafts.

        A row whose mask would allow no token allows `end_tokens` instead. `workers` native threads help when
        an operation's matcher calls are long. A matcher that takes longer than `mask_time_limit_s` (0: no
        limit) from one commit to the next fails its slot. Its processor time counts in full, and its waiting
        time beyond 2 s. At most `max_pending` snapshots wait for a fetch.
        """

    def push(
        self, slots: Sequence[int], attach: Mapping[int, Matcher | None] | None = None, *, epoch: int = 0
    ) -> int:
        """
        Pass the snapshot of the next iteration to its `fetch`, before its launch. Returns its epoch.

        The iteration works on `slots`; the padding slot S may appear any number of times. `attach` gives slots
        a matcher or, with None, takes it away; both reset the slot. A matcher has at most one slot, and belongs
        to it until an iteration without it is done. It leaves with the committed text, so it can be attached
        again. `epoch` numbers the iteration (default: one more than the last). Raises `ValueError` for slots,
        matchers and epochs that don't fit, and `GraphError` when `max_pending` iterations were pushed and not
        launched.
        """

    def fetch(self, owes_commit: bool = False) -> None:
        """
        Take the oldest snapshot, and fill row 0 of the slots that it attaches. Without a snapshot, or with
        that of another iteration, the slots fail. First runs the commit that the last iteration owes. With
        `owes_commit` this iteration has no `commit`.
        """

    def commit_owed(self, epoch: int) -> None:
        """
        After iteration `epoch` is done: run the commit that it owes, unless a `fetch` has run it. On any thread.
        """

    def forget_owed(self, epoch: int) -> None:
        """
        After iteration `epoch` failed, with nothing of it in flight: cancel the commit that it owes.
        """

    def extend(self, draft: int) -> None:
        """
        Take draft `draft` (1..K) of each guided slot that took the drafts before it, and fill row `draft`.
        """

    def extend_through(self, count: int) -> None:
        """
        `extend(1)` to `extend(count)` in one call. A draft that was taken and has not changed costs nothing.
        """

    def commit(self) -> None:
        """
        Roll back the drafts that were not accepted, take the token after the accepted ones, and fill row 0.
        """

    def commit_ahead(self) -> None:
        """
        Offer the commit that this iteration owes to idle kernel threads. `commit_owed` or `fetch` does the rest.
        """

    def extend_ahead(self, count: int) -> None:
        """
        Offer `extend_through(count)` to idle kernel threads, until the next `fetch`. A slot that fails in it
        gets its status at that `fetch`.
        """

    def release(self, slot: int) -> None:
        """
        Roll the slot back to its committed text; its matcher stays. With nothing in flight.
        """

    def end_ahead(self) -> None:
        """End an `extend_ahead` if no `fetch` will."""

    def vacate(self, slots: Sequence[int]) -> None:
        """
        Drop the slots' matchers at once, before the push that takes them away. With nothing in flight.
        """

    def task_address(self, operation: str, argument: int = 0) -> tuple[str, int, int]:
        """
        Name, function and data of an operation as a host task; valid while the state lives.
        """

    def status(self, slot: int) -> tuple[str, str]:
        """
        Code and one-line message of the failure that ended the slot's grammar; ("", "") without a failure.

        Codes: "refused" (a committed token is not in the grammar), "dead_end" (no token may follow),
        "matcher" (it failed), "time_limit" (it took too long), "epoch" (snapshots and iterations are out of
        step), "verified" (the verified tokens contradict the drafts), "edited" (the matcher asks for an
        edit of the text: `edit`).
        """

    def committed(self, slot: int) -> int:
        """
        The number of committed tokens since the matcher was attached; tokens after an end token do not count.
        """

    def extended(self, slot: int) -> int:
        """
        The number of drafts that the slot's matcher has taken after the committed text.
        """

    def is_terminated(self, slot: int) -> bool:
        """Whether an end token was committed."""

    def is_guided(self, slot: int) -> bool:
        """Whether the slot has a matcher."""

    def edit(self, slot: int) -> tuple[int, int, list[int]] | None:
        """
        The edit of a slot whose status is "edited": after `committed` tokens, drop the last `drop`, then append these.
        """

    @property
    def num_slots(self) -> int:
        """S"""

    @property
    def max_drafts(self) -> int:
        """K"""

    @property
    def vocab_size(self) -> int:
        """V"""

    @property
    def num_words(self) -> int:
        """W"""

    @property
    def num_failed(self) -> int:
        """
        The number of slots with a status other than ""; cheap to read in every iteration.
        """

    @property
    def num_pending(self) -> int:
        """The number of snapshots that were pushed and not fetched."""

    @property
    def epoch(self) -> int:
        """The epoch of the last snapshot that was fetched."""

    @property
    def pushed_epoch(self) -> int:
        """The epoch of the last snapshot that was pushed."""

    def record(self, max_bytes: int) -> None:
        """
        Keep records of the last operations in `max_bytes` of memory (0: none) for `weft.guided.flight`, and
        drop earlier records. With nothing in flight. Raises `ValueError` for less than the longest record of an
        operation.

        While it records, the thread that fills a mask row also hashes it (about 16 bytes per cycle).
        """

    def recorded(self) -> bytes:
        """
        The records, oldest first, for `weft.guided.flight.operations`. Callable at any time, on any thread.
        """

    @property
    def seconds(self) -> float:
        """The total time of all operations so far. Readable on any thread."""

    def counters(self, operation: str) -> OperationCounters:
        """
        The cost so far of "fetch", "extend" (an "extend_through" counts as one call of it) or "commit".
        """

class NgramSettings:
    def __init__(self, min_length: int, max_length: int, candidates: int) -> None: ...

class LookaheadSettings:
    def __init__(self, window: int, ngram: int, verification: int) -> None: ...

class Proposals:
    def __init__(
        self,
        state: GuidedState,
        *,
        verified: Annotated[
            NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu", writable=False)
        ],
        proposed: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu")],
        given: bool,
        forced: bool,
        ngram: NgramSettings | None,
        lookahead: LookaheadSettings | None,
        window: Annotated[
            NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu", writable=False)
        ]
        | None,
    ) -> None:
        """
        Over a state and host arrays, which it keeps alive. It reads `verified` int64 [S+1, K+2], the state's,
        and `window` int64 [S+1, W+1] for lookahead (the tokens that the iteration predicted after those of
        each slot's window, then the position of its last token). It writes `proposed` int64 [K, S+1], -1 for
        no draft.
        """

    def open(
        self,
        slot: int,
        tokens: Sequence[int],
        max_new_tokens: int,
        given: Sequence[int],
        num_answered: int,
        lookahead: LookaheadSettings | None,
        window: Sequence[int],
    ) -> None: ...
    def set_guided(self, guided: bool) -> None: ...
    def run(self, num_drafts: int) -> None: ...
    def task_address(self, num_drafts: int) -> tuple[str, int, int]:
        """
        Name, function and data of `run` as a host task; valid while the proposals live.
        """

    def origins(self, slot: int, first: int, count: int) -> list[int]: ...
    def counters(self) -> tuple: ...

class AfterRules:
    """Where free text ends: at a token, or after a text."""

    @overload
    def __init__(self, texts: TokenTexts, vocab_size: int, token: int) -> None: ...
    @overload
    def __init__(self, texts: TokenTexts, vocab_size: int, trigger: bytes) -> None: ...
    def settle(self, guide: Matcher) -> None:
        """
        Look up, once, which tokens may hold the trigger's end, with a matcher at its start.
        """

    def can_end(self) -> bool: ...
    def can_be_forced(self) -> bool: ...
    @property
    def memory_bytes(self) -> int: ...

def after_matcher(rules: AfterRules, guide: Matcher, max_free_tokens: int) -> Matcher:
    """
    A matcher of free text and then of `guide`, which nothing else may use. A negative number of free tokens: no limit.
    """

class TokenTrie:
    """The tokens of a vocabulary as a tree of their bytes."""

    def __init__(self, texts: TokenTexts, vocab_size: int) -> None: ...
    @property
    def memory_bytes(self) -> int: ...

class RecognizerGuide:
    """Makes matchers over recognisers that `factory` makes."""

    def __init__(
        self, texts: TokenTexts, trie: TokenTrie, vocab_size: int, end_tokens: Sequence[int], factory: object
    ) -> None: ...
    def matcher(self) -> Matcher: ...

class PluginGuide:
    """A guide that a plug-in prepared."""

    def __init__(
        self, path: str, texts: TokenTexts, end_tokens: Sequence[int], vocab_size: int, arg: bytes
    ) -> None: ...
    @property
    def recognizes(self) -> bool: ...
    def matcher(
        self, texts: TokenTexts, trie: TokenTrie | None, vocab_size: int, end_tokens: Sequence[int]
    ) -> Matcher:
        """A matcher at its start; a guide that recognises needs `trie`."""

def aici_bind_wasmtime(library_path: str) -> str:
    """
    Resolve wasmtime's C functions and test them. Returns an empty text, or the problem.
    """

def aici_compile(module: bytes) -> bytes:
    """
    Compile a module in this process for AiciProgram. Never load an artefact that another user could have made.
    """

def aici_table_change(body: bytes) -> str:
    """
    The first instruction of a function body that changes a table, or an empty text.
    """

def aici_log(matcher: Matcher) -> str:
    """
    The end of a program's log, drafts included. At any time, on any thread.
    """

def aici_undo_bytes(matcher: Matcher) -> int:
    """
    The bytes kept to roll a program's tokens back. 0 for any other matcher.
    """

class AiciVariables:
    """The variables that the sequences of one request share."""

    def __init__(self) -> None: ...
    def get(self, name: str) -> tuple[int, bytes] | None:
        """A variable's version and value, or None."""

class AiciProgram:
    """A compiled program for one vocabulary. It starts matchers."""

    def __init__(
        self,
        artefact: bytes,
        trie: bytes,
        num_tokens: int,
        end_ids: Sequence[int],
        texts: TokenTexts,
        limits: dict,
    ) -> None:
        """
        From an artefact of aici_compile. Raises GuideError for a module with unknown imports.
        """

    def start(self, arg: bytes, prompt: Sequence[int], variables: AiciVariables | None = None) -> Matcher:
        """
        A matcher at its start, after the program has seen the prompt. Raises GuideError if the program fails.
        """

def llguidance_bind(library_path: str) -> str:
    """Resolve LLGuidance's C interface; what is missing, or an empty text."""

class LlguidanceLimits:
    """Limits on compiling and on one mask; 0: LLGuidance's default."""

    def __init__(
        self,
        *,
        max_items_in_row: int = 0,
        step_max_items: int = 0,
        max_lexer_states: int = 0,
        max_grammar_size: int = 0,
        initial_lexer_fuel: int = 0,
        step_lexer_fuel: int = 0,
        keeps_states: bool = True,
    ) -> None: ...

class LlguidanceVocabulary:
    """LLGuidance's view of a vocabulary."""

    def __init__(self, tokens: Sequence, end_tokens: Sequence[int], texts: TokenTexts) -> None:
        """
        From the bytes of each id, b"" for special and unused ones; `texts` spells forced text.
        """

class LlguidanceGrammar:
    """A grammar that LLGuidance compiled for a vocabulary."""

    def __init__(
        self, vocabulary: LlguidanceVocabulary, type: str, text: str, limits: LlguidanceLimits
    ) -> None:
        """
        Compile; `type` is "json_schema", "regex" or "lark". Raises GuideError.
        """

    def matcher(self) -> Matcher:
        """A new matcher at the start."""

def hash_mask_rows(
    masks: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    flags: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    vocab_size: int,
    hashes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
) -> None:
    """
    Hash rows of masks int32 [R, W] with their flags int32 [R]: of rows int32 [N] to hashes int64 [N].
    """

class ClosingTables:
    """
    The number of tokens to an end, for each place of a grammar over bytes.
    """

    def __init__(self, rules: list, texts: TokenTexts, vocab_size: int, end_tokens: Sequence[int]) -> None:
        """
        Made from rules, the root first. A rule is a list of alternatives; an alternative is a list of elements
        (rule, data, min_times, max_times). Rule -1 is literal text, -2 one byte of a set of 256 bits.
        """

    @property
    def num_bytes(self) -> int: ...
    def shortest(self, text: bytes) -> tuple[int, int, bytes] | None:
        """
        The costs of the cheapest and of the costliest reading of a text, in tokens to an end, and the shortest
        end; None if the grammar refuses the text.
        """

def closing_matcher(inner: Matcher, tables: ClosingTables, room: int) -> tuple[Matcher | None, str, int]:
    """
    A matcher that ends within `room` tokens, or None; the reason for None; and the length of the shortest
    answer (0: unknown).
    """

def json_depth(text: str) -> int:
    """How deep brackets nest in JSON text."""

class WordAutomaton:
    """
    Which of many words a text ends with, over texts or token ids. A text that nothing is known of is in state 0.
    """

    @staticmethod
    def of_texts(words: Sequence[str]) -> WordAutomaton: ...
    @staticmethod
    def of_tokens(words: Sequence[Sequence[int]]) -> WordAutomaton: ...
    def find(self, state: int, text: str, seen: str = "") -> tuple[int, int, int]:
        """
        A text in `state` goes on with `text`: its state then, the word (-1: none) that ends after what `text`
        shares with `seen` and begins first, of those the shortest, and the character of `text` that it begins
        at, which is negative before `text`.
        """

    def step(self, state: int, token: int) -> tuple[int, int]:
        """
        The state after one more token, and the first word (-1: none) that ends there.
        """

    def num_open(self, state: int) -> int:
        """Characters at the end of a text in `state` that may become a word."""

    @property
    def memory_bytes(self) -> int: ...

class Answers:
    """
    Commits the tokens of a batch to the sequences of S slots. `weft.engine.output` describes
    the sequences. The properties describe the last `commit`.
    """

    def __init__(self, state: GuidedState, sampled: str, drafter: str, proposals: Proposals | None) -> None:
        """
        `sampled` is the origin of a sampled token, `drafter` that of an accepted draft. `proposals` knows the
        origins of other drafts.
        """

    def open(
        self,
        slot: int,
        sequence: object,
        *,
        is_plain: bool,
        is_guided: bool = False,
        resumed_at: int = 0,
        max_tokens: int = 0,
        ends: Sequence[int] = [],
        token_words: WordAutomaton | None = None,
        text_words: WordAutomaton | None = None,
        texts: TokenTexts | None = None,
    ) -> None:
        """
        Let later commits add to the output of `sequence`, which has the slot. If it is not `is_plain`, they leave
        all of its iterations to Python. Otherwise they leave those that may end the answer: at `max_tokens`, at a
        token of `ends`, and where a stop word may end, in token ids or in the tokens' `texts`.
        """

    def close(self, slot: int) -> None:
        """Let later commits skip the slot."""

    def commit(
        self, slots: Sequence[int], results: int, has_drafts: bool, epoch: int, moment: object, step: object
    ) -> bool:
        """
        Commit the tokens that the host read at `moment`, in the engine's step `step`. Returns whether a sequence
        needs Python (`take`). `results` is the address of int64 [S+1, K+2], as `verified` of a GuidedState, and of
        int64 [S+1] after it, the numbers of drafts that were verified if the iteration `has_drafts`. First runs the
        commit that the iteration `epoch` owes.
        """

    def take(self) -> tuple[list[Any], list[Any], list[Any]]:
        """
        The sequences of the last commit whose iteration is left to Python, those whose pages are due to be cached,
        and those that report their progress. Call it at most once.
        """

    @property
    def num_tokens(self) -> int:
        """The number of tokens added."""

    @property
    def num_guided(self) -> int:
        """The number of tokens of guided sequences, those left to Python too."""

    @property
    def num_drafting(self) -> int:
        """The number of sequences that had drafts to verify."""

    @property
    def num_drafting_tokens(self) -> int:
        """The tokens added to these sequences."""

    @property
    def num_proposed(self) -> int:
        """The number of drafts that were verified."""

    @property
    def num_accepted(self) -> int:
        """The number of drafts that were accepted."""

    @property
    def accepted_lengths(self) -> list:
        """
        The number of accepted drafts of each sequence that had drafts to verify.
        """
