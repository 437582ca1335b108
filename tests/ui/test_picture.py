"""The page with the demo model itself: a conversation with a tool call beside the status panel, and its picture.

`make picture` keeps the picture as docs/page.png. The folder of LMHUB_PICTURES gets it dark and narrow as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmhub.hub import Hub
from lmhub.settings import EngineSettings
from lmhub.testing.serving import running

pytestmark = pytest.mark.ui

SCREENS = {"page": (1280, 800), "page-narrow": (390, 844)}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where pictures go."""
    return Path(os.environ.get("LMHUB_PICTURES", tmp_path))


@pytest.fixture
def demo(attached: Callable[[str], Any]) -> Iterator[Any]:
    """The page of a server of the demo model."""
    hub = Hub()
    try:
        hub.load("demo", EngineSettings())
        with running(hub) as url:
            yield attached(url)
    finally:
        hub.close()


def shown(one: Any, name: str, scheme: str, folder: Path) -> None:
    """Save what is to be seen on a screen of that name, in those colours."""
    width, height = SCREENS[name]
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": name == "page-narrow"}
    one.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    one.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
    one.until("document.documentElement.dataset.theme === arguments[0]", scheme)
    page = "const page = document.documentElement; return [page.scrollWidth, page.scrollHeight]"
    assert one.driver.execute_script(page) <= [width, height]
    path = folder / f"{name}{'-dark' if scheme == 'dark' else ''}.png"
    assert one.driver.save_screenshot(str(path))
    assert path.stat().st_size < 200_000


def test_a_conversation_with_the_demo_model(demo: Any, pictures: Path) -> None:
    try:
        demo.ready()
        demo.find("#toggle-status").click()
        demo.text("#status", "0 of 4")
        [sum_] = [button for button in demo.all("#examples button") if "17 × 23" in button.text]
        sum_.click()
        demo.text(".assistant .text", "391")
        demo.ended()
        demo.until("/[1-9] of 8/.test(document.querySelector('#status').innerText)")
        for scheme in ("light", "dark"):
            shown(demo, "page", scheme, pictures)
        demo.say("What is the weather in Lisbon?")
        demo.text(".assistant .text", "in Lisbon")
        demo.ended()
        assert [name.text for name in demo.all(".tool-name")] == ["calculator", "weather"]
        shown(demo, "page-narrow", "dark", pictures)  # the panel covers a narrow screen
        demo.find("#toggle-status").click()
        shown(demo, "page-narrow", "light", pictures)
    finally:
        demo.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        demo.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
