"""The hub in a program of your own: two requests at once on one model. python examples/hub.py MODEL.gguf"""

import asyncio
import sys

from lmhub import Hub
from lmhub.settings import EngineSettings
from lmhub.types import ChatRequest, Finish, Message, Text, TextDelta


async def ask(hub: Hub, model: str, question: str) -> str:
    """The whole answer of a served model."""
    served = hub.acquire(model)
    request = ChatRequest((Message("user", (Text(question),)),), max_tokens=50, sampling={"seed": 1})
    [generation] = hub.prepare(served, request, id=question)  # one for each of `n` choices
    text = ""
    async for event in hub.generate(served, generation):
        match event:
            case TextDelta(piece):
                text += piece
            case Finish(reason, usage):
                text += f"\n[{reason} after {usage.completion_tokens} tokens]"
    return text


async def main(path: str) -> None:
    hub = Hub()  # finds the installed plugins
    served = hub.load(path, EngineSettings(ctx=1024, batch=2))
    try:
        print("serving", served.model.id, "by", served.model.distribution)
        questions = ("Why is the sky blue?", "Why is grass green?")
        for answer in await asyncio.gather(*(ask(hub, served.model.id, question) for question in questions)):
            print(answer)
    finally:
        hub.close(grace_s=1.0)


asyncio.run(main(sys.argv[1]))
