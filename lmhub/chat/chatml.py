"""Chat templates in ChatML for files that carry none: turns between `<|im_start|>ROLE` and `<|im_end|>`.

    PLAIN           tools and calls as JSON (Hermes), no reasoning
    THINKING        the same, with reasoning in `<think>`, which the model opens itself
    THINKING_XML    calls as XML functions; the prompt opens the reasoning; texts without blanks around them

A file's own template always goes first. Reasoning is shown in the turn that is still going on, behind the last
question, and nowhere else.
"""

from __future__ import annotations

_TURNS = """\
{%- set last = namespace(question=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set last.question = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- set has_system = messages and messages[0].role == 'system' %}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    @system@
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set content = message.content@trim@ %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user' if not loop.previtem or loop.previtem.role != 'tool' }}
        {{- '\\n<tool_response>\\n' ~ content ~ '\\n</tool_response>' }}
        {{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' }}
    {%- elif not (tools and has_system and loop.first) %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' }}
        @reasoning@
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            @call@
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    @opener@
{%- endif %}
"""

_SYSTEM = """\
{{- messages[0].content ~ '\\n\\n' if has_system }}
    {{- '# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' ~ (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nTo call one, reply with\\n' }}
    {{- '<tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call>' }}"""

_SYSTEM_XML = """\
{{- '# Tools\\n\\nThese functions can be called:\\n\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' ~ (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nA call looks like this, with one parameter for each argument and nothing behind it:\\n\\n' }}
    {{- '<tool_call>\\n<function=name_of_the_function>\\n<parameter=name_of_an_argument>\\n' }}
    {{- 'its value, as it is, on one line or several\\n</parameter>\\n</function>\\n</tool_call>\\n\\n' }}
    {{- 'Several calls follow one another. Where no function is of use, answer without any.' }}
    {{- '\\n\\n' ~ (messages[0].content | trim) if has_system and messages[0].content | trim }}"""

_CALL = """\
{{- '\\n' if content or not loop.first }}
            {{- '<tool_call>\\n{"name": ' ~ (call.function.name | tojson) ~ ', "arguments": ' }}
            {{- (call.function.arguments | tojson) ~ '}\\n</tool_call>' }}"""

_CALL_XML = """\
{{- '\\n\\n' if content and loop.first else '\\n' if not loop.first }}
            {{- '<tool_call>\\n<function=' ~ call.function.name ~ '>\\n' }}
            {%- for key, value in call.function.arguments | items %}
                {{- '<parameter=' ~ key ~ '>\\n' }}
                {{- value if value is string else value | tojson }}
                {{- '\\n</parameter>\\n' }}
            {%- endfor %}
            {{- '</function>\\n</tool_call>' }}"""

_REASONING = """\
{%- set reasoning = (message.reasoning_content or '') | trim %}
        {%- if message.role == 'assistant' and loop.index0 > last.question@where@ %}
            {{- '<think>\\n' ~ reasoning ~ '\\n</think>\\n\\n' }}
        {%- endif %}"""

_NO_THOUGHT = "'<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and not enable_thinking"


def _template(**parts: str) -> str:
    source = _TURNS
    for name, text in parts.items():
        source = source.replace(f"@{name}@", text)
    return source


PLAIN = _template(system=_SYSTEM, trim="", reasoning="", call=_CALL, opener="")
THINKING = _template(
    system=_SYSTEM,
    trim="",
    reasoning=_REASONING.replace("@where@", " and (reasoning or loop.last)"),
    call=_CALL,
    opener=f"{{{{- {_NO_THOUGHT} }}}}",
)
THINKING_XML = _template(
    system=_SYSTEM_XML,
    trim=" | trim",
    reasoning=_REASONING.replace("@where@", ""),
    call=_CALL_XML,
    opener=f"{{{{- {_NO_THOUGHT} else '<think>\\n' }}}}",
)
