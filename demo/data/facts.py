"""Questions about lmhub. Commands, options, plugins and hooks come from the documentation, the rest is written here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import manual
from choice import kept_back
from lmhub.settings import EngineSettings, ServerSettings
from talk import Talk

_ENGINE, _SERVER = EngineSettings(), ServerSettings()
_ADDRESS = f"http://{_SERVER.host}:{_SERVER.port}"

# questions, answer, thought
Fact = tuple[tuple[str, ...], str, str]

COMMAND = (
    "what does lmhub {x} do[?|]", "what is lmhub {x}[?|]", "what is [the|] {x} command[?| for?]", "[explain|describe|tell me about] lmhub {x}[.|]",
    "[how does|what does] the command {x} [work|do][?|]", "what do I use lmhub {x} for[?|]", "when do I need lmhub {x}[?|]", "lmhub {x}[?|]",
)  # fmt: skip
FLAG = (
    "what does {x} do[?|]", "what is {x}[?|]", "what is {x} [for|good for][?|]", "what does the [flag|option] {x} [do|mean][?|]", "[explain|describe] {x}[.|]", "[tell me about|what about] {x}[.|?|]",
    "meaning of {x}[?|]", "[how do I use|when do I need|why would I use] {x}[?|]", "{x}[?|]", "what happens with {x}[?|]", "lmhub [serve|] {x}[?|]",
)  # fmt: skip
DEFAULT = (
    "what is the default [of|for] {x}[?|]", "[which|what] default does {x} have[?|]", "default [of|for|value of] {x}[?|]", "what value does {x} have by default[?|]", "what is {x} by default[?|]",
    "{x} default[?|]", "what if I [leave out|do not give] {x}[?|]", "[tell me|what's] the default value [of|for] {x}[?|.|]",
)  # fmt: skip
VARIABLE = (
    "[which|what] environment variable [sets|is for|belongs to] {x}[?|]", "environment variable [for|of] {x}[?|]", "how do I set {x} [through|with|by] [the environment|an environment variable][?|]",
    "env var [for|of] {x}[?|]", "can I set {x} [through|in] the environment[?|]", "[is there|what is] [a variable|the variable] for {x}[?|]", "{x} env[|var][?|]", "what is the name of the variable for {x}[?|]",
)  # fmt: skip
HOOK = (
    "what is [the hook|] {x}[| for][?|]", "what does [the hook|] {x} do[?|]", "[explain|describe] [the hook|] {x}[.|]", "[tell me about|what about] {x}[?|.|]", "when is {x} called[?|]", "{x}[?|]", "[how do I use|when do I need] {x}[?|]",
    "which arguments does {x} [take|have|get][?|]",
)  # fmt: skip

PLUGIN = (
    "what is {x}[?|]", "what is {x} for[?|]", "[which|what] [models|architectures|families] does {x} [serve|have|support|bring][?|]", "[explain|describe] {x}[.|]", "[tell me about|what about] {x}[?|.|]", "when do I [need|install] {x}[?|]", "what does {x} [do|add][?|]", "{x}[?|]",
)  # fmt: skip
ARCHITECTURE = (
    "[can I|can lmhub|does lmhub] [run|serve|load|support] {x}[?|]", "is {x} supported[?|]", "[which|what] plugin [is for|serves|has|do I need for] {x}[?|]", "how do I [serve|run|load] {x}[?|]", "do you [support|have] {x}[?|]", "[I want to|I would like to] [run|serve] {x}[.|]", "does {x} work[?|]",
)  # fmt: skip

WRITTEN: tuple[Fact, ...] = (
    (("what is lmhub[?|]", "[tell me|say something] about lmhub[.|]", "[explain|describe] lmhub[.|]", "what does lmhub do[?|]", "what is this [server|software|framework|project|program|tool][?|]", "lmhub[?|]", "what is lmhub [for|about|good for][?|]", "[can you|could you|please] explain [what lmhub is|lmhub][?|]",
      "I [have never heard of|don't know] lmhub[.|]"),
     "lmhub is a Python framework that serves local language models on CPUs. It reads GGUF files and speaks the APIs of OpenAI and Anthropic; each model family is a plugin.",
     "The question is what lmhub is. It serves local models."),
    (("how do I add a [model |]family[?|]", "how [can I|do I|does one|to] [add|write|make|support|implement] a [new|] [family|model family|architecture|plugin][| for a family][?|]", "[I want|I'd like|I need] to [add|support|write] a [new|] [family|model family|architecture|plugin][.|]", "adding a [new|] [family|architecture|model family][?|]",
      "what [do I need|is needed|does it take] [to add|for] a [new|] [family|architecture|plugin][?|]", "[where|how] do I start [with|] [a new family|writing a family|a plugin][?|]", "how to write a [family |]plugin[?|]", "steps to add a [new|] [family|architecture][?|]"),
     "lmhub new-family NAME writes a package that works: its module answers the hook lmhub_families with a Family record, beside it one model.py and one C file. Change these; lmhub.testing.FamilyConformance says what is still wrong.",
     "A new family is a plugin: a Family record, a model.py and a C file."),
    (("[which|what] port[?|]", "[which|what] port does [lmhub|the server|it|lmhub serve] [use|listen on|run on][?|]", "what is the [default|] [port|address|url][?|]", "[where|at which address] does [lmhub|the server|it] [listen|run][?|]", "on which port [do you|does it|does the server] [listen|run][?|]", "how do I [change|set|choose] the port[?|]",
      "[which|what] [url|address|base url|base_url] [do I use|should I use|is it][?|]", "port[?|]", "[default port|the port][?|]", "where can I reach [you|the server][?|]"),
     f"By default the server listens on {_ADDRESS}; --port chooses another port and --host another address.",
     f"The default port is {_SERVER.port}."),
    (("how do I point [Claude Code|claude code] at [you|lmhub|this server|this][?|]", "how do I use [you|lmhub|this] with Claude Code[?|]", "[does|will|can] [Claude Code|claude code] work [with|on] [lmhub|you|this][?|]", "[set up|setup|configure|connect] Claude Code[.|?|]", "Claude Code[?|]", "how [can I|do I|to] [run|use|connect|configure|set up] Claude Code[| here| with lmhub][?|]",
      "[which|what] [variables|settings|environment variables] does Claude Code need[?|]", "can I use Claude Code[?|]", "point claude at [lmhub|this server][.|]"),
     "Set two variables and start it:\n\nexport ANTHROPIC_BASE_URL=" + f"http://localhost:{_SERVER.port}" + "\nexport ANTHROPIC_AUTH_TOKEN=anything\nclaude\n\nThe rest is in docs/clients.md. Serve a bigger model with --ctx 65536 for real work.",
     "Claude Code needs ANTHROPIC_BASE_URL without /v1, and any token."),
    (("how do I [use|connect|set up|configure|run] Codex[| with lmhub| here][?|]", "[does|can|will] Codex [work|connect][| with lmhub| here][?|]", "Codex[?|]", "how do I point Codex at [you|lmhub|this server][?|]", "[configure|set up|setup] Codex[| CLI][.|]", "codex cli [config|settings|setup][?|]", "can I use [the|] codex [cli|][?|]"),
     f"In ~/.codex/config.toml add a provider with base_url = \"http://localhost:{_SERVER.port}/v1\" and wire_api = \"responses\", and set model_provider to it. docs/clients.md has the whole file.",
     "Codex needs a provider in its config.toml."),
    (("how do I use the OpenAI [SDK|library|client|package|api][?|]", "[how do I|how can I] [call|use|talk to|ask] [you|lmhub|it] from Python[?|]", "[show|give] me [a python example|python code for the client|how to use the openai client][.|]", "does the openai [client|sdk|library] work[?|]", "what is the base_url for openai[?|]", "[how do I connect|connect] with the OpenAI [SDK|client|library][?|.|]", "[use|using] openai python[?|]",
      "[which|what] api key [do I need|should I use|is it][?|]"),
     f"Point the client at this server, any key will do:\n\nfrom openai import OpenAI\n\nclient = OpenAI(base_url=\"http://localhost:{_SERVER.port}/v1\", api_key=\"none\")",
     "The OpenAI client needs the base URL with /v1 and any key."),
    (("how do I use the Anthropic [SDK|library|client|api][?|]", "does the anthropic [client|sdk|library] work[?|]", "can I use anthropic's [sdk|client|api|messages][?|]", "what is the base_url for anthropic[?|]", "[how do I connect|connect] with the Anthropic [SDK|client|library][?|.|]", "[do you|does lmhub] [speak|support] the messages api[?|]", "[use|using] anthropic python[?|]"),
     f"Use Anthropic(base_url=\"http://localhost:{_SERVER.port}\", api_key=\"any\"): the URL goes without /v1.",
     "Anthropic's client takes the URL without /v1."),
    (("[which|what] clients [work|can I use|are supported|were tested][?|]", "[which|what] [agents|coding agents|SDKs|tools] [work|can I use|are supported][?|]", "can I use [LangChain|LiteLLM|opencode|qwen-code|instructor|pydantic-ai|the Vercel AI SDK][?|]", "does [LangChain|LiteLLM|opencode|qwen-code|instructor|pydantic-ai|aider] work[| with lmhub][?|]", "list [the|all] [clients|supported clients][.|]", "what can connect to lmhub[?|]", "[clients|agents][?|]"),
     "Claude Code, Codex, qwen-code, opencode, the OpenAI and Anthropic SDKs, LangChain, LiteLLM, pydantic-ai, instructor, llm and the Vercel AI SDK were run against lmhub; docs/clients.md has the settings.",
     "The page docs/clients.md lists the clients."),
    (("[which|what] [families|models|architectures] [are supported|does lmhub support|do you support|can I run|work][?|]", "does lmhub [support|run] [mistral|smollm|mixtral|gemma][?|]", "[which|what] plugins [are there|exist|come with lmhub][?|]", "can I [run|serve|use] [a llama|a qwen|mistral|a mixtral] model[?|]", "list [the|all] [families|supported models|architectures][.|]", "supported [models|families|architectures][?|]", "what models can [I|lmhub] [run|serve][?|]"),
     "The plugins are " + "; ".join(f"{name} ({', '.join(archs)})" for name, (archs, _) in manual.plugins().items()) + ". lmhub plugins lists what is installed.",
     "Families are plugins; lmhub plugins lists them."),
    (("how do I [serve|load|run|start] a model[?|]", "how do I [start|run|launch] [the server|lmhub|a server][?|]", "how do I serve [a|my own|my] [gguf|GGUF|model] [file|][?|]", "how [can I|to] [serve|run|load] [my own model|a gguf|a file][?|]", "start [the|a] server[.|?|]", "[how do I begin|getting started|quick start|how do I get started][?|]", "serve a model[.|?|]", "how do I use lmhub[?|]", "what do I have to type to [start|serve][?|]"),
     "Run lmhub serve MODEL.gguf; without a file of your own, lmhub serve demo. In a clone, make serve does everything.",
     "A model is served with lmhub serve."),
    (("how do I install lmhub[?|]", "how [can I|to] install [it|lmhub|this][?|]", "[installation|install][?|]", "what do I need to install[?|]", "how do I [set up|setup|build] lmhub[?|]", "[pip install|which packages][?|]", "how to build [it|lmhub] from source[?|]"),
     "pip install lmhub lmhub-qwen3, or in a clone make serve: it makes a virtual environment, builds, and starts the demo model. It needs Python 3.11 and a C compiler.",
     "The question is about installing. pip, or make serve."),
    (("how do I [download|get|fetch|pull] a model[?|]", "where do I [get|find] [models|a model][?|]", "what does lmhub pull do[?|]", "can lmhub [download|fetch|pull] [models|a model][?|]", "[download|pull|get] a model[.|]", "[lmhub pull|pull][?|]", "how do I [use|load|serve] a model from [Hugging Face|the hub|huggingface][?|]"),
     "lmhub pull ORG/REPO:Q4_K_M downloads a model from the Hugging Face hub; lmhub serve takes such names too. It needs pip install 'lmhub[hub]'.",
     "Models are downloaded with lmhub pull."),
    (("how do I [chat|talk] in the terminal[?|]", "is there a [terminal|command line|console] chat[?|]", "how do I chat without a server[?|]", "[can I|how do I] chat [on|from|in] the command line[?|]", "chat in [my|the] [terminal|shell][?|]", "how do I start a chat[?|]", "how can I talk to a model [locally|in the shell][?|]"),
     "lmhub run demo starts a chat in the terminal, and lmhub run demo \"Hello\" answers once.",
     "The terminal chat is lmhub run."),
    (("what is a hook[?|]", "[which|what] hooks [are there|exist|does lmhub have|can I use][?|]", "list [the|all] hooks[.|]", "how do hooks work[?|]", "hooks[?|]", "[explain|describe|tell me about] [the hooks|hooks][.|]", "how [can I|do I] [extend|change|customize] lmhub[?|]", "what can plugins do[?|]"),
     "Hooks are functions that a plugin implements with lmhub.hookimpl: " + ", ".join(manual.hooks()) + ". docs/hooks.md has an example of each.",
     "The hooks are listed in docs/hooks.md."),
    (("what is a plugin[?|]", "how do plugins work[?|]", "how [does lmhub find|are] plugins [|found][?|]", "[explain|describe] plugins[.|]", "where do plugins come from[?|]", "how do I install a plugin[?|]", "plugins[?|]", "why plugins[?|]"),
     "A plugin is a Python package with an entry point in the group lmhub; it brings model families and may implement hooks. pip install it, and lmhub plugins shows it.",
     "Plugins are packages with an entry point in the group lmhub."),
    (("[what is|explain] [GGUF|gguf][?|.|]", "what is a gguf file[?|]", "[which|what] file [format|formats] [do you|does lmhub] [read|support|use][?|]", "gguf[?|]", "what [kind of|] files can I [serve|load][?|]", "[can I|does lmhub] load safetensors[?|]", "[which|what] quantizations [work|are supported][?|]"),
     "GGUF is a file format for language models: weights, vocabulary and chat template in one file. lmhub reads GGUF with every tensor type, from F32 to Q2_K.",
     "lmhub reads GGUF files."),
    (("does lmhub need a GPU[?|]", "can lmhub use [a GPU|my GPU|CUDA|my graphics card][?|]", "is there GPU support[?|]", "[GPU|CUDA][?|]", "[does it|will it] run on [a CPU|my laptop|a Raspberry Pi|a CPU only][?|]", "do I need [a GPU|a graphics card|CUDA][| for lmhub][?|]", "which hardware do I need[?|]"),
     "No GPU is needed or used: lmhub runs on the CPU, with kernels for AVX2, AVX-512 and AMX.",
     "lmhub is for CPUs."),
    (("how do tool calls work[?|]", "does lmhub support [tools|tool calls|function calling|functions][?|]", "[can I|how do I] [use|declare|send] [tools|functions][?|]", "[tools|tool calls|function calling][?|]", "how do I [force|require] a tool call[?|]", "what is tool_choice[?|]", "[explain|describe] tool [calls|calling][.|]"),
     "Send tools with the request, as OpenAI's or Anthropic's API has them; the model answers with a call, you send the result back. tool_choice forces one. Try me with a calculator or get_weather.",
     "Tools are declared in the request."),
    (("does lmhub support [structured output|json schema|JSON mode|grammars|json][?|]", "how do I get [json|JSON|valid JSON|structured output][?|]", "[structured output|json schema|response_format][?|]", "how do I [force|enforce|guarantee] [json|a schema|a format][?|]", "[what is|how do I use] response_format[?|]", "can [you|lmhub] [enforce|guarantee] a schema[?|]", "[explain|describe] structured output[.|]"),
     "Send response_format with a json_schema: the reply is held to it token by token. Regular expressions and grammars work as well.",
     "Structured output goes through response_format."),
    (("what is [prefix caching|a prefix cache|prompt caching|the prefix cache][?|]", "does lmhub cache [prompts|prefixes][?|]", "how does [caching|prefix reuse|the cache] work[?|]", "are prompts [cached|reused][?|]", "why is the second [turn|request|answer] [so fast|faster][?|]", "[prompt caching|prefix reuse][?|]", "does the cache survive a restart[?|]"),
     "A conversation's next turn reads only what is new: lmhub keeps the state of earlier prompts in memory, and with --kv-cache-dir also on disk, across restarts.",
     "Prefixes are reused. --kv-cache-dir keeps them."),
    (("what is speculative decoding[?|]", "does lmhub [do|use|support] speculative decoding[?|]", "how does [speculation|guessing ahead] work[?|]", "[speculative decoding|speculation][?|]", "[do I need|is there] a draft model[?|]", "how do I turn off [speculation|speculative decoding][?|]", "[explain|describe] speculative decoding[.|]"),
     "lmhub guesses tokens ahead from text that it has seen, without a second model, and keeps what the model agrees with: replies stay the same. --no-spec turns it off.",
     "Speculation is on by default; --no-spec turns it off."),
    (("how fast is lmhub[?|]", "how do I measure [speed|tokens per second|performance][?|]", "[can I|how do I] benchmark [lmhub|a model|my machine][?|]", "how many tokens per second[?|]", "[speed|performance|benchmark][?|]", "is lmhub [fast|slow|faster than llama.cpp][?|]", "why is it [slow|so slow][?|]"),
     "lmhub bench MODEL measures prefill and decode beside the floors of your machine. docs/performance.md has figures.",
     "Speed is measured with lmhub bench."),
    (("how much memory [do I need|does a model need|does it need|does lmhub need][?|]", "will [it|a model|my model] fit[| into memory][?|]", "how do I [know|see|check] [if|whether] a model fits[?|]", "how do I save memory[?|]", "[memory|ram][?|]", "I [run out of|do not have enough] memory[.|]", "out of memory[|!|?]"),
     "lmhub plan MODEL says what serving it would take, item by item, and what would help. A smaller --ctx and --kv-dtype q8_0 save memory.",
     "lmhub plan tells what fits."),
    (("how do I [run|serve] a [mixture|MoE|mixture of experts] [that is|] larger than [memory|my memory|the RAM][?|]", "what does --experts borrow [do|mean][?|]", "[explain|describe] --experts borrow[.|]", "my [mixture|MoE|mixture of experts] [is too large|does not fit] [for|into] memory[.|]", "[can I|how do I] [leave|keep] the experts [on disk|in the file][?|]", "[--experts borrow|borrow][?|]", "when do I [use|need] --experts borrow[?|]"),
     "--experts borrow leaves a mixture's experts in the file; --experts stream also keeps only some of them in memory: for mixtures larger than memory.",
     "--experts borrow is for mixtures larger than memory."),
    (("how do I [protect|secure] the server[?|]", "how do I set [an api key|a password|a key][?|]", "[api key|authentication|password][?|]", "is there authentication[?|]", "how do I [add|use|require] [api keys|an api key|authentication][?|]", "can others use my server[?|]", "is the server [open to|reachable from] [everybody|the network|the internet][?|]"),
     "Start it with --api-key KEY, or --api-key-file. By default it listens on 127.0.0.1 only, so nobody else can reach it.",
     "Keys are set with --api-key."),
    (("are there metrics[?|]", "how do I [monitor|watch] the server[?|]", "does it support prometheus[?|]", "[metrics|prometheus|monitoring][?|]", "where are the metrics[?|]", "how do I see [the load|running requests|what the server does][?|]", "is there a [health check|health endpoint|status page][?|]"),
     "GET /metrics has them in Prometheus' format and GET /health tells whether the server is up; --no-metrics turns the first one off.",
     "Metrics are at /metrics."),
    (("[which|what] [APIs|api|endpoints|dialects|routes] [are there|does lmhub have|are supported|do you speak|does it speak][?|]", "[is it|is lmhub] compatible with OpenAI[?|]", "does lmhub speak the [OpenAI|Anthropic|Responses] API[?|]", "list [the|all] [endpoints|routes|apis][.|]", "[endpoints|api|dialects|routes][?|]", "what is the chat endpoint[?|]", "[which|what] urls does the server have[?|]"),
     "OpenAI's Chat Completions (/v1/chat/completions), Responses (/v1/responses) and Completions, and Anthropic's Messages (/v1/messages). docs/dialects.md lists every field.",
     "lmhub speaks the dialects of OpenAI and Anthropic."),
    (("can I serve [several|two|many|more] models[?|]", "how do I serve [two|several|more|multiple] models[| at once][?|]", "[several|multiple|two] models[?|]", "how do I [choose|pick|select] a model[?|]", "what is the model [name|id][?|]", "[which|what] model name do I send[?|]", "does the model name matter[?|]"),
     "lmhub serve A.gguf B.gguf serves both, and a request's model picks one. With one model any name is accepted.",
     "Several files can be served at once."),
    (("how do I use lmhub [in|from] python[| without a server][?|]", "is there a python api[?|]", "what is lmhub.open[?|]", "[python api|lmhub.open][?|]", "can I use lmhub as a library[?|]", "how do I load a model in [python|a script|a notebook][?|]", "python without a server[?|]"),
     "import lmhub, then: with lmhub.open(\"demo\") as model: print(model.chat([{\"role\": \"user\", \"content\": \"Hello\"}]).text)",
     "The Python API begins with lmhub.open."),
    (("how do I [make|increase|change|set] the context [bigger|longer|larger|size|length|][?|]", "what is the context [size|length|window][?|]", "how long can a prompt be[?|]", "[context|context size|context length][?|]", "my prompt is too long[.|]", "[what does|what is] prompt is too long[?|]", "how many tokens fit[?|]"),
     f"--ctx sets the positions per sequence, {_ENGINE.ctx} by default and at most what the model was trained for. Coding agents want 65536.",
     f"The context is set with --ctx, {_ENGINE.ctx} by default."),
    (("where is the [documentation|manual|docs][?|]", "is there [documentation|a manual|more documentation][?|]", "[documentation|docs|manual][?|]", "where can I [read|learn|find] more[?|]", "[what should I read|where do I read about it][?|]", "how do I learn more[| about lmhub][?|]", "[can I|where can I] read about [the engine|kernels|performance|the architecture][?|]"),
     "README.md first, then docs/: architecture, engine, kernels, performance, hooks, clients, dialects, cli and python.",
     "The documentation is in README.md and docs/."),
    (("how do I run the tests[?|]", "how do I [develop|contribute|work on lmhub|contribute to lmhub][?|]", "[tests|make test|development][?|]", "[which|what] make targets are there[?|]", "how do I [check|lint] [my|the] code[?|]", "what does make [test|lint|dev|asan|build] do[?|]", "how is lmhub tested[?|]"),
     "make dev makes the environment, make test runs every test that needs no download, make lint checks the style, and make lists all targets.",
     "Development goes through make."),
    (("how do I stop the server[?|]", "how do I [quit|end|shut down] [lmhub|the server|it][?|]", "[stop|shut down] the server[.|]", "what happens on Ctrl-C[?|]", "how long does [stopping|the shutdown] take[?|]", "[stopping|shutdown][?|]", "how do I exit the chat[?|]"),
     f"Press Ctrl-C: running replies may go on for --grace seconds, {_SERVER.grace_s:g} by default. In lmhub run, /exit or Ctrl-D ends the chat.",
     "Ctrl-C stops the server, with a grace period."),
    (("[is there|do you have|does lmhub have] a [web|chat|] [page|ui|interface|gui|website][?|]", "[where is|how do I open] the [chat page|web page|web ui|ui][?|]", "can I chat in [the|a|my] browser[?|]", "[web ui|ui|browser|chat page][?|]", "how do I [open|use] [you|lmhub|it] in [the|a|my] browser[?|]", "what is at the root url[?|]", "how do I turn off the [page|ui|chat page][?|]"),
     f"Yes: open {_ADDRESS}/ in a browser for the chat page; --no-ui turns it off.",
     "There is a chat page at the server's root."),
    (("what is [isa|instruction set][?|]", "[which|what] instruction sets are [supported|used][?|]", "does lmhub use [AVX2|AVX-512|AMX|avx][?|]", "what is LMK_ISA[?|]", "[AVX|AMX|LMK_ISA][?|]", "how do I [check|see] what my [machine|cpu|computer] can do[?|]", "is my [cpu|machine|computer] supported[?|]"),
     "lmhub doctor shows the instruction set, threads and memory bandwidth. LMK_ISA=ref, avx2, avx512 or amx forces a level; the results are the same bits.",
     "lmhub doctor shows the instruction set."),
)  # fmt: skip


@cache
def facts() -> tuple[tuple[str, Fact], ...]:
    """(kind, fact) of everything that the model is to know."""
    found: list[tuple[str, Fact]] = [("written", fact) for fact in WRITTEN]
    for name, about in manual.commands().items():
        first = about.split(". ")[0].rstrip(".") + "."
        thought = f"The question is about the command {name}."
        found.append(("command", (_filled(COMMAND, name), f"lmhub {name}: {first}", thought)))
    for option in manual.options():
        found += _of_option(option)
    for name, (archs, about) in manual.plugins().items():
        listed = ", ".join(archs)
        answer = f"{name} is the plugin for {about}. Its architectures: {listed}. pip install {name}"
        found.append(("plugin", (_filled(PLUGIN, name), answer, f"{name} is one of lmhub's plugins.")))
        for arch in archs:
            yes = f"Yes: {name} serves {listed}. pip install {name}, then lmhub serve MODEL.gguf."
            found.append(("plugin", (_filled(ARCHITECTURE, arch), yes, f"{arch} is a family of {name}.")))
    for name, (arguments, when, about) in manual.hooks().items():
        answer = f"{name}({arguments}) is {when}. {about}"
        found.append(("hook", (_filled(HOOK, name), answer, f"{name} is one of lmhub's hooks.")))
    return tuple(found)


def _of_option(option: manual.Option) -> Iterator[tuple[str, Fact]]:
    """What can be asked about a flag: what it does, its default, its variable, and the flag that takes it back."""
    flag, thought = option.flag, f"{option.flag} is an option of lmhub {option.command}."
    about = f"{flag} of lmhub {option.command}: {option.help}"
    if option.off:
        on = {flag[2:]: "on", option.off[2:]: "off"}.get(option.default)
        about += f" {option.off} turns it off."
        said = f"{flag} is {on} by default." if on else f"{flag} has no default."
        yield "flag", (_filled(FLAG, option.off), f"{option.off} turns off {flag}: {option.help}", thought)
    else:
        about += f" The default is {option.default}." if option.default else ""
        said = f"The default of {flag} is {option.default}." if option.default else f"{flag} has no default."
    variable = f"{option.variable} sets {flag}." if option.variable else f"{flag} has no environment variable."
    yield "flag", (_filled(FLAG, flag), about, thought)
    yield "flag", (_filled(DEFAULT, flag), said, thought)
    yield "flag", (_filled(VARIABLE, flag), variable, thought)


def _filled(patterns: tuple[str, ...], subject: str) -> tuple[str, ...]:
    return tuple(pattern.replace("{x}", subject) for pattern in patterns)


def about_lmhub(talk: Talk) -> None:
    """A question about lmhub and its answer."""
    c = talk.c
    known = [("written", fact) for fact in WRITTEN] if c.chance(0.45) else facts()
    _, (patterns, answer, thought) = c.any([fact for fact in known if not c.held_out or kept_back(fact[1][0])])
    lead = c.any(("", "", "", "", "hey, ", "please, ", "I have a question: ", "one question: "))
    question = c.asked(patterns, lead)
    if "--" in question and c.chance(0.2):  # as people type a flag who do not look it up
        question = question.replace("--", c.any(["", "-"]))
    elif "lmhub_" in question and c.chance(0.15):
        question = question.replace("_", " ")
    talk.user(question)
    talk.answer(answer, thought)
    talk.skill = "lmhub"
