"""A model file's chat template: compiled once, rendered within bounds, with every character's author known.

The language is jinja2 as `transformers` sets it up for chat templates, in an immutable sandbox. Limits are in `budget`,
what a template can reach is in `operations`. This file knows nothing of messages or tokens: it takes variables and
gives text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

import jinja2
from jinja2.exceptions import TemplateError
from jinja2.runtime import Context, LoopContext, Macro, TemplateReference, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from lmhub.chat import operations
from lmhub.chat.budget import MAX_SOURCE, MAX_TEXT, MAX_WORK, TooMuchWork, budget, fit_text, spend, weigh, weigh_deeply
from lmhub.chat.compiler import GenerationTag, MeteredCodeGenerator
from lmhub.chat.traced import Traced, joined
from lmhub.errors import ModelFileError, RequestError

_OPEN_TYPES = (Namespace, LoopContext, Macro, TemplateReference, Undefined)

_MACRO_UNITS = 100  # what jinja needs to enter and leave a macro


class TemplateRefused(RequestError):
    """The template itself says no to this conversation; another arrangement of the messages may pass."""


class PromptEnvironment(ImmutableSandboxedEnvironment):
    """jinja's sandbox with nothing in it but `operations`. The generated code calls the methods below."""

    code_generator_class = MeteredCodeGenerator
    intercepted_binops = frozenset(operations.BINARY)
    concat = staticmethod(operations.concatenated)  # type: ignore[assignment]
    shown = staticmethod(operations.shown)
    contains = staticmethod(operations.contains)
    cut = staticmethod(operations.cut)
    spend = staticmethod(spend)
    weigh_deeply = staticmethod(weigh_deeply)

    def __init__(self, now: Callable[[], datetime]):
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag], optimized=False
        )
        self.literals: list[Traced] = []
        self.filters = dict(operations.FILTERS)
        self.tests = dict(operations.TESTS)
        self.globals = {**operations.globals_for(now), "raise_exception": _raise}
        self.binop_table = dict(operations.BINARY)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute`."""
        if isinstance(obj, dict):
            if attribute in obj and attribute not in operations.OTHER_METHODS[dict]:
                return obj[attribute]
        elif isinstance(obj, Namespace | LoopContext):
            if attribute[0] != "_" and (value := getattr(obj, attribute, obj)) is not obj:
                return value
        elif isinstance(obj, str):
            return self._text_method(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """`obj[argument]`."""
        if isinstance(obj, str) and isinstance(argument, str):
            return self._text_method(obj, argument)
        return super().getitem(obj, argument)

    def _text_method(self, text: str, name: str) -> Any:
        if name in operations.TEXT_METHODS:
            return getattr(text, name)
        if name in operations.BOUNDED_TEXT_METHODS:
            return partial(operations.BOUNDED_TEXT_METHODS[name], text)
        if hasattr(text, name):
            return self.unsafe_undefined(text, name)
        return self.undefined(obj=text, name=name)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may reach `obj.attr`."""
        for kind, names in operations.OTHER_METHODS.items():
            if isinstance(obj, kind):
                return attr in names
        return isinstance(obj, _OPEN_TYPES) and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """`obj(...)`."""
        if isinstance(__obj, Macro | LoopContext):
            spend(_MACRO_UNITS)
        weigh(getattr(__obj, "__self__", None))
        for value in args:
            weigh(value)
        return super().call(__context, __obj, *args, **kwargs)


class ChatTemplate:
    """One compiled template. It holds no state between renderings and may be used from several threads."""

    def __init__(self, source: str, *, now: Callable[[], datetime] = datetime.now):
        """Raises ModelFileError for a template that is too long or does not compile. `now` is the template's clock."""
        if len(source) > MAX_SOURCE:
            raise ModelFileError(
                f"the chat template is {len(source)} characters long and the limit is {MAX_SOURCE}; "
                "use a file with a shorter template"
            )
        environment = PromptEnvironment(now)
        try:
            self._template = environment.from_string(source)
        except Exception as error:  # whatever a hostile source makes the compiler raise
            raise ModelFileError(f"the chat template does not compile ({_told(error)}); use another file") from error
        self._environment = environment
        self._source = source
        self.globals = frozenset(environment.globals)

    def mentions(self, name: str) -> bool:
        """Whether the source speaks of a variable of that name."""
        return re.search(rf"\b{re.escape(name)}\b", self._source) is not None

    def render(self, variables: Mapping[str, Any], work: int = MAX_WORK) -> str:
        """The text that the template makes of `variables`; `traced.segments` tells its markup from everything else.

        Raises TemplateRefused with the template's own message if it raises, RequestError if it does more than `work`.
        """
        context = self._template.new_context(dict(variables))
        try:
            with budget(work):
                return _gathered(self._template.root_render_func(context))
        except TooMuchWork as error:
            raise RequestError(
                f"the model's chat template does not come to an end within its limits: {error}; "
                "shorten the conversation or use the completions API",
                param="messages",
            ) from None
        except (RecursionError, MemoryError) as error:
            raise RequestError(
                f"the model's chat template does not come to an end within its limits: {type(error).__name__}; "
                "use the completions API or a file with a sound template",
                param="messages",
            ) from None
        except Exception as error:  # templates raise whatever Python's operators raise
            refusal = f"the model's chat template refused the conversation: {_told(error)}"
            raise TemplateRefused(refusal, param="messages") from error


def _gathered(pieces: Iterable[str]) -> str:
    parts, length = [], 0
    for piece in pieces:
        length += len(piece)
        if length > MAX_TEXT:
            fit_text(length)
        parts.append(piece)
    fit_text(length)
    return joined(parts)


def _raise(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _told(error: Exception) -> str:
    """What an error says, in one line that no terminal obeys: the words are those of whoever made the file."""
    message = (error.message if isinstance(error, TemplateError) else None) or str(error) or type(error).__name__
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in " ".join(message[:1000].split()))
