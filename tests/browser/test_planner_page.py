"""The page of `make planner`, in a real browser: it answers when a control is moved, and its address says it all."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from urllib.parse import parse_qs, urlsplit

import pytest

from .conftest import CHROMIUM, ROOT, SCREENSHOTS

SMALL = "?model=gpt2&cluster=dgx-h100&gpus=8&tokens=65536&seq=1024&tensor=2&recompute=none&from=elsewhere"
SECONDS = 180  # to start a kernel, PyTorch and the first plan on a busy machine


@pytest.fixture(scope="module")
def page_server(tmp_path_factory):
    """The address of the page, served by the command."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt install chromium")
    pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    pytest.importorskip("voila", reason="needs Voila: pip install voila")
    scratch = tmp_path_factory.mktemp("planner")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = {f"JUPYTER_{name}_DIR": str(scratch / name.lower()) for name in ("CONFIG", "RUNTIME", "DATA")}
    own = {"TAS_PROGRESS": "off", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "helpers", "page", "--port", str(port), "--no-browser"]
    with (scratch / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=scratch, env=os.environ | places | own, stdout=log, stderr=log, start_new_session=True
        )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{address}/static/", timeout=2).close()
                break
            except urllib.error.HTTPError:
                break  # it answers
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, (scratch / "log").read_text()[-2000:]
                time.sleep(0.3)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


@pytest.fixture(scope="module")
def tab(page_server):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 1400})
        page.set_default_timeout(1000 * SECONDS)
        yield page
        browser.close()


def opened(tab, address):
    tab.goto(address, timeout=1000 * SECONDS)
    tab.locator(".layout-share").wait_for()
    tab.locator("img[alt^=Bars]").wait_for()


def control(tab, label):
    return tab.locator(".widget-hslider, .widget-dropdown", has=tab.get_by_text(label, exact=True))


def shown(tab):
    """Return what the page says: the line above the pictures, the pictures' words, and the share link's settings."""
    alts = [tab.locator(f"img[alt^={word}]").get_attribute("alt") for word in ("Bars", "Timeline")]
    link = tab.locator(".layout-share").get_attribute("href")
    return tab.locator(".layout-said").inner_text(), *alts, parse_qs(urlsplit(link).query)


def until_said(tab, words):
    """Wait for words above the pictures."""
    tab.locator(".layout-said", has_text=words).wait_for()


def until_changed(tab, before):
    """Wait until all of an answer is there: the timeline comes last."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if (now := shown(tab))[2] != before[2]:
            return now
        tab.wait_for_timeout(50)
    pytest.fail(f"the page still says {before[0]}")


def slide(tab, label, key):
    handle = control(tab, label).locator(".noUi-handle")
    handle.focus()
    handle.press(key)


def test_the_page_answers_is_read_and_shared(tab, page_server):
    opened(tab, page_server + SMALL)
    said, bars, timeline, link = first = shown(tab)
    assert said.startswith("FSDP 4, TP 2, batch 1 x 16: fits")
    assert "each rank holds" in bars
    assert "one rank" in timeline
    assert (link["model"], link["tensor"], link["gpus"]) == (["gpt2"], ["2"], ["8"])
    assert control(tab, "tensor").locator(".widget-readout").inner_text() == "2"

    began = time.monotonic()
    slide(tab, "pipeline", "ArrowRight")
    said, bars, timeline, link = second = until_changed(tab, first)
    print(f"a move of the slider: {time.monotonic() - began:.2f} s")
    assert said.startswith("FSDP 2, TP 2, PP 2 1F1B, batch 1 x 32: fits")
    assert "2 pipeline ranks" in bars
    assert "2 pipeline ranks" in timeline
    assert (link["pipeline"], link["tensor"]) == (["2"], ["2"])
    assert tab.locator(".layout-table tr").count() == 3  # a head, and what was seen

    control(tab, "recompute").locator("select").select_option("full")
    third = until_changed(tab, second)
    assert "recompute full" in third[0]
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    tab.screenshot(path=SCREENSHOTS / "planner.png", full_page=True)

    address = tab.locator(".layout-share").get_attribute("href")
    opened(tab, page_server + "/" + address)
    assert shown(tab) == third  # the address alone says it all


def test_what_cannot_be_is_one_line_and_the_page_goes_on(tab, page_server):
    opened(tab, page_server + SMALL + "&tensor=3")
    assert "tensor is '3', which cannot be" in tab.locator("body").inner_text()
    before = shown(tab)
    slide(tab, "tensor", "End")  # 64 ranks of 8 GPUs
    until_said(tab, "must divide the 8 GPUs")
    slide(tab, "tensor", "Home")
    until_said(tab, "FSDP 8, batch 1 x 8")
    assert until_changed(tab, before)[3]["tensor"] == ["1"]


def test_nobody_else_can_reach_it(page_server):
    port = int(page_server.rsplit(":", 1)[1])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:  # sends nothing: asks which address would be used
        try:
            route.connect(("192.0.2.1", 9))
            own = route.getsockname()[0]
        except OSError:
            own = "127.0.0.2"
    with socket.socket() as other:
        other.settimeout(3)
        assert other.connect_ex((own, port))  # refused
