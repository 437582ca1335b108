"""One route: checks the key, answers, and turns whatever is raised before the first byte into a framed error."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from lmhub.errors import LmhubError
from lmhub.server.auth import KeyCheck
from lmhub.server.body import ClientGone
from lmhub.server.envelopes import Envelopes
from lmhub.server.wire import send_error

log = logging.getLogger("lmhub.server")

Answer = Callable[[Scope, Receive, Send], Awaitable[None]]


class Endpoint:
    """An ASGI app. `answer` may raise as long as it has sent nothing; the path's envelope holds what it raised.

    `failed` is told the kind of every error.
    """

    def __init__(self, answer: Answer, envelopes: Envelopes, key: KeyCheck, failed: Callable[[str], None]):
        self._answer = answer
        self._envelopes = envelopes
        self._key = key
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            self._key.check(scope["headers"])
            await self._answer(scope, receive, send)
        except ClientGone:
            return
        except LmhubError as error:
            await send_error(send, receive, error, self._frame(scope, error))
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            unexpected = LmhubError("the server failed to answer; its log says why")
            await send_error(send, receive, unexpected, self._frame(scope, unexpected))

    def _frame(self, scope: Scope, error: LmhubError) -> bytes:
        self._failed(error.kind)
        return self._envelopes.of(scope["path"], scope["headers"])(error)
