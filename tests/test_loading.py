"""What `Hub.load` refuses although every part of the file is sound by itself, and what it merely mentions."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmhub.errors import LmhubError, ModelFileError
from lmhub.gguf import open_gguf
from lmhub.hub import Hub
from lmhub.settings import EngineSettings
from lmhub.testing.rewrite import rewrite
from lmhub.testing.tiny import decoder, write


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


def test_a_cache_larger_than_memory_is_refused_before_it_is_made(hub: Hub, tmp_path: Path) -> None:
    path = write(tmp_path / "wide.gguf", decoder("qwen3", qk_norm=True, n_ctx=1 << 31))
    with pytest.raises(LmhubError, match=r"^wide\.gguf: .* sequence of 2147483648 positions do not fit .* \(--ctx\)"):
        hub.load(path, EngineSettings(ctx=1 << 40))
    assert not hub.models
    assert hub.load(path, EngineSettings(ctx=64)).model.n_ctx == 64


def test_a_file_that_is_open_already_is_used_as_it_is(hub: Hub, tmp_path: Path) -> None:
    path = write(tmp_path / "open.gguf", decoder("qwen3", qk_norm=True))
    with open_gguf(path) as file:
        served = hub.load(file, EngineSettings(ctx=64))
        assert served.model.id == "open"
        assert served.model.metadata is file.metadata
        hub.close()


def test_a_broken_tokenizer_and_a_broken_model_are_told_of_as_the_model_s(hub: Hub, tmp_path: Path) -> None:
    broken = decoder("qwen3", qk_norm=True).with_tensors({}, removed=("blk.0.attn_q.weight",))
    with open_gguf(write(tmp_path / "tiny.gguf", broken)) as file:
        path = rewrite(file, tmp_path / "both.gguf", metadata={"tokenizer.ggml.model": "of nobody"})
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q\.weight is missing"):
        hub.load(path, EngineSettings(ctx=64))


def test_more_tokens_than_rows_are_refused(hub: Hub, tmp_path: Path) -> None:
    tiny = decoder("qwen3", qk_norm=True)
    shape = {"token_embd.weight": (288, 64)}
    with open_gguf(write(tmp_path / "tiny.gguf", tiny.with_tensors(shape))) as file:
        vocabulary = {key: file.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type")}
        more: dict[str, Any] = {
            "tokenizer.ggml.tokens": [*vocabulary["tokens"], "one more"],
            "tokenizer.ggml.token_type": [*vocabulary["token_type"], 1],
        }
        path = rewrite(file, tmp_path / "more.gguf", metadata=more)
    with pytest.raises(ModelFileError, match=r"^more\.gguf: the vocabulary has 289 tokens, but .* holds 288"):
        hub.load(path, EngineSettings(ctx=64))


def test_the_tokenizer_s_complaint_names_the_file(hub: Hub, tmp_path: Path) -> None:
    with open_gguf(write(tmp_path / "tiny.gguf", decoder("qwen3", qk_norm=True))) as file:
        path = rewrite(file, tmp_path / "mute.gguf", drop=("tokenizer.ggml.merges",))
    with pytest.raises(ModelFileError, match=r"^mute\.gguf: tokenizer\.ggml\.merges is missing"):
        hub.load(path, EngineSettings(ctx=64))


@pytest.mark.parametrize(
    ("key", "value"), [("top_k", math.inf), ("top_k", 1 << 40), ("temp", math.nan), ("temp", "hot"), ("top_p", -1.0)]
)
def test_sampling_that_is_out_of_bounds_is_left_out_with_a_warning(
    key: str, value: object, hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("lmhub"), "propagate", True)
    tiny = decoder("qwen3", qk_norm=True)
    sound = hub.load(write(tmp_path / "tiny.gguf", tiny), EngineSettings(ctx=64)).model.sampling
    with open_gguf(tmp_path / "tiny.gguf") as file:
        path = rewrite(file, tmp_path / "odd.gguf", metadata={f"general.sampling.{key}": value})
    assert hub.load(path, EngineSettings(ctx=64)).model.sampling == sound
    assert f"general.sampling.{key} is " in caplog.text
