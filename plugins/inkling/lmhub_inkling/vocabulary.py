"""The vocabulary of an inkling file, without the padding behind the last token, for which there are no logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmhub.tokenize import Tokenizer, load_tokenizer

PER_TOKEN = ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type")


def tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Raises ModelFileError for a damaged vocabulary."""
    n_vocab = metadata.get("inkling.unpadded_vocab_size")
    if not isinstance(n_vocab, int) or n_vocab <= 0:
        return load_tokenizer(metadata)
    cut = {name: metadata[name][:n_vocab] for name in PER_TOKEN if isinstance(metadata.get(name), list)}
    return load_tokenizer({**metadata, **cut})
