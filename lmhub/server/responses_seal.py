"""Reasoning that a client carries for us: `encrypted_content`, opaque to it, and worth something only if it is ours.

A blob is `lmhub1.` and base64url of `tag (16 bytes) || zlib(text)`, the tag being HMAC-SHA-256 under the key, cut.
It is authenticated, not secret: the client has seen the reasoning anyway. What does not verify is as good as absent.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import zlib

_VERSION = "lmhub1."
_TAG = 16  # bytes


class Seal:
    """Mints blobs and opens its own. Without a `key`, one that lives as long as the process."""

    def __init__(self, key: bytes | None = None):
        self._key = key or secrets.token_bytes(32)

    def close(self, text: str) -> str:
        """The blob that holds `text`."""
        packed = zlib.compress(text.encode("utf-8", "replace"))
        return _VERSION + base64.urlsafe_b64encode(self._tag(packed) + packed).decode("ascii")

    def open(self, blob: object) -> str | None:
        """The text of a blob; None for whatever this key did not mint, of any type."""
        if not isinstance(blob, str) or not blob.startswith(_VERSION) or not blob.isascii():
            return None
        try:
            raw = base64.b64decode(blob.removeprefix(_VERSION), altchars=b"-_", validate=True)
        except ValueError:
            return None
        tag, packed = raw[:_TAG], raw[_TAG:]
        if not hmac.compare_digest(tag, self._tag(packed)):
            return None
        return zlib.decompress(packed).decode()  # ours, so it is neither damaged nor a bomb

    def _tag(self, packed: bytes) -> bytes:
        return hmac.digest(self._key, _VERSION.encode() + packed, "sha256")[:_TAG]
