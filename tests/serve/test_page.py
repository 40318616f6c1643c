"""The page, in a real Chromium that is driven by chromedriver over its own protocol (W3C WebDriver)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from command_line import wait_until
from prefixprop.evaluate import Trust
from prefixprop.predict.loading import load_runs
from prefixprop.serve.encoder import Encoder

from serving import make_runs, served

BROWSER, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs Chromium and chromedriver")
KEY_ENTER, KEY_CONTROL, KEY_TAB, KEY_SPACE = "\ue007", "\ue009", "\ue004", "\ue00d"
MARKUP = '</textarea><img src=x onerror="window.broken=1"><script>window.broken=1</script>'


class Browser:
    """One window of a headless Chromium."""

    def __init__(self, driver: str) -> None:
        self.http = httpx.Client(base_url=driver, timeout=60)
        options = {"binary": BROWSER, "args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        self.session = ""
        self.session = f"/session/{self('POST', '/session', capabilities={'alwaysMatch': wanted})['sessionId']}"

    def __call__(self, method: str, path: str, **body: Any) -> Any:
        answer = self.http.request(method, self.session + path, json=body if method == "POST" else None)
        assert answer.is_success, answer.text
        return answer.json()["value"]

    def run(self, script: str, *arguments: Any) -> Any:
        return self("POST", "/execute/sync", script=script, args=arguments)

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def press(self, *keys: str) -> None:
        downs = [{"type": "keyDown", "value": key} for key in keys]
        ups = [{"type": "keyUp", "value": key} for key in reversed(keys)]
        self("POST", "/actions", actions=[{"type": "key", "id": "keyboard", "actions": downs + ups}])

    def devtools(self, command: str, **given: Any) -> Any:
        return self("POST", "/goog/cdp/execute", cmd=command, params=given)

    def resize(self, width: int) -> None:
        size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)

    def drop(self, name: str, content: str) -> None:
        self.run(
            "const data = new DataTransfer(); data.items.add(new File([arguments[1]], arguments[0]));"
            "document.getElementById('text').dispatchEvent("
            "new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}))",
            name,
            content,
        )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, httpx.Client]]:
    folder = tmp_path_factory.mktemp("page")
    folders = make_runs(folder)
    tone, topic, tuned = load_runs(list(folders.values()))
    runs = {
        "tone": replace(tone, trust=Trust(0.9, 0.99, "estimate", 50)),
        "<b>topic</b>": replace(topic, trust=Trust(0.9, 0.1, "estimate", 50)),
        "tuned": tuned,
    }
    with (folder / "driver.log").open("w+") as log:
        driver = subprocess.Popen([str(DRIVER), "--port=0"], stdout=log, stderr=subprocess.STDOUT)
        read = (folder / "driver.log").read_text
        wait_until(lambda: "started successfully on port" in read())
        port = read().partition("started successfully on port ")[2].split(".")[0]
        browser = Browser(f"http://127.0.0.1:{port}")
        try:
            with served(Encoder(runs), api_key="a-key") as client:
                yield browser, client
        finally:
            browser("DELETE", "")
            driver.terminate()
            driver.wait(30)


def test_from_a_document_to_its_predictions(page: tuple[Browser, httpx.Client]) -> None:
    browser, client = page
    browser("POST", "/url", url=str(client.base_url))
    wait_until(lambda: "asks for an API key" in browser.text("#status"))
    assert browser.run("return document.activeElement.id") == "key"
    for key in "a-key":
        browser.press(key)
    browser.press(KEY_TAB)  # the key is tried, and the document is next
    wait_until(lambda: browser.text("#runs") == "tone<b>topic</b>tuned")
    assert browser.run("return document.activeElement.id") == "text"
    browser.press(KEY_CONTROL, KEY_ENTER)
    wait_until(lambda: "Paste or drop a document first" in browser.text("#status"))

    browser.drop("letter.txt", f"w4 {MARKUP} {'w5 ' * 60}")
    reasons = "[...document.querySelectorAll('.reasons')]"
    wait_until(lambda: browser.text("#status") == "letter.txt is in the field.")
    browser.press(KEY_CONTROL, KEY_ENTER)
    wait_until(lambda: browser.text("#status") == "3 predictions.")
    cards = browser.run("return [...document.querySelectorAll('article')].map(card => card.innerText)")
    question = {"texts": [browser.run("return document.getElementById('text').value")]}
    expected, explained = (
        client.post("/v1/predict", json=question | own, headers={"Authorization": "Bearer a-key"}).json()[
            "predictions"
        ][0]
        for own in ({}, {"runs": ["tone"], "reasons": True})
    )
    for card, (name, one) in zip(cards, expected.items(), strict=True):
        assert card.startswith(name) and f"{one['label']} · {100 * one['confidence']:.1f} %" in card
        assert all(f"{100 * share:.1f} %" in card for share in one["probabilities"].values())
        read = f"Read {100 * one['tokens_read'] / one['tokens']:.1f} % of the document: 32 of {one['tokens']} tokens."
        assert read in card
    assert ["review" in card for card in cards] == [True, False, False]
    assert ["accept" in card for card in cards] == [False, True, False]
    wait_until(lambda: browser.run(f"return {reasons}.every(place => place.querySelector('.text'))"))
    read = [passage["text"] for passage in explained["tone"]["reasons"][0]["passages"]]
    shown = browser.run("return document.querySelector('.text').innerText")
    assert all(passage in shown for passage in read) and MARKUP in shown
    assert browser.run("return [...document.querySelectorAll('h4')].map(each => each.textContent)") == [
        f"Why {one['label']}?" for one in expected.values()
    ]

    # By keyboard alone: one run fewer, read on, ask with the button.
    browser.run("document.getElementById('file').focus()")
    browser.press(KEY_TAB)
    browser.press(KEY_SPACE)
    for _ in range(3):
        browser.press(KEY_TAB)
    browser.press(KEY_SPACE)
    for _ in range(2):
        browser.press(KEY_TAB)
    browser.press(KEY_ENTER)
    wait_until(lambda: browser.text("#status") == "2 predictions.")
    assert "Read the whole document" in browser.text("article") and " chunks." in browser.text("article")

    assert (
        browser.run("return window.broken ?? document.querySelectorAll('img, article script, article b').length") == 0
    )
    messages = [line["message"] for line in browser("POST", "/se/log", type="browser")]
    assert [line for line in messages if "v1/runs" not in line] == []  # which was 401 before the key
    sent = [entry["message"] for entry in browser("POST", "/se/log", type="performance")]
    asked = {
        part.split('"')[0]
        for line in sent
        if "Network.requestWillBeSent" in line
        for part in line.split('"url":"')[1:]
    }
    assert asked and all(url.startswith((str(client.base_url), "data:", "about:")) for url in asked)


def test_it_fits_a_phone_and_every_control_has_a_name(page: tuple[Browser, httpx.Client]) -> None:
    browser, _ = page
    for width in (1300, 390):
        browser.resize(width)
        assert browser.run("return document.documentElement.scrollWidth") <= width
    browser.devtools("Emulation.clearDeviceMetricsOverride")
    nodes = browser.devtools("Accessibility.getFullAXTree")["nodes"]
    roles = ("textbox", "button", "checkbox", "link", "group", "table")
    names = {
        (node["role"]["value"], node["name"]["value"].strip())
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in roles
    }
    assert {("textbox", "Document"), ("button", "Predict"), ("group", "Runs"), ("checkbox", "tone")} <= names
    assert all(name for _, name in names)


def test_problems_are_told_and_a_file_that_is_no_text_is_refused(page: tuple[Browser, httpx.Client]) -> None:
    browser, _ = page
    browser.run("document.getElementById('text').value = 'w4 '.repeat(2e6)")
    browser.run("document.getElementById('ask').click()")
    wait_until(lambda: "at most 4 MB" in browser.text("#status"))
    assert browser.text("#answers") == "" and browser.run("return document.querySelector('.problem') !== null")
    browser.run(
        "const data = new DataTransfer(); data.items.add(new File([new Uint8Array([255, 0, 200])], 'x.bin'));"
        "document.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true}))"
    )
    wait_until(lambda: browser.text("#status") == "x.bin is not a text file in UTF-8.")
