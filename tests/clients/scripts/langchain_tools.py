"""LangChain: streamed calls, then an answer. Arguments: the server's URL, and `chat`, `responses` or `anthropic`."""

import sys

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool

url, dialect = sys.argv[1:]


@tool
def read_note(name: str) -> str:
    """Reads a note."""
    with open(name) as file:
        return file.read()


def model():
    """The chat model of the dialect."""
    if dialect == "anthropic":
        from langchain_anthropic import ChatAnthropic

        return ChatAnthropic(model="local", base_url=url, api_key="anything", max_tokens=1000)
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model="local",
        base_url=url + "/v1",
        api_key="anything",
        use_responses_api=dialect == "responses",
        stream_usage=True,
    )


chat = model().bind_tools([read_note])
messages = [HumanMessage("What do the notes say?")]
first = None
for chunk in chat.stream(messages):
    first = chunk if first is None else first + chunk
assert first.usage_metadata["input_tokens"] > 0, first
messages += [first, *(read_note.invoke(call) for call in first.tool_calls)]
second = chat.invoke(messages)
assert not second.tool_calls, second
print(second.text)
