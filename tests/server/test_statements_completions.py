"""The numbered conformance statements of Completions, models and the utility routes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anthropic
import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lmhub.gguf import open_gguf
from lmhub.hookspecs import hookimpl
from lmhub.server.app import create_app
from lmhub.server.openai_completions import completions_dialect
from lmhub.settings import ServerSettings
from lmhub.testing.fake import FakeModel, FakeTokenizer, NoiseModel
from lmhub.tokenize import load_tokenizer

Make = Callable[..., Any]

PATH = "/v1/completions"
USER = {"role": "user", "content": "hi"}


def ids(text: str) -> list[int]:
    """The tokens of `text`."""
    return FakeTokenizer().encode(text)


# --- 11.4 Completions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "n_prompts"),
    [("ab", 1), (["ab"], 1), (["ab", "cd", "ab"], 3), ([97, 98], 1), ([[97, 98], [99]], 2), ([97, "b", 99], 1)],
)
@pytest.mark.parametrize("n", [1, 2])
def test_155_forms_of_prompts(api: Make, prompt: Any, n_prompts: int, n: int) -> None:
    body = api().post(PATH, prompt=prompt, n=n, max_tokens=8).json()
    assert body["object"] == "text_completion" and body["id"].startswith("cmpl-")
    assert [choice["index"] for choice in body["choices"]] == list(range(n_prompts * n))
    assert {(choice["text"], choice["finish_reason"]) for choice in body["choices"]} == {("Hello", "stop")}


def test_155_ids_are_used_as_they_are_and_mixed_prompts_are_joined(api: Make) -> None:
    made = api()
    for prompt, meant in (([97, 98], ids("ab")), ("ab", ids("ab")), (["a", 98, "c"], ids("abc"))):
        (choice,) = made.post(PATH, prompt=prompt, return_token_ids=True).json()["choices"]
        assert choice["prompt_token_ids"] == meant


def test_155_choices_of_several_prompts(api: Make) -> None:
    """The reply to a prompt is its last byte, doubled."""
    body = api(FakeModel(lambda prompt: [prompt[-1]] * 2)).post(PATH, prompt=["ax", "by"], n=2).json()
    assert [choice["text"] for choice in body["choices"]] == ["xx", "xx", "yy", "yy"]
    assert body["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize(
    "prompt", [None, [], ["x"] * 65, [1.5], [[]], [True], [97, -1], [97, 100000], [[97, 100000]], {"a": 1}, 7]
)
def test_156_prompts_that_are_none(api: Make, prompt: Any) -> None:
    response = api().post(PATH, prompt=prompt)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")


def test_157_echo(api: Make) -> None:
    made = api()
    assert made.post(PATH, prompt="hey ", echo=True).json()["choices"][0]["text"] == "hey Hello"
    assert made.post(PATH, prompt=ids("hey "), echo=True).json()["choices"][0]["text"] == "hey Hello"
    chunks = made.chunks(PATH, prompt="hey ", echo=True)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hey Hello"


def test_157_a_prompt_is_scored(api: Make) -> None:
    body = api(NoiseModel()).post(PATH, prompt="score", echo=True, logprobs=2, max_tokens=0).json()
    (choice,) = body["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == "score" and "".join(logprobs["tokens"]) == "score"
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4]
    assert body["usage"]["completion_tokens"] == 0
    assert api().post(PATH, prompt="x", max_tokens=0).json()["error"]["param"] == "max_tokens"


@pytest.mark.parametrize("echo", [False, True])
def test_158_log_probabilities(api: Make, echo: bool) -> None:
    made = api(engine={"spec": False})  # a scripted model takes guesses behind a scored prompt for more of the prompt
    (choice,) = made.post(PATH, prompt="hey ", logprobs=2, echo=echo).json()["choices"]
    logprobs = choice["logprobs"]
    assert len({len(values) for values in logprobs.values()}) == 1
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert [choice["text"][offset] for offset in logprobs["text_offset"]] == logprobs["tokens"]
    streamed: dict[str, list[Any]] = {name: [] for name in logprobs}
    for chunk in made.chunks(PATH, prompt="hey ", logprobs=2, echo=echo):
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            streamed[name] += values
    assert streamed == logprobs


def test_completions_stream_and_the_sdk(api: Make, rig: Any, serving: Any) -> None:
    chunks = api().chunks(PATH, prompt="x", n=2, stream_options={"include_usage": True})
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["prompt_tokens"] == 1
    with (
        serving(rig(FakeModel(b"Hello")).hub) as running,
        openai.OpenAI(base_url=running.address + "/v1", api_key="k") as client,
    ):
        assert client.completions.create(model="m", prompt="x").choices[0].text == "Hello"
        stream = client.completions.create(model="m", prompt="x", stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == "Hello"


@pytest.mark.parametrize(("fields", "param"), [({"best_of": 3, "n": 2}, "best_of"), ({"suffix": "x"}, "suffix")])
def test_completion_fields_that_are_refused(api: Make, fields: Any, param: str) -> None:
    response = api().post(PATH, prompt="x", **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_completions_obey_a_grammar_and_stop_strings(api: Make) -> None:
    made = api(NoiseModel())
    (choice,) = made.post(PATH, prompt="x", regex="(cat|dog)", temperature=1).json()["choices"]
    assert choice["text"] in ("cat", "dog") and choice["finish_reason"] == "stop"
    assert api().post(PATH, prompt="x", stop="l").json()["choices"][0]["text"] == "He"


# --- 11.4 Models -----------------------------------------------------------------------------------------------------


def test_159_the_list_of_models(api: Make) -> None:
    made = api(alias=("default",))
    first, second = (made.get("/v1/models").json() for _ in range(2))
    (entry,) = first["data"]
    assert entry["object"] == "model" and entry["owned_by"] and entry["aliases"] == ["default"]
    assert entry["created"] == second["data"][0]["created"]
    assert entry["context_length"] == entry["max_model_len"] == 2048


def test_160_one_model(rig: Any) -> None:
    hub = rig(FakeModel(b"x"), FakeModel(b"y")).hub
    hub._served["org/name"] = hub._served.pop("fake1")
    hub._served["org/name"].model.id = "org/name"
    app = create_app(hub, ServerSettings(alias=("second=org/name",)))
    paths = {"/v1/models/fake": "fake", "/v1/models/org/name": "org/name", "/v1/models/org%2Fname": "org/name"}
    paths |= {"/models/second": "org/name"}

    async def main() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for path, id in paths.items():
                assert (await client.get(path)).json()["id"] == id
            missing = await client.get("/v1/models/other")
            assert missing.status_code == 404
            assert (missing.json()["error"]["code"], missing.json()["error"]["param"]) == ("model_not_found", "model")
            theirs = await client.get("/v1/models/other", headers={"anthropic-version": "2023-06-01"})
            assert theirs.json()["error"]["type"] == "not_found_error" and theirs.json()["type"] == "error"
            said = await client.post("/v1/completions", json={"model": "second", "prompt": "x"})
            assert said.json()["choices"][0]["text"] == "y"

    asyncio.run(main())


def test_160_a_strict_server_refuses_unknown_names(api: Make) -> None:
    made = api(strict_model=True, alias=("default",))
    assert made.chat(model="default").status_code == made.chat(model="fake").status_code == 200
    assert made.chat(model="other").status_code == 404


def test_161_the_anthropic_sdk_reads_the_list(rig: Any, serving: Any) -> None:
    with (
        serving(rig(FakeModel(b"x")).hub) as running,
        anthropic.Anthropic(base_url=running.address, api_key="k") as client,
    ):
        assert [model.id for model in client.models.list()] == ["fake"]


def test_162_codex_gets_a_list_of_its_own(api: Make) -> None:
    (entry,) = api().get("/v1/models?client_version=0.171.0").json()["models"]
    assert (entry["slug"], entry["context_window"], entry["shell_type"]) == ("fake", 2048, "shell_command")


# --- 11.6 utilities --------------------------------------------------------------------------------------------------


def families(made: Any) -> dict[str, Any]:
    """The families of /metrics by name."""
    response = made.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    for name in {line.split()[2] for line in response.text.splitlines() if line.startswith("# TYPE")}:
        assert f"# HELP {name} " in response.text
    return {family.name: family for family in text_string_to_metric_families(response.text)}


def total(found: dict[str, Any], name: str) -> float:
    """The sum of a counter over its labels."""
    return sum(sample.value for sample in found[name].samples if sample.name == f"{name}_total")


def test_205_metrics(api: Make) -> None:
    made = api()
    before = families(made)
    usage = made.chat().json()["usage"]
    made.error(temperature=9)
    after = families(made)
    counters = [name for name, family in before.items() if family.type == "counter"]
    assert counters and all(total(before, name) <= total(after, name) for name in counters)
    assert total(after, "lmhub_tokens_predicted") == usage["completion_tokens"]
    assert total(after, "lmhub_prompt_tokens") == usage["prompt_tokens"]
    routes = {sample.labels["route"] for sample in after["lmhub_http_requests"].samples}
    assert routes == {"/metrics", "/chat/completions"}
    assert total(after, "lmhub_request_errors") == 1
    assert {sample.labels.get("le") for sample in after["lmhub_time_to_first_token_seconds"].samples} > {"+Inf"}


def test_205_metrics_need_a_key_unless_they_are_open_or_off(api: Make) -> None:
    assert api(api_keys=("k",)).get("/metrics").status_code == 401
    assert api(api_keys=("k",), metrics_open=True).get("/metrics").status_code == 200
    assert api(metrics=False).get("/metrics").status_code == 404


def test_205_a_path_is_no_label(api: Make) -> None:
    made = api()
    made.get("/secret/path")
    text = made.get("/metrics").text
    assert 'route="other"' in text and "secret" not in text


def test_206_props_and_slots(api: Make) -> None:
    made = api()
    props = made.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 2048 and props["total_slots"] == 4
    assert isinstance(props["chat_template"], str) and os.sep not in props["model_path"]
    numbers = dict.fromkeys(("n_past", "n_prompt_tokens", "n_decoded", "cached_tokens"), 0)
    idle = {"is_processing": False, "is_paused": False, **numbers}
    assert made.get("/slots").json() == [{"id": id, "n_ctx": 2048, **idle} for id in range(4)]
    assert made.post("/props").status_code == made.post("/slots/0").status_code == 501


TEXTS = ["", "hello", "Grüße 漢字 👩‍👩‍👧", "\0\n\t  x", "<|im_end|> <think>", "a" * 300, "\u2028\ufeff"]


@pytest.mark.parametrize("text", TEXTS)
def test_207_tokens_there_and_back(api: Make, text: str) -> None:
    made = api()
    tokens = made.post("/tokenize", content=text).json()["tokens"]
    assert made.post("/detokenize", tokens=tokens).json() == {"content": text, "prompt": text}


def test_207_other_shapes(api: Make) -> None:
    made = api()
    pieces = made.post("/tokenize", content="aü", with_pieces=True).json()["tokens"]
    assert pieces == [{"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 188, "piece": [188]}]
    assert made.post("/tokenize", content=["a", 98]).json()["tokens"] == [97, 98]
    assert made.post("/tokenize", content="<|im_end|>", parse_special=False).json()["tokens"] == ids("<|im_end|>")
    theirs = made.post("/tokenize", prompt="ab", return_token_strs=True).json()
    assert theirs == {"count": 2, "max_model_len": 2048, "tokens": [97, 98], "token_strs": ["a", "b"]}
    said = made.post("/tokenize", messages=[USER]).json()
    assert said["count"] == made.chat().json()["usage"]["prompt_tokens"]
    for path, body in (("/detokenize", {"tokens": [100000]}), ("/tokenize", {}), ("/tokenize", {"content": [1.5]})):
        assert made.post(path, **body).status_code == 400


def test_207_the_tokenizer_of_a_real_family(api: Make, shared: Any) -> None:
    files = sorted((shared / "vocab").rglob("*.gguf"))
    assert files
    with open_gguf(files[0]) as file:
        tokenizer = load_tokenizer(file.metadata)
    made = api(FakeModel(b"x", n_vocab=tokenizer.n_vocab))
    made.rig.hub.models[0].tokenizer = tokenizer
    for text in TEXTS:
        tokens = made.post("/tokenize", content=text).json()["tokens"]
        assert made.post("/detokenize", tokens=tokens).json()["content"] == text


def test_208_a_template_is_applied(api: Make) -> None:
    made = api()
    prompt = made.post("/apply-template", messages=[USER]).json()["prompt"]
    assert prompt.endswith("<|im_start|>assistant\n")
    tokens = made.post("/tokenize", content=prompt).json()["tokens"]
    assert len(tokens) == made.chat().json()["usage"]["prompt_tokens"]
    assert made.post("/apply-template", messages=[]).json()["error"]["param"] == "messages"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embedding", "/v1/rerank", "/reranking", "/v2/rerank"])
def test_211_what_a_generating_model_cannot_do(api: Make, path: str) -> None:
    response = api().post(path, input="x")
    assert (response.status_code, response.headers["x-should-retry"]) == (501, "false")
    assert response.json()["error"]["type"] == "not_supported_error"


def test_211_a_plugin_may_bring_it(rig: Any) -> None:
    class Embeddings:
        @hookimpl
        def lmhub_dialects(self) -> list[Any]:
            return [replace(completions_dialect(ServerSettings()), name="embeddings", routes=("/embeddings",))]

    hub = rig(FakeModel(b"x")).hub
    hub.plugins.register(Embeddings(), "embeddings")
    app = create_app(hub, ServerSettings())

    async def main() -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.post("/v1/embeddings", json={"prompt": "x"})).status_code

    assert asyncio.run(main()) == 200


def test_the_openapi_description_is_served(api: Make) -> None:
    document = api().get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/openai-chat"}
    properties = document["components"]["schemas"]["openai-chat"]["properties"]
    assert "alternatives" in properties["top_logprobs"]["description"]
    assert json.dumps(document["components"]["schemas"]).count("#/$defs") == 0
