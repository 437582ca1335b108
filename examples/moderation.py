"""A plugin that wraps every reply: words that are not to be said are refused in prompts and blotted out in answers."""

import re

from lmhub import hookimpl
from lmhub.errors import RequestError
from lmhub.types import ChatRequest, Text, TextDelta

BANNED = ("swordfish", "open sesame")
PATTERN = re.compile("|".join(map(re.escape, BANNED)), re.IGNORECASE)
HELD = max(map(len, BANNED)) - 1  # letters that may be the beginning of one


@hookimpl
def lmhub_validate(model, request):
    if isinstance(request, ChatRequest):
        said = "\n".join(part.text for one in request.messages for part in one.parts if isinstance(part, Text))
        if found := PATTERN.search(said):
            raise RequestError(f"{found[0]!r} is not to be said here; ask for something else.", param="messages")


@hookimpl(wrapper=True)
def lmhub_generate(model, request):
    return moderated((yield))  # what the core, or a plugin that answers before it, gives


async def moderated(events):
    held = ""
    async for event in events:
        if isinstance(event, TextDelta):
            held = PATTERN.sub("[...]", held + event.text)
            cut = max(0, len(held) - HELD)
            yield TextDelta(held[:cut], event.logprobs)
            held = held[cut:]
            continue
        if held:  # the text is over: something else comes, or the end
            yield TextDelta(held)
            held = ""
        yield event
