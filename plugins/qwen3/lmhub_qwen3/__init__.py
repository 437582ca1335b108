"""Qwen3, dense and mixture-of-experts, for lmhub. Start reading at `model.load`, then `csrc/qwen3.c`.

This module holds records only: nothing heavy is imported before a model is loaded.
"""

from __future__ import annotations

from pathlib import Path

from lmhub import HERMES, XML, Advice, Caps, Family, ThinkMarkers, hookimpl
from lmhub.chat.chatml import THINKING

_PLAIN = {"temperature": 0.7, "top_k": 20, "top_p": 0.8}
_ADVICE = (  # the model cards' values
    Advice({**_PLAIN, "repeat_penalty": 1.05}, names="coder"),
    Advice({"temperature": 0.6, "top_k": 20, "top_p": 0.95}, reasons=True),
    Advice(_PLAIN),
)


@hookimpl
def lmhub_families() -> list[Family]:
    return [
        Family(
            "qwen3",
            archs=("qwen3", "qwen3moe"),
            load="lmhub_qwen3.model:load",
            plan="lmhub_qwen3.model:plan",
            kernels="lmhub_qwen3._kernels",
            caps=Caps(tools=True, reasoning=True),
            think=ThinkMarkers(),
            tools=(XML, HERMES),
            template=THINKING,
            sampling=_ADVICE,
            doc="Qwen3 0.6B to 235B, dense and mixture-of-experts",
        )
    ]


@hookimpl
def lmhub_models() -> dict[str, Path]:
    demo = Path(__file__).with_name("demo.gguf")  # a distributor may leave it out
    return {"demo": demo} if demo.is_file() else {}
