"""The engine: runs many generations on one model, one ragged step at a time. Start reading at `engine.Engine`."""

from lmhub.engine.engine import Engine, EngineStats
from lmhub.engine.generation import Generation
from lmhub.engine.slots import SlotStats

__all__ = ["Engine", "EngineStats", "Generation", "SlotStats"]
