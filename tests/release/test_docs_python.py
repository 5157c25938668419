"""The Python of the pages: blocks run as they are written, imports find their names, and calls fit what they call."""

import ast
import importlib
import inspect
import re

from helpers.core.files import ROOT

import pytest
import torch

from .test_docs import PAGES

_BLOCK = re.compile(r"^```(?:python|py)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^```.*?^```$", flags=re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")


def _train():
    """What a reader would train."""
    model = torch.nn.Linear(64, 64, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(8, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


GIVEN = {"train": _train}  # what the pages leave to the reader


def blocks(text: str) -> list[str]:
    """Return the blocks of a page that are marked as Python."""
    return _BLOCK.findall(text)


def imports(text: str) -> dict[str, object]:
    """Return what the Python of a page, in blocks or in its sentences, imports from the course.

    Raises:
        ImportError, AttributeError: there is no such name.
    """
    found: dict[str, object] = {}
    for tree in [ast.parse(block) for block in blocks(text)] + [tree for span in _spans(text) if (tree := _tree(span))]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for each in node.names:
                    importlib.import_module(each.name)
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "helpers":
                module = importlib.import_module(node.module)
                found |= {each.asname or each.name: getattr(module, each.name) for each in node.names}
    return found


def misfits(text: str) -> list[str]:
    """Return the calls in a page's sentences that do not fit the function or the class that they call."""
    known, found = imports(text), []
    for span in _spans(text):
        for node in ast.walk(_tree(span) or _tree(f"_({span})") or ast.Module([], [])):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
                names = {each.arg: None for each in node.keywords if each.arg}
                try:
                    inspect.signature(known[node.func.id]).bind(*node.args, **names)  # ty: ignore
                except TypeError as error:
                    found.append(f"{span}: {error}")
    return found


def _spans(text: str) -> list[str]:
    return _INLINE.findall(_FENCE.sub("", text))


def _tree(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except SyntaxError:
        return None


def _cases() -> list:
    texts = [(page, page.read_text(encoding="utf-8")) for page in PAGES]
    return [
        pytest.param(block, id=f"{page.relative_to(ROOT).as_posix()}-{number}")
        for page, text in texts
        for number, block in enumerate(blocks(text))
    ]


@pytest.mark.parametrize("block", _cases())
def test_a_block_of_python_runs_as_it_is_written(block, capsys):
    exec(compile(block, "block", "exec"), dict(GIVEN))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_imports_is_there_and_is_called_as_it_can_be(page):
    assert misfits(page.read_text(encoding="utf-8")) == []


def test_pages_have_python():
    found = {}
    for page in PAGES:
        found |= imports(page.read_text(encoding="utf-8"))
    assert _cases()
    assert {"virtual_gpu", "World", "plan", "TrainingConfig"} <= set(found)


@pytest.mark.parametrize(
    "text", ["`from helpers.planner import no_such`", "```python\nfrom helpers.planer import x\n```"]
)
def test_an_import_that_is_not_there_is_noticed(text):
    with pytest.raises((ImportError, AttributeError)):
        misfits(text)


def test_a_call_that_does_not_fit_is_noticed():
    known = "`from helpers.virtual_gpu.world import World` and pass "
    assert misfits(known + "`gpus=4, world=World(rank=0, size=4, node=4)`") == []
    assert len(misfits(known + "`gpus=4, world=World(rank=0, ranks=4)`")) == 1
