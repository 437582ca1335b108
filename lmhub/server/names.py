"""Which served model a request means: ids, `--alias`, `--strict-model`."""

from __future__ import annotations

from lmhub.errors import UnknownModel
from lmhub.hub import Hub, Served
from lmhub.settings import ServerSettings


class Names:
    """The names of a hub's models. An alias is `NAME`, for the first model, or `NAME=ID`."""

    def __init__(self, hub: Hub, settings: ServerSettings):
        self._hub = hub
        self._strict = settings.strict_model
        self._aliases = {name: id for name, _, id in (alias.partition("=") for alias in settings.alias)}

    def served(self, name: str | None) -> Served:
        """The model that a request means. A single model answers to every name unless the server is strict.

        Raises UnknownModel.
        """
        id = self.resolve(name)
        if id is not None:
            return self._hub.acquire(id)
        if self._strict and name is not None:
            raise self.unknown(name)
        return self._hub.acquire(name)

    def resolve(self, name: str | None) -> str | None:
        """The id of the model that is called `name` or has that alias; None if there is none."""
        ids = [model.id for model in self._hub.models]
        if name in ids:
            return name
        if name is None or name not in self._aliases:
            return None
        wanted = self._aliases[name] or (ids[0] if ids else None)
        return wanted if wanted in ids else None

    def aliases(self, id: str) -> list[str]:
        """All aliases of the model `id`."""
        return [alias for alias in self._aliases if self.resolve(alias) == id]

    def unknown(self, name: str) -> UnknownModel:
        """The error for a name that no model has."""
        served = ", ".join(model.id for model in self._hub.models) or "none"
        return UnknownModel(f"model {name[:200]!r} is not served here; served: {served}", param="model")
