"""What lab and checks of context parallelism use: blocks of attention, log, model, picture."""

import math
import time

from helpers.exercises.context_parallel.attend import TILE, attend, attend_backward
from helpers.exercises.context_parallel.attention_trial import AttentionTrial
from helpers.exercises.context_parallel.block_log import BlockLog
from helpers.exercises.context_parallel.model import LongModel, rotated
from helpers.exercises.context_parallel.pictures import ring_picture

import pytest
import torch
import torch.distributed as dist

LENGTHS = [(5, 7, False), (2 * TILE + 3, 10, False), (3, TILE + 1, False), (6, 6, True), (TILE + 9, TILE + 9, True)]


@pytest.mark.parametrize(("rows", "columns", "causal"), LENGTHS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (6, 2)])
def test_a_block_is_attention_with_its_gradients(rows, columns, causal, heads, kv_heads):
    torch.manual_seed(0)
    draw = lambda h, n: torch.randn(2, h, n, 4, dtype=torch.float64, requires_grad=True)  # noqa: E731
    q, k, v = draw(heads, rows), draw(kv_heads, columns), draw(kv_heads, columns)
    k_all, v_all = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
    scores = q @ k_all.mT / math.sqrt(4)
    if causal:
        scores = scores.masked_fill(torch.ones(rows, columns, dtype=torch.bool).triu(1), -math.inf)
    right = scores.softmax(-1) @ v_all
    gradient = torch.randn_like(right)
    right.backward(gradient)
    with torch.no_grad():
        out, lse = attend(q, k, v, causal)
        parts = attend_backward(gradient, (q, k, v), (out, lse), causal)
    torch.testing.assert_close(out, right.detach())
    torch.testing.assert_close(lse, scores.logsumexp(-1).detach())
    for part, leaf in zip(parts, (q, k, v), strict=True):
        torch.testing.assert_close(part, leaf.grad)


def test_a_log_counts_scores_and_keeps_the_pace():
    q, k = torch.randn(1, 1, 4, 2), torch.randn(1, 1, 6, 2)
    with BlockLog() as log:
        out, _ = attend(q, k, k, causal=False)
        attend_backward(out, (q, q, q), attend(q, q, q, causal=True), causal=True)
    attend(q, k, k, causal=False)  # after the block: in no log
    assert [(entry.kind, entry.work) for entry in log.entries] == [
        ("forward", 2 * 24),
        ("forward", 2 * 10),
        ("backward", 5 * 10),
    ]
    with BlockLog(pace=0.001) as slow:
        began = time.perf_counter()
        attend(q, k, k, causal=False)
    assert time.perf_counter() - began >= 0.048
    assert slow.work == 48


def _causal(q, k, v):
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_a_trial_cuts_each_document_and_tells_right_from_wrong(monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    trial, one_rank = AttentionTrial(12, 4), [[0]]
    q = trial.whole[0]
    assert torch.equal(trial.cut(q, [[1], [0]]), torch.cat([q[:, :, 6:12], q[:, :, 14:]], dim=2))
    assert trial.mine([[0], [1]])[1].shape == (1, 4, 8, 16)

    def by_document(q, k, v):
        return torch.cat([_causal(*parts) for parts in zip(*(t.split((12, 4), 2) for t in (q, k, v)), strict=True)], 2)

    whole = trial.mine(one_rank)
    assert max(trial.distances(trial.through(by_document, *whole), one_rank)) < 1e-6
    assert min(trial.distances(trial.through(_causal, *whole), one_rank)) > 0.01  # across documents
    joint = AttentionTrial(16)
    assert max(joint.distances(joint.through(_causal, *joint.mine(one_rank)), one_rank)) < 1e-6


def test_rotated_queries_and_keys_know_their_distance_only():
    q, k = torch.randn(1, 1, 1, 8, dtype=torch.float64), torch.randn(1, 1, 1, 8, dtype=torch.float64)
    score = lambda i, j: (rotated(q, torch.tensor([i])) * rotated(k, torch.tensor([j]))).sum()  # noqa: E731
    torch.testing.assert_close(score(7, 3), score(104, 100))
    assert not torch.isclose(score(7, 3), score(7, 5))


def test_only_attention_sees_other_tokens():
    model = LongModel(lambda q, k, v: q)
    ids, positions = torch.arange(6)[None], torch.arange(6)
    whole = model(ids, positions)
    torch.testing.assert_close(whole[:, 2:4], model(ids[:, 2:4], positions[2:4]))
    assert whole.shape == (1, 6, 128)


def test_a_picture_can_be_drawn(tmp_path):
    ring_picture(4).savefig(tmp_path / "ring.png")
    assert (tmp_path / "ring.png").stat().st_size > 1000
