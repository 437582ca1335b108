"""Tokenizers from GGUF metadata: `load_tokenizer(metadata)` gives a `Tokenizer`; `Utf8Stream` decodes a reply's bytes.

Input is the plain mapping of `tokenizer.ggml.*` keys; nothing here opens files or knows a model family.
"""

from lmhub.tokenize.stream import Utf8Stream
from lmhub.tokenize.tokenizer import Encoder, Tokenizer, load_tokenizer
from lmhub.tokenize.vocabulary import TokenType, Vocabulary

__all__ = ["Encoder", "TokenType", "Tokenizer", "Utf8Stream", "Vocabulary", "load_tokenizer"]
