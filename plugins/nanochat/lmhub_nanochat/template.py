"""How nanochat is talked to, as a chat template: its files carry none.

The roles alternate, the user's first; no line breaks, no other markup. There is no system token: system text goes
before the next user's, as the renderer of nanochat's training does with a leading one. An assistant's content may be a
list of parts, of which some are runs of its calculator. `TEMPLATE` is rendered by lmhub like any file's own.
"""

from __future__ import annotations

TEMPLATE = """\
{%- set ns = namespace(before='', role='') -%}
{%- macro said(content) -%}
{%- if content is string -%}{{ content }}
{%- else -%}
{%- for part in content -%}
{%- if part.type == 'python' -%}{{ '<|python_start|>' }}{{ part.text }}{{ '<|python_end|>' }}
{%- elif part.type == 'python_output' -%}{{ '<|output_start|>' }}{{ part.text }}{{ '<|output_end|>' }}
{%- else -%}{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{{ bos_token }}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set ns.before = ns.before + message.content + '\\n\\n' -%}
{%- elif message.role not in ('user', 'assistant') -%}
{{ raise_exception('nanochat knows the roles system, user and assistant') }}
{%- elif message.role == ns.role -%}
{{ raise_exception('user and assistant must take turns') }}
{%- elif message.role == 'assistant' -%}
{%- if not ns.role -%}{{ raise_exception('the user must speak first') }}{%- endif -%}
{{ '<|assistant_start|>' }}{{ said(message.content) }}
{%- if not loop.last or not continue_final_message -%}{{ '<|assistant_end|>' }}{%- endif -%}
{%- set ns.role = 'assistant' -%}
{%- else -%}
{{ '<|user_start|>' }}{{ ns.before }}{{ said(message.content) }}{{ '<|user_end|>' }}
{%- set ns.role = 'user' -%}
{%- set ns.before = '' -%}
{%- endif -%}
{%- endfor -%}
{%- if ns.before -%}
{{ '<|user_start|>' }}{{ ns.before[:-2] }}{{ '<|user_end|>' }}
{%- set ns.role = 'user' -%}
{%- endif -%}
{%- if add_generation_prompt -%}
{%- if ns.role != 'user' -%}{{ raise_exception('the last message must be the user\\'s') }}{%- endif -%}
{{ '<|assistant_start|>' }}
{%- endif -%}
"""
