"""A JupyterLab on a copy of the notebooks, and a headless Chromium."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SCREENSHOTS = ROOT / "build" / "screenshots"
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # else cells out of sight are not on the page
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "docmanager-extension/plugin": {"autosave": False},
}


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="package")  # not the session: it would stay for half an hour after the last of these tests
def server(tmp_path_factory):
    """Address and token of a JupyterLab whose folder holds copies of `labs` and `solutions`."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt install chromium")
    pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    scratch = tmp_path_factory.mktemp("jupyterlab")
    for folder in ("labs", "solutions"):
        shutil.copytree(ROOT / folder, scratch / "root" / folder)
    for name, values in SETTINGS.items():
        path = scratch / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token, address = secrets.token_hex(16), f"http://127.0.0.1:{port}"
    places = {f"JUPYTER_{name}_DIR": str(scratch / name.lower()) for name in ("CONFIG", "RUNTIME", "DATA")}
    lab = {"JUPYTERLAB_SETTINGS_DIR": str(scratch / "settings"), "JUPYTERLAB_WORKSPACES_DIR": str(scratch / "spaces")}
    own = {"TAS_PROGRESS": "off", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root"]
    command += [
        "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={scratch}/root",
    ]
    with (scratch / "log").open("w") as log:
        process = subprocess.Popen(
            command, env=os.environ | places | lab | own, stdout=log, stderr=log, start_new_session=True
        )
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{address}/api?token={token}", timeout=2).close()
                break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, (scratch / "log").read_text()[-2000:]
                time.sleep(0.3)
        yield address, token
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


@pytest.fixture(scope="package")
def browser(server):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def lab(server, browser):
    """An empty tab; its kernels are shut down afterwards."""
    from .lab_page import LabPage

    address, token = server
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield LabPage(context.new_page(), address, token)
    context.close()
    headers = {"Authorization": f"token {token}"}
    with urllib.request.urlopen(urllib.request.Request(f"{address}/api/sessions", headers=headers)) as answer:
        sessions = json.load(answer)
    for session in sessions:
        url = f"{address}/api/sessions/{session['id']}"
        urllib.request.urlopen(urllib.request.Request(url, headers=headers, method="DELETE")).close()
