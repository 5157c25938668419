"""The page of `make planner`, in a real browser, on a desk and on a phone: it answers, and shows nothing stale."""

import json
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

SECONDS = 400  # to import PyTorch and plan on a busy machine
TINY = "?model=small-gpt&gpu=t4-16gb&seq=128&precision=fp16-amp&lora_rank=0&checkpointing=none"
SMALL = TINY.replace("small-gpt", "gpt2")
LAYOUT = "?for=many&model=gpt2&gpus=8&seq=1024&gradient_accumulation_steps=4"


@pytest.fixture(scope="module")
def page_server(tmp_path_factory):
    """The address of the page, served by the command; and the seconds until it answered."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt install chromium")
    pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    scratch = tmp_path_factory.mktemp("planner")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {"TAS_PROGRESS": "off", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "helpers", "page", "--port", str(port), "--no-browser"]
    with (scratch / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=scratch,
            env=os.environ | own,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which a job in the background ignores
        )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, (scratch / "log").read_text()[-2000:]
                time.sleep(0.1)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(30) == 0
        assert "Traceback" not in (scratch / "log").read_text()


@pytest.fixture(scope="module")
def chromium(page_server):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def new_tab(browser, width, height):
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(1000 * SECONDS)
    page.wrong = []
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    return page


@pytest.fixture
def tab(chromium):
    page = new_tab(chromium, 1440, 900)
    yield page
    assert page.wrong == []
    page.close()


def opened(tab, address):
    tab.goto(address)
    finished(tab)


def finished(tab):
    """Wait until all of an answer, or what is wrong, is there."""
    tab.locator("body[data-state=done], body[data-state=error]").wait_for()
    assert tab.locator("body").get_attribute("data-state") == "done", tab.locator("#error").inner_text()


def fact(tab, name):
    return tab.locator(f'[data-fact="{name}"]').inner_text()


def change(tab, name, value):
    field = tab.locator(f"#set-{name}")
    if not field.is_visible():
        tab.locator("#more summary").click()
    if field.evaluate("each => each.tagName") == "SELECT":
        field.select_option(value)
    else:
        field.fill(value)


def keep(tab, name):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    tab.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


def test_one_gpu_is_answered_as_in_a_terminal(tab, page_server, capsys):
    from helpers.__main__ import main

    opened(tab, page_server + TINY)
    assert tab.title() == "small-gpt on t4-16gb: fits"
    assert tab.locator("#answer h2").inner_text() == "small-gpt on t4-16gb: fits"
    words = tab.locator("#command").inner_text().split()
    assert words[:2] == ["training-at-scale", "plan"]
    assert main([*words[1:], "--json", "--largest-batch"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert fact(tab, "allocated").startswith(f"{said['peak_allocated_bytes'] / 2**20:.1f} MiB at the peak")
    size = said["largest_micro_batch"]["size"]
    assert size > 1
    assert fact(tab, "largest micro-batch").startswith(f"{size:,} fits")
    assert "MFU" in fact(tab, "speed")
    assert "Memory at the peak: small-gpt on t4-16gb" in tab.locator("#answer h3").all_inner_texts()
    assert "gradients" in tab.locator(".bar").get_attribute("aria-label")

    assert tab.locator(".bar em").count() == 1  # from the least to the most that may be reserved
    change(tab, "run_tokens", "10M")
    change(tab, "price_per_gpu_hour", "2.5")
    finished(tab)
    assert not tab.locator("#compare").is_visible()  # the same run: no second row
    assert "GPU-hours" in fact(tab, "whole run")
    assert float(fact(tab, "price").split()[0]) > 0
    keep(tab, "planner")


def test_while_it_plans_nothing_else_is_shown(tab, page_server):
    opened(tab, page_server + TINY)
    shown = "['answer', 'over'].map(id => document.getElementById(id).hidden).join()"
    assert tab.evaluate(shown) == "false,false"
    state = tab.evaluate(  # at once, in the same turn of the event loop
        f"""() => {{ const field = document.getElementById('set-seq'); field.value = '256';
        field.dispatchEvent(new Event('input')); return [{shown}, document.title,
        document.getElementById('status').textContent, document.getElementById('answer').textContent]; }}"""
    )
    assert state == ["true,true", "Planning…", "Planning…", ""]
    change(tab, "gpu", "rtx-3060-12gb")  # before the answer to the other question
    finished(tab)
    assert tab.title().startswith("small-gpt on rtx-3060-12gb: ")
    assert "--seq 256" in tab.locator("#command").inner_text()


def test_an_error_clears_the_figures_and_the_page_goes_on(tab, page_server):
    opened(tab, page_server + TINY)
    change(tab, "micro_batch_size", "0")
    tab.locator("#error:visible").wait_for()
    assert '"micro-batch" is 0' in tab.locator("#error").inner_text()
    assert not tab.locator("#answer").is_visible()
    assert not tab.locator("#over").is_visible()
    assert tab.title() == "No plan"
    change(tab, "seq", "")
    tab.get_by_text("Fill in a number: sequence length, tokens.").wait_for()
    change(tab, "seq", "128")
    change(tab, "micro_batch_size", "2")
    finished(tab)
    assert not tab.locator("#error").is_visible()
    assert "--micro-batch-size 2" in tab.locator("#command").inner_text()


def test_what_does_not_fit_says_what_to_change_and_tries_it(tab, page_server):
    opened(tab, page_server + TINY.replace("t4-16gb", "") + "&budget=2&micro_batch_size=2048&optimizer_impl=fused")
    assert tab.title() == "small-gpt on 2 GiB: does not fit"
    bar, usable = (tab.locator(part).first.bounding_box() for part in (".bar", ".bar b"))
    assert usable["x"] >= bar["x"]  # its label is not cut where the bar is much longer than the GPU
    assert tab.locator('[data-fact="one step"]').count() == 0
    rows = tab.locator("#answer table tr", has_text="--micro-batch-size")
    rows.first.get_by_role("button", name="Try").click()
    tab.locator("#answer .verdict.fits, #answer .verdict.tight").first.wait_for()
    finished(tab)
    assert tab.title() in ("small-gpt on 2 GiB: fits", "small-gpt on 2 GiB: tight")
    assert tab.locator("#seen tr").count() == 3  # a head, and what was seen


def test_a_config_of_ones_own_a_link_and_a_script(tab, page_server):
    opened(tab, page_server + SMALL)
    tab.locator("#set-model").select_option("config.json")
    tab.locator("#error:visible").wait_for()
    assert "config.json" in tab.locator("#error").inner_text()
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
    own = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1000, **sizes}
    tab.locator("#config").fill(json.dumps(own))
    finished(tab)
    assert tab.title() == "config.json on t4-16gb: fits"
    assert "--model config.json" in tab.locator("#command").inner_text()
    change(tab, "model", "gpt2")
    change(tab, "run_tokens", "1M")
    finished(tab)
    tab.locator("#show-export").click()
    tab.locator("#exported", has_text="torch.optim.AdamW").wait_for()
    link = parse_qs(urlsplit(tab.url).query)
    assert (link["model"], link["gpu"], link["seq"]) == (["gpt2"], ["t4-16gb"], ["128"])
    tab.goto(page_server + "?model=gpt5&seq=256&gpu=h100-80gb")
    tab.get_by_text("The link asks for model gpt5").wait_for()


def test_many_gpus_their_timeline_and_the_engines_config(tab, page_server):
    opened(tab, page_server + LAYOUT)
    assert tab.title() == "gpt2 on 8 x h100-80gb: fits"
    assert "One step: gpt2 on 8 x h100-80gb" in tab.locator("#answer h3").all_inner_texts()
    assert tab.locator("#answer img").evaluate("each => each.naturalWidth") > 300
    tab.locator("#engine").select_option("torchtitan")
    tab.locator("#show-export").click()
    tab.locator("#exported", has_text="torchtitan").wait_for()
    change(tab, "pipeline", "2")
    finished(tab)
    assert tab.locator(".bar").count() == 2
    change(tab, "tensor", "3")
    tab.locator("#error:visible").wait_for()
    assert not tab.locator("#answer").is_visible()
    keep(tab, "planner-many-error")


def test_a_search_shows_what_it_finds_as_it_comes(tab, page_server):
    opened(tab, page_server + LAYOUT.replace("gpus=8", "gpus=1"))
    tab.locator("#search").click()
    tab.locator("#found:visible").wait_for()  # before the end
    tab.locator("#doing", has_text="cannot be among the best").wait_for()
    assert tab.locator("#found tr").count() > 1
    keep(tab, "planner-many")
    assert tab.locator("#found .verdict").count() == tab.locator("#found tr").count() - 1
    assert tab.locator("#searched").inner_text() == "Search: gpt2 on 1 GPU of dgx-h100"
    tab.locator("#found button").first.click()
    finished(tab)
    assert tab.title().startswith("gpt2 on h100-80gb: ")
    assert tab.locator("#found").is_visible()  # for the next of its rows
    change(tab, "seq", "512")
    assert not tab.locator("#found").is_visible()


def test_on_a_phone_nothing_is_cut_off(chromium, page_server):
    phone = new_tab(chromium, 390, 844)
    for query in (TINY, LAYOUT + "&pipeline=2"):
        opened(phone, page_server + query)
        phone.locator("#more summary").click()
        wide = phone.evaluate(
            """() => [...document.querySelectorAll('body *')].filter(each => each.offsetParent &&
            !each.closest('.wide') && each.getBoundingClientRect().right > innerWidth + 1)
            .map(each => each.tagName + ' ' + each.textContent.slice(0, 40))"""
        )
        assert wide == []
        assert phone.evaluate("document.documentElement.scrollWidth") <= 390
        small = phone.evaluate(
            """() => [...document.querySelectorAll('#controls select, #controls input, [role=tab]')]
            .filter(each => each.offsetParent && each.type !== 'checkbox' &&
            (each.offsetHeight < 34 || each.offsetWidth < 90)).map(each => each.id)"""
        )
        assert small == []
        assert phone.locator("#brief").inner_text() == phone.title()  # in sight while one changes the controls
    change(phone, "tensor", "2")  # which makes a table of two plans
    finished(phone)
    assert phone.evaluate(
        """[...document.querySelectorAll('#seen td')].every(each => each.getBoundingClientRect().right <= 391)"""
    )
    keep(phone, "planner-phone")
    assert phone.wrong == []
    phone.close()


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
