"""docs/dialects.md, `/openapi.json` and the parsers agree about every field."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from lmhub.dialect import Dialect
from lmhub.server.builtin import Builtin
from lmhub.server.openapi import description
from lmhub.settings import ServerSettings

DIALECTS = {dialect.name: dialect for dialect in Builtin(ServerSettings()).lmhub_dialects()}


def docs_update() -> ModuleType:
    """The script that writes the pages."""
    path = Path(__file__).parents[2] / "docs" / "update.py"
    spec = importlib.util.spec_from_file_location("docs_update", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_holds_the_tables_that_the_parsers_use() -> None:
    update = docs_update()
    assert update.dialects_page() == update.DIALECTS.read_text(), "run `make docs`"


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_what_is_honoured_is_what_is_parsed(dialect: Dialect) -> None:
    assert dialect.schema is not None
    honoured = {field.name for field in dialect.fields if field.kind == "honoured"}
    others = {field.name for field in dialect.fields if field.kind != "honoured"}
    parsed = set(dialect.schema["properties"])
    assert parsed <= honoured
    assert {re.split(r"[.\[]", name)[0] for name in honoured} == parsed
    assert not others & parsed
    assert len(dialect.fields) == len({field.name for field in dialect.fields}), "a field is listed twice"


def test_the_published_description_refers_to_what_it_holds() -> None:
    document = description(list(DIALECTS.values()))
    text = str(document)
    references = set(re.findall(r"#/components/schemas/([\w.-]+)", text))
    assert references == set(document["components"]["schemas"])
    assert "#/$defs" not in text
    assert {"/v1/chat/completions", "/v1/completions", "/tokenize"} <= set(document["paths"])
