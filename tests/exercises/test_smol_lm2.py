"""SmolLM2 for learners' own functions: the published model, and every right answer runs on it."""

from helpers.exercises.capstone.smol_lm2 import SmolLM2
from helpers.planner.catalog.hub import hub_models
from helpers.virtual_gpu import virtual_gpu

import pytest
import torch

from ..mutants import run_answers, styles, topics
from ..sampling import sample

TEXTS = {name: text for name, (part, text) in styles("capstone").items() if part == "capstone.stack"}
TEXTS |= topics()["capstone"].right

pytestmark = pytest.mark.slow  # the model takes seconds to build


def test_it_has_the_published_number_of_parameters():
    with torch.device("meta"):
        model = SmolLM2()
    assert sum(p.numel() for p in model.parameters()) == hub_models()["smollm2-135m"].parameters


def test_its_logits_are_those_of_transformers():
    torch.manual_seed(0)
    model, ids = SmolLM2(), torch.randint(49152, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(model(ids), model.llama(ids).logits.transpose(1, 2))


@pytest.mark.parametrize("name", sample(list(TEXTS), one_in=len(TEXTS)))
def test_right_answers_of_the_rungs_run_on_it(name):
    answers = run_answers(TEXTS[name])
    with virtual_gpu("h100-80gb"):
        with torch.device("cuda"):
            model, ids = SmolLM2().to(torch.bfloat16), torch.randint(49152, (2, 1025))
        answers["checkpoint_blocks"](model)
        means = {p: torch.zeros_like(p) for p in model.parameters()}
        handles = answers["fold"](means)
        answers["accumulate"](model, ids[:, :-1], ids[:, 1:], 1)
        answers["signum_step"](means, 1e-3)
        for handle in handles:
            handle.remove()
        peak, weights = torch.cuda.max_memory_allocated(), 2 * sum(p.numel() for p in model.parameters())
    assert 2 * weights < peak < 5 * weights
