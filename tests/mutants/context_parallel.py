"""Wrong and right answers for the practice tasks of context parallel."""

from . import Mutant

MERGE, SHIFT, FORWARD, BACKWARD, CUT = (
    f"context_parallel.{part}" for part in ("merge", "shift", "forward", "backward", "cut")
)


def merge(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, MERGE, check, replace, raises)


def shift(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, SHIFT, check, replace, raises)


def forward(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, FORWARD, check, replace, raises)


def backward(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, BACKWARD, check, replace, raises)


def cut(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, CUT, check, replace, raises)


# merge
LSE, BASE = "    lse = torch.logaddexp(lse_1, lse_2)\n", "base = torch.where(lse.isinf(), 0.0, lse)"
SHARES = "share_1, share_2 = (lse_1 - base).exp()[..., None], (lse_2 - base).exp()[..., None]"
MERGED = "return share_1 * out_1 + share_2 * out_2, lse"
# shift
LEAVING, EMPTY = (
    "leaving = [tensor.contiguous() for tensor in tensors]",
    "arriving = [torch.empty_like(tensor) for tensor in leaving]",
)
SEND = "messages = [dist.P2POp(dist.isend, tensor, (rank + 1) % n) for tensor in leaving]"
RECV = "messages += [dist.P2POp(dist.irecv, tensor, (rank - 1) % n) for tensor in arriving]"
BATCH, WAIT = (
    "requests = dist.batch_isend_irecv(messages)",
    "        for request in requests:\n            request.wait()\n",
)
BACK = "    return arriving, finish\n"
# forward
FOUND = 'found = [(torch.zeros_like(row), torch.full_like(row[..., 0], float("-inf"))) for row in rows]'
VISIT, START = (
    "    visiting = k, v\n",
    "            arriving, finish = shift(*visiting)  # on its way while this block is at work\n",
)
HELD = "        held = order[(rank - step) % n]\n        for column, *block"
CAUSAL = "found[i] = merge(found[i], attend(rows[i], *block, causal=column == row))"
SEEN = "                if column <= row:\n                    found"
ARRIVED = "            finish()\n            visiting = arriving\n"
RETURN = "return torch.cat([out for out, _ in found], dim=2), torch.cat([lse for _, lse in found], dim=2)"
# backward
DQ, TRAVELS = "    dq = torch.zeros_like(q)\n", "visiting = [k, v, torch.zeros_like(k), torch.zeros_like(v)]"
HOME = "visiting, finish = shift(*(visiting if step < n - 1 else visiting[2:]))  # at last the gradients alone: home"
PARTS = "parts = attend_backward(g, (q_piece, k_piece, v_piece), (out, lse), causal=column == row)"
SEES = "                if column <= row:\n                    parts"
DONE, ADD = "    return dq, *visiting\n", "total += part  # a view: it lands in the whole tensor"
BEGIN = "    (q, k, v), rank, n = inputs, dist.get_rank(), dist.get_world_size()\n"
# cut
ZIGZAG = "return [[rank, 2 * ranks - 1 - rank] for rank in range(ranks)]  # a cheap one and a dear one"
PIECES = "pieces = torch.arange(tokens.shape[1] - 1, device=tokens.device).chunk(sum(map(len, order)))"
POSITIONS = "positions = torch.cat([pieces[number] for number in order[rank]])"
RESULT = "return tokens[:, positions], tokens[:, positions + 1], positions"

MUTANTS = [
    # merge
    *(merge("merges_as_one_softmax", *mutant) for mutant in (
        ("weighted by the logarithms", (SHARES, "share_1, share_2 = (lse_1 / (lse_1 + lse_2))[..., None], (lse_2 / (lse_1 + lse_2))[..., None]")),
        ("shares the wrong way round", (MERGED, "return share_2 * out_1 + share_1 * out_2, lse")),
        ("the larger wins", (MERGED, "return torch.where((share_1 > share_2), out_1, out_2), lse")),
        ("the larger logarithm", (MERGED, "return share_1 * out_1 + share_2 * out_2, torch.maximum(lse_1, lse_2)")),
        ("not divided", (SHARES, "base = torch.maximum(lse_1, lse_2)\n    share_1, share_2 = (lse_1 - base).exp()[..., None], (lse_2 - base).exp()[..., None]")),
        ("logarithms of the first kept", (MERGED, "return share_1 * out_1 + share_2 * out_2, lse_1")),
    )),
    merge("merges_as_one_softmax", "the plain mean", (MERGED, "return (out_1 + out_2) / 2, lse"), raises="plain mean"),
    merge("merges_as_one_softmax", "logarithms added up", (MERGED, "return share_1 * out_1 + share_2 * out_2, lse_1 + lse_2"), raises="is the sum of both"),
    *(merge("takes_any_score", *mutant) for mutant in (
        ("exponentials as they are", (LSE, "    lse = (lse_1.exp() + lse_2.exp()).log()\n")),
        ("shares of whole exponentials", (SHARES, "total = lse_1.exp() + lse_2.exp() + 1e-38\n    share_1, share_2 = (lse_1.exp() / total)[..., None], (lse_2.exp() / total)[..., None]")),
        ("relative to the first", (SHARES, "factor = (lse_2 - lse_1 - 8).exp()[..., None].clamp(max=3e3)\n    share_1 = 1 / (1 + 1e3 * factor)\n    share_2 = (lse_2 - base).exp()[..., None]")),
    )),
    *(merge("knows_what_is_empty", *mutant) for mutant in (
        ("NaN where nothing was seen", (BASE, "base = lse")),
        ("0 is taken for nothing", (MERGED, "return share_1 * out_1 + share_2 * out_2, torch.where(lse.isinf(), 0.0, lse)")),
        ("a floor for the logarithm", (MERGED, "return share_1 * out_1 + share_2 * out_2, lse.clamp(min=-1e30)")),
        ("an empty first part hides the second", (MERGED, "return torch.where(lse_1.isinf()[..., None], out_1, share_1 * out_1 + share_2 * out_2), lse")),
    )),
    *(merge("keeps_parts", *mutant) for mutant in (
        ("adds to the first", (MERGED, "return out_1.mul_(share_1).add_(share_2 * out_2), lse")),
        ("scales the second in place", (MERGED, "return share_1 * out_1 + out_2.mul_(share_2), lse")),
        ("the new logarithm in the old one's place", (MERGED, "return share_1 * out_1 + share_2 * out_2, lse_1.copy_(lse)")),
        ("returns FP64", (MERGED, "return (share_1 * out_1 + share_2 * out_2).double(), lse")),
        ("returns FP32", (MERGED, "return share_1 * out_1 + share_2 * out_2, lse.float()")),
    )),
    # shift
    shift("hands_on_to_the_next", "the other way round", (SEND, SEND.replace("+ 1", "- 1")), (RECV, RECV.replace("- 1", "+ 1")), raises="the wrong way round"),
    shift("hands_on_to_the_next", "keeps its own", (BACK, "    return [t.clone() for t in tensors], finish\n"), raises="this rank's own"),
    shift("hands_on_to_the_next", "into the tensor that it sends", (EMPTY, "leaving, arriving = [t.clone() for t in leaving], leaving")),
    shift("hands_on_to_the_next", "what is sent is written over afterwards", (WAIT, WAIT + "        for t in tensors:\n            t.zero_()\n")),
    shift("hands_on_to_the_next", "the first tensor only", (BACK, "    return arriving[:1], finish\n")),
    shift("hands_on_to_the_next", "in another order", (BACK, "    return arriving[::-1], finish\n")),
    shift("hands_on_to_the_next", "everything in FP64", (BACK, "    def widen():\n        finish()\n        arriving[:] = [t.double() for t in arriving]\n\n    return arriving, widen\n")),
    shift("hands_on_to_the_next", "flat", (BACK, "    return [t.view(-1) for t in arriving], finish\n")),
    shift("hands_on_to_the_next", "strides as they come", (LEAVING, "leaving = [tensor.as_strided((tensor.numel(),), (1,)) for tensor in tensors]"), (EMPTY, "arriving = [torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) for tensor in tensors]")),
    *(shift("sends_each_tensor_once", *mutant) for mutant in (
        ("sent twice", (BATCH, BATCH + "\n    twice = [torch.empty_like(t) for t in leaving]\n    requests += dist.batch_isend_irecv([dist.P2POp(dist.isend, t, (rank + 1) % n) for t in leaving] + [dist.P2POp(dist.irecv, t, (rank - 1) % n) for t in twice])")),
        ("gathers everything", (BATCH, "everyone = [[torch.empty_like(t) for _ in range(n)] for t in leaving]\n    requests = [dist.all_gather(all_of_them, t, async_op=True) for all_of_them, t in zip(everyone, leaving)]"), (WAIT, WAIT + "        for t, all_of_them in zip(arriving, everyone):\n            t.copy_(all_of_them[(rank - 1) % n])\n")),
        ("everybody meets first", ("    messages = [dist", "    dist.barrier()\n    messages = [dist")),
        ("sent in FP64", (LEAVING, "leaving = [tensor.contiguous().double() for tensor in tensors]"), (WAIT, WAIT + "        arriving[:] = [t.to(own.dtype) for t, own in zip(arriving, tensors)]\n")),
    )),
    *(shift("waits_in_finish_only", *mutant) for mutant in (
        ("waits at once", (BATCH, BATCH + "\n    for request in requests:\n        request.wait()"), (WAIT, "")),
        ("receives before it returns", (BATCH, BATCH + "\n    while len(requests) > len(leaving):\n        requests.pop().wait()")),
        ("nobody waits", (WAIT, "")),
        ("waits for what it sends only", (WAIT, "        for request in requests[: len(leaving)]:\n            request.wait()\n")),
    )),
    *(shift("several_at_a_time", *mutant) for mutant in (
        ("a buffer that is used again", (EMPTY, "shift.buffers = getattr(shift, 'buffers', {})\n    arriving = [shift.buffers.setdefault((i, t.shape, t.dtype), torch.empty_like(t)) for i, t in enumerate(leaving)]")),
        ("two buffers that take turns", (EMPTY, "shift.buffers = getattr(shift, 'buffers', {})\n    shift.turn = 1 - getattr(shift, 'turn', 0)\n    arriving = [shift.buffers.setdefault((shift.turn, i, t.shape, t.dtype), torch.empty_like(t)) for i, t in enumerate(leaving)]")),
    )),
    # forward
    *(forward("forward_of_one_process", *mutant) for mutant in (
        ("the block of the rank after", (HELD, HELD.replace("rank - step", "rank + step"))),
        ("a block that never arrives", (ARRIVED, "            finish()\n")),
        ("no mask on the diagonal", (CAUSAL, CAUSAL.replace("column == row", "False"))),
        ("own block only", (SEEN, SEEN.replace("column <= row", "column <= row and step == 0"))),
        ("strictly before", (SEEN, SEEN.replace("column <= row", "column < row"))),
        ("the last visitor wins", (CAUSAL, "found[i] = attend(rows[i], *block, causal=column == row)")),
        ("parts added up", (CAUSAL, "part = attend(rows[i], *block, causal=column == row)\n                    found[i] = found[i][0] + part[0], torch.logaddexp(found[i][1], part[1])")),
        ("ranks compared, not pieces", (SEEN, SEEN.replace("column <= row", "(rank - step) % n < rank or (step == 0 and column <= row)"))),
        ("log-sum-exps of the last part", (CAUSAL, "part = attend(rows[i], *block, causal=column == row)\n                    found[i] = merge(found[i], part)[0], part[1]")),
        ("pieces in ascending order", (RETURN, "found = [found[i] for i in sorted(range(len(found)), key=order[rank].__getitem__)]\n    " + RETURN)),
    )),
    *(forward("computes_what_rows_see", *mutant) for mutant in (
        ("computes what nobody may see", (SEEN, "                if column > row:\n                    attend(rows[i], *block, causal=False)\n" + SEEN)),
        ("computes the diagonal whole, too", (SEEN, "                if column == row:\n                    attend(rows[i], *block, causal=False)\n" + SEEN)),
        ("own block twice", (SEEN, "                if column == row:\n                    attend(rows[i], *block, causal=True)\n" + SEEN)),
        ("row after row, by itself", (CAUSAL, "scores = rows[i] @ block[0].repeat_interleave(q.shape[1] // k.shape[1], 1).mT / q.shape[-1] ** 0.5\n                    scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float('-inf')) if column == row else scores\n                    found[i] = merge(found[i], (scores.softmax(-1) @ block[1].repeat_interleave(q.shape[1] // k.shape[1], 1), scores.logsumexp(-1)))")),
    )),
    *(forward("sends_keys_and_values", *mutant) for mutant in (
        ("one shift too many", (RETURN, "shift(*visiting)[1]()\n    " + RETURN)),
        ("queries go along", (START, START.replace("shift(*visiting)", "shift(*visiting, q)")), (ARRIVED, ARRIVED.replace("arriving\n", "arriving[:2]\n"))),
        ("asks whether all are there", (VISIT, VISIT + "    dist.barrier()\n")),
        ("gathers as well", (VISIT, VISIT + "    dist.all_gather([torch.empty_like(k) for _ in range(n)], k.contiguous())\n")),
    )),
    *(forward("holds_a_few_blocks", *mutant) for mutant in (
        ("keeps all visitors", (VISIT, VISIT + "    album = []\n"), (ARRIVED, ARRIVED + "            album.append(visiting)\n")),
        ("room for the whole sequence", (VISIT, VISIT + "    album = [(torch.zeros_like(k), torch.zeros_like(v)) for _ in range(n)]\n")),
        ("keeps all parts", (VISIT, VISIT + "    album = []\n"), (CAUSAL, CAUSAL + "\n                    album.append([found[i], *block])")),
    )),
    *(forward("keeps_queries_keys_values", *mutant) for mutant in (
        ("results into the queries", (RETURN, "out = torch.cat([out for out, _ in found], dim=2)\n    return q.copy_(out).clone(), torch.cat([lse for _, lse in found], dim=2)")),
        ("the visitor takes the keys' place", (RETURN, "k.copy_(visiting[0])\n    " + RETURN)),
        ("values are emptied", (RETURN, "v.zero_()\n    " + RETURN)),
    )),
    # backward
    *(backward("gradients_of_one_process", *mutant) for mutant in (
        ("gradients stay one rank short of home", (HOME, "visiting, finish = shift(*visiting) if step < n - 1 else (visiting[2:], lambda: None)")),
        ("a part of each visitor is kept", (ADD, "total.copy_(part)")),
        ("own rows' part of dk only", (HOME, "visiting, finish = shift(*visiting[:2], *(torch.zeros_like(t) for t in visiting[2:])) if step < n - 1 else shift(*visiting[2:])")),
        ("the block of the rank after", ("        held = order[(rank - step) % n]\n        guests", "        held = order[(rank + step) % n]\n        guests")),
        ("no mask on the diagonal", (PARTS, PARTS.replace("column == row", "False"))),
        ("no diagonal", (SEES, SEES.replace("<=", "<"))),
        ("dq of the first visitor only", (SEES, SEES.replace("                    parts", "                    dq_piece = dq_piece if step == 0 else torch.zeros_like(dq_piece)\n                    parts"))),
        ("dk and dv exchanged", (DONE, "    return dq, visiting[1], visiting[0]\n")),
        ("the mean of the ranks", (DONE, "    return dq, *(t / n for t in visiting)\n")),
        ("ranks compared, not pieces", (SEES, SEES.replace("column <= row", "(rank - step) % n < rank or (step == 0 and column <= row)"))),
    )),
    *(backward("each_pair_once", *mutant) for mutant in (
        ("the forward pass again", (SEES, "                if column <= row:\n                    attend(q_piece, k_piece, v_piece, causal=column == row)\n" + SEES)),
        ("computes what nobody may see", (SEES, "                if column > row:\n                    attend_backward(g, (q_piece, k_piece, v_piece), (out, lse), causal=False)\n" + SEES)),
        ("once for dq and once for dk", (SEES, "                if column <= row:\n                    attend_backward(g, (q_piece, k_piece, v_piece), (out, lse), causal=column == row)\n" + SEES)),
    )),
    *(backward("sends_gradients_home", *mutant) for mutant in (
        ("keys and values come home, too", (HOME, "visiting, finish = shift(*visiting)"), (DONE, "    return dq, *visiting[2:]\n")),
        ("results travel along", (HOME, "again = shift(results[0])\n        again[1]()\n        " + HOME)),
        ("adds up with an all-reduce", (DONE, "    dist.all_reduce(dq.clone())\n" + DONE)),
        ("all meet at the end", (DONE, "    dist.barrier()\n" + DONE)),
    )),
    *(backward("holds_few_gradients", *mutant) for mutant in (
        ("keeps all visitors", (DQ, DQ + "    album = []\n"), ("        finish()\n    return dq", "        finish()\n        album.append(visiting)\n    return dq")),
        ("room for all gradients", (DQ, DQ + "    album = [(torch.zeros_like(k), torch.zeros_like(v)) for _ in range(n)]\n")),
        ("keeps all parts", (DQ, DQ + "    album = []\n"), (PARTS, PARTS + "\n                    album.append(parts)")),
    )),
    *(backward("keeps_results", *mutant) for mutant in (
        ("dq into the queries", (DONE, "    return q.copy_(dq).clone(), *visiting\n")),
        ("the gradient is scaled in place", (DONE, "    gradient.mul_(2)\n" + DONE)),
        ("out is used as a buffer", (DONE, "    results[0].copy_(dq)\n" + DONE)),
        ("lse is emptied", (DONE, "    results[1].zero_()\n" + DONE)),
        ("the keys are overwritten", (DONE, "    k.copy_(visiting[0])\n" + DONE)),
        ("the values are overwritten", (DONE, "    v.copy_(visiting[1])\n" + DONE)),
    )),
    # cut
    *(cut("shares_out_fairly", *mutant) for mutant in (
        ("in a row", (ZIGZAG, "return [[2 * rank, 2 * rank + 1] for rank in range(ranks)]")),
        ("dealt out like cards", (ZIGZAG, "return [[rank, rank + ranks] for rank in range(ranks)]")),
        ("one piece each", (ZIGZAG, "return [[rank] for rank in range(ranks)]")),
        ("numbered from 1", (ZIGZAG, "return [[rank + 1, 2 * ranks - rank] for rank in range(ranks)]")),
        ("the dear one first", (ZIGZAG, "return [[2 * ranks - 1 - rank, rank] for rank in range(ranks)]")),
        ("one rank too few", (ZIGZAG, "return [[rank, 2 * ranks - 1 - rank] for rank in range(1, ranks)]")),
        ("for four ranks only", (ZIGZAG, "return [[rank, 7 - rank] for rank in range(ranks)]")),
    )),
    *(cut("cuts_the_inputs", *mutant) for mutant in (
        ("in a row for everybody", (RESULT, "n = len(positions)\n    return tokens[:, rank * n : rank * n + n], tokens[:, positions + 1], positions")),
        ("pieces in ascending order", (RESULT, "return tokens[:, positions.sort().values], tokens[:, positions + 1], positions")),
        ("one token late", (RESULT, "return tokens[:, positions + 1], tokens[:, positions + 1], positions")),
        ("the first sequence only", (RESULT, "return tokens[:1, positions].expand(2, -1), tokens[:, positions + 1], positions")),
        ("changes the tokens", (RESULT, "result = tokens[:, positions], tokens[:, positions + 1], positions\n    tokens.zero_()\n    return result")),
    )),
    *(cut("labels_of_the_sequence", *mutant) for mutant in (
        ("shifted after cutting", (RESULT, "ids = tokens[:, positions]\n    return ids, torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], -100)], 1), positions")),
        ("shifted after cutting, round and round", (RESULT, "return tokens[:, positions], tokens[:, positions].roll(-1, 1), positions")),
        ("its own token", (RESULT, "return tokens[:, positions], tokens[:, positions], positions")),
        ("shifted in each piece", (RESULT, "ids = tokens[:, positions].unflatten(1, (len(order[rank]), -1))\n    return ids.flatten(1), torch.cat([ids[..., 1:], torch.full_like(ids[..., :1], -100)], -1).flatten(1), positions")),
    )),
    *(cut("positions_of_the_sequence", *mutant) for mutant in (
        ("from 0 on each rank", (RESULT, "return tokens[:, positions], tokens[:, positions + 1], torch.arange(len(positions))")),
        ("from 1", (RESULT, "return tokens[:, positions], tokens[:, positions + 1], positions + 1")),
        ("as if in a row", (RESULT, "return tokens[:, positions], tokens[:, positions + 1], rank * len(positions) + torch.arange(len(positions))")),
        ("numbers of the pieces", (RESULT, "return tokens[:, positions], tokens[:, positions + 1], positions // len(pieces[0])")),
        ("as fractions", (RESULT, "return tokens[:, positions], tokens[:, positions + 1], positions.float()")),
    )),
]  # fmt: skip

RIGHT = {
    "keys and values in one tensor": """
import torch
import torch.distributed as dist
from helpers.exercises.context_parallel.attend import attend, attend_backward


def merge(one, other):
    (a, la), (b, lb) = one, other
    top = torch.maximum(la, lb)
    top = torch.where(top == float("-inf"), torch.zeros_like(top), top)
    wa, wb = (la - top).exp(), (lb - top).exp()
    total = wa + wb
    safe = torch.where(total == 0, torch.ones_like(total), total)
    return (a * wa[..., None] + b * wb[..., None]) / safe[..., None], total.log() + top


def shift(*tensors):
    n, rank = dist.get_world_size(), dist.get_rank()
    out, requests = [], []
    for t in tensors:
        t = t.detach().clone(memory_format=torch.contiguous_format)
        arrived = torch.empty_like(t)
        requests.append(dist.irecv(arrived, (rank - 1 + n) % n))
        requests.append(dist.isend(t, (rank + 1) % n))
        out.append(arrived)
    return out, lambda: [r.wait() for r in requests]


def ring_forward(q, k, v, order):
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = order[rank]
    size = q.shape[2] // len(mine)
    out = torch.zeros_like(q)
    lse = torch.full(q.shape[:-1], float("-inf"), dtype=q.dtype, device=q.device)
    kv = torch.stack((k, v))
    for step in range(n):
        source = (rank - step) % n
        for i, row in enumerate(mine):
            at = slice(i * size, (i + 1) * size)
            for j, column in enumerate(order[source]):
                if column > row:
                    continue
                there = slice(j * size, (j + 1) * size)
                part = attend(q[:, :, at], kv[0][:, :, there], kv[1][:, :, there], column == row)
                new = merge((out[:, :, at], lse[:, :, at]), part)
                out[:, :, at], lse[:, :, at] = new
        if step + 1 < n:
            (kv,), done = shift(kv)
            done()
    return out, lse


def ring_backward(gradient, inputs, results, order):
    q, k, v = inputs
    out, lse = results
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = order[rank]
    size = q.shape[2] // len(mine)
    dq, kv = torch.zeros_like(q), torch.stack((k, v))
    dkv = torch.zeros_like(kv)
    for step in range(n):
        source = order[(rank - step) % n]
        for i, row in enumerate(mine):
            a = slice(i * size, (i + 1) * size)
            for j, column in enumerate(source):
                b = slice(j * size, (j + 1) * size)
                if column > row:
                    continue
                block = q[:, :, a], kv[0][:, :, b], kv[1][:, :, b]
                x, y, z = attend_backward(gradient[:, :, a], block, (out[:, :, a], lse[:, :, a]), column == row)
                dq[:, :, a] += x
                dkv[0][:, :, b] += y
                dkv[1][:, :, b] += z
        if step < n - 1:
            (kv,), done = shift(kv)
            done()
        (dkv,), done = shift(dkv)
        done()
    return dq, dkv[0], dkv[1]


def zigzag(ranks):
    pieces = list(range(2 * ranks))
    return [[pieces[i], pieces[-1 - i]] for i in range(ranks)]


def cut(tokens, order, rank):
    n = sum(len(held) for held in order)
    inputs, labels = tokens[:, :-1].chunk(n, 1), tokens[:, 1:].chunk(n, 1)
    size = inputs[0].shape[1]
    positions = torch.tensor([piece * size + i for piece in order[rank] for i in range(size)], device=tokens.device)
    ids, wanted = (torch.cat([parts[piece] for piece in order[rank]], 1) for parts in (inputs, labels))
    return ids, wanted, positions
""",
    "keys early, gradients late": """
import torch
import torch.distributed as dist
from helpers.exercises.context_parallel.attend import attend, attend_backward


def merge(one, other):
    (out, lse), (part, part_lse) = one, other
    share = torch.sigmoid(part_lse - lse).nan_to_num(0.0)[..., None]  # of the second
    return out * (1 - share) + part * share, torch.logaddexp(lse, part_lse)


def shift(*tensors):
    up, down = (dist.get_rank() + 1) % dist.get_world_size(), (dist.get_rank() - 1) % dist.get_world_size()
    shapes = [(t.shape, t.dtype) for t in tensors]
    kept = [t.reshape(-1).clone() for t in tensors]
    new = [torch.empty(t.numel(), dtype=t.dtype, device=t.device) for t in kept]
    operations = []
    for t, place in zip(kept, new):
        operations += [dist.P2POp(dist.irecv, place, down), dist.P2POp(dist.isend, t, up)]
    works = dist.batch_isend_irecv(operations)

    def finish():
        while works:
            works.pop().wait()
        return kept

    return [place.view(shape) for place, (shape, _) in zip(new, shapes)], finish


def pairs(rows, columns):
    return [(i, j, row == column) for i, row in enumerate(rows) for j, column in enumerate(columns) if row >= column]


def ring_forward(q, k, v, order):
    me, n = dist.get_rank(), dist.get_world_size()
    rows = q.split(q.shape[2] // len(order[me]), 2)
    state = [None] * len(rows)
    source = me
    while True:
        following = (source - 1) % n
        if following != me:
            (next_k, next_v), finish = shift(k, v)
        ks, vs = (t.split(t.shape[2] // len(order[source]), 2) for t in (k, v))
        for i, j, diagonal in pairs(order[me], order[source]):
            part = attend(rows[i], ks[j], vs[j], diagonal)
            state[i] = part if state[i] is None else merge(part, state[i])
        if following == me:
            break
        finish()
        k, v, source = next_k, next_v, following
    outs, lses = zip(*state)
    return torch.cat(outs, 2), torch.cat(lses, 2)


def ring_backward(gradient, inputs, results, order):
    (q, k, v), me, n = inputs, dist.get_rank(), dist.get_world_size()
    cut_up = lambda t, held: t.split(t.shape[2] // len(held), 2)
    qs, gs, outs, lses = (cut_up(t, order[me]) for t in (q, gradient, *results))
    dqs = [torch.zeros_like(t) for t in qs]
    coming = None
    for step in range(n):
        held = order[(me - step) % n]
        if step < n - 1:
            onward, keys_here = shift(k, v)
        ks, vs = cut_up(k, held), cut_up(v, held)
        dks, dvs = [torch.zeros_like(t) for t in ks], [torch.zeros_like(t) for t in vs]
        for i, j, diagonal in pairs(order[me], held):
            dq, dk, dv = attend_backward(gs[i], (qs[i], ks[j], vs[j]), (outs[i], lses[i]), diagonal)
            dqs[i] = dqs[i] + dq
            dks[j] = dks[j] + dk
            dvs[j] = dvs[j] + dv
        dk, dv = torch.cat(dks, 2), torch.cat(dvs, 2)
        if step < n - 1:
            keys_here()
        if coming is not None:
            arrived, done = coming
            done()
            dk, dv = dk + arrived[0], dv + arrived[1]
        coming = shift(dk, dv)
        if step < n - 1:
            k, v = onward
    (dk, dv), done = coming
    done()
    return torch.cat(dqs, 2), dk, dv


def zigzag(ranks):
    order = []
    for rank in range(ranks):
        order.append(sorted((rank, 2 * ranks - rank - 1)))
    return order


def cut(tokens, order, rank):
    size = (tokens.shape[1] - 1) // sum(map(len, order))
    spans = [slice(piece * size, (piece + 1) * size) for piece in order[rank]]
    where = torch.arange(tokens.shape[1] - 1, device=tokens.device)
    pick = lambda t: torch.cat([t[..., span] for span in spans], -1)
    return pick(tokens[:, :-1]), pick(tokens[:, 1:]), pick(where)
""",
    "by numbers of tokens": """
import torch
import torch.distributed as dist
from helpers.exercises.context_parallel.attend import attend, attend_backward


def merge(one, other):
    outs = torch.stack((one[0], other[0]))
    lses = torch.stack((one[1], other[1]))
    lse = lses.logsumexp(0)
    shares = torch.exp(lses - lse).nan_to_num(0.0)
    return (shares.unsqueeze(-1) * outs).sum(0), lse


def shift(*tensors):
    group = list(range(dist.get_world_size()))
    me = group.index(dist.get_rank())
    to, source = group[me - len(group) + 1], group[me - 1]
    sent = tuple(torch.clone(t, memory_format=torch.contiguous_format) for t in tensors)
    received = [t.new_empty(t.shape) for t in sent]
    ops = [dist.P2POp(op, t, peer) for op, ts, peer in ((dist.isend, sent, to), (dist.irecv, received, source)) for t in ts]
    requests = dist.batch_isend_irecv(ops)
    return received, lambda: [request.wait() for request in requests] and sent and None


def ring_forward(q, k, v, order):
    rank, n = dist.get_rank(), dist.get_world_size()
    length = q.size(2) // len(order[rank])
    results = {}
    guest = [k, v]
    for owner in [(rank - i) % n for i in range(n)]:
        for j, column in enumerate(order[owner]):
            keys, values = (t.narrow(2, j * length, length) for t in guest)
            for i, row in enumerate(order[rank]):
                if row >= column:
                    part = attend(q.narrow(2, i * length, length), keys, values, causal=row == column)
                    results[row] = merge(results[row], part) if row in results else part
        if owner != (rank + 1) % n:
            guest, wait = shift(*guest)
            wait()
    return tuple(torch.cat([results[row][which] for row in order[rank]], 2) for which in (0, 1))


def ring_backward(gradient, inputs, results, order):
    q, k, v = inputs
    rank, n = dist.get_rank(), dist.get_world_size()
    length = q.size(2) // len(order[rank])
    piece = lambda t, i: t.narrow(2, i * length, length)
    totals = [torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)]
    for step in range(n):
        owner = (rank - step) % n
        for i, row in enumerate(order[rank]):
            for j, column in enumerate(order[owner]):
                if row >= column:
                    grads = attend_backward(
                        piece(gradient, i),
                        (piece(q, i), piece(k, j), piece(v, j)),
                        tuple(piece(t, i) for t in results),
                        causal=row == column,
                    )
                    for total, at, grad in zip(totals, (i, j, j), grads):
                        piece(total, at).add_(grad)
        message = [totals[1], totals[2]] + ([k, v] if step + 1 < n else [])
        message, wait = shift(*message)
        wait()
        totals[1:] = message[:2]
        k, v = message[2:] if step + 1 < n else (k, v)
    return tuple(totals)


def zigzag(ranks):
    half = torch.arange(ranks)
    return torch.stack((half, 2 * ranks - 1 - half), 1).tolist()


def cut(tokens, order, rank):
    grid = torch.arange(tokens.shape[1] - 1, device=tokens.device).view(sum(map(len, order)), -1)
    positions = grid[order[rank]].flatten()
    return tokens[:, :-1].index_select(1, positions), tokens[:, 1:].index_select(1, positions), positions
""",
}
