"""What lab and checks of context parallel stand on: blocks of attention, log, clock, model, pictures."""

import math
import time

from helpers.exercises.context_parallel.attend import TILE, attend, attend_backward
from helpers.exercises.context_parallel.attention_trial import AttentionTrial
from helpers.exercises.context_parallel.block_log import BlockLog, Entry
from helpers.exercises.context_parallel.clock import ClockedRing, clock_rings
from helpers.exercises.context_parallel.model import LongModel, rotated
from helpers.exercises.context_parallel.pictures import ring_picture, scores_picture, timeline_picture

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


def test_what_waits_is_counted_and_clocked():
    logs = [[Entry("forward", 1, 0.0, 1.0)], [Entry("forward", 3, 0.0, 3.0)]]
    run = ClockedRing(logs, 1.0)
    assert run.counted == run.idle == pytest.approx(100 / 3)
    assert not run.busy
    late = ClockedRing([*logs, [Entry("forward", 3, 0.5, 6.0)]], 1.0)
    assert late.busy
    assert late.share == pytest.approx(late.counted, abs=0.1)
    assert "too busy" in str(late)


def _step(order):
    q = torch.randn(1, 1, 8, 2)
    for _ in range(order[dist.get_rank()]):
        attend(q, q, q, causal=False)


@pytest.mark.slow
def test_a_ring_is_clocked_on_ranks(capsys):
    runs = clock_rings(_step, 2, {"uneven": [1, 3], "even": [2, 2]})
    assert runs["uneven"].counted == pytest.approx(100 / 3)
    assert runs["even"].counted == 0
    assert all(run.stretch > 0.99 for run in runs.values())
    assert ("this machine is busy" in capsys.readouterr().out) == any(run.busy for run in runs.values())


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


def test_pictures_can_be_drawn(tmp_path):
    entries = [[Entry("forward", 1, 0.0, 1.0), Entry("backward", 2, 1.0, 3.0)], [Entry("forward", 3, 0.0, 3.0)]]
    drawn = (
        ring_picture(4),
        scores_picture([[0, 3], [1, 2]], "zigzag"),
        timeline_picture(ClockedRing(entries, 1.0), "two ranks"),
    )
    for i, figure in enumerate(drawn):
        figure.savefig(tmp_path / f"{i}.png")
        assert (tmp_path / f"{i}.png").stat().st_size > 1000
