"""instructor: a word out of a text, by a forced call or a schema. Arguments: the server's URL, and a mode."""

import sys

import anthropic
import instructor
import openai
from pydantic import BaseModel

url, mode = sys.argv[1:]


class Note(BaseModel):
    """What a note says."""

    word: str


if mode == "anthropic":
    client = instructor.from_anthropic(anthropic.Anthropic(base_url=url, api_key="anything"))
else:
    client = instructor.from_openai(openai.OpenAI(base_url=url + "/v1", api_key="anything"), mode=instructor.Mode[mode])
with open("note.txt") as file:
    note = client.chat.completions.create(
        model="local",
        max_tokens=1000,
        max_retries=0,
        messages=[{"role": "user", "content": file.read()}],
        response_model=Note,
    )
assert isinstance(note, Note)
print(note.word)
