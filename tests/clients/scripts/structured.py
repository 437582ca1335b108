"""Objects out of a text. Arguments: the server's URL, the library, its dialect, and how it is to ask."""

import sys

from pydantic import BaseModel

url, library, dialect, method = sys.argv[1:]


class Note(BaseModel):
    """What a note says."""

    word: str


def langchain(text):
    """`with_structured_output`, by a schema or by a forced call."""
    if dialect == "anthropic":
        from langchain_anthropic import ChatAnthropic

        chat = ChatAnthropic(model="local", base_url=url, api_key="anything", max_tokens=1000)
    else:
        from langchain_openai import ChatOpenAI

        own = dialect == "responses"
        chat = ChatOpenAI(model="local", base_url=url + "/v1", api_key="anything", use_responses_api=own)
    return chat.with_structured_output(Note, method=method).invoke(text)


def pydantic_ai(text):
    """An agent with an output type."""
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIResponsesModel if dialect == "responses" else OpenAIChatModel
    model = kind("local", provider=OpenAIProvider(base_url=url + "/v1", api_key="anything"))
    output = NativeOutput(Note) if method == "native" else ToolOutput(Note)
    return Agent(model, output_type=output).run_sync(text).output


with open("note.txt") as file:
    note = {"langchain": langchain, "pydantic_ai": pydantic_ai}[library](file.read())
assert isinstance(note, Note), note
print(note.word)
