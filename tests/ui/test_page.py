"""What a person does on the chat page: read, type, stop, switch, with the mouse or without, and a hostile model."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lmhub.errors import KernelError
from lmhub.testing.fake import Gate

pytestmark = pytest.mark.ui

Open = Callable[..., Any]
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "17 * (23 + 4)"}}\n</tool_call>'
RICH = """# Title

Some **bold**, *slanted* and `code`, see [the docs](https://docs.example/a_(b)) or https://docs.example/c.

1. one
2. two
   - inner

> quoted

| a | b |
|---|--:|
| 1 | 2 |

```python
print("<b>hi</b>")
```

Done."""
HOSTILE = (
    """<img src=x onerror="document.title='owned'"> <script>document.title='owned'</script>

[a](javascript:document.title='owned') [b]( JaVaScRiPt:alert(1)) [c](data:text/html,x) ![d](http://evil.example/x.png)

```js" onload="x
<img src=x onerror="document.title='owned'">
```

"""
    + "*[" * 400
    + "](" * 400
    + " the end"
)


def test_a_conversation_streams_and_is_remembered(page: Open) -> None:
    gate = Gate()
    one = page(lambda prompt: "Second." if "First answer" in prompt else "First answer.", gate=gate)
    one.ready()
    one.say("Hello <b>there</b>")
    gate.let(6)
    one.text(".assistant .text", "First")
    assert "answer" not in one.find(".assistant .text").text  # it has not been written yet
    assert one.find("#log").get_attribute("aria-busy") == "true"
    assert not one.find("#send").is_displayed() and one.find("#stop").is_displayed()
    gate.open()
    one.text(".meta", "13 tokens")
    one.ended()
    assert one.find("#announce").get_attribute("textContent") == "The answer is complete"
    assert one.find("#log").get_attribute("aria-busy") == "false"
    one.say("And then?")
    one.text(".assistant .text", "Second.")
    one.ended()
    assert "Hello <b>there</b>" in one.prompts[-1] and "First answer." in one.prompts[-1]
    assert "cached" in one.all(".meta")[-1].text
    one.driver.refresh()  # the conversation belongs to the tab
    one.text(".assistant .text", "Second.")
    assert len(one.all(".turn")) == 4
    one.find("#new-chat").click()
    assert one.all(".turn") == [] and one.find("#welcome").is_displayed()
    assert one.focused() == "question"


def test_reasoning_is_folded(page: Open) -> None:
    gate = Gate()
    one = page("<think>\nLet me see.\n</think>\n\nIt is so.", gate=gate)
    one.ready()
    one.say("Why?")
    gate.let(8)
    one.text("summary", "Thinking…")
    assert not one.find(".thought").is_displayed()
    one.find("summary").click()
    gate.open()
    one.text("summary", "Thought for ")
    one.text(".thought", "Let me see.")
    one.text(".assistant .text", "It is so.")
    assert "Let me" not in one.find(".assistant .text").text


@pytest.mark.parametrize("how", ["escape", "button"])
def test_stop_keeps_what_was_said_and_ends_the_generation(page: Open, how: str) -> None:
    from selenium.webdriver.common.keys import Keys

    gate = Gate()
    one = page("abcdefghij" * 500, gate=gate)
    one.ready()
    one.say("Go")
    gate.let(12)
    one.text(".assistant .text", "abcdefgh")
    if how == "escape":
        one.press(Keys.ESCAPE)
    else:
        one.find("#stop").click()
    one.ended()
    one.text(".meta", "Stopped")
    assert one.find("#announce").get_attribute("textContent") == "Stopped"
    assert len(one.find(".assistant .text").text) < 20
    gate.open()  # the engine is in a step, and learns behind it that the client has left
    asked = """const done = arguments[0]; (async () => { for (;;) {
        const metrics = await (await fetch('metrics')).text();
        const ended = metrics.match(/lmhub_generations_total.finish="(.*?)"/);
        if (ended) return done(ended[1]); } })()"""
    assert one.driver.execute_async_script(asked) == "cancelled"
    one.say("Go on")
    one.text(".user .bubble", "Go on")
    one.text(".meta", "5000 tokens")


def test_a_tool_runs_in_the_page_and_its_result_goes_back(page: Open) -> None:
    def script(prompt: str) -> str:
        if "<tool_response>" in prompt:
            return "It is 459."
        return f"<think>\nA sum.\n</think>\n\n{CALL}" if "calculator" in prompt else "No tools."

    one = page(script)
    one.ready()
    one.say("Without")
    one.text(".assistant .text", "No tools.")
    one.ended()
    one.find("[data-setting=tools]").click()
    one.say("What is 17 * (23 + 4)?")
    one.text(".assistant .text", "It is 459.")
    one.ended()
    assert one.find(".tool-name").text == "calculator"
    assert json.loads(one.find(".tool pre").text) == {"expression": "17 * (23 + 4)"}
    assert json.loads(one.find(".result pre").text) == {"result": 459}
    response = one.prompts[-1].rpartition("<tool_response>")[2].partition("</tool_response>")[0]
    assert json.loads(response) == {"result": 459}
    assert [len(one.all(f".{kind}.turn")) for kind in ("user", "assistant", "tool")] == [2, 3, 1]


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("2 + 3 * 4", 14),
        ("-2 ^ 2", -4),
        ("2 ^ 3 ^ 2", 512),
        ("(1.5 + .5) / 4", 0.5),
        ("17 × 23 − 10 % 4", 389),
        ("1e3 - 1", 999),
        ("0.1 + 0.2", 0.3),
        ("1 / 0", "the result is not a number"),
        ("2 +", "the expression ends too early"),
        ("(2", "a parenthesis is not closed"),
        ("alert(1)", "a is not part of arithmetic"),
        ("2 3", "3 is not expected there"),
    ],
)
def test_the_calculator(page: Open, expression: str, result: object) -> None:
    one = page()
    script = """const [call, done] = arguments;
        import('./ui/tools.js').then((tools) => done(JSON.parse(tools.runTool('calculator', call))))"""
    said = one.driver.execute_async_script(script, json.dumps({"expression": expression}))
    assert said == ({"error": result} if isinstance(result, str) else {"result": result})


def test_markdown_becomes_elements(page: Open) -> None:
    one = page(RICH)
    one.ready()
    one.say("Show me")
    one.text(".assistant .text", "Done.")
    one.ended()
    tags = {tag: [element.text for element in one.all(f".text {tag}")] for tag in ("h3", "strong", "em", "td", "th")}
    assert tags == {"h3": ["Title"], "strong": ["bold"], "em": ["slanted"], "td": ["1", "2"], "th": ["a", "b"]}
    assert [element.text for element in one.all(".text ol > li > ul > li")] == ["inner"]
    assert one.find(".text blockquote").text == "quoted"
    assert one.find(".code code").text == 'print("<b>hi</b>")'
    assert [link.get_attribute("href") for link in one.all(".text a")][-1] == "https://docs.example/c"
    assert {link.get_attribute("rel") for link in one.all(".text a")} == {"noopener noreferrer nofollow"}


def test_a_hostile_answer_does_nothing(page: Open) -> None:
    one = page(HOSTILE)
    one.ready()
    one.say("<img src=x onerror=\"document.title='owned'\">")
    one.text(".assistant .text", "the end")
    one.ended()
    assert one.driver.title == "lmhub"
    assert one.all("#log :is(img, script, iframe, [onerror], [onload], [style])") == []
    assert [link.get_attribute("href") for link in one.all(".text a")] == ["http://evil.example/x.png"]
    assert "<script>" in one.find(".assistant .text").text


def test_the_chosen_model_answers(page: Open) -> None:
    from selenium.webdriver.support.ui import Select

    one = page("Hello", names=("first", "second"))
    one.ready()
    picker = Select(one.find("#model"))
    assert [option.text for option in picker.options] == ["first", "second"]
    picker.select_by_visible_text("second")
    one.say("Hi")
    one.text(".assistant .text", "Hello")
    one.ended()
    finished = "return fetch('v1/lmhub/status').then((a) => a.json()).then((s) => s.models.map((m) => m.finished))"
    assert one.driver.execute_script(finished) == [0, 1]
    one.driver.refresh()
    one.ready()
    assert Select(one.find("#model")).first_selected_option.text == "second"


def test_settings_reach_the_server(page: Open) -> None:
    from selenium.webdriver.common.keys import Keys

    one = page('{"a": 1}')
    one.ready()
    one.driver.execute_script(
        """window.bodies = []; const real = window.fetch;
        window.fetch = (path, options) => { if (options?.body) bodies.push(JSON.parse(options.body));
        return real(path, options); }"""
    )
    one.say("One")
    one.ended()
    one.find("#open-settings").click()
    for name, value in {
        "system": "Be brief.",
        "temperature": "0.5",
        "top_p": "0.9",
        "top_k": "7",
        "max_tokens": "5",
    }.items():
        one.find(f"[name={name}]").send_keys(value)
    one.find("#settings .primary").click()
    one.find("[data-setting=thinking]").click()
    one.find("[data-setting=json]").click()
    one.say("Two")
    one.ended()
    first, second = one.driver.execute_script("return bodies")
    assert first.keys() == {"model", "messages", "enable_thinking", "stream", "stream_options", "timings_per_token"}
    assert first["enable_thinking"] is True and second["enable_thinking"] is False
    assert {name: second[name] for name in ("temperature", "top_p", "top_k", "max_tokens")} == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "max_tokens": 5,
    }  # fmt: skip
    assert second["response_format"] == {"type": "json_object"}
    one.find("[data-setting=tools]").click()
    assert one.find("[data-setting=json]").get_attribute("aria-pressed") == "false"
    assert second["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "Be brief." in one.prompts[-1]
    one.find("#open-settings").click()
    one.find("[name=temperature]").send_keys(Keys.CONTROL + "a", "9")  # out of range: the last good value holds
    one.find("#reset-settings").click()
    assert one.find("[name=top_k]").get_attribute("value") == ""
    one.press(Keys.ESCAPE)
    one.until("!document.querySelector('dialog[open]')")


def test_regenerate_and_edit(page: Open) -> None:
    from selenium.webdriver.common.keys import Keys

    one = page(lambda prompt: f"You said {prompt.rpartition('<|im_start|>user')[2].split('<|im_end|>')[0].strip()}.")
    one.ready()
    one.say("one")
    one.text(".assistant .text", "You said one.")
    one.ended()
    one.find("[data-action=regenerate]").click()
    one.text(".assistant .text", "You said one.")
    one.ended()
    assert len(one.all(".turn")) == 2 and len(one.prompts) >= 1
    one.find("[data-action=edit]").click()
    assert one.find("#question").get_attribute("value") == "one" and one.all(".turn") == []
    one.find("#question").send_keys(" more", Keys.ENTER)
    one.text(".assistant .text", "You said one more.")
    one.ended()
    one.press(Keys.ARROW_UP)  # in the empty box: the same as Edit
    assert one.find("#question").get_attribute("value") == "one more"


def test_dark_and_light(page: Open) -> None:
    one = page()
    shades = {}

    def ground(theme: str) -> str:
        """The colour behind everything, as soon as the page has heard of the theme."""
        computed = "getComputedStyle(document.body).backgroundColor"
        return str(one.until(f"document.documentElement.dataset.theme === '{theme}' && {computed}"))

    for scheme in ("light", "dark"):
        wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        one.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
        shades[scheme] = ground(scheme)
    assert shades["light"] != shades["dark"]
    one.find("#toggle-theme").click()  # the system wants dark
    assert ground("light") == shades["light"]
    one.driver.refresh()
    assert ground("light") == shades["light"]
    one.find("#toggle-theme").click()
    assert ground("dark") == shades["dark"]
    one.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_everything_can_be_reached_with_the_keyboard(page: Open) -> None:
    from selenium.webdriver.common.keys import Keys

    one = page("Hello")
    one.ready()
    assert one.focused() == "question"
    one.find("#question").send_keys("line one", Keys.SHIFT, Keys.ENTER, Keys.NULL, "line two", Keys.ENTER)
    one.text(".user .bubble", "line one\nline two")
    one.ended()
    one.driver.execute_script("document.activeElement.blur(); document.querySelector('.skip').focus()")
    one.press(Keys.ENTER)
    assert one.focused() == "question"
    one.driver.execute_script("document.querySelector('.skip').focus()")
    seen = []
    while len(seen) < 20:
        one.press(Keys.TAB)
        if one.driver.execute_script("return document.activeElement === document.body"):
            break
        seen.append(one.focused())
        outline = "return getComputedStyle(document.activeElement).outlineStyle"
        assert seen[-1] == "question" or one.driver.execute_script(outline) != "none", seen  # its frame shows it
    order = ["model", "new-chat", "open-settings", "toggle-status", "toggle-theme"]
    assert seen[:5] == order
    assert {"Edit", "Copy", "Regenerate", "question", "Thinking"} <= set(seen)
    one.driver.execute_script("document.getElementById('open-settings').focus()")
    one.press(Keys.ENTER)
    assert one.focused() == "system"
    one.press(Keys.ESCAPE)
    assert one.focused() == "open-settings"
    unnamed = """[...document.querySelectorAll('button, select, textarea, input')].filter((e) =>
        !e.innerText?.trim() && !e.textContent.trim() && !e.getAttribute('aria-label') && !e.labels?.length).length"""
    assert one.driver.execute_script(f"return {unnamed}") == 0


def test_a_key_is_asked_for_and_kept_for_the_tab(page: Open) -> None:
    from selenium.webdriver.common.keys import Keys

    one = page("Hello", api_keys=("secret",), allow="401")
    one.until("document.querySelector('#key-dialog[open]')")
    one.press(Keys.ESCAPE)
    one.text(".error p", "This server wants an API key.")
    one.find(".error button").click()
    one.find("#key").send_keys("wrong", Keys.ENTER)
    one.until("document.querySelector('#key-dialog[open]') && document.getElementById('key').value === 'wrong'")
    one.find("#key").clear()
    one.find("#key").send_keys("secret", Keys.ENTER)
    one.ready()
    one.say("Hi")
    one.text(".assistant .text", "Hello")
    one.ended()
    assert one.driver.execute_script("return sessionStorage['lmhub.key']") == "secret"
    assert "secret" not in one.driver.execute_script("return JSON.stringify(localStorage) + document.body.innerText")


def test_an_error_is_one_sentence_and_can_be_retried(page: Open) -> None:
    def script(prompt: str) -> str:
        if not one.broken:
            return "Better."
        raise KernelError("the memory is gone")

    one = page(script, allow="500")
    one.broken = True
    one.ready()
    one.say("Hi")
    sentence = one.text(".error p", ".")
    assert sentence.endswith(".") and "\n" not in sentence and "Traceback" not in sentence
    one.broken = False
    one.find(".error button").click()
    one.text(".assistant .text", "Better.")
    one.ended()
    assert one.all(".error") == [] and len(one.all(".turn")) == 2


def test_a_server_that_is_gone(page: Open) -> None:
    one = page("Hello", allow="ERR_FAILED")
    one.ready()
    one.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/v1/*"]})
    one.say("Hi")
    one.text(".error p", "The server cannot be reached.")
    one.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    one.find(".error button").click()
    one.text(".assistant .text", "Hello")


def test_a_model_that_is_still_loading_is_waited_for(page: Open) -> None:
    hold = threading.Event()
    one = page("Hello", hold=hold, allow="503")
    one.text("#model", "Loading the model")
    assert not one.find("#send").is_enabled() and one.all(".error") == []
    hold.set()
    one.ready()
    one.say("Hi")
    one.text(".assistant .text", "Hello")
    one.ended()


def test_the_status_panel_shows_what_runs_and_polls_only_while_it_is_open(page: Open) -> None:
    gate = Gate()
    one = page("abcdefghij" * 20, gate=gate, size=(1280, 1000))
    one.ready()
    assert not one.find("#status").is_displayed()
    one.find("#toggle-status").click()
    one.text("#status", "0 of 4")
    one.say("Hi")
    gate.let(8)
    one.text("#status", "1 of 4")
    one.until("parseFloat(document.querySelector('.slots .written')?.style.width) > 0")
    gate.open()
    one.ended()
    one.text("#status", "0 of 4")
    assert "tok/s" in one.find(".tiles").text and "Memory" in one.find("#status").text
    one.find("#toggle-status").click()
    assert one.find("#toggle-status").get_attribute("aria-expanded") == "false"
    one.driver.execute_script(
        """window.next = null;
        window.setTimeout = (run) => { window.next = run; return 1 };
        window.clearTimeout = () => { window.next = null }"""
    )
    one.find("#toggle-status").click()
    one.until("window.next !== null")  # the panel has asked, and waits for the next time
    one.find("#toggle-status").click()
    assert one.driver.execute_script("return window.next") is None


def test_a_narrow_screen(page: Open) -> None:
    phone = {"width": 360, "height": 640, "deviceScaleFactor": 2, "mobile": True}
    one = page(RICH)
    one.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        one.ready()
        one.say("word" * 60)
        one.text(".assistant .text", "Done.")
        one.ended()
        assert one.driver.execute_script("return document.documentElement.scrollWidth") <= 360
        for button in one.all("header button, #composer button"):
            assert not button.is_displayed() or button.rect["x"] + button.rect["width"] <= 360
    finally:
        one.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
