"""The built book in a real browser: no network, no error, formulas, sliders, alt text, a narrow screen."""

import functools
import http.server
import json
import shutil
import threading
import time
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
)
LOCAL = ("data:", "blob:", "about:", "chrome:", "chrome-extension:")


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture(scope="session")
def address(book_html: Path):
    """Where the book is served, on this machine only."""
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=book_html)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory):
    binary, driver_file = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and driver_file):
        pytest.skip(
            "chromium and chromedriver are not installed (Debian: apt-get install chromium chromium-driver)"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_file))
    yield driver
    driver.quit()


def open_page(browser: webdriver.Chrome, url: str) -> None:
    """Open `url` and wait until its formulas and widgets are there."""
    browser.get(url)
    WebDriverWait(browser, 20).until(
        lambda driver: driver.execute_script(
            "return document.readyState === 'complete'"
            " && [...document.querySelectorAll('.math')].every(e => e.querySelector('mjx-container'))"
            " && [...document.querySelectorAll('script[type=\"application/vnd.jupyter.widget-view+json\"]')]"
            ".every(e => e.parentElement.querySelector('.jupyter-widgets'))"
        ),
        f"{url}: formulas or widgets were not rendered",
    )


def complaints(browser: webdriver.Chrome, home: str) -> list[str]:
    """Console errors, failed requests and requests to elsewhere since the last call."""
    found = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    asked = {}
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        method, params = message["method"], message["params"]
        if method == "Network.requestWillBeSent":
            url = asked[params["requestId"]] = params["request"]["url"]
            if not url.startswith((home, *LOCAL)):
                found.append(f"asks for {url}")
        elif (
            method == "Network.loadingFailed" and not params.get("canceled") and params["requestId"] in asked
        ):
            found.append(f"{params['errorText']} {asked[params['requestId']]}")
        elif method == "Network.responseReceived" and params["response"]["status"] >= 400:
            found.append(f"{params['response']['status']} {params['response']['url']}")
    return found


def pages(book_html: Path) -> list[str]:
    """The pages a reader meets; the others are built by the theme (search, index)."""
    found = sorted(path.relative_to(book_html).as_posix() for path in (book_html / "book").rglob("*.html"))
    assert found, f"{book_html}: no pages"
    return found


def test_every_page_reads_without_a_network_and_without_an_error(browser, address, book_html):
    complaints(browser, address)
    bad = {}
    for page in ["index.html", "search.html", *pages(book_html)]:
        open_page(browser, address + page)
        bad |= {page: found} if (found := complaints(browser, address)) else {}
    assert not bad


def test_the_listening_catches_a_request_to_elsewhere_and_an_error(browser, address, book_html):
    planted = book_html / "planted.html"
    planted.write_text(
        "<img src='http://elsewhere.invalid/x.png'><script>missing()</script><img src='gone.png'>"
    )
    try:
        open_page(browser, address + planted.name)
        found = " ".join(complaints(browser, address))
    finally:
        planted.unlink()
    assert "asks for http://elsewhere.invalid/x.png" in found
    assert "missing is not defined" in found
    assert "404" in found


def test_formulas_are_rendered(browser, address):
    open_page(browser, address + "book/protocol.html")
    assert len(browser.find_elements(By.CSS_SELECTOR, "article mjx-container")) > 10
    text = browser.find_element(By.TAG_NAME, "article").text
    assert "\\frac" not in text and "$" not in text


def test_pages_read_from_disk_without_a_server(browser, book_html):
    home = book_html.as_uri()
    complaints(browser, home)
    for page in ("book/protocol.html", pages_with_slider(book_html)[0]):
        open_page(browser, f"{home}/{page}")
    assert complaints(browser, home) == []


def pages_with_slider(book_html: Path) -> list[str]:
    found = [page for page in pages(book_html) if "SelectionSliderModel" in (book_html / page).read_text()]
    assert found, "no page with a slider"
    return found


def test_an_arrow_key_moves_the_slider_and_its_picture(browser, address, book_html):
    open_page(browser, address + pages_with_slider(book_html)[0])
    shown = """
        const done = arguments[arguments.length - 1];
        const images = [...document.querySelectorAll('.jupyter-widgets img')];
        const frames = images.filter(e => e.getClientRects().length);
        const digest = bytes => new Uint8Array(bytes).reduce((sum, byte) => (sum * 31 + byte) >>> 0, 7);
        Promise.all(frames.map(e => fetch(e.src).then(r => r.arrayBuffer()).then(digest))).then(done)"""

    def press(key: str, before: list[int]) -> list[int]:
        browser.find_element(By.CSS_SELECTOR, ".jupyter-widgets .noUi-handle").send_keys(key)
        deadline = time.monotonic() + 5
        while (after := browser.execute_async_script(shown)) == before and time.monotonic() < deadline:
            time.sleep(0.05)
        return after

    first = browser.execute_async_script(shown)
    second = press(Keys.ARROW_RIGHT, first)
    assert len(first) == len(second) > 0 and first != second
    assert press(Keys.ARROW_LEFT, second) == first


def test_every_picture_has_a_text_for_those_who_cannot_see_it(browser, address, book_html):
    bad = {}
    for page in pages(book_html):
        open_page(browser, address + page)
        texts = browser.execute_script(
            "return [...document.querySelectorAll('article img')].filter(e => !e.closest('.jupyter-widgets'))"
            ".map(e => e.getAttribute('alt') || '')"
        )
        poor = [text for text in texts if len(text.split()) < 3 or text.endswith((".png", ".svg", ".jpg"))]
        bad |= {page: poor} if poor else {}
    assert not bad


def test_no_page_scrolls_sideways_on_a_phone(browser, address, book_html):
    size = {"width": 375, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    bad = {}
    try:
        for page in pages(book_html):
            open_page(browser, address + page)
            width = browser.execute_script("return document.documentElement.scrollWidth")
            bad |= {page: width} if width > 375 else {}
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert not bad
