"""How byte-level BPE vocabularies cut text into pieces before merging, by the file's `tokenizer.ggml.pre`.

Merges never cross a piece. The expressions are in the dialect of the `tokenizers` package (Oniguruma), applied one
after the other, each to the pieces that the previous ones left; text between two matches is a piece as well.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

_log = logging.getLogger(__name__)

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Case-aware words: an optional sign, capitals, small letters; letters without case count as both.
_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _words(letters: str, digits: str) -> str:
    return (
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}"
        rf"| ?[^\s{letters}\p{{N}}]+[\r\n]*|{_SPACES}"
    )


def _cased(digits: str, line_ends: str, suffix: str = "", exclude: str = "") -> str:
    upper, lower = f"[{_UPPER}{exclude}]", f"[{_LOWER}{exclude}]"
    sign = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{sign}{upper}*{lower}+{suffix}|{sign}{upper}+{lower}*{suffix}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[{line_ends}]*|{_SPACES}"
    )


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way of cutting text.

    `nfc`: text is brought to Unicode normal form C first. `whole_words`: a piece that is a vocabulary entry is taken as
    it is, without merging. `add_bos`: what an absent `tokenizer.ggml.add_bos_token` means.
    """

    expressions: tuple[str, ...]
    nfc: bool = False
    whole_words: bool = False
    add_bos: bool = False


_QWEN2 = _words(r"\p{L}", r"\p{N}")
_QWEN35 = _words(r"\p{L}\p{M}", r"\p{N}")
_LLAMA3 = _words(r"\p{L}", r"\p{N}{1,3}")
_DIGIT_THEN_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_WHOLE = PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True)
_O200K = PreTokenizer((_cased(r"\p{N}{1,3}", r"\r\n/", suffix=f"{_CONTRACTION}?"),))
_KIMI_WORDS = _cased(r"\p{N}{1,3}", r"\r\n", suffix=f"{_CONTRACTION}?", exclude=r"&&[^\p{Han}]")
# Possessive where it matters: a sign that stands before letters is never given back to the next alternative.
_NANOCHAT = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

_BY_NAME: dict[str, PreTokenizer] = {
    "default": DEFAULT,
    "qwen2": PreTokenizer((_QWEN2,), nfc=True),
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    **dict.fromkeys(("deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2"), PreTokenizer((_QWEN2,))),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral"), _LLAMA3_WHOLE),
    **dict.fromkeys(("smaug-bpe", "dbrx", "chatglm-bpe", "glm4"), PreTokenizer((_LLAMA3,))),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais"), PreTokenizer((_GPT2,))),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _DIGIT_THEN_GPT2),
    "tekken": PreTokenizer((_cased(r"\p{N}", r"\r\n/"),), whole_words=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "inkling"), _O200K),
    "nanochat": PreTokenizer((_NANOCHAT,), whole_words=True, add_bos=True),
    "kimi-k2": PreTokenizer((r"\p{Han}+|" + _KIMI_WORDS,), whole_words=True),
}  # fmt: skip


def pre_tokenizer(name: str) -> PreTokenizer:
    """The rule of this name; for an unknown one a warning, and `default`."""
    found = _BY_NAME.get(name)
    if found is None:
        _log.warning(
            "tokenizer.ggml.pre is %s, which is unknown here: text is cut by the rule 'default', so that token ids may "
            "differ from those the model was trained on (known: %s).",
            repr(name) if name else "absent",
            ", ".join(sorted(_BY_NAME)),
        )
        return DEFAULT
    return found
