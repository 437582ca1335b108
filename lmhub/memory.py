"""What serving a model takes, reckoned before anything is allocated, and how many sequences are kept for that.

A `Plan` lists what commits memory, and when; `guard` decides between what was asked for and what this machine has.
Everything comes from a file's metadata and tensor directory: no tensor is read. The one source of `lmhub plan`, of
`lmhub show`, of the start-up summary and of what the hub refuses to load.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from lmhub.engine.thinning import CHECKPOINTS
from lmhub.errors import LmhubError
from lmhub.gguf import GGUFFile
from lmhub.machine import Memory, disk_free
from lmhub.model import MemoryPlan
from lmhub.settings import EngineSettings

Kind = Literal["mapped", "at load", "lazy", "disk"]
Verdict = Literal["ok", "pressure", "clamp", "overcommit"]
Cost = Callable[[int, str], MemoryPlan]  # of (positions, type of the KV cache); raises LmhubError

# Measured with a vocabulary of 151,936 tokens: 54 MB after the imports, 120 MB more with the file's metadata and the
# tokenizer, 69 MB more with the first grammar, of which 45 MB are its trie and the rest is its library.
PROCESS = 80_000_000
TOKENIZER = 800  # bytes per token of the vocabulary
GRAMMAR = 300  # bytes per token
RECYCLED = 4  # bytes per token of the vocabulary: the successor that speculation remembers
INDEXED = 75  # bytes per position of each sequence, measured: the index in which speculation looks for repetitions
INDEX_MAX = 65_536  # positions of such an index
VERIFIED = 17  # logits rows of one sequence in a step that checks guesses, at most
KV = "KV cache"
LEAN = "--experts borrow"
ROUND = 256  # suggested contexts are multiples of it


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that takes memory, or disk. `kind` says how it commits; `mapped` is page cache and can be reclaimed."""

    name: str
    nbytes: int
    kind: Kind
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Fix:
    """Flags under which less is needed: `total` bytes at worst."""

    flags: str
    total: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The memory plan of one model under some settings; sizes in bytes.

    `slots` sequences of at most `ctx` positions are kept in memory, `wanted` were asked for. Where even those that must
    be kept do not fit, the items show what was asked for, `fits` is False, and `slots` is what a server would fall
    back to. `available` is what this machine has left for it.
    """

    model: str
    ctx: int
    batch: int
    kv_dtype: str
    per_slot: int
    wanted: int
    slots: int
    verdict: Verdict
    fits: bool
    items: tuple[Item, ...]
    available: int
    machine: int
    warnings: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()

    @property
    def mapped(self) -> int:
        """The part of the file that stays mapped; page cache."""
        return self._sum("mapped")

    @property
    def committed(self) -> int:
        """What is taken as soon as the model can answer."""
        return self._sum("at load")

    @property
    def lazy(self) -> int:
        """What comes on top as sequences grow, at most."""
        return self._sum("lazy")

    @property
    def worst(self) -> int:
        """The most that it can come to, without what is mapped."""
        return self.committed + self.lazy

    @property
    def typical(self) -> int:
        """What to expect: every sequence that is kept a quarter full, and nothing else that is lazy."""
        return self.committed + sum(item.nbytes for item in self.items if item.name == KV) // 4

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: the fields, and the sums under `totals`."""
        sums = ("committed", "typical", "worst", "mapped", "lazy")
        return {**asdict(self), "totals": {name: getattr(self, name) for name in sums}}

    def _sum(self, kind: Kind) -> int:
        return sum(item.nbytes for item in self.items if item.kind == kind)


def guard(requested: int, per_slot: int, available: int | None, can_clamp: bool) -> tuple[Verdict, int]:
    """Whether `requested` sequences of `per_slot` bytes fit into `available`, and how many are kept (at least one).

    More than fit are cut to what half of the memory holds, or only reported where that is not wanted; more than half of
    it is pressure. What is not known is no reason to refuse.
    """
    slots = max(requested, 1)
    if available is None or per_slot == 0:
        return "ok", slots
    if slots * per_slot > available:
        return ("clamp", min(slots, max(available // 2 // per_slot, 1))) if can_clamp else ("overcommit", slots)
    return ("pressure" if slots * per_slot > available // 2 else "ok"), slots


def can_clamp(settings: EngineSettings) -> bool:
    """Whether the guard may cut the slots: where the system's figures can be trusted, and nobody forbade it."""
    return sys.platform.startswith("linux") and not settings.kv_slots_force


def settled(plan: Plan, settings: EngineSettings) -> EngineSettings:
    """The settings under which that plan holds: as many sequences as are kept, and no more at once."""
    return replace(settings, kv_slots=plan.slots, batch=min(settings.batch, plan.slots))


def plan(
    file: GGUFFile,
    cost: Cost,
    ctx: int,
    settings: EngineSettings,
    ram: Memory,
    *,
    lean: Cost | None = None,
    clampable: bool | None = None,
) -> Plan:
    """The plan of `file` at `ctx` positions; `cost` is what its family reckons. Raises what `cost` raises.

    `lean` is what it reckons with experts left in the file, for a fix. `clampable` replaces `can_clamp`, for tests.
    """
    may_clamp = can_clamp(settings) if clampable is None else clampable
    costs = cost(ctx, settings.kv_dtype)
    weights, beside = _weights(costs), _beside(file, ctx, settings, costs)
    free = max(0, ram.available - sum(item.nbytes for item in (*weights, *beside) if item.kind in ("at load", "lazy")))
    per_slot = _per_slot(costs)
    wanted, must, verdict, slots = _slots(settings, per_slot, free, may_clamp)
    fits = slots >= must and slots * per_slot <= free and free > 0
    shown = slots if fits else must
    made = Plan(
        model=file.path.name,
        ctx=ctx,
        batch=settings.batch,
        kv_dtype=settings.kv_dtype,
        per_slot=per_slot,
        wanted=wanted,
        slots=slots,
        verdict=verdict,
        fits=fits,
        items=(*weights, Item(KV, shown * per_slot, "lazy", f"{shown} sequences of {ctx} positions"), *beside),
        available=ram.available,
        machine=ram.total,
    )
    return replace(
        made,
        warnings=tuple(_warnings(made, costs, settings)),
        fixes=() if fits else tuple(_fixes(made, cost, lean, settings, shown)),
    )


def _slots(settings: EngineSettings, per_slot: int, free: int, may_clamp: bool) -> tuple[int, int, Verdict, int]:
    """(asked for, needed to be called a fit, verdict, kept). What runs at once is always kept, so it counts first.

    Without a wish, twice the batch is kept where that fits, else what does; the batch itself must fit.
    """
    wanted = _wanted(settings)
    if settings.kv_slots:
        return wanted, wanted, *guard(wanted, per_slot, free, may_clamp)
    verdict, slots = guard(wanted, per_slot, free, True)
    if slots < settings.batch or verdict == "overcommit":
        verdict, slots = guard(settings.batch, per_slot, free, may_clamp)
    return wanted, settings.batch, verdict, slots


def _wanted(settings: EngineSettings) -> int:
    return max(settings.kv_slots or 2 * settings.batch, settings.batch, 1)


def _weights(costs: MemoryPlan) -> tuple[Item, ...]:
    items = (
        Item("weights, mapped", costs.weights_mapped, "mapped", "the file itself; its pages can be reclaimed"),
        Item("weights, packed", costs.weights_packed, "at load", "as the kernels read them"),
    )
    return tuple(item for item in items if item.nbytes)


def _beside(file: GGUFFile, ctx: int, settings: EngineSettings, costs: MemoryPlan) -> tuple[Item, ...]:
    """Everything but weights and slots."""
    vocabulary = file.get("tokenizer.ggml.tokens")
    n_vocab = len(vocabulary) if isinstance(vocabulary, list) else 0
    items = [
        Item("experts", settings.expert_cache, "lazy", "--expert-cache: what is kept of them in memory"),
        Item("KV beyond the slots", settings.kv_ram, "lazy", "--kv-ram"),
        Item("KV on disk", settings.kv_disk_max if settings.kv_cache_dir else 0, "disk", "--kv-disk-max"),
        Item("step scratch", costs.scratch or _scratch(file, settings, n_vocab), "lazy", "activations and logits"),
        Item("tokenizer", TOKENIZER * n_vocab, "at load", f"{n_vocab} tokens"),
        Item("grammars", GRAMMAR * n_vocab, "lazy", "from the first one on"),
        Item("process", PROCESS, "at load", "Python and its libraries"),
    ]
    if settings.spec:
        speculation = RECYCLED * n_vocab + INDEXED * min(ctx, INDEX_MAX) * _wanted(settings)
        items.insert(5, Item("speculation", speculation, "lazy", "what it guesses from"))
    return tuple(item for item in items if item.nbytes)


def _scratch(file: GGUFFile, settings: EngineSettings, n_vocab: int) -> int:
    """An estimate for families that do not say: the rows of the largest step through the widest layer, and its logits.

    Keys that are missing count nothing.
    """

    def widest(name: str) -> int:
        value = file.get(f"{file.architecture}.{name}", 0)
        numbers = value if isinstance(value, list) else [value]
        return max((one for one in numbers if isinstance(one, int) and not isinstance(one, bool)), default=0)

    heads, hidden = widest("attention.head_count"), widest("embedding_length")
    kv_heads = widest("attention.head_count_kv") or heads
    head = widest("attention.key_length") or (hidden // heads if heads else 0)
    width = 4 * hidden + 2 * (heads + 2 * kv_heads) * head + 3 * widest("feed_forward_length")
    logits = settings.batch * (VERIFIED if settings.spec else 1) * n_vocab
    return 4 * ((settings.prefill_chunk + settings.batch) * width + logits)


def _warnings(made: Plan, costs: MemoryPlan, settings: EngineSettings) -> list[str]:
    said = []
    needed = made.wanted if settings.kv_slots else made.batch
    if made.slots < needed:
        said.append(f"memory is short: {made.slots} sequences are kept instead of {needed}")
    if settings.kv_slots and made.verdict == "pressure":
        said.append(f"{made.slots} full sequences take more than half of the memory that is left for them")
    if made.verdict == "overcommit":
        said.append(f"{made.slots} full sequences do not fit into memory and may end the process")
    kept = max(0, costs.weights_mapped - costs.weights_packed)  # what was packed is not read from the file again
    if made.fits and made.available - made.worst < kept // 2:
        said.append("little memory is left for the file's pages: replies may have to wait for the disk")
    if settings.kv_cache_dir:
        free = disk_free(settings.kv_cache_dir)
        if free is not None and free < settings.kv_disk_max:
            said.append(f"the disk of {settings.kv_cache_dir} has {free / 1e9:.1f} GB left, less than --kv-disk-max")
    return said


def _fixes(made: Plan, cost: Cost, lean: Cost | None, settings: EngineSettings, shown: int) -> list[Fix]:
    """The three cheapest ways out: those that suffice by themselves first, then those that cost the reader least."""
    others = made.worst - shown * made.per_slot
    free = max(0, made.available - others)
    found: list[tuple[str, int]] = []
    if settings.kv_ram:
        found.append(("--kv-ram 0", made.worst - settings.kv_ram))
    if shown > 1 and made.per_slot:
        fewer = min(max(free // made.per_slot, 1), shown - 1)
        batch = f" --batch {fewer}" if fewer < made.batch else ""
        found.append((f"--kv-slots {fewer}{batch}", others + fewer * made.per_slot))
    if made.kv_dtype != "q8_0" and (smaller := _possible(cost, made.ctx, "q8_0")) is not None:
        found.append(("--kv-dtype q8_0", others + shown * smaller))
    saved = cost(made.ctx, made.kv_dtype).weights_packed - lean(made.ctx, made.kv_dtype).weights_packed if lean else 0
    if saved > 0:
        found.append((LEAN, made.worst - saved))
    if (ctx := largest_ctx(made, cost, shown)) is not None:
        found.append((f"--ctx {ctx}", others + shown * _per_slot(cost(ctx, made.kv_dtype))))
    fixes = [Fix(flags, total, total <= made.available) for flags, total in found]
    return sorted(fixes, key=lambda fix: not fix.fits)[:3]


def largest_ctx(made: Plan, cost: Cost, slots: int = 1) -> int | None:
    """The most positions below those of the plan at which `slots` sequences fit beside the rest; None if none do."""
    kv = sum(item.nbytes for item in made.items if item.name == KV)
    free = made.available - (made.worst - kv)
    low, high = 0, max(made.ctx - 1, 0) // ROUND
    while low < high:
        middle = (low + high + 1) // 2
        state = _possible(cost, middle * ROUND, made.kv_dtype)
        if state is not None and slots * state <= free:
            low = middle
        else:
            high = middle - 1
    return low * ROUND or None


def _per_slot(costs: MemoryPlan) -> int:
    return costs.state + CHECKPOINTS * costs.checkpoint


def _possible(cost: Cost, ctx: int, dtype: str) -> int | None:
    """Bytes of one sequence, None where the model cannot have such a cache."""
    try:
        return _per_slot(cost(ctx, dtype))
    except LmhubError:
        return None
