"""One route: checks the key, answers, and turns whatever is raised before the first byte into a framed error."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from lmhub.errors import LmhubError
from lmhub.server.auth import KeyCheck
from lmhub.server.body import ClientGone
from lmhub.server.wire import send_error

log = logging.getLogger("lmhub.server")

Answer = Callable[[Scope, Receive, Send], Awaitable[None]]


class Endpoint:
    """An ASGI app. `answer` may raise as long as it has sent nothing; `frame` makes the body of what it raised."""

    def __init__(self, answer: Answer, frame: Callable[[LmhubError], bytes], key: KeyCheck):
        self._answer = answer
        self._frame = frame
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            self._key.check(scope["headers"])
            await self._answer(scope, receive, send)
        except ClientGone:
            return
        except LmhubError as error:
            await send_error(send, receive, error, self._frame(error))
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            unexpected = LmhubError("the server failed to answer; its log says why")
            await send_error(send, receive, unexpected, self._frame(unexpected))
