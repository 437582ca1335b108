"""The official OpenAI client against `lmhub serve`: python examples/openai_client.py http://127.0.0.1:8080/v1"""

import os
import sys

from openai import OpenAI

base_url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"
client = OpenAI(base_url=base_url, api_key=os.environ.get("LMHUB_API_KEY", "none"))

model = client.models.list().data[0].id
messages = [{"role": "user", "content": "Say hello."}]

whole = client.chat.completions.create(model=model, messages=messages, max_tokens=50, seed=1)
print(model, "answers:", whole.choices[0].message.content)
print("finish:", whole.choices[0].finish_reason, "tokens:", whole.usage.completion_tokens)

stream = client.chat.completions.create(model=model, messages=messages, max_tokens=50, seed=1, stream=True)
for chunk in stream:
    if chunk.choices and chunk.choices[0].delta.content:
        print(chunk.choices[0].delta.content, end="", flush=True)
print()
