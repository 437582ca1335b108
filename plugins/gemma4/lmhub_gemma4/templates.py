"""Chat templates for files that carry none, as Ollama's do: the languages of Gemma 4 and of Gemma 3 in Jinja."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_GEMMA4 = r"""
{%- macro text(v) -%}{{ '<|"|>' }}{{ v }}{{ '<|"|>' }}{%- endmacro -%}
{%- macro value(v) -%}
  {%- if v is string -%}{{ text(v) }}
  {%- elif v is boolean -%}{{ 'true' if v else 'false' }}
  {%- elif v is none -%}{{ 'null' }}
  {%- elif v is mapping -%}{{ '{' }}{{ pairs(v) }}{{ '}' }}
  {%- elif v is iterable -%}{{ '[' }}
    {%- for one in v -%}{{ ',' if not loop.first }}{{ value(one) }}{%- endfor -%}{{ ']' }}
  {%- else -%}{{ v }}
  {%- endif -%}
{%- endmacro -%}
{%- macro pairs(v) -%}
  {%- for key, one in v | dictsort -%}{{ ',' if not loop.first }}{{ key }}{{ ':' }}{{ value(one) }}{%- endfor -%}
{%- endmacro -%}
{%- macro schema(s) -%}
  {%- if s.description -%}{{ 'description:' }}{{ text(s.description) }}{{ ',' }}{%- endif -%}
  {%- if s.enum -%}{{ 'enum:' }}{{ value(s.enum) }}{{ ',' }}{%- endif -%}
  {%- if 'items' in s -%}{{ 'items:{' }}{{ schema(s['items']) }}{{ '},' }}{%- endif -%}
  {%- if s.nullable -%}{{ 'nullable:true,' }}{%- endif -%}
  {%- if s.properties -%}{{ 'properties:{' }}
    {%- for key, one in s.properties | dictsort -%}
      {{ ',' if not loop.first }}{{ key }}{{ ':{' }}{{ schema(one) }}{{ '}' }}
    {%- endfor -%}{{ '},' }}
  {%- endif -%}
  {%- if s.required -%}{{ 'required:' }}{{ value(s.required) }}{{ ',' }}{%- endif -%}
  {{ 'type:' }}{{ text(s.type | upper) }}
{%- endmacro -%}
{%- set thinks = enable_thinking is defined and enable_thinking -%}
{%- set first = 1 if messages[0].role == 'system' else 0 -%}
{{- bos_token -}}
{%- if thinks or tools or first -%}
  {{ '<|turn>system\n' }}{{ '<|think|>\n' if thinks }}{{ messages[0].content | trim if first }}
  {%- for tool in tools or [] -%}
    {{ '<|tool>declaration:' }}{{ tool.function.name }}{{ '{description:' }}{{ text(tool.function.description or '') }}
    {%- if tool.function.parameters -%}{{ ',parameters:{' }}{{ schema(tool.function.parameters) }}{{ '}' }}{%- endif -%}
    {{ '}<tool|>' }}
  {%- endfor -%}
  {{ '<turn|>\n' }}
{%- endif -%}
{%- set ns = namespace(asked=-1, open=false, answered=false) -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}{%- set ns.asked = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages[first:] -%}
  {%- set model = message.role == 'assistant' -%}
  {%- if message.role == 'tool' -%}
    {{ '<|tool_response>response:' }}{{ message.name }}{{ '{value:' }}{{ text(message.content) }}
    {{- '}<tool_response|>' }}
    {%- set ns.answered = true -%}
  {%- else -%}
    {%- if ns.open and not model -%}{{ '<turn|>\n' }}{%- set ns.open = false -%}{%- endif -%}
    {%- if not ns.open -%}{{ '<|turn>model' if model else '<|turn>' + message.role }}{{ '\n' }}{%- endif -%}
    {%- if not model -%}{{ message.content | trim }}{{ '<turn|>\n' }}
    {%- else -%}
      {%- if message.reasoning_content and loop.index0 + first > ns.asked -%}
        {{ '<|channel>thought\n' }}{{ message.reasoning_content }}{{ '\n<channel|>' }}
      {%- endif -%}
      {{ message.content | trim }}
      {%- for call in message.tool_calls or [] -%}
        {{ '<|tool_call>call:' }}{{ call.function.name }}{{ '{' }}{{ pairs(call.function.arguments) }}
        {{- '}<tool_call|>' }}
      {%- endfor -%}
      {%- set ns.open = true -%}
    {%- endif -%}
    {%- set ns.answered = false -%}
  {%- endif -%}
{%- endfor -%}
{%- if ns.open and not ns.answered -%}{{ '<turn|>\n' }}{%- set ns.open = false -%}{%- endif -%}
{%- if add_generation_prompt and not ns.open -%}
  {{ '<|turn>model\n' }}{{ '<|channel>thought\n<channel|>' if PRIMED and not thinks }}
{%- endif -%}
"""
_GEMMA3 = r"""
{{- bos_token -}}
{%- set first = 1 if messages[0].role == 'system' else 0 -%}
{%- for message in messages[first:] -%}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
    {{ raise_exception('after a system message, turns alternate between user and assistant') }}
  {%- endif -%}
  {{ '<start_of_turn>' }}{{ 'model' if message.role == 'assistant' else 'user' }}{{ '\n' }}
  {{- messages[0].content + '\n\n' if first and loop.first }}{{ message.content | trim }}{{ '<end_of_turn>\n' }}
{%- endfor -%}
{{ '<start_of_turn>model\n' if add_generation_prompt }}
"""


def template(metadata: Mapping[str, Any]) -> str | None:
    """See `Family.template`. Large models of Gemma 4 are told by an empty channel not to reason; small ones are not."""
    if "tokenizer.chat_template" in metadata:
        return None
    tokens = metadata.get("tokenizer.ggml.tokens") or ()
    arch = str(metadata.get("general.architecture"))
    if "<start_of_turn>" in tokens and arch == "gemma3":
        return _GEMMA3.strip()
    if "<|turn>" not in tokens or arch == "gemma3":
        return None
    primed = not metadata.get(f"{arch}.embedding_length_per_layer_input", 0)
    return _GEMMA4.strip().replace("PRIMED", "true" if primed else "false")
