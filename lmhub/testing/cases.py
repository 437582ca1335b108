"""`Cases`: a suite of tests as a mixin, parametrized by what its subclass says. What has no case is no test.

pytest by itself makes a skipped test of an empty list, which reads like something that the machine could not do.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

Named = Sequence[tuple[str, Any]]
"""What a test's id calls a case, and the case."""


class Cases(ABC):
    """Base of a suite, whose own subclasses name a plugin."""

    plugin: ClassVar[str]
    """The plugin's import name."""

    @classmethod
    @abstractmethod
    def cases(cls) -> Mapping[str, Named]:
        """Argument of tests -> what it is, one after the other."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if hasattr(cls, "plugin"):  # not yet in the suite itself
            missing = {argument for argument, found in cls.cases().items() if not found}
            for name, test in inspect.getmembers(cls, inspect.isfunction):
                if name.startswith("test_") and missing & set(inspect.signature(test).parameters):
                    setattr(cls, name, None)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize by the subclass's cases."""
        for argument, found in self.cases().items():
            if argument in metafunc.fixturenames:
                metafunc.parametrize(argument, [case for _, case in found], ids=[name for name, _ in found])
