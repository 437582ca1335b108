"""Tools of every other kind: the model learns to copy names and arguments out of what is declared and said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import words
from choice import Chooser
from talk import Talk, ToolDef

Values = Callable[[Chooser], dict[str, object]]


@dataclass(frozen=True, slots=True)
class Errand:
    """A kind of tool: its names, what it says it does, names of its parameters by meaning, requests, and results."""

    names: str
    about: str
    keys: dict[str, str]
    asked: tuple[str, ...]
    values: Values
    results: tuple[str, ...]


_TEXTS = (
    "the meeting is at noon|buy milk|I am late|hello world|see you soon|all is well|call me back|the build is broken|the lamp is blue|lunch is ready|the answer is 42|bring the keys|the door is open|done for today|please pay the bill|the train is late|"
    "feed the cat|no news|the tests pass|water the plants|the sky is clear|happy birthday|thank you for dinner|the parcel is here"
).split("|")  # fmt: skip


def _text(c: Chooser) -> str:
    if c.chance(0.5):
        return c.of(_TEXTS)
    return (
        f"the {words.one_of(c, words.THINGS)} is {c.any(('in', 'near', 'behind'))} {words.city(c)}"
        if c.chance(0.5)
        else words.phrase(c)
    )


ERRANDS: dict[str, Errand] = {
    "read": Errand(
        "read_file Read read open_file view_file cat get_file load_file readFile file_read", "[Read|Reads|Open|Show|View|Load] [a file|a text file|the contents of a file][ from disk||.]", {"path": "path file_path file filename filePath name target"},
        ("[what is|what's] in {path}[?|]", "[read|open|show|show me|view|print] {path}[.|]", "[read|show me|look at] [the file|file] {path}[.|]", "what does {path} [say|contain][?|]", "[can you|could you|please] [read|open|look at] {path}[?|]", "[contents of|content of] {path}[?|]", "What is the [word|number|text|secret] in {path}?", "[look into|check] {path}[.|]"),
        lambda c: {"path": words.file_name(c)}, ("{text}",)),
    "list": Errand(
        "list_files ls list_dir list_directory LS dir get_files listFiles", "[List|Lists|Show] [files|the files] [in|of] a [folder|directory][|.]", {"path": "path folder directory dir root where"},
        ("[list|show|show me] [the|] files in {path}[.|]", "[what|which] files are in {path}[?|]", "[what is|what's] in the folder {path}[?|]", "ls {path}", "[list|show] {path}[.|]", "list the [folder|directory] {path}[.|]", "[look|have a look] into the folder {path}[.|]"),
        lambda c: {"path": c.any(("", "/", "./")) + c.of(words.FILES)}, ("{file}\n{file2}", "{file}, {file2}")),
    "run": Errand(
        "bash Bash run_command shell execute terminal exec run_shell_command sh exec_command", "[Run|Runs|Execute|Executes] a [shell|] command[| and return its output|.]", {"command": "command cmd script line input code"},
        ("[run|execute] {command}[.|]", "[run|execute] the command {command}[.|]", "[can you|please|could you] run {command}[?|]", "what does {command} [print|say|give][?|]", "[try|use] {command}[.|]", "run `{command}`[.|]", "[start|do] {command}[.|]"),
        lambda c: {"command": c.any(("ls -la", "git status", "pwd", "make test", "make", "date", "df -h", "git log", "whoami", "uptime", "python main.py", "pytest -q", "echo hello", "ls", f"cat {words.file_name(c)}", f"echo {words.invented(c)}", f"grep {words.invented(c)} {words.file_name(c)}", f"mkdir {words.invented(c)}", f"python {words.invented(c)}.py"))}, ("{text}", "ok")),
    "search": Errand(
        "search web_search search_web google lookup find_info WebSearch search_docs query", "[Search|Searches] [the web|the internet|documents|for information][|.]", {"query": "query q text search_query term question keywords"},
        ("[search|google|look up] {query}[.|]", "[search|look] [the web|] for {query}[.|]", "[find|find out] something about {query}[.|]", "[look up|search for] {query}[, please|.|]", "[can you|please] [search for|look up|google] {query}[?|]", "what does the web say about {query}[?|]", "[do|run] a search for {query}[.|]"),
        lambda c: {"query": words.topic(c) if c.held_out or c.chance(0.6) else words.phrase(c)}, ("{text}",)),
    "grep": Errand(
        "grep Grep search_files find_in_files search_code grep_search ripgrep", "[Search|Find] [a pattern|text|a word] in [files|the code][|.]", {"pattern": "pattern query regex text search needle"},
        ("[find|search] {pattern} in the [files|code][.|]", "where is {pattern} [defined|used|mentioned|set|called|imported|declared|needed][?|]", "[grep|grep for] {pattern}[.|]", "[which|what] files [contain|mention|have] {pattern}[?|]", "[look|search] for {pattern} in the [code|files|repository][.|]", "find [all uses of|] {pattern}[.|]", "[who|what] uses {pattern}[?|]"),
        lambda c: {"pattern": c.any((words.invented(c, 2), f"{words.invented(c)}_{words.invented(c)}", words.one_of(c, words.THINGS)))}, ("{file}:{n}: {text}", "{file}")),
    "write": Errand(
        "write_file Write save_file create_file save write put_file", "[Write|Save|Create] [a|] [file|text to a file][|.]", {"path": "path file_path file filename name", "text": "content text contents body data"},
        ("[write|save|put] \"{text}\" [to|into|in] {path}[.|]", "[create|make] a file {path} with \"{text}\"[.|]", "[create|write] {path} [with the text|saying|containing] \"{text}\"[.|]", "[save|store] \"{text}\" as {path}[.|]", "[please|can you] write \"{text}\" to {path}[.|?|]", "[into|in] {path} [write|put] \"{text}\"[.|]", "new file {path} with \"{text}\"[.|]"),
        lambda c: {"path": words.file_name(c), "text": _text(c)}, ("ok", "saved", "{n} bytes written", "done")),
    "mail": Errand(
        "send_email email send_mail mail sendEmail", "[Send|Sends] an [email|e-mail][ to somebody||.]", {"to": "to recipient address email to_address", "text": "body text message content"},
        ("[send|write|mail] an [email|e-mail] to {to} saying \"{text}\"[.|]", "[email|mail|tell] {to}: \"{text}\"", "[email|mail|write] {to} that \"{text}\"[.|]", "[please|can you] [email|mail] {to} \"{text}\"[.|?|]", "send \"{text}\" to {to}[.|]", "[let|make] {to} know: \"{text}\"", "write to {to}: \"{text}\""),
        lambda c: {"to": words.email(c), "text": _text(c)}, ("sent", "ok", "queued", "message sent")),
    "message": Errand(
        "send_message message text notify sms sendMessage tell", "[Send|Sends] a [text |chat |]message[ to a person||.]", {"to": "to recipient person contact name user", "text": "text message body content"},
        ("[tell|text|message] {to}: \"{text}\"", "[send|write] {to} the message \"{text}\"[.|]", "[send|text] \"{text}\" to {to}[.|]", "[tell|text] {to} that \"{text}\"[.|]", "[please|can you] [message|text] {to} \"{text}\"[.|?|]", "[let|make] {to} know: \"{text}\"", "message to {to}: \"{text}\""),
        lambda c: {"to": words.name(c), "text": _text(c)}, ("sent", "ok", "delivered")),
    "timer": Errand(
        "set_timer timer start_timer set_alarm countdown startTimer", "[Set|Start] a timer[ in minutes||.]", {"minutes": "minutes duration mins duration_minutes time n"},
        ("[set|start] a timer [for|of] {minutes} minutes[.|]", "[wake|remind|call] me in {minutes} minutes[.|]", "timer[:|,] {minutes} minutes", "timer for {minutes} minutes, please", "[please|can you] set [a|the] timer to {minutes} minutes[?|]", "count down {minutes} minutes[.|]", "I need a timer for {minutes} minutes[.|]"),
        lambda c: {"minutes": c.number(1, 120)}, ("ok", "timer set", "started")),
    "time": Errand(
        "get_time current_time time_now clock get_current_time what_time getTime", "[Get|Tell|Tells|Returns] the [current|local|] time [in|of|for] a [city|place|time zone][|.]", {"city": "city timezone location place tz zone"},
        ("[what time is it|what's the time|what is the time] in {city}[?|]", "[tell me|give me] the time in {city}[.|]", "[time|current time|local time] in {city}[?|]", "how late is it in {city}[?|]", "[can you|please] tell me the time in {city}[?|]", "is it [late|early|night|day] in {city}[?|]", "what is the local time in {city}[?|]"),
        lambda c: {"city": words.city(c)}, ("{clock}",)),
    "stock": Errand(
        "get_stock_price stock_price quote stock get_price getStockPrice", "[Get|Returns|Look up] the price of a [stock|share][|.]", {"symbol": "symbol ticker stock company name"},
        ("[what is|what's] the [stock|share|] price of {symbol}[?|]", "how much is [a share of|] {symbol}[?|]", "[stock|price|quote] [of|for] {symbol}[?|]", "[look up|check|get] the [stock|price of] {symbol}[.|]", "how [is|does] {symbol} [doing|trade][?|]", "[what does|how much does] {symbol} cost[?|]", "{symbol} [price|stock price][?|]"),
        lambda c: {"symbol": c.any((words.invented(c, 2)[:4].upper(), words.invented(c, 2).capitalize()))}, ("{n}.{n2}", "{n} USD")),
    "play": Errand(
        "play_music play play_song music spotify_play playSong", "[Play|Plays] [music|a song][|.]", {"song": "song title track query name"},
        ("play {song}[.|, please|]", "[play|put on] the song {song}[.|]", "[I want|I'd like] to hear {song}[.|]", "[put on|start] {song}[.|]", "[can you|could you|please] play {song}[?|]", "[music|song]: {song}", "let me hear {song}[.|]"),
        lambda c: {"song": " ".join(words.invented(c).capitalize() for _ in range(c.number(1, 3)))}, ("playing", "ok")),
    "switch": Errand(
        "turn_on switch_on turnOn power_on enable_device activate", "[Turn|Switch] on a [device|light|machine][|.]", {"device": "device name target thing id entity"},
        ("[turn|switch] on the {device}[.|, please|]", "[turn|switch] the {device} on[.|]", "[please|can you|could you] [turn|switch] on the {device}[?|]", "{device} on[, please|]", "[start|activate] the {device}[.|]", "the {device} should be on[.|]", "power on the {device}[.|]"),
        lambda c: {"device": words.one_of(c, words.THINGS)}, ("ok", "on", "done")),
    "translate": Errand(
        "translate translate_text translator Translate", "[Translate|Translates] [a text|text][ into a language||.]", {"text": "text content input phrase", "to": "language target to target_language lang"},
        ("translate \"{text}\" [into|to] {to}[.|]", "[what is|how do you say] \"{text}\" in {to}[?|]", "say \"{text}\" in {to}[.|]", "[please|can you] translate \"{text}\" [into|to] {to}[?|]", "\"{text}\" in {to}[?|]", "[put|turn] \"{text}\" into {to}[.|]", "I need \"{text}\" in {to}[.|]"),
        lambda c: {"text": _text(c), "to": words.one_of(c, words.LANGUAGES)}, ("{word} {word2}",)),
    "user": Errand(
        "get_user lookup_user find_person get_contact user_info getUser find_customer", "[Look up|Find|Get] a [user|person|customer|contact][ by name||.]", {"name": "name user person username customer contact"},
        ("[who is|look up|find|show me] {name}[.|?|]", "[find|get|show] the [user|contact|customer|person] {name}[.|]", "[what do we know|tell me] about [the customer|the user] {name}[?|.|]", "[can you|please] look up {name}[?|]", "do we [have|know] {name}[?|]", "[contact|data|record] of {name}[?|]", "search the users for {name}[.|]"),
        lambda c: {"name": c.any((words.name, words.full_name))(c)}, ("{{\"email\": \"{mail}\"}}", "{mail}", "not found")),
    "book": Errand(
        "book_table reserve_table make_reservation book reserve bookTable", "[Book|Reserve] a table [in|at] a restaurant[|.]", {"place": "restaurant place where name venue", "people": "people guests persons party_size n seats"},
        ("[book|reserve] a table for {people} at {place}[.|]", "[I need|we need] a table for {people} [at|in] {place}[.|]", "table for {people} at {place}[, please|]", "[please|can you] [book|reserve] {place} for {people} [people|persons][?|]", "reserve {place}, {people} [people|persons|of us][.|]", "[book|get] us a table at {place}, we are {people}[.|]", "dinner at {place} for {people}[.|, please|]"),
        lambda c: {"place": f"{words.invented(c, 2).capitalize()}", "people": c.number(1, 12)}, ("confirmed", "ok", "booked for {clock}")),
    "remember": Errand(
        "add_todo add_task create_task remember add_note save_note add_reminder", "[Add|Save|Store] a [task|note|reminder][|.]", {"text": "text task note title content item"},
        ("[remind me to|remember to|note:|todo:] {text}", "[add|put] \"{text}\" [to|on] my [list|todo list|tasks][.|]", "[add|make] a [task|note|reminder]: {text}", "[write down|note down|note]: {text}", "don't let me forget: {text}", "[please|can you] [note|save|remember]: {text}", "new [task|todo|note]: {text}"),
        lambda c: {"text": _text(c)}, ("ok", "saved", "added")),
    "random": Errand(
        "lookup fetch get find query_db run_query inspect check process handle", "[Looks up|Fetches|Handles|Checks] [an item|a record|something]", {"key": "id key item code ref number"},
        ("[look up|fetch|get|check] {key}[.|]", "[what is|what about] [item|record|number] {key}[?|]", "[show|give] me {key}[.|]", "[find|inspect|process] [the item|] {key}[.|]", "[can you|please] [check|get|fetch] {key}[?|]", "{key}, please", "status of {key}[?|]"),
        lambda c: {"key": c.any((str(c.number(1, 9999)), f"{words.invented(c)[:3].upper()}-{c.number(10, 9999)}", words.invented(c)))}, ("{text}", "{{\"status\": \"{word}\"}}", "{word}")),
}  # fmt: skip


def errand_tool(c: Chooser, kind: str) -> ToolDef:
    """A tool of that kind, named in one of many ways, some of them invented."""
    errand = ERRANDS[kind]
    name = c.of(errand.names.split())
    if kind == "random" and c.chance(0.7):
        name = f"{c.any(errand.names.split())}_{words.invented(c)}"
    elif c.chance(0.08):
        name = f"mcp__{words.invented(c)}__{name}"
    elif c.chance(0.25):
        name = c.any(
            (f"{name}_{words.invented(c)}", f"{words.invented(c)}_{name}", f"{words.invented(c)}{name.capitalize()}")
        )
    names = {meaning: c.of(keys.split()) for meaning, keys in errand.keys.items()}
    if c.chance(0.3):  # several parameters stay apart by the word that is in their names
        names = {meaning: words.new_key(c, key) for meaning, key in names.items()}
        if len(names) > 1:
            names = {meaning: f"{names[meaning]}_{meaning}" for meaning in names}
    if len(set(names.values())) < len(names):
        names = {meaning: keys.split()[0] for meaning, keys in errand.keys.items()}
    properties: dict[str, object] = {}
    for meaning, key in names.items():
        kind_ = c.any(("integer", "number")) if meaning in ("minutes", "people") else "string"
        detail = {"description": c.any((f"The {meaning}", f"{meaning} to use", meaning.capitalize()))}
        properties[key] = {"type": kind_} | (detail if c.chance(0.4) else {})
    required = tuple(properties)
    if c.chance(0.15):
        properties[c.any(("limit", "offset", "timeout", "verbose", "description"))] = {
            "type": c.any(("integer", "string"))
        }
    about = c.expand(errand.about) if c.chance(0.97) else ""
    return ToolDef(kind, name, about, names, properties, required)


def errand_asked(talk: Talk) -> None:
    """A request that one of the declared tools serves."""
    c = talk.c
    kind = c.any([one for one in talk.tools if one in ERRANDS])
    tool, errand = talk.tools[kind], ERRANDS[kind]
    values = errand.values(c)
    talk.skill = "tools"
    talk.user(c.asked(errand.asked, **values))
    order = [meaning for name in tool.properties for meaning, other in tool.names.items() if other == name]
    about = str(next(iter(values.values())))
    talk.call(
        tool,
        {meaning: values[meaning] for meaning in order},
        c.any((f"{tool.name} can do that with {about}.", f"For this there is the tool {tool.name}.")),
    )
    result = c.any(errand.results).format(
        text=_text(c), word=words.invented(c), word2=words.invented(c), file=words.file_name(c), file2=words.file_name(c), clock=words.clock(c), n=c.number(1, 999), n2=c.number(10, 99), mail=words.email(c),
    )  # fmt: skip
    if c.chance(0.05):
        result = c.any(("error: not found", "Error: permission denied", '{"error": "failed"}', "error: timeout"))
        talk.result(result)
        return talk.answer(f"{tool.name} reports an error: {result}", "The tool gave an error. I pass it on.")
    talk.result(result)
    return talk.answer(f"{tool.name} says: {result}", f"{tool.name} has answered. I pass it on.")
