"""The vocabulary of an inkling file, without the padding behind the last token, for which there are no logits.

A reply ends, beside the token that the file names, where somebody else's turn would begin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmhub.tokenize import Tokenizer, load_tokenizer

OTHERS = ("<|message_user|>", "<|message_system|>", "<|message_tool|>")
PER_TOKEN = ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type")


def tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Raises ModelFileError for a damaged vocabulary."""
    n_vocab = metadata.get("inkling.unpadded_vocab_size") or None
    known = {name: metadata[name] for name in PER_TOKEN if isinstance(metadata.get(name), list)}
    if isinstance(n_vocab, int):
        known = {name: values[:n_vocab] for name, values in known.items()}
    tokens = known.get("tokenizer.ggml.tokens", [])
    ends = [tokens.index(text) for text in OTHERS if text in tokens]
    return load_tokenizer({**metadata, **known, "tokenizer.ggml.eot_token_id": ends})
