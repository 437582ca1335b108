"""What becomes of every field of a Responses request. Data only; the parser, docs/dialects.md and `/openapi.json` agree
with it.
"""

from __future__ import annotations

from lmhub.dialect import Field
from lmhub.server.fields import honoured, ignored, refused
from lmhub.server.grammar_fields import GRAMMAR_TABLE
from lmhub.server.reasoning_fields import REASONING_TABLE
from lmhub.server.sampling_fields import SAMPLING_TABLE

_OWN: tuple[Field, ...] = (
    honoured(
        "input",
        "a string or items; required unless `previous_response_id` is given. Neighbouring items of the assistant are "
        "one turn, and so are neighbouring outputs. A trailing turn of the assistant is history",
    ),
    honoured(
        "input[].message",
        "roles `system`, `developer`, `user`, `assistant`; a string or text parts; files and images are 400",
    ),
    honoured("input[].function_call", "`arguments` as text or an object; an output for it may be missing"),
    honoured(
        "input[].function_call_output",
        "`output` as a string, parts or an object; a picture among them becomes a note that it was left out",
    ),
    honoured("input[].custom_tool_call", "`input` as text; `custom_tool_call_output` likewise"),
    honoured(
        "input[].reasoning",
        "`encrypted_content` of this server, else `content`, given to templates that want it; otherwise dropped",
    ),
    honoured("input[].item_reference", "the item from the store; unknown: 400 `item_not_found`; store off: 400"),
    honoured("input[].additional_tools", "its tools are declared as well"),
    honoured("instructions", "leading system text; as an array, the text of its messages"),
    honoured("model", "selects among several served models; any name means the only one"),
    honoured("max_output_tokens", "at least 1, reasoning included; -1 as absent; cut to what the context leaves"),
    honoured("stream", "typed events from `response.created` to `response.completed`, `.incomplete` or `.failed`"),
    honoured("stream_options", "needs `stream: true`; otherwise ignored, since usage is always told"),
    honoured("text", "the form of the reply"),
    honoured("text.format", "`text`, `json_object`, or `json_schema` with `schema`, enforced whatever `strict` says"),
    honoured("reasoning", "whether the model reasons first, and how that is shown"),
    honoured(
        "reasoning.effort",
        "`none` and `minimal`: off; `low` `medium` `high` `xhigh` `max` `default`: on, and handed to the template",
    ),
    honoured(
        "reasoning.summary",
        "`auto`, `concise` or `detailed`: the reasoning comes as a summary (the whole of it) instead of raw",
    ),
    honoured("reasoning.generate_summary", "an earlier spelling of `reasoning.summary`"),
    honoured(
        "tools",
        "functions; custom tools, which the model sees as functions of one string; namespaces of both, as "
        "`namespace__name`. Hosted tools are left out with a log line, or refused with `--strict-tools`",
    ),
    honoured("tools[].strict", "forced calls follow the schema; without it, any object"),
    honoured("tools[].format", "of custom tools: `text`, or `grammar` in `lark` or `regex`"),
    honoured(
        "tool_choice",
        "`none`, `auto`, `required`, a function, a custom tool, or `allowed_tools`; a hosted tool is 400. A forced "
        "call wins over `text.format`",
    ),
    honoured("parallel_tool_calls", "`false`: the reply ends with its first call"),
    honoured(
        "previous_response_id",
        "the earlier input and output come before this input; instructions and tools are not inherited. Unknown: 400 "
        "`previous_response_not_found`; store off: 400; empty: as absent",
    ),
    honoured("store", "`false`: the response is not kept"),
    honoured(
        "include",
        "`reasoning.encrypted_content` and `message.output_text.logprobs`; other values change nothing",
    ),
    honoured("top_logprobs", "0 to 20 alternatives for each token; above 0 they come without being included"),
    honoured("truncation", "`disabled`; `auto` is 400"),
    honoured("background", "`false`; `true` is 400"),
    honoured("continue_final_message", "the reply goes on with the assistant's trailing turn; extension"),
    refused("conversation", "this server keeps no conversations; send previous_response_id or the whole input"),
    refused("prompt", "this server keeps no prompt templates; send instructions and input"),
    *ignored("repeated in the response", "metadata", "user", "safety_identifier", "prompt_cache_key", "text.verbosity"),
    *ignored("concerns hosted tools", "max_tool_calls"),
    *ignored("the prompt is read as it was sent", "context_management"),
    *ignored(
        "bookkeeping of the hosted service",
        *("service_tier", "prompt_cache_retention", "prompt_cache_options", "client_metadata", "moderation"),
        *("access_programs", "reasoning.context", "reasoning.mode"),
    ),
    *ignored(
        "items that hosted tools left in a history; dropped with a log line, except an output of a call that is shown",
        *("input[].web_search_call", "input[].file_search_call", "input[].code_interpreter_call"),
        *("input[].image_generation_call", "input[].computer_call", "input[].mcp_*", "input[].local_shell_call"),
        *("input[].shell_call", "input[].apply_patch_call", "input[].tool_search*", "input[].compaction"),
    ),
)
_NAMES = {field.name for field in _OWN}
_SHARED = (*SAMPLING_TABLE, *GRAMMAR_TABLE, *REASONING_TABLE)
FIELDS = (*_OWN, *(field for field in _SHARED if field.name not in _NAMES))  # one field means something else here
