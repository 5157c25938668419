"""The small models: shapes, first loss, causality."""

import math

from helpers import SmallCNN, SmallGPT

import pytest
import torch


def test_cnn_and_gpt_shapes():
    assert SmallCNN(8)(torch.zeros(2, 1, 16, 16)).shape == (2, 10)
    assert SmallGPT(vocabulary=50, context=12)(torch.zeros(3, 12, dtype=torch.long)).shape == (3, 12, 50)


def test_gpt_starts_near_ln_vocabulary_and_is_causal():
    torch.manual_seed(0)
    model = SmallGPT()
    ids = torch.randint(256, (4, 64))
    logits = model(ids)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.randint(256, (4 * 64,)))
    assert loss.item() == pytest.approx(math.log(256), rel=0.05)
    changed = ids.clone()
    changed[:, 40:] = 0
    torch.testing.assert_close(model(changed)[:, :40], logits[:, :40])
