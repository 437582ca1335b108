"""LiteLLM: two turns with a tool. Arguments: the server's URL, the provider's prefix and the path behind the URL."""

import json
import sys

import litellm

url, prefix, path = sys.argv[1:]
tools = [
    {
        "type": "function",
        "function": {
            "name": "read_note",
            "description": "Reads a note.",
            "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        },
    }
]
messages: list = [{"role": "user", "content": "What do the notes say?"}]


def ask(**more):
    """The whole message, once streamed and once not."""
    answer = litellm.completion(
        model=f"{prefix}/local",
        api_base=url + path,
        api_key="anything",
        messages=messages,
        tools=tools,
        max_tokens=500,
        **more,
    )
    return litellm.stream_chunk_builder(list(answer)) if more else answer


first = ask(stream=True).choices[0].message
messages.append(first.model_dump())
for call in first.tool_calls:
    assert call.function.name == "read_note", call
    with open(json.loads(call.function.arguments)["name"]) as file:
        messages.append({"role": "tool", "tool_call_id": call.id, "content": file.read()})
second = ask()
assert second.usage.prompt_tokens > 0 and second.choices[0].finish_reason == "stop", second
print(second.choices[0].message.content)
