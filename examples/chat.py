"""A conversation in a few lines: python examples/chat.py MODEL.gguf "First question" "Second question"."""

import sys

import lmhub
from lmhub.types import ReasoningDelta, TextDelta

path, *questions = sys.argv[1:]
with lmhub.open(path, ctx=4096) as model:
    messages = [{"role": "system", "content": "Answer briefly."}]
    for question in questions or ["What is a GGUF file?"]:
        print(f"> {question}")
        messages.append({"role": "user", "content": question})
        answer = ""
        for event in model.stream(messages, max_tokens=200, temperature=0.7, seed=1):
            match event:
                case TextDelta(text):
                    answer += text
                    print(text, end="", flush=True)
                case ReasoningDelta(text):
                    print(text, end="", flush=True, file=sys.stderr)
        messages.append({"role": "assistant", "content": answer})
        print()
