"""Perplexity of a text, and the likeliest next tokens: python examples/logits.py MODEL.gguf "Some text" """

import sys

import numpy as np

import lmhub

path, *words = sys.argv[1:]
text = " ".join(words) or "The quick brown fox jumps over the lazy"
with lmhub.open(path) as model:
    ids = model.tokenize(text)
    logits = model.logits(ids).astype(np.float64)  # (len(ids), n_vocab): row i predicts what follows ids[i]
    logprobs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    if len(ids) > 1:
        nll = -logprobs[np.arange(len(ids) - 1), ids[1:]].mean()
        print(f"perplexity {np.exp(nll):.2f} over {len(ids) - 1} tokens")
    for token in np.argsort(-logprobs[-1])[:5]:
        known = token < len(model.metadata["tokenizer.ggml.tokens"])
        name = model.detokenize([token], special=True) if known else "(padding)"
        print(f"{np.exp(logprobs[-1, token]):7.2%}  {token:6}  {name!r}")
