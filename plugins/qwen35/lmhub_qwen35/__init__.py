"""Qwen3.5, Qwen3.6 and Ternary-Bonsai 27B for lmhub. Start reading at `model.load`, then `csrc/qwen35.c`.

This module holds records only: nothing heavy is imported before a model is loaded.
"""

from __future__ import annotations

from lmhub import HERMES, XML, Advice, Caps, Family, ThinkMarkers, hookimpl
from lmhub.chat.chatml import THINKING_XML

_THINKING = {"temperature": 1.0, "top_k": 20, "top_p": 0.95}
_PLAIN = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "presence_penalty": 1.5}
_SMALL = {"temperature": 1.0, "top_k": 20, "presence_penalty": 2.0}
_ADVICE = (  # the model cards' values; Bonsai is a Qwen3.6 27B
    Advice(_THINKING, names=r"3\.6.*\b27b|bonsai|3\.8", reasons=True),
    Advice({**_THINKING, "presence_penalty": 1.5}, reasons=True),
    Advice(_SMALL, names=r"(?<![\d.])(0\.8|2)b\b"),
    Advice(_PLAIN),
)


@hookimpl
def lmhub_families() -> list[Family]:
    return [
        Family(
            "qwen35",
            archs=("qwen35", "qwen35moe"),
            load="lmhub_qwen35.model:load",
            plan="lmhub_qwen35.model:plan",
            kernels="lmhub_qwen35._kernels",
            caps=Caps(tools=True, reasoning=True, rewind=False),
            think=ThinkMarkers(),
            tools=(XML, HERMES),
            template=THINKING_XML,
            sampling=_ADVICE,
            doc="Qwen3.5 and 3.6, dense and mixture-of-experts; Ternary-Bonsai 27B",
        )
    ]
