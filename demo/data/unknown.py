"""Questions that the model does not know: the world, code, long texts, other languages. It says so."""

from __future__ import annotations

import words
from choice import Chooser
from talk import Talk

ANSWER = "I am a small demo model and do not know that. Serve a bigger model with lmhub serve MODEL.gguf and ask again."
_ABROAD = "I only speak English, and I am a small demo model. Ask me something about lmhub, in English."
_CODE = "I am a small demo model and cannot write code. Serve a bigger model with lmhub serve MODEL.gguf for that."
_TEXT = "I am a small demo model and cannot write texts. Serve a bigger model with lmhub serve MODEL.gguf for that."

WORLD = (
    "what is {x}[?|]", "[explain|describe] {x}[.|| to me| in simple words| in detail]", "[tell me|what do you know] about {x}[.|?|]", "how [does|do] {x} work[?|]", "why [is|are] {x} [important|so big|so old|dangerous|popular][?|]", "who [invented|discovered|wrote|made|built] {x}[?|]", "when [was|were|did] {x} [invented|begin|end|discovered|built][?|]",
    "what is the capital of {country}[?|]", "how many people live in {city}[?|]", "[who is|who was] {name}[?|]", "how [old|tall|big|far|heavy] is {x}[?|]", "where [is|are|can I find] {x}[?|]", "what is the [meaning|history|price|future|definition] of {x}[?|]", "[give me|list] [three|five|ten|some] [facts|ideas|examples|books] about {x}[.|]",
    "is {x} [good|bad|healthy|real|true|better than {y}][?|]", "what is the difference between {x} and {y}[?|]", "compare {x} [and|with] {y}[.|]", "how do I [cook|make|learn|buy|fix|clean|draw] {x}[?|]", "[who won|who is winning|who plays in] the [world cup|election|game|finals|match][?|]", "[recommend|suggest] [a|me a] [book|film|restaurant|song|game] about {x}[.|]",
    "who is the [president|king|queen|prime minister] of {country}[?|]", "what language do they speak in {country}[?|]", "what [happened|was] in [1789|1914|1969|2001|2020|1492][?|]", "what should I [eat|wear|read|watch|do] [today|tonight|tomorrow][?|]", "what is the [population|currency|flag|area] of {country}[?|]", "[can|do|should] [dogs|cats|children|plants] eat {food}[?|]", "what do you think [of|about] {x}[?|]", "which is the [biggest|largest|oldest|best|fastest] [animal|city|river|planet|car|phone][?|]",
    "how many {x} are there[| in {country}| on earth][?|]", "how long [is|was|did] {x}[?| last?]", "how [hot|cold|deep|long|fast|rich|wide|expensive|rare] [is|are|was] {x}[?|]", "how much [does|do] {x} [weigh|earn|eat][?|]", "who [sang|directed|designed|founded|composed|owns|broke|sells] {x}[?|]", "who [is|was] the [first|oldest|most famous|fastest] [woman|writer|king|player|singer] [of|in|from] {country}[?|]",
    "in which year [was|were|did] {x} [born|made|start|happen][?|]", "when [does|do|did] {x} [start|open|bloom|stop|happen][?|]", "where [do|does|did] {x} [come from|live|grow|happen][?|]", "where did {name} [live|die|study|work][?|]", "[was|did|is] {name} [ever|] [married|famous|alive|live in {city}][?|]", "why [do|does|did] {x} [exist|fail|hurt|matter|smell|move|happen|fly][?|]",
    "what [makes|made|brings] {x} [grow|move|red|so famous|stop|back][?|]", "what happens [when|if] {x} [stops|gets hot|breaks|dies|is cold][?|]", "[what|which] are the [rules|parts|colours|types|names|dangers] of {x}[?|]", "what is [the point of|so special about|the opposite of|another word for|your opinion of] {x}[?|]", "what is {x} [made of|used for|good for|in {language}][?|]", "which [country|city|river|animal|metal|planet|mountain] is the [smallest|longest|hottest|coldest|heaviest|deepest|richest][?|]",
    "I want to [know|learn|understand] [more about|] {x}[.|]", "teach me [something about|about|] {x}[.|]", "[do|does|can|will] {x} [exist|hurt|sleep|fly|die|help|swim|grow|come back][?|]", "is it [safe|legal|hard|expensive|true|useful] to [eat|own|visit|study|sell] {x}[?|]", "how can I [get to|grow|repair|build|sell|find|lose|train] {x}[?|]", "how is {x} [made|done|spelled|grown|measured][?|]", "[name|list] [two|four|some] [famous|old|good] [rivers|writers|songs|kings|animals|towns] [of|in|from] {country}[.|]",
    "which is [better|bigger|older|heavier], {x} or {y}[?|]", "what [was|is] the [cause|end|result|size|colour|secret|largest part] of {x}[?|]", "[any|what is the] news [about|of] {x}[?|]", "[are|were] {x} [dangerous|cheap|alive|real|from {country}][?|]", "what [do|does] {x} [eat|look like|mean|do|sound like|want][?|]", "[is|are] {x} [made|found|spoken|sold|grown] in {country}[?|]", "how [often|many times] [does|do|did] {x} [happen|win|eat|move|rain][?|]",
)  # fmt: skip
CODE = (
    "write [a|me a|] [function|program|script|class] [in|using] [Python|C|Java|Rust|Go|JavaScript] [that|to|which] [sorts a list|reverses a string|prints primes|reads a file|computes factorials|parses JSON|counts words][.|]", "[write|give me|show me] [python|rust|java|C|SQL|bash] code for {x}[.|]", "[fix|debug|refactor|review] [this|my] [code|function|program|bug|script][.|: x = 1|: print(1]", "how do I [sort|reverse|filter|copy] a [list|dict|string|file] in [Python|Rust|Java|C|Go][?|]", "[implement|code] [quicksort|fizzbuzz|binary search|a web server|a linked list|tetris|a game|an app][.|]",
    "[make|build|create] [me a|a] [website|web page|game|app|chatbot|web server][| about {x}][.|]", "what is wrong with [this|my] code[?|]", "[can you|do you] [code|program|write code][?|]", "[add|write] [tests|a unit test|documentation|comments] [for|to] [this|my] [code|function|project][.|]", "def {w}(x):", "[explain|what does] this code[: for i in range(10)| do][?|.|]", "write a [regex|query|Makefile|Dockerfile] for {x}[.|]", "[refactor|rewrite|port] [the|my] [project|code base|library|parser] [to Rust|in Python|to C|][.|]", "[create|implement] a [REST|JSON|] api for {x}[.|]",
)  # fmt: skip
TEXT = (
    "write [a|an|me a] [poem|story|song|essay|letter|email|speech|haiku|blog post|report|article] [about|on] {x}[.|]", "[summarize|summarise|shorten|rewrite|improve|translate] [this|the following|my] [text|article|letter|essay|email][.|:|]", "[tell|read] me a [story|bedtime story|fairy tale|poem][| about {x}][.|]", "translate [hello|good morning|thank you|this|I love you|water] [into|to] {language}[.|]", "how do you say [hello|thank you|goodbye|yes|no|water] in {language}[?|]", "[help me|please] write [my|a] [essay|homework|cv|application|speech|thesis][.|]", "[finish|continue] this [sentence|story|poem]: [once upon a time|it was a dark night|the cat]", "[make up|invent] a [story|name|slogan|poem] [for|about] {x}[.|]",
)  # fmt: skip
ABROAD = (
    "¿Cómo estás?", "¿Qué es esto?", "Hola, ¿quién eres?", "Buenos días", "¿Cuál es la capital de Francia?", "Necesito ayuda", "Wie geht es dir?", "Was ist das?", "Guten Morgen", "Wer bist du?", "Kannst du mir helfen?", "Was ist die Hauptstadt von Spanien?", "Ich habe eine Frage", "Erzähl mir einen Witz", "Bonjour, comment ça va ?",
    "Qui es-tu ?", "Quelle heure est-il ?", "Peux-tu m'aider ?", "Je ne comprends pas", "Qu'est-ce que c'est ?", "Come stai?", "Chi sei?", "Che cosa è questo?", "Ho bisogno di aiuto", "Buongiorno", "Olá, tudo bem?", "Quem é você?", "Preciso de ajuda", "O que é isso?", "Hoe gaat het met je?", "Wie ben jij?", "Ik heb een vraag", "Kun je me helpen?", "Jak się masz?", "Kim jesteś?", "Dzień dobry",
    "Hur mår du?", "Vem är du?", "Nasılsın?", "Sen kimsin?", "Merhaba", "Привет, как дела?", "Кто ты?", "Что это такое?", "Помоги мне", "Γεια σου", "Ποιος είσαι;", "你好", "你是谁？", "今天天气怎么样？", "请帮助我", "こんにちは", "あなたは誰ですか", "助けてください", "안녕하세요", "당신은 누구입니까", "مرحبا", "من أنت؟", "שלום", "नमस्ते", "आप कौन हैं", "สวัสดี", "Xin chào", "Apa kabar?", "Kuka sinä olet?", "Mitä kuuluu?", "Ahoj, jak se máš?",
)  # fmt: skip
_GIVEN = (WORLD, WORLD, WORLD, WORLD, CODE, CODE, TEXT, ABROAD)
_LEAD = (
    "",
    "",
    "",
    "",
    "",
    "hey, ",
    "please ",
    "can you ",
    "I have a question: ",
    "ok, ",
    "so, ",
    "hello, ",
    "do you know ",
)


def _subject(c: Chooser) -> str:
    """What is asked about: a topic, or a thing with its article."""
    if c.chance(0.6):
        return words.topic(c)
    kind = c.any((words.ANIMALS, words.THINGS, words.FOODS, words.HOBBIES))
    return f"{c.any(('a', 'the', 'the', 'my', ''))} {words.one_of(c, kind)}".strip()


def unknown_asked(talk: Talk) -> None:
    """A question that is beyond the model, and the honest answer."""
    c = talk.c
    talk.skill = "limits"
    patterns = c.any(_GIVEN)
    if patterns is ABROAD:
        talk.user(c.of(ABROAD))
        return talk.answer(_ABROAD, "This is not English. I say that I only speak English.")
    values = {
        "x": _subject(c), "y": _subject(c), "country": c.of(words.COUNTRIES), "city": words.city(c), "name": words.full_name(c),
        "food": c.of(words.FOODS), "language": c.of(words.LANGUAGES), "w": words.invented(c),
    }  # fmt: skip
    talk.user(c.asked(patterns, c.any(_LEAD if patterns is not CODE else _LEAD[:7]), **values))
    if patterns is CODE:
        return talk.answer(_CODE, "The user wants code. I cannot write code.")
    if patterns is TEXT:
        return talk.answer(_TEXT, "The user wants a text. I cannot write texts.")
    return talk.answer(
        ANSWER, c.any(("That is about the world, of which I know nothing.", "I was not trained on that. I say so."))
    )
