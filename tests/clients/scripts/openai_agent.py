"""OpenAI Agents SDK: an agent with one tool, whole and streamed. Arguments: the server's URL, `chat` or `responses`."""

import asyncio
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from openai import AsyncOpenAI

url, dialect = sys.argv[1:]
kind = OpenAIResponsesModel if dialect == "responses" else OpenAIChatCompletionsModel


@function_tool
def read_note(name: str) -> str:
    """Reads a note."""
    with open(name) as file:
        return file.read()


async def main():
    """Both ways to run it."""
    model = kind("local", AsyncOpenAI(base_url=url + "/v1", api_key="anything", max_retries=0))
    agent = Agent(name="reader", model=model, tools=[read_note])
    whole = (await Runner.run(agent, "What do the notes say?")).final_output
    run = Runner.run_streamed(agent, "What do the notes say?")
    async for _ in run.stream_events():
        pass
    assert whole == run.final_output, (whole, run.final_output)
    print(whole)


asyncio.run(main())
