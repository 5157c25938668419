"""Every command line of the pages and the labs: it is one that the command takes, and runs for a new user."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from helpers.__main__ import COMMANDS, _parse
from helpers.core.files import ROOT

import pytest

from ..sampling import sample

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "solutions" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "solutions").glob("*.py")),
]
_COMMAND = re.compile(  # between backticks, or on a line of its own
    r"(?:`|^)(?:[\w./]*bin/)?(?:python3? -m helpers|training-at-scale) +([a-z][^`\n|]*)", flags=re.MULTILINE
)
_MAKE = re.compile(r"(?:`|^)make ([a-z][\w-]*)", flags=re.MULTILINE)  # between backticks, or at the head of a line
# What takes minutes, or writes into the checkout; the test that runs it, or why none does.
NOT_RUN = {
    "build": "writes the notebooks of the checkout; test_build.py",
    "chooser": "minutes; renews stored answers",
    "doctor": "test_cli.py",
    "grade": "minutes; grade/test_grade.py",
    "gpu": "test_gpu_lane.py",
    "layout": "minutes for the clusters on the pages; planner/search/test_search_command.py",
    "mistakes": "grade/report/test_mistakes.py",
    "plans": "half an hour; renews stored plans",
    "receipts": "test_receipts.py",
    "roofline": "measures this machine; meter/test_roofline_command.py",
    "searches": "an hour; renews stored answers",
}


def documented() -> dict[str, list[str]]:
    """Return each command line, as it is written, with its arguments."""
    found = {}
    for page in PAGES:
        for text in _COMMAND.findall(page.read_text(encoding="utf-8").replace("\\\n", " ")):
            for part in re.split(r"\s+&&\s+", re.split(r" # | > |[;)]", text)[0]):
                words = shlex.split(part.strip().rstrip(".,:*").removeprefix("python -m helpers "))
                if words[0] in COMMANDS and "..." not in part:
                    found[shlex.join(words)] = words
    return found


LINES = documented()
SHORT = {line: words for line, words in LINES.items() if words[0] not in NOT_RUN and len(words) > 1}
FRAGMENTS = ("plan --context 8 --context-method ring",)  # options that a lab names without a model


def test_there_are_command_lines():
    assert len(LINES) > 40
    assert set(NOT_RUN) < set(COMMANDS)
    assert len(SHORT) > 12


@pytest.mark.parametrize("line", LINES)
def test_a_documented_command_line_is_one_that_the_command_takes(line):
    if LINES[line][-1] == "--help":
        with pytest.raises(SystemExit, match="0"):
            _parse(LINES[line])
    else:
        assert _parse(LINES[line]).command == LINES[line][0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_make_knows_every_target_that_a_page_names(page):
    targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(_MAKE.findall(page.read_text(encoding="utf-8"))) <= set(targets)


@pytest.fixture
def new_user(tmp_path):
    """An empty home, and the files that the pages' commands name."""
    (tmp_path / "path" / "to").mkdir(parents=True)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 100, **sizes}
    (tmp_path / "path" / "to" / "config.json").write_text(json.dumps(config))
    (tmp_path / "runs.jsonl").write_text('{"model": "gpt2", "gpus": 1, "seq": 128}\n')
    (tmp_path / "ds_config.json").write_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}')
    axolotl = "base_model: llama-3.2-1b\nadapter: lora\nsequence_len: 512\nmicro_batch_size: 1\n"
    (tmp_path / "axolotl.yaml").write_text(axolotl)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    program = (
        "import torch\nmodel = torch.nn.Linear(8, 8, device='cuda')\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "while True:\n    model(torch.ones(4, 8, device='cuda')).sum().backward()\n    optimizer.step()\n"
    )
    for path in (tmp_path / "train.py", package / "train.py"):
        path.write_text(program)
    return tmp_path


def runs(line: str) -> bool:
    """Return whether the new user has all that a line needs; not a shell, rates, snapshots and others' programs."""
    foreign = ("'<'", "--rates", "snapshot.pickle", "message.txt", "run_clm.py", "train_fsdp.py")
    return not any(name in line for name in foreign) and "--gpu this" not in line and line not in FRAGMENTS


@pytest.mark.slow
@pytest.mark.parametrize("line", sample(sorted(filter(runs, SHORT)), one_in=6))
def test_a_documented_command_line_runs_for_a_new_user(line, new_user):
    words = [str(ROOT / "docs" / "planner.md") if word == "path/to/mine.toml" else word for word in SHORT[line]]
    words += ["--no-browser"] if words[0] in ("page", "progress") else []
    env = {**os.environ, "HOME": str(new_user), "PYTHONPATH": str(ROOT), "TAS_PROGRESS": str(new_user / "progress")}
    run = subprocess.run(
        [sys.executable, "-m", "helpers", *words], cwd=new_user, env=env, capture_output=True, text=True, timeout=500
    )
    assert run.returncode == 0, run.stderr[-1500:]
    assert "Traceback" not in run.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="the pages name another folder there")
def test_the_command_that_make_lab_leaves_runs_from_any_folder(tmp_path):
    command = ROOT / ".venv" / "bin" / "training-at-scale"
    if not command.exists():
        pytest.skip("needs the environment that the Makefile sets up")
    run = subprocess.run([command, "plan", "--list"], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0
    assert "llama-2-7b" in run.stdout
    assert Path(command).is_file()
