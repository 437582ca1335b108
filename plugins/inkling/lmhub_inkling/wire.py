"""Inkling's wire format as a chat template: a conversation as blocks, `ROLE [name] KIND payload <|end_message|>`.

    system: tools   system messages   system: effort   user, model and tool messages   <|message_model|>

Files carry templates of their own, which differ from the vendor's renderer (the package tml-renderers) here and there;
this one goes before them. Keys of a tool's schema are sorted at every level, those of arguments at the first alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEMPLATE = """\
{%- macro block(role, name, kind, payload) %}
    {{- role ~ name ~ kind ~ payload ~ '<|end_message|>' }}
{%- endmacro %}
{%- macro json(value) %}
    {{- value | tojson(separators=(',', ':'), sort_keys=true) }}
{%- endmacro %}
{%- macro sorted(members) %}
    {{- '{' }}
    {%- for key, value in members | dictsort(true) %}
        {{- (',' if not loop.first else '') ~ (key | tojson) ~ ':' ~ (value | tojson(separators=(',', ':'))) }}
    {%- endfor %}
    {{- '}' }}
{%- endmacro %}
{%- set model, system = '<|message_model|>', '<|message_system|>' %}
{%- set text, thought = '<|content_text|>', '<|content_thinking|>' %}
{%- set invoked = '<|content_invoke_tool_json|>' %}
{%- set thinks = enable_thinking is not defined or enable_thinking %}
{%- set efforts = {'minimal': '0.1', 'low': '0.2', 'medium': '0.7', 'high': '0.9', 'xhigh': '0.99', 'max': '0.99'} %}
{%- set effort = efforts[reasoning_effort] if reasoning_effort is defined and reasoning_effort in efforts else '0.9' %}
{%- set effort = 'Thinking effort level: ' ~ (effort if thinks else '0') %}
{%- if tools %}
    {%- set ns = namespace(all=[]) %}
    {%- for tool in tools %}
        {%- set one = tool.function %}
        {%- set told = {'description': one.description or '', 'name': one.name, 'parameters': one.parameters or {}} %}
        {%- set ns.all = ns.all + [dict(told, type='function')] %}
    {%- endfor %}
    {{- block(system, 'tool_declare', '<|content_xml|>', json(ns.all)) }}
{%- endif %}
{%- set said = namespace(effort=false, any=false) %}
{%- for message in messages %}
    {%- if message.role != 'system' and not said.effort %}
        {%- set said.effort = true %}
        {{- block(system, '', text, effort) }}
    {%- endif %}
    {%- if message.role == 'assistant' %}
        {%- set said.any = false %}
        {%- for part in message.parts if part.text or part.reasoning or part.call %}
            {%- set said.any = true %}
            {%- if part.call %}
                {%- set name = part.call.function.name %}
                {%- set args = sorted(part.call.function.arguments) %}
                {{- block(model, name, invoked, '{"name":' ~ json(name) ~ ',"args":' ~ args ~ '}') }}
            {%- else %}
                {{- block(model, '', text if part.text else thought, part.text or part.reasoning) }}
            {%- endif %}
        {%- endfor %}
        {{- '<|content_model_end_sampling|>' if said.any }}
    {%- elif message.role == 'tool' %}
        {{- block('<|message_tool|>', message.name, text, message.content) }}
    {%- else %}
        {%- for part in message.parts if part.text %}
            {{- block(system if message.role == 'system' else '<|message_user|>', '', text, part.text) }}
        {%- endfor %}
    {%- endif %}
{%- endfor %}
{{- block(system, '', text, effort) if not said.effort }}
{%- if add_generation_prompt %}
    {{- model ~ ('' if thinks or tools else text) }}
{%- endif %}
"""


def template(metadata: Mapping[str, Any]) -> str:
    """The template, whatever the file says."""
    return TEMPLATE
