"""Which file goes to which family, and the models that are being served.

The hub owns the plugins, the loaded models and their engines. It knows no HTTP and no architecture.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmhub.advice import default_sampling
from lmhub.engine import Engine
from lmhub.errors import LmhubError, ModelFileError, PluginError, RequestError, UnknownModel, UnsupportedModel, quoted
from lmhub.family import Borrow, Family, LoadOptions
from lmhub.gguf import GGUFFile, open_gguf
from lmhub.hookspecs import hookimpl
from lmhub.loaded import LoadedModel
from lmhub.machine import memory
from lmhub.memory import LEAN, Cost, Plan, largest_ctx, settled
from lmhub.memory import plan as memory_plan
from lmhub.model import MemoryPlan
from lmhub.plugins import Plugins
from lmhub.settings import EngineSettings
from lmhub.types import Event, GenerationRecord, GenerationRequest, Request

if TYPE_CHECKING:
    from lmhub.engine.disk import DiskTier
    from lmhub.shelf import Shelf

log = logging.getLogger("lmhub")

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Claim:
    """A family, and the plugin that brought it."""

    family: Family
    plugin: str
    distribution: str


@dataclass(frozen=True, slots=True)
class Served:
    """A loaded model, the engine that runs it, and how; `plan` is None for a model that came from no file."""

    model: LoadedModel
    engine: Engine
    settings: EngineSettings
    plan: Plan | None = None


class Hub:
    """Plugins, families and served models. One per process is usual; several may live side by side.

    `plugins` are those that somebody has loaded already (the command line, for its commands); without, the hub finds
    its own.
    """

    def __init__(
        self,
        plugins: Plugins | None = None,
        *,
        entry_points: bool = True,
        blocked: Iterable[str] = (),
        strict: bool = False,
    ) -> None:
        self.plugins = plugins or Plugins(blocked=blocked, strict=strict)
        if self.plugins.manager.has_plugin("core"):  # the answers of an earlier hub over the same plugins
            self.plugins.manager.unregister(name="core")
        self.plugins.register(_CoreAnswers(self), "core")
        if entry_points and plugins is None:
            self.plugins.load_entry_points()
        self._served: dict[str, Served] = {}
        self._claims: dict[str, Claim] | None = None

    # --- families ----------------------------------------------------------------------------------------------------

    @property
    def claims(self) -> dict[str, Claim]:
        """Architecture -> who serves it. Raises PluginError when two plugins claim one."""
        if self._claims is None:
            claims: dict[str, Claim] = {}
            for plugin, families in self.plugins.call_each("lmhub_families"):
                for family in families:
                    self._claim(claims, Claim(family, plugin, self.plugins.infos[plugin].distribution))
            self._claims = claims
        return self._claims

    @staticmethod
    def _claim(claims: dict[str, Claim], claim: Claim) -> None:
        for arch in claim.family.archs:
            if arch in claims:
                raise PluginError(
                    f"{claims[arch].distribution} and {claim.distribution} both serve the architecture {arch}; "
                    f"uninstall one, or leave one out with --block {claim.plugin}"
                )
            claims[arch] = claim

    def claim_for(self, file: GGUFFile) -> Claim:
        """The family that serves this file. Raises UnsupportedModel naming what to install."""
        arch = file.architecture
        if arch not in self.claims:
            if arch == "clip":
                raise UnsupportedModel(
                    f"{file.path.name} is what a model sees or hears with, not the model, and this server reads text "
                    f"only; name the model's own file"
                )
            broken = [i for i in self.plugins.infos.values() if i.state == "broken"]
            hint = f"; {broken[0].title} is installed but broken: {broken[0].problem}" if broken else ""
            known = ", ".join(sorted(self.claims)) or "none"
            raise UnsupportedModel(
                f"{file.path.name} holds the architecture {quoted(arch)}, which no installed plugin serves "
                f"(served: {known}); install the plugin of that family, usually called lmhub-{_slug(arch)}{hint}"
            )
        return self.claims[arch]

    # --- models ------------------------------------------------------------------------------------------------------

    def open(self, model: str | Path) -> GGUFFile:
        """Open a file or folder, or what a plugin or the download cache has by that name. Raises LmhubError.

        What is in the working folder goes first.
        """
        path = Path(model)
        if path.is_file() or path.name != str(model):
            return self._opened(_downloaded(path) or path)
        brought = self.plugins.models()
        if path.name not in brought and not path.exists() and not path.suffix:
            offered = ", ".join(sorted(brought)) or "none does"
            raise ModelFileError(
                f"{quoted(path.name)} is neither a file nor a model that a plugin brings ({offered}); name a GGUF file"
            )
        return self._opened(brought.get(path.name, path))

    def _opened(self, path: Path) -> GGUFFile:
        file: GGUFFile = self.plugins.call_first("lmhub_open", path=path, options=self.plugins.options)
        return file

    def plan(self, file: GGUFFile, settings: EngineSettings, taken: int = 0) -> Plan:
        """What serving this file would take, from its metadata alone. Raises LmhubError.

        What the served models may still grow by counts as taken, and so do `taken` bytes.
        """
        taken += sum(served.plan.lazy for served in self._served.values() if served.plan is not None)
        ram = memory()
        ram = replace(ram, available=max(0, ram.available - taken))
        claim = self.claim_for(file)
        lean = _cost(claim, file, "experts") if settings.borrow == "none" else None
        return memory_plan(file, _cost(claim, file, settings.borrow), _ctx(file, settings), settings, ram, lean=lean)

    def load(self, model: str | Path | GGUFFile, settings: EngineSettings, progress: Progress | None = None) -> Served:
        """Open (see `open`), load and serve a model; blocks until it can answer. Raises LmhubError.

        An open file is used as it is, and must stay open while the model is served. Where memory is short, fewer
        sequences are kept than `settings` ask for; the log and `Served` say so.
        """
        from lmhub import native

        file = model if isinstance(model, GGUFFile) else self.open(model)
        with _named(file):
            claim = self.claim_for(file)
            wished = self.plan(file, settings)
            _check_memory(wished, _cost(claim, file, settings.borrow), settings)
            for warning in wished.warnings:
                log.warning("%s: %s", file.path.name, warning)
            settings = settled(wished, settings)
            plan = self.plan(file, settings)
            log.info("memory plan: %s", json.dumps(plan.as_dict()))
            if settings.threads:
                native.set_threads(settings.threads)
            if settings.pin:
                native.pin(True)
            disk = self._disk(file, claim, settings)  # before the weights: a useless folder should not cost minutes
            try:
                return self.serve(self._loaded(file, claim, settings, progress), settings, plan, disk)
            except BaseException:
                if disk is not None:
                    disk.close(0.0)
                raise

    def _loaded(self, file: GGUFFile, claim: Claim, settings: EngineSettings, progress: Progress | None) -> LoadedModel:
        options = LoadOptions(
            n_ctx=_ctx(file, settings), kv_dtype=settings.kv_dtype, borrow=settings.borrow, progress=progress
        )
        with ThreadPoolExecutor(1, "lmhub-tokenizer") as beside:  # while the weights wait for the disk
            made = beside.submit(self._tokenizer, file)
            model = _resolve(claim.family.load, claim)(file, options)
            tokenizer = made.result()
        if tokenizer.n_vocab > model.n_vocab:
            raise ModelFileError(
                f"the vocabulary has {tokenizer.n_vocab} tokens, but token_embd.weight holds {model.n_vocab}; "
                f"convert the model again."
            )
        facts = file.facts()
        sampling, reasoning_sampling = default_sampling(claim.family, file.metadata)
        return LoadedModel(
            id=self._free_id(file),
            family=claim.family,
            distribution=claim.distribution,
            metadata=file.metadata,
            model=model,
            tokenizer=tokenizer,
            n_ctx=options.n_ctx,
            plan=_cost(claim, file, options.borrow)(options.n_ctx, options.kv_dtype),
            created=int(file.path.stat().st_mtime),
            n_params=facts.n_params,
            nbytes=facts.nbytes,
            quantization=next(iter(facts.types), "none"),
            sampling=sampling,
            reasoning_sampling=reasoning_sampling,
            lazy_tools=settings.lazy_tools,
            shelf=_shelf(file, settings),
            options=self.plugins.options,
        )

    def _tokenizer(self, file: GGUFFile) -> Any:
        tokenizer = self.plugins.call_first("lmhub_tokenizer", model_file=file)
        import lmhub.chat.prompt  # noqa: F401  # `serve` needs it next

        return tokenizer

    def _disk(self, file: GGUFFile, claim: Claim, settings: EngineSettings) -> DiskTier | None:
        """Where sequences of this file survive a restart; None where that is not wanted.

        Each model has a folder of its own, for one at a time may write to one, and to find its files it reads them all.
        """
        if not settings.kv_cache_dir:
            return None
        from lmhub.engine.disk import DiskTier
        from lmhub.gguf.fingerprint import identity

        name = re.sub(r"[^\w.-]+", "-", self._free_id(file))[:80]
        folder = Path(settings.kv_cache_dir).expanduser() / f"model-{name}"
        plugin = self.plugins.infos[claim.plugin]
        return DiskTier(
            folder,
            identity(file, folder, (f"plugin={plugin.title}",)),
            max_bytes=settings.kv_disk_max,
            max_files=settings.kv_disk_slots,
        )

    def serve(
        self,
        loaded: LoadedModel,
        settings: EngineSettings,
        plan: Plan | None = None,
        disk: DiskTier | None = None,
    ) -> Served:
        """Complete a loaded model with what the hooks say of it, and start its engine.

        `plan` is what it was given, `disk` where its sequences survive a restart; the engine closes that.
        """
        from lmhub.chat.inner import Inner
        from lmhub.chat.prompt import ChatFormat

        loaded.think = self.plugins.call_first("lmhub_think_markers", model=loaded)
        loaded.tools = self.plugins.call_first("lmhub_tool_style", model=loaded)
        tool = self.plugins.call_first("lmhub_inner_tool", model=loaded)
        loaded.inner = Inner.of(tool, loaded.tokenizer, loaded.model.n_vocab)
        if loaded.chat is None:
            loaded.chat = ChatFormat.from_metadata(
                loaded.metadata,
                loaded.tokenizer,
                think=loaded.think,
                tools=loaded.tools,
                fallback=loaded.family.template,
                reply=loaded.family.reply,
            )
        engine = Engine(
            loaded.model,
            tokenizer=loaded.tokenizer,
            n_ctx=loaded.n_ctx,
            settings=settings,
            model_id=loaded.id,
            family=loaded.family.name,
            disk=disk,
            shelf=loaded.shelf,
            on_finished=self._finished,
        )
        served = Served(loaded, engine, settings, plan)
        self._served[loaded.id] = served
        return served

    @property
    def flush_s(self) -> float:
        """How long `close` may take to write sequences to disk."""
        served = tuple(self._served.values())  # may be asked while another thread loads
        return sum(one.settings.flush_s for one in served if one.settings.kv_cache_dir)

    @property
    def models(self) -> list[LoadedModel]:
        """The served models, in the order in which they were loaded."""
        return [served.model for served in self._served.values()]

    def acquire(self, name: str | None) -> Served:
        """The model that a request means: the only one whatever it is called, or the one of that name."""
        if len(self._served) == 1:
            return next(iter(self._served.values()))
        if name in self._served:
            return self._served[name]
        raise UnknownModel(
            f"model {str(name)[:200]!r} is not served here; served: {', '.join(self._served) or 'none'}", param="model"
        )

    # --- requests ----------------------------------------------------------------------------------------------------

    def prepare(self, served: Served, request: Request, id: str) -> tuple[GenerationRequest, ...]:
        """Let the plugins validate, then render and tokenize: one generation for each choice. Raises RequestError."""
        self.validate(served, request)
        return tuple(self.process(served, one) for one in served.model.prepare(request, id))

    def validate(self, served: Served, request: Request) -> None:
        """Ask every plugin whether it refuses this request. Raises RequestError."""
        self.plugins.call_each("lmhub_validate", model=served.model, request=request)

    def process(self, served: Served, request: GenerationRequest) -> GenerationRequest:
        """Attach what `lmhub_logits_processors` asks for."""
        answers = self.plugins.call_each("lmhub_logits_processors", model=served.model, request=request)
        return replace(request, processors=tuple(one for _, processors in answers for one in processors))

    def generate(self, served: Served, request: GenerationRequest) -> AsyncIterator[Event]:
        """The events of one reply; closing the iterator cancels. Raises QueueFull or ShuttingDown."""
        events: AsyncIterator[Event] = self.plugins.call_first("lmhub_generate", model=served.model, request=request)
        return events

    def close(self, grace_s: float = 0.0) -> None:
        """Stop every engine and release the models."""
        for served in self._served.values():
            served.engine.stop(grace_s)
            served.model.close()
        self._served.clear()

    def _finished(self, record: GenerationRecord) -> None:
        self.plugins.call_each("lmhub_generation_finished", record=record)

    def _free_id(self, file: GGUFFile) -> str:
        path = file.path  # a folder's may be "."
        stem = path.resolve().name if path.is_dir() else re.sub(r"-\d{5}-of-\d{5}$", "", path.stem)
        taken = sum(1 for name in self._served if name == stem or name.rpartition("#")[0] == stem)
        return f"{stem}#{taken + 1}" if taken else stem


class _CoreAnswers:
    """The core's own hook implementations: they answer last."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    @hookimpl(trylast=True)
    def lmhub_open(self, path: Path) -> GGUFFile:
        if path.is_dir():
            raise ModelFileError(
                f"{path.name} is a folder, and no installed plugin knows what is in it; name a GGUF file, or install "
                f"the plugin of its family"
            )
        return open_gguf(path)

    @hookimpl(trylast=True)
    def lmhub_tokenizer(self, model_file: GGUFFile) -> Any:
        from lmhub.tokenize import load_tokenizer

        return load_tokenizer(model_file.metadata)

    @hookimpl(trylast=True)
    def lmhub_generate(self, model: LoadedModel, request: GenerationRequest) -> AsyncIterator[Event]:
        return self._hub.acquire(model.id).engine.generate(request)

    @hookimpl(trylast=True)
    def lmhub_tool_style(self, model: LoadedModel) -> Any:
        from lmhub.chat.prompt import template_source
        from lmhub.family import style_for

        source = template_source(model.metadata, model.tokenizer, model.family.template)
        return style_for(model.family.tools, source)

    @hookimpl(trylast=True)
    def lmhub_think_markers(self, model: LoadedModel) -> Any:
        return model.family.think


@contextmanager
def _named(file: GGUFFile) -> Iterator[None]:
    """Whoever loads several files must learn which one is refused, also by those who see only its metadata."""
    try:
        yield
    except (PluginError, RequestError):
        raise
    except LmhubError as error:
        if file.path.name in str(error):
            raise
        raise type(error)(f"{file.path.name}: {error}") from error


def _downloaded(path: Path) -> Path | None:
    """The file behind `ORG/REPO[:QUANT]`; None for anything else. Raises LmhubError, also if it is not there yet."""
    from lmhub.remote.cache import find, folder
    from lmhub.remote.names import reference

    asked = None if path.exists() else reference(str(path))
    if asked is None:
        return None
    found = find(asked, folder())
    if found is None:
        raise ModelFileError(f"{asked} is neither a file nor in {folder()}; `lmhub pull {asked}` downloads it")
    return found


def _ctx(file: GGUFFile, settings: EngineSettings) -> int:
    """The context in positions: what is asked for, at most what the model was trained for."""
    trained = file.metadata.get(f"{file.architecture}.context_length")
    return min(settings.ctx, trained) if isinstance(trained, int) and trained > 0 else settings.ctx


def _shelf(file: GGUFFile, settings: EngineSettings) -> Shelf | None:
    """What keeps some of the experts in memory, where that is wanted."""
    if not settings.expert_cache:
        return None
    from lmhub.shelf import Shelf

    return Shelf(file, settings.expert_cache)


def _cost(claim: Claim, file: GGUFFile, borrow: Borrow) -> Cost:
    """What the family says that loading this file takes, for any context and type of cache."""

    def cost(ctx: int, kv_dtype: str) -> MemoryPlan:
        if claim.family.plan is None:
            return MemoryPlan(file.nbytes, 0, 0)
        options = LoadOptions(n_ctx=ctx, kv_dtype=kv_dtype, borrow=borrow)
        made: MemoryPlan = _resolve(claim.family.plan, claim)(file, options)
        return made

    return cost


def _check_memory(plan: Plan, cost: Cost, settings: EngineSettings) -> None:
    """Refuse what cannot work: memory is given page by page, so that it would end the process amid a reply."""
    if settings.kv_slots_force or plan.committed + plan.per_slot <= plan.available:
        return
    largest, gb = largest_ctx(plan, cost), 1e9
    fix = f"choose a context of at most {largest} (--ctx)" if largest else "choose a smaller model"
    if any(one.flags == LEAN and one.fits for one in plan.fixes):
        fix = f"leave the experts in the file ({LEAN}), which takes less memory and more time"
    raise LmhubError(
        f"{plan.committed / gb:.1f} GB to load it and {plan.per_slot / gb:.1f} GB of cache for one sequence of "
        f"{plan.ctx} positions do not fit into the {plan.available / gb:.1f} GB of memory that are free; {fix}"
    )


def _slug(arch: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", arch.lower()).strip("-")[:40]


def _resolve(reference: str, claim: Claim) -> Callable[..., Any]:
    """The object behind "module:name". Raises PluginError naming the distribution."""
    module, _, name = reference.partition(":")
    try:
        found: Callable[..., Any] = getattr(import_module(module), name)
    except LmhubError:
        raise
    except Exception as error:
        raise PluginError(
            f"{claim.distribution} cannot be loaded: {type(error).__name__}: {error}; reinstall it"
        ) from error
    return found
