"""Tokenizer and template as a service, in llama.cpp's shapes and vLLM's: /tokenize, /detokenize, /apply-template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from lmhub.dialect import Dialect
from lmhub.errors import RequestError
from lmhub.loaded import LoadedModel
from lmhub.server.fields import honoured
from lmhub.server.generate import with_defaults
from lmhub.server.json_body import convert, decode_object
from lmhub.server.names import Names
from lmhub.server.resolve import resolved
from lmhub.server.wire import to_json
from lmhub.settings import ServerSettings
from lmhub.tokenize import Tokenizer


class TokenizeBody(msgspec.Struct):
    """llama.cpp sends `content`, vLLM `prompt` or `messages`."""

    content: str | list[Any] | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    model: str | None = None


class DetokenizeBody(msgspec.Struct):
    """The ids to be written as text."""

    tokens: list[int]
    model: str | None = None


TOKENIZE_FIELDS = (
    honoured("content", "a text, or texts and ids mixed (llama.cpp)"),
    honoured("add_special", "whether the prompt's own first token comes first; false"),
    honoured("parse_special", "whether markers in the text are; true"),
    honoured("with_pieces", "each token as its id and its text, or bytes where they are no text"),
    honoured("prompt", "a text (vLLM)"),
    honoured("messages", "a conversation, with the other fields of Chat Completions (vLLM)"),
    honoured("add_special_tokens", "as `add_special`, for `prompt`; true"),
    honoured("return_token_strs", "the tokens' texts as well, for `prompt` and `messages`"),
    honoured("model", "picks the model where several are served"),
)
DETOKENIZE_FIELDS = (
    honoured("tokens", "token ids"),
    honoured("model", "picks the model where several are served"),
)


class TokenService:
    """The three answers. `chat` parses conversations. They may take as long as a tokenizer takes."""

    def __init__(self, names: Names, chat: Dialect, settings: ServerSettings):
        self._names, self._chat, self._settings = names, chat, settings

    @property
    def routes(self) -> dict[str, Callable[[bytes], bytes]]:
        """Path -> body to answer."""
        return {
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
            "/apply-template": self.apply_template,
        }

    def tokenize(self, body: bytes) -> bytes:
        """Text to ids. Raises RequestError."""
        fields = convert(decode_object(body), TokenizeBody)
        model = self._names.served(fields.model).model
        if fields.content is not None:
            return to_json({"tokens": _llama_tokens(fields, model.tokenizer)})
        if fields.messages is not None:
            ids = self._prompt(body)
        elif fields.prompt is not None:
            ids = tuple(model.tokenizer.encode(fields.prompt, special=True))
            ids = ids if fields.add_special_tokens is False else tuple(model.tokenizer.with_bos(ids))
        else:
            raise RequestError("content is missing: the text to be tokenized", "content")
        strings = [_shown(model.tokenizer, id).decode(errors="replace") for id in ids]
        texts = strings if fields.return_token_strs else None
        return to_json({"count": len(ids), "max_model_len": model.n_ctx, "tokens": ids, "token_strs": texts})

    def detokenize(self, body: bytes) -> bytes:
        """Ids to text. Raises RequestError."""
        fields = convert(decode_object(body), DetokenizeBody)
        tokenizer = self._names.served(fields.model).model.tokenizer
        _check_ids(fields.tokens, tokenizer)
        text = tokenizer.decode(fields.tokens, special=True)
        return to_json({"content": text, "prompt": text})

    def apply_template(self, body: bytes) -> bytes:
        """A conversation as the model reads it. Raises what a chat request would."""
        ids = self._prompt(body)
        tokenizer = self._names.served(self._chat.parse(body).model).model.tokenizer
        return to_json({"prompt": tokenizer.decode(ids, special=True)})

    def _prompt(self, body: bytes) -> tuple[int, ...]:
        request = self._chat.parse(body)
        model: LoadedModel = self._names.served(request.model).model
        request = resolved(with_defaults(request, model, self._settings), model)
        return model.prepare(request, "prompt")[0].prompt


def _llama_tokens(fields: TokenizeBody, tokenizer: Tokenizer) -> list[Any]:
    special = fields.parse_special is not False
    parts = [fields.content] if isinstance(fields.content, str) else fields.content or []
    ids: list[int] = []
    for part in parts:
        if isinstance(part, str):
            ids += tokenizer.encode(part, special=special)
        elif isinstance(part, int) and not isinstance(part, bool):
            ids.append(part)
        else:
            raise RequestError("content must be a text, or an array of texts and token ids", "content")
    _check_ids(ids, tokenizer)
    ids = tokenizer.with_bos(ids) if fields.add_special else ids
    if not fields.with_pieces:
        return ids
    return [{"id": id, "piece": _piece(_shown(tokenizer, id))} for id in ids]


def _shown(tokenizer: Tokenizer, token: int) -> bytes:
    return tokenizer.token_text(token).encode() if tokenizer.is_control(token) else tokenizer.piece(token)


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def _check_ids(ids: list[int], tokenizer: Tokenizer) -> None:
    for id in ids:
        if not 0 <= id < tokenizer.n_vocab:
            last = tokenizer.n_vocab - 1
            raise RequestError(f"token {id} is not in the vocabulary, whose ids are 0 to {last}", "tokens")
