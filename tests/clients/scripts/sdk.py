"""The official SDKs: streamed calls, then an answer. Arguments: the URL, `chat`, `responses` or `anthropic`."""

import json
import sys

url, dialect = sys.argv[1:]
QUESTION = "What do the notes say?"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ABOUT = {"name": "read_note", "description": "Reads a note."}


def read_note(name):
    """What the tool does."""
    with open(name) as file:
        return file.read()


def chat(client):
    """Chat Completions."""
    asked = {"model": "local", "tools": [{"type": "function", "function": {**ABOUT, "parameters": SCHEMA}}]}
    messages = [{"role": "user", "content": QUESTION}]
    with client.chat.completions.stream(messages=messages, **asked) as stream:
        choice = stream.until_done().get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls", choice
    messages.append(choice.message.model_dump(exclude_none=True))
    for call in choice.message.tool_calls:
        content = read_note(json.loads(call.function.arguments)["name"])
        messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    return client.chat.completions.create(messages=messages, **asked).choices[0].message.content


def responses(client):
    """Responses, the second request on top of the stored first one."""
    asked = {"model": "local", "tools": [{"type": "function", **ABOUT, "parameters": SCHEMA}]}
    with client.responses.stream(input=QUESTION, **asked) as stream:
        first = stream.until_done().get_final_response()
    calls = [item for item in first.output if item.type == "function_call"]
    results = [
        {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": read_note(json.loads(call.arguments)["name"]),
        }
        for call in calls
    ]
    return client.responses.create(input=results, previous_response_id=first.id, **asked).output_text


def messages(client):
    """Anthropic Messages."""
    asked = {"model": "local", "max_tokens": 1000, "tools": [{**ABOUT, "input_schema": SCHEMA}]}
    turns = [{"role": "user", "content": QUESTION}]
    assert client.messages.count_tokens(model="local", messages=turns, tools=asked["tools"]).input_tokens > 0
    with client.messages.stream(messages=turns, **asked) as stream:
        first = stream.get_final_message()
    assert first.stop_reason == "tool_use", first
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": read_note(**block.input)}
        for block in first.content
        if block.type == "tool_use"
    ]
    turns += [{"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    return "".join(
        block.text for block in client.messages.create(messages=turns, **asked).content if block.type == "text"
    )


if dialect == "anthropic":
    import anthropic

    print(messages(anthropic.Anthropic(base_url=url, api_key="anything", max_retries=0)))
else:
    import openai

    client = openai.OpenAI(base_url=url + "/v1", api_key="anything", max_retries=0)
    print({"chat": chat, "responses": responses}[dialect](client))
