"""What a model file is, as one dictionary: the single source of `lmhub show` and of the start-up summary.

Reads metadata and the tensor directory only. Works for every sound file, whether its family is installed or not.
"""

from __future__ import annotations

import hashlib
from typing import Any

from lmhub.errors import LmhubError
from lmhub.gguf import GGUFFile
from lmhub.hub import Hub
from lmhub.settings import EngineSettings


def describe(file: GGUFFile, hub: Hub, settings: EngineSettings) -> dict[str, Any]:
    """Everything about `file`, JSON-ready. Sizes in bytes; text comes from the file and is not to be trusted."""
    facts = file.facts()
    return {
        "file": str(file.path),
        "parts": len(file.paths),
        "gguf_version": file.version,
        "bytes": file.nbytes,
        "architecture": file.architecture,
        "name": file.get("general.name"),
        "parameters": facts.n_params,
        "tensors": facts.n_tensors,
        "quantization": [
            {
                "type": name,
                "tensors": share.n_tensors,
                "parameters": share.n_params,
                "bytes": share.nbytes,
                "bits_per_weight": round(8 * share.nbytes / share.n_params, 2) if share.n_params else None,
            }
            for name, share in facts.types.items()
        ],
        "context": _whole(file.get(f"{file.architecture}.context_length")),
        "template": _template(file.get("tokenizer.chat_template")),
        "tokenizer": _tokenizer(file),
        "served_by": _served_by(file, hub),
        "memory": _memory(file, hub, settings),
    }


def mix(description: dict[str, Any]) -> str:
    """The quantisation mix in one line, by share of the bytes: "Q8_0 100 %, F32 0.1 %"."""
    total = sum(share["bytes"] for share in description["quantization"]) or 1
    return ", ".join(f"{share['type']} {100 * share['bytes'] / total:.3g} %" for share in description["quantization"])


def _template(template: Any) -> dict[str, Any] | None:
    if not isinstance(template, str) or not template:
        return None
    digest = hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest()
    return {"characters": len(template), "sha256": digest, "first_lines": template.splitlines()[:3]}


def _tokenizer(file: GGUFFile) -> dict[str, Any] | None:
    tokens = file.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        return None

    def named(key: str) -> dict[str, Any] | None:
        token = _whole(file.get(f"tokenizer.ggml.{key}_token_id"))
        if token is None:
            return None
        return {"id": token, "text": tokens[token] if 0 <= token < len(tokens) else None}

    return {
        "model": file.get("tokenizer.ggml.model"),
        "pre": file.get("tokenizer.ggml.pre"),
        "tokens": len(tokens),
        "bos": named("bos"),
        "eos": named("eos"),
        "add_bos": file.get("tokenizer.ggml.add_bos_token"),
    }


def _served_by(file: GGUFFile, hub: Hub) -> dict[str, Any]:
    try:
        claim = hub.claim_for(file)
    except LmhubError as error:
        return {"plugin": None, "problem": str(error)}
    info = hub.plugins.infos[claim.plugin]
    return {
        "plugin": claim.plugin,
        "distribution": info.distribution,
        "version": info.version,
        "family": claim.family.name,
    }


def _memory(file: GGUFFile, hub: Hub, settings: EngineSettings) -> dict[str, Any]:
    try:
        return hub.plan(file, settings).as_dict()
    except LmhubError as error:
        return {"problem": str(error)}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
