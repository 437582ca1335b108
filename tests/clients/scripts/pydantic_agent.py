"""pydantic-ai: an agent with one tool, whole and streamed. Arguments: the server's URL, `chat` or `responses`."""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

url, dialect = sys.argv[1:]
kind = OpenAIResponsesModel if dialect == "responses" else OpenAIChatModel
agent = Agent(kind("local", provider=OpenAIProvider(base_url=url + "/v1", api_key="anything")))


@agent.tool_plain
def read_note(name: str) -> str:
    """Reads a note."""
    with open(name) as file:
        return file.read()


async def watch(_, events):
    """Makes the agent stream."""
    async for _ in events:
        pass


async def main():
    """Both ways to run it."""
    whole = (await agent.run("What do the notes say?")).output
    streamed = (await agent.run("What do the notes say?", event_stream_handler=watch)).output
    assert whole == streamed, (whole, streamed)
    print(whole)


asyncio.run(main())
