"""The chat page in a real headless Chromium, driven through chromedriver, against a real server with a scripted model.

Nothing is installed here: without Chromium, its driver or selenium every test is skipped and says what is missing. A
page that asks another host for anything, logs an error or breaks its own content security policy fails its test.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from lmhub.hub import Hub
from lmhub.settings import EngineSettings
from lmhub.testing.fake import CONTROLS, MARKERS, PATIENCE_S, FakeModel, FakeTokenizer, Gate
from lmhub.testing.serving import FAMILY, fake_loaded, running

PIECES = [bytes((byte,)) for byte in range(256)] + [text.encode() for text in (*CONTROLS, *MARKERS)]
Script = Callable[[str], str]


class Replies:
    """The script of a model whose reply is a function of its prompt's text; `prompts` keeps those."""

    def __init__(self, script: Script):
        self._script, self._tokenizer = script, FakeTokenizer()
        self._last: tuple[tuple[int, ...], Sequence[int]] = ((), ())
        self.prompts: list[str] = []

    def __call__(self, prompt: tuple[int, ...]) -> Sequence[int]:
        """The tokens of the reply; asked again at every step."""
        if self._last[0] != prompt:
            self.prompts.append(b"".join(PIECES[token] for token in prompt).decode())
            self._last = (prompt, self._tokenizer.encode(self._script(self.prompts[-1]), special=True))
        return self._last[1]


@dataclass
class Page:
    """The page in its browser. `find`, `press` and `until` speak of what a person sees."""

    driver: Any
    url: str
    prompts: Sequence[str]
    broken: bool = False  # for scripts that fail while it is set

    def find(self, selector: str) -> Any:
        """The first element of a CSS selector; fails if there is none."""
        from selenium.webdriver.common.by import By

        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[Any]:
        """Every element of a CSS selector."""
        from selenium.webdriver.common.by import By

        found: list[Any] = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return found

    def until(self, script: str, *arguments: object) -> Any:
        """Wait until a JavaScript expression is true, and return it."""
        from selenium.webdriver.support.ui import WebDriverWait

        wait = WebDriverWait(self.driver, PATIENCE_S, poll_frequency=0.02)
        return wait.until(lambda driver: driver.execute_script(f"return {script}", *arguments), script)

    def text(self, selector: str, wanted: str) -> str:
        """Wait until the last element of `selector` holds `wanted`; its text."""
        script = "[...document.querySelectorAll(arguments[0])].at(-1)?.innerText.includes(arguments[1])"
        self.until(script, selector, wanted)
        return str(self.all(selector)[-1].text)

    def ready(self) -> None:
        """Wait until the page knows its models."""
        self.until("!document.getElementById('model').disabled")

    def say(self, text: str) -> None:
        """Type a message and press Enter."""
        from selenium.webdriver.common.keys import Keys

        self.find("#question").send_keys(text, Keys.ENTER)

    def ended(self) -> None:
        """Wait until no answer is being written."""
        self.until("!document.body.classList.contains('running')")

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self) -> str:
        """The id of the focused element, or else its text."""
        return str(self.driver.execute_script("const e = document.activeElement; return e.id || e.innerText"))

    def check(self, *, allow: str = "\0") -> None:
        """Fail if the page logged an error (but those that hold `allow`), or asked another host for anything."""
        logged = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "ERROR")]
        assert [message for message in logged if allow not in message] == []
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
        assert [url for url in asked if not url.startswith((self.url, "data:"))] == []


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One headless Chromium for all tests."""
    binary, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("there is no Chromium with chromedriver on this machine; `make ui` says how to get them")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed; `make ui` installs it")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    folder = tmp_path_factory.mktemp("chromium")
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking",
                 "--no-first-run", "--disable-component-update", "--disable-sync", "--disable-gpu",
                 "--force-device-scale-factor=1", f"--user-data-dir={folder}"):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(driver, log_output=str(folder / "driver.log"))
    made = webdriver.Chrome(options=options, service=service)
    yield made
    made.quit()


class Attached:
    """`attached(url)`: the page of a server in a fresh browser; `check` looks at all of them and leaves them."""

    def __init__(self, browser: Any):
        self._browser = browser
        self._opened: list[tuple[Page, str]] = []

    def __call__(
        self, url: str, *, size: tuple[int, int] = (1280, 860), allow: str = "\0", prompts: Sequence[str] = ()
    ) -> Page:
        browser = self._browser
        browser.set_window_size(*size)
        browser.get(url)
        browser.execute_script("localStorage.clear(); sessionStorage.clear()")
        browser.get_log("browser")
        browser.get_log("performance")
        browser.get(url)
        made = Page(browser, url, prompts)
        self._opened.append((made, allow))
        return made

    def check(self) -> None:
        """Fail as Page.check does."""
        opened, self._opened = self._opened, []
        for one, allow in opened:
            one.check(allow=allow)
        self._browser.get("about:blank")


@pytest.fixture
def attached(browser: Any) -> Iterator[Attached]:
    """See Attached; what was opened is checked at the end."""
    made = Attached(browser)
    yield made
    made.check()


@pytest.fixture
def page(attached: Attached) -> Iterator[Callable[..., Page]]:
    """`page(script or text, gate=, hold=, names=, size=, allow=, **settings)`: a served page, checked at the end.

    Until `hold` is set, the models are loading.
    """
    from contextlib import ExitStack

    stack, hubs = ExitStack(), []

    def make(
        script: Script | str = "Hello",
        *,
        gate: Gate | None = None,
        hold: threading.Event | None = None,
        names: Sequence[str] = ("fake",),
        size: tuple[int, int] = (1280, 860),
        allow: str = "\0",
        **settings: Any,
    ) -> Page:
        replies = Replies(script if callable(script) else lambda prompt: script)
        hub = Hub(entry_points=False)
        hubs.append(hub)

        def load() -> None:
            if hold is not None:
                hold.wait(PATIENCE_S)
            for name in names:
                model = FakeModel(replies, gate=gate, n_ctx_train=8192)
                hub.serve(fake_loaded(model, name, 8192, family=FAMILY), EngineSettings(read_ahead=False, spec=False))

        if hold is None:
            load()
        url = stack.enter_context(running(hub, load if hold else None, **settings))
        return attached(url, size=size, allow=allow, prompts=replies.prompts)

    with stack:
        yield make
        attached.check()
        for hub in hubs:
            hub.close()
