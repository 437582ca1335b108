"""What becomes of every field of a Messages request. Data only; the parser, docs/dialects.md and `/openapi.json` agree
with it.
"""

from __future__ import annotations

from lmhub.dialect import Field
from lmhub.server.denoising_fields import DENOISING_FIELD
from lmhub.server.fields import honoured, ignored

FIELDS: tuple[Field, ...] = (
    honoured("model", "required; selects among several served models, any name means the only one"),
    honoured("max_tokens", "required, except for `count_tokens`; at least 1, cut to what the context leaves"),
    honoured(
        "messages",
        "required, not empty; the first one is the user's. A last one of the assistant's is continued, which excludes "
        "thinking, forced tools and formats. Neighbours with one role are one turn; results come before the text",
    ),
    honoured("messages[].role", "`user`, `assistant`, or `system` for text between the turns, folded where it stands"),
    honoured("messages[].content", "a string or blocks"),
    honoured("messages[].content[].text", "block `text`: joined without a separator; may be empty"),
    honoured(
        "messages[].content[].thinking",
        "block `thinking`: given to templates that want it, signed or not; `redacted_thinking` is dropped",
    ),
    honoured("messages[].content[].input", "block `tool_use`: an object; the tool need not be declared any more"),
    honoured(
        "messages[].content[].content",
        "block `tool_result`: a string, blocks, or nothing; an image becomes a note that it was left out; `is_error` "
        "puts `Error: ` in front",
    ),
    honoured("messages[].content[].source", "block `document`: text sources are inlined; others, and `image`, are 400"),
    honoured(
        "system",
        "a string, or text blocks which are joined by a blank line; a block that begins with "
        "`x-anthropic-billing-header:` is left out",
    ),
    honoured("stream", "server-sent events from `message_start` to `message_stop`"),
    honoured("temperature", "0 to 1; the model's own default otherwise"),
    honoured("top_p", "0 to 1; 0 takes the likeliest token"),
    honoured("top_k", "0 or more; -1 and 0 are no limit"),
    honoured("stop_sequences", "any number of strings that are not empty; the one that ended the reply is echoed"),
    honoured(
        "thinking",
        "whether the model thinks first; of no effect on a model without a reasoning channel",
    ),
    honoured("thinking.type", "`enabled`, `adaptive`, `between_tools` (as `adaptive`) or `disabled`"),
    honoured("thinking.budget_tokens", "at least 1; the thinking is closed when they are used up"),
    honoured(
        "thinking.display", "`omitted`: thinking blocks come empty, and their signature holds the text for replay"
    ),
    honoured("output_config", "form and effort of the reply"),
    honoured("output_config.format", "`json_schema` with `schema`, enforced; or `text`"),
    honoured("output_config.effort", "with thinking: handed to the template as `reasoning_effort`"),
    honoured("output_format", "an earlier spelling of `output_config.format`"),
    honoured(
        "tools",
        "custom tools; `bash_*`, `text_editor_*` and `memory_*` with their usual schemas; tools that run on a hosted "
        "service are left out; `computer_*` is 400",
    ),
    honoured("tools[].input_schema", "a JSON schema, enforced on forced calls; any object where there is none"),
    honoured("tools[].eager_input_streaming", "arguments come in fragments while they are written, instead of whole"),
    honoured("tool_choice", "what may be called"),
    honoured("tool_choice.type", "`auto`, `any` (exactly one call), `tool` (a call of `name`) or `none`"),
    honoured("tool_choice.disable_parallel_tool_use", "the reply ends with its first call"),
    honoured("min_p", "0 to 1; extension"),
    honoured("repeat_penalty", "above 0, up to 4; extension"),
    honoured("seed", "0 to 2^64 - 1, or -1 for a random one; extension"),
    honoured("chat_template_kwargs", "variables for the template; `enable_thinking` beats `thinking`; extension"),
    honoured("regex", "an expression that the whole reply matches; extension"),
    honoured("lark", "a grammar that the whole reply matches; extension"),
    honoured("ignore_eos", "the reply ends at its budget or at a stop sequence only; extension"),
    DENOISING_FIELD,
    honoured("sse_ping_interval", "seconds of silence after which a stream gets a `ping`; extension"),
    *ignored(
        "bookkeeping of the hosted service",
        *("metadata", "service_tier", "cache_control", "inference_geo", "speed", "diagnostics"),
        *("user_profile_id", "workspace_id", "betas", "fallbacks", "billing_policy", "thread", "compaction"),
    ),
    *ignored("accepted whatever it holds; the history is used as it was sent", "context_management"),
    *ignored(
        "it needs a hosted service; a warning in the log says so, `--strict-tools` refuses it",
        "mcp_servers",
        "container",
    ),
    *ignored("no such thing here; end `messages` with one of the assistant's", "prefill"),
    *ignored("hints for hosted services", "tools[].cache_control", "tools[].defer_loading", "tools[].allowed_callers"),
    *ignored("forced calls always follow the schema", "tools[].strict"),
    *ignored("the model is not shown them", "tools[].input_examples"),
    *ignored("every version and every beta is accepted", "header anthropic-version", "header anthropic-beta"),
)
