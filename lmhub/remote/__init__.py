"""Models of the Hugging Face hub: `ORG/REPO:QUANT` to a file in the cache that its tools share.

    names.py   which files of a repository are one model, and which of them a name means
    cache.py   what is on this machine already; asks nobody
    pull.py    downloads what is missing, in resumable pieces, and checks it

Knows no model format and no command line. Only `pull` needs the package `huggingface_hub` (the extra `hub`).
"""
