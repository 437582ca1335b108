"""Conversations to prompts, and replies back to channels.

`prompt.ChatFormat` is what the rest of lmhub uses: it renders messages through the model's own chat template
(`template`), in which every character knows whether the template or a client wrote it (`traced`), and makes the parser
that reads the reply (`reply`). Nothing in here knows of HTTP, engines or model files.
"""
