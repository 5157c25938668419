"""`make lab` serves lab 00 on the port asked for, and its kernel runs the first cell."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READY = (ROOT / ".venv" / ".ready").exists() and shutil.which("make")
WHY = "needs the environment that the Makefile sets up"


@pytest.mark.skipif(not READY, reason=WHY)
@pytest.mark.parametrize("port", ["abc", "80", "70000", "-1", ""])
def test_a_bad_port_is_refused_in_one_line(port):
    run = subprocess.run(["make", "-s", "lab", f"PORT={port}"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stdout.startswith("PORT must")
    assert len(run.stdout.splitlines()) == 1
    assert "Traceback" not in run.stderr


@pytest.fixture
def server(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path / "log"
    env = {**os.environ, "BROWSER": "true", "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}  # `true` opens nothing
    with log.open("w") as out:
        process = subprocess.Popen(
            ["make", "-s", "lab", f"PORT={port}"], cwd=ROOT, env=env, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield port, log
    finally:
        os.killpg(process.pid, signal.SIGINT)
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


@pytest.mark.slow
@pytest.mark.skipif(not READY, reason=WHY)
def test_make_lab_serves_the_first_lab(server):
    port, log = server
    pattern = rf"http://127\.0\.0\.1:{port}/lab/tree/labs/00_start_here\.ipynb\?token=(\w+)"
    deadline = time.time() + 90
    while not (found := re.search(pattern, log.read_text())):
        assert time.time() < deadline, log.read_text()[-2000:]
        time.sleep(0.5)

    def get(path, data=None):
        url = f"http://127.0.0.1:{port}{path}"
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(url, data=body, headers={"Authorization": f"token {found[1]}"})
        return urllib.request.urlopen(request).read().decode()

    assert "JupyterLab" in get("/lab/tree/labs/00_start_here.ipynb")
    notebook = json.loads(get("/api/contents/labs/00_start_here.ipynb"))["content"]
    assert notebook["cells"][0]["source"].startswith("# 00 · Start here")
    told = json.loads(get("/lab/api/settings/@jupyterlab/apputils-extension:notification"))
    assert told["schema"]["properties"]["fetchNews"]["default"] == "false"  # no question about news over the lab
    kernel = json.loads(get("/api/kernels", {"name": notebook["metadata"]["kernelspec"]["name"]}))
    assert kernel["id"]
