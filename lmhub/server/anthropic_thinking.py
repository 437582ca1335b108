"""Signatures of thinking blocks: opaque to clients, which carry them from a reply into the history of the next request.

Nothing here is a secret: a signature says who wrote a block, and nobody checks it, because histories come from other
servers as well. One job it has: where a client asked not to be shown the thinking, the signature holds it, so that the
model gets it back when the client replays the block.
"""

from __future__ import annotations

import base64
import binascii
import hmac

_SEAL = "lmhub1."


def signature(thinking: str, author: str) -> str:
    """Base64 of HMAC-SHA256 over the block's text, under the fingerprint of the model that wrote it."""
    return base64.b64encode(hmac.digest(author.encode(), thinking.encode(), "sha256")).decode()


def sealed(thinking: str, author: str) -> str:
    """A signature that holds the text itself."""
    return f"{_SEAL}{base64.urlsafe_b64encode(thinking.encode()).decode()}.{signature(thinking, author)}"


def unsealed(given: str) -> str:
    """The text that `sealed` put into a signature; empty for every other signature."""
    if not given.startswith(_SEAL):
        return ""
    payload = given.removeprefix(_SEAL).partition(".")[0]
    try:
        return base64.urlsafe_b64decode(payload).decode()
    except (binascii.Error, ValueError):
        return ""
