"""Questions in words of their own, for the evaluation alone: no pattern of the training has them.

What the data generator keeps back differs from the training by a word or two; people differ by more.
"""

from __future__ import annotations

import facts
import smalltalk
import unknown
from talk import Talk

SMALL_TALK = {
    "hello": ("hi, is this thing working?", "good day to you", "hello demo, nice to see you"),
    "how are you": ("how are things going today?", "how do you feel this morning?"),
    "who are you": ("please tell me who you are", "what sort of model am I talking to here?", "say a few words about yourself"),
    "name": ("what do people call you?", "may I ask your name?"),
    "human": ("is a real person typing this?", "so you are just a machine?"),
    "who made you": ("who trained you and how?", "which people built you?"),
    "size": ("how many parameters are in you?", "are you a big model or a small one?"),
    "smart": ("do you ever make mistakes?", "how far can I trust your answers?"),
    "abilities": ("what kind of things can you do for me?", "give me an idea of what I can ask"),
    "thanks": ("thank you, that was a great help", "thanks, you have been very helpful"),
    "bye": ("ok, I have to leave now, bye", "goodbye and see you tomorrow"),
    "praise": ("that was a really good answer", "you are a clever little model"),
    "blame": ("no, that answer was wrong", "that is a bad answer"),
    "joke": ("do you have a good joke for me?", "please make me laugh with a joke"),
    "clock": ("could you tell me what time it is now?", "which day of the week is today?"),
    "languages": ("can we speak in French?", "do you know any German?"),
    "internet": ("can you search the web for me?", "do you run in the cloud or on my machine?"),
    "open": ("am I allowed to use you for free?", "under which licence is lmhub?"),
}  # fmt: skip
ABOUT_LMHUB = (
    ("can you tell me what lmhub is?", "what is lmhub"), ("I would like to add my own model family, how?", "how do I add a"), ("what is the port of the server?", "[which|what] port[?|]"), ("how can I connect Claude Code to lmhub?", "how do I point"),
    ("is there a way to talk to a model in my terminal?", "how do I [chat|talk] in the terminal"), ("do I have to buy a GPU for lmhub?", "does lmhub need a GPU"), ("how can I see if a model fits into my memory?", "how much memory"), ("tell me how to install lmhub", "how do I install"), ("how can I get valid JSON from the model?", "does lmhub support [structured"),
    ("where do I find the docs?", "where is the [documentation"), ("how can I stop the server again?", "how do I stop the server"), ("which APIs does the server have?", "[which|what] [APIs"), ("can I use lmhub with the OpenAI python library?", "how do I use the OpenAI"), ("how do I set an API key for my server?", "how do I [protect"),
    ("can the server serve two models at the same time?", "can I serve [several"), ("is there a web page to chat with the model?", "[is there|do you have|does lmhub have] a [web"), ("which hooks can a plugin have?", "what is a hook"), ("how can I give the model a longer memory of the text?", "how do I [make|increase"), ("how do I run the tests of lmhub?", "how do I run the tests"), ("what kind of file is GGUF?", "[what is|explain] [GGUF"),
)  # fmt: skip
_UNKNOWN = (
    "who painted the Mona Lisa?", "how long does it take to fly to the moon?", "what is the best way to learn the piano?", "why is the sky blue?", "which country has the most people?", "how many legs does a spider have?", "tell me something about the Roman Empire", "what is the tallest mountain in the world?", "when did the second world war end?", "how does a microwave oven work?",
    "is coffee good for my health?", "who is the richest person in the world?", "what should I cook for dinner tonight?", "what is the speed of light?", "recommend a good film about space", "how do plants make oxygen?", "what is the difference between a frog and a toad?", "where was Napoleon born?", "how far away is the sun?", "what causes earthquakes?",
)  # fmt: skip


def small_talk(talk: Talk) -> None:
    """A remark whose meaning was trained, in other words."""
    kind = talk.c.any(sorted(SMALL_TALK))
    _exchange(talk, talk.c.any(SMALL_TALK[kind]), smalltalk.INTENTS[kind][1][0])


def about_lmhub(talk: Talk) -> None:
    """A question about lmhub whose answer was trained, in other words."""
    question, begins = talk.c.any(ABOUT_LMHUB)
    [answer] = [answer for patterns, answer, _ in facts.WRITTEN if patterns[0].startswith(begins)]
    _exchange(talk, question, answer)


def beyond(talk: Talk) -> None:
    """A question about the world."""
    _exchange(talk, talk.c.any(_UNKNOWN), unknown.ANSWER)


def _exchange(talk: Talk, question: str, answer: str) -> None:
    talk.user(question)
    talk.answer(answer, "")
