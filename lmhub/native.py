"""The Python face of the core extension: `ffi` and `lib`, binding plugins to the kernel table, contexts, threads.

Knows no model, no file and no numpy. A C call that fails leaves a sentence for its thread; `check` raises with it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any, NamedTuple

from lmhub import __version__
from lmhub.errors import GenerationError, KernelError, PluginError

try:
    from lmhub._native import ffi, lib  # type: ignore[import-not-found, unused-ignore]
except ImportError as error:
    raise KernelError(
        f"lmhub's kernels cannot be loaded ({error}); install lmhub again, or run `make build` in a working copy."
    ) from None

__all__ = [
    "Context",
    "OpTime",
    "Peak",
    "bind",
    "check",
    "ffi",
    "isa",
    "isa_reason",
    "lib",
    "memory_bandwidth",
    "pages",
    "peaks",
    "pin",
    "profile",
    "set_threads",
    "threads",
]

ABI = (lib.LMK_ABI_MAJOR, lib.LMK_ABI_MINOR)
"""Version of the kernel API that this core provides."""


def last_error() -> str:
    """The sentence that the last failed call of this thread left behind."""
    return bytes(ffi.string(lib.lmk_last_error())).decode(errors="replace")


def check(status: int) -> None:
    """Raise for the status of a forward or of any other native call: on the thread that made it, right after it.

    0 is success; LMK_ABORTED raises GenerationError, anything else KernelError.
    """
    if status == 0:
        return
    if status == lib.LMK_ABORTED:
        raise GenerationError("The step was aborted because the model is being stopped; send the request again later.")
    raise KernelError(last_error())


def table() -> int:
    """Address of the `lmk_api` table. KernelError when LMK_ISA names a level that this machine lacks."""
    address = int(lib.lmk_table())
    if not address:
        raise KernelError(last_error())
    return address


def bind(plugin_lib: Any, distribution: str) -> None:
    """Hand the kernel table to a plugin's `lib`, once, before any other call into it. `distribution`: `lmhub-qwen3`.

    Raises PluginError when the plugin was built for a kernel API that this core does not provide.
    """
    status = plugin_lib.lmk_bind(table())
    if status == 0:
        return
    built = f"{plugin_lib.LMK_ABI_MAJOR}.{plugin_lib.LMK_ABI_MINOR}"
    fix = f"Upgrade lmhub or reinstall {distribution}."
    raise PluginError(
        f"{distribution} {_version_of(distribution)} was built for kernel API {built}; "
        f"lmhub {__version__} provides {ABI[0]}.{ABI[1]}. {fix}"
    )


def _version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def isa() -> str:
    """The instruction-set level in use: "ref", "avx2", "avx512" or "amx"."""
    table()
    return bytes(ffi.string(lib.lmk_isa())).decode()


def isa_reason() -> str:
    """Why this level and not a higher one, as a clause."""
    return bytes(ffi.string(lib.lmk_isa_reason())).decode()


def threads() -> int:
    """How many threads a kernel runs on, the calling one included."""
    return int(lib.lmk_threads())


def set_threads(n: int) -> None:
    """Run the kernels of every model on `n` threads; 0 = the CPUs that this process may use. KernelError beyond 256."""
    check(lib.lmk_set_threads(n))


def pin(on: bool) -> None:
    """Bind every compute thread but the calling one to a CPU of its own, or bind none.

    KernelError where the system cannot, or where there are more threads than CPUs.
    """
    check(lib.lmk_pin(on))


def memory_bandwidth(n_threads: int, nbytes: int = 1 << 29) -> float:
    """Measured read bandwidth in GB/s (10^9 bytes): the best of five passes over `nbytes` of memory; some 0.3 s."""
    return _measured(lib.lmk_bench_read(nbytes, n_threads))


class Peak(NamedTuple):
    """What an arithmetic unit does at most: 10^9 operations per second, a multiplication and its addition being two."""

    rate: float
    instruction: str


_LEVELS = ("ref", "neon", "i8mm", "avx2", "avx512", "amx")  # each may use those before it, if the machine has them


def peaks(n_threads: int) -> dict[str, Peak]:
    """The measured peak of every unit ("f32", "int8", "bf16") that the level in use has; some 50 ms for each."""
    allowed = _LEVELS[: _LEVELS.index(isa()) + 1]
    probes: dict[str, tuple[int, str]] = {}  # of each unit that of the highest level: they come in ascending order
    index = 0
    while (probe := lib.lmk_probe_at(index)) != ffi.NULL:
        level, unit, instruction = _text(probe.level), _text(probe.unit), _text(probe.instruction)
        if level in allowed:
            probes[unit] = index, instruction
        index += 1
    return {unit: Peak(_measured(lib.lmk_probe_run(i, n_threads)), name) for unit, (i, name) in probes.items()}


def _text(chars: Any) -> str:
    return bytes(ffi.string(chars)).decode()


def _measured(rate: float) -> float:
    if rate < 0:
        raise KernelError(last_error())
    return float(rate)


class OpTime(NamedTuple):
    """What the calls of one op with weights of one type and shape took: the fields of the core's `lmk_op_time`."""

    op: str
    type: int
    n_expert: int
    rows: int
    cols: int
    calls: int
    n: float
    seconds: float
    bytes: float
    operations: float


@contextmanager
def profile() -> Iterator[list[OpTime]]:
    """Time every op of every forward while the block runs. The list is filled at its end.

    One block at a time, and on the thread that runs the forwards: the table must not change under them.
    """
    times: list[OpTime] = []
    lib.lmk_profile(1)
    try:
        yield times
    finally:
        lib.lmk_profile(0)
        out = ffi.new("lmk_op_time[]", 128)
        for one in out[0 : lib.lmk_profile_read(out, len(out))]:
            values = (getattr(one, name) for name in OpTime._fields[1:])
            times.append(OpTime(_text(one.op), *values))


def pages(nbytes: int, huge: bool = False) -> mmap.mmap:
    """Zeroed, page-aligned memory that commits when it is first touched. Keep the object: it is the memory.

    `huge`: ask for huge pages, for memory that will be touched as a whole.
    """
    try:
        memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError):
        raise KernelError(f"{nbytes} bytes of memory could not be had; use a smaller context or model.") from None
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Context:
    """The arena and the abort flag of one loaded model. `level` forces an instruction-set level, for tests.

    `c` is the core's `lmk_ctx *`; a plugin casts `address` into its own ffi. One thread at a time may run steps on it.
    """

    def __init__(self, level: str | None = None):
        pointer = lib.lmk_ctx_new(ffi.NULL if level is None else level.encode())
        if pointer == ffi.NULL:
            raise KernelError(last_error())
        self.c = ffi.gc(pointer, lib.lmk_ctx_free)

    @property
    def address(self) -> int:
        """The pointer as an integer: `ffi.cast("lmk_ctx *", context.address)`."""
        return int(ffi.cast("uintptr_t", self.c))

    def abort(self) -> None:
        """Make the running forward return early, from any thread; when none runs, the next one."""
        lib.lmk_abort(self.c)

    def end_step(self) -> None:
        """Free what a forward left in the arena. Only needed where it does not release to its own first mark."""
        lib.lmk_ctx_reset(self.c)

    def stats(self) -> tuple[int, int]:
        """(calls of malloc so far, bytes held): a steady decode loop changes neither."""
        n_malloc, reserved = ffi.new("int64_t *"), ffi.new("int64_t *")
        lib.lmk_ctx_stats(self.c, n_malloc, reserved)
        return int(n_malloc[0]), int(reserved[0])
