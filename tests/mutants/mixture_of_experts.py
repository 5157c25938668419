"""Wrong and right answers for the practice tasks of the mixture of experts."""

from . import Mutant

LAYER, BALANCE, PARALLEL, REDUCE = (f"mixture_of_experts.{part}" for part in ("layer", "balance", "parallel", "reduce"))


def layer(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, LAYER, check, replace, raises)


def balance(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, BALANCE, check, replace, raises)


def parallel(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, PARALLEL, check, replace, raises)


def reduce(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, REDUCE, check, replace, raises)


# the layer
PROBABILITIES = "probabilities = logits.softmax(dim=1)"
CHOSEN = "chosen = (probabilities if bias is None else probabilities + bias).topk(k, dim=1).indices"
GATHERED = "weights = probabilities.gather(1, chosen)"
WEIGHTS = "return chosen, weights / weights.sum(dim=1, keepdim=True)"
SORTED = "source = flat.argsort(stable=True)"
PERMUTED = "return x[source // chosen.shape[1]], torch.bincount(flat, minlength=experts), source"
PIECES = "pieces = rows.split(counts.tolist())"
PRODUCTS = "return torch.cat([F.gelu(piece @ u.T) @ d.T for piece, u, d in zip(pieces, up, down, strict=True)])"
PLACED = "placed = torch.empty_like(rows).index_copy(0, source, rows)"
SUMMED = "return (placed.view(*weights.shape, rows.shape[1]) * weights[:, :, None]).sum(dim=1)"
# balance
SHARES = "f = torch.bincount(chosen.flatten(), minlength=experts) / chosen.numel()"
TERM = "return experts * (f * logits.softmax(dim=1).mean(dim=0)).sum()"
NUDGE = "bias += rate * torch.sign(counts.float().mean() - counts)"
PLACE = (
    "place = F.one_hot(flat, experts).cumsum(dim=0).gather(1, flat[:, None])  # 1 for the first that names its expert"
)
WITHIN = "return (place <= capacity).view_as(chosen)"
# expert parallel
PARTS, ARRIVED = "ctx.parts = send, receive, group", "arrived = rows.new_empty(sum(receive), *rows.shape[1:])"
SENT = "dist.all_to_all_single(arrived, rows.contiguous(), receive, send, group=group)"
BACK = "return Exchange.forward(ctx, gradient, receive, send, group), None, None, None"
RANKS = "ranks, own = dist.get_world_size(group), len(up)"
COUNTS_SENT = "dist.all_to_all_single(coming, counts, group=group)"
COMING = "coming = coming.view(ranks, own)  # rows from each rank for each expert of this one"
THERE = "arrived = Exchange.apply(rows, send, receive, group)"
EXPERT = "expert = torch.arange(own, device=x.device).repeat(ranks).repeat_interleave(coming.flatten())"
ORDER = "order = expert.argsort(stable=True)"
RESULTS = "results = grouped(arrived[order], coming.sum(dim=0), up, down)"
AS_THEY_CAME = "results = torch.empty_like(results).index_copy(0, order, results)  # as they came"
HOME = "return unpermute(Exchange.apply(results, receive, send, group), source, weights)"
# gradients
OVER_ALL, OVER_COPIES = (
    "dist.all_reduce(parameter.grad)\n",
    'dist.all_reduce(parameter.grad, group=mesh.get_group("replica"))',
)
DIVIDED = "    for parameter in (*shared, *experts):\n        parameter.grad /= mesh.size()\n"

MUTANTS = [
    # the layer
    *(layer("routes_to_the_most_likely", *mutant) for mutant in (
        ("the least likely", (CHOSEN, "chosen = (-probabilities).topk(k, dim=1).indices")),
        ("the first k", (CHOSEN, "chosen = torch.arange(k).expand(len(logits), k)")),
        ("one more expert", (CHOSEN, "chosen = probabilities.topk(k + 1, dim=1).indices")),
        ("equal weights", (WEIGHTS, "return chosen, 0 * weights + 1 / k")),
        ("logits for weights", (GATHERED, "weights = logits.gather(1, chosen)")),
        ("the gradient of the sum left out", (WEIGHTS, "return chosen, weights / weights.detach().sum(dim=1, keepdim=True)")),
        ("sigmoids", (PROBABILITIES, "probabilities = logits.sigmoid()")),
        ("softmax over the tokens", (PROBABILITIES, "probabilities = logits.softmax(dim=0)")),
    )),
    layer("routes_to_the_most_likely", "probabilities as they are", (WEIGHTS, "return chosen, weights"), raises="as they are"),
    layer("routes_to_the_most_likely", "the router learns nothing", (WEIGHTS, "return chosen, (weights / weights.sum(dim=1, keepdim=True)).detach()"), raises="learns nothing"),
    layer("routes_to_the_most_likely", "works only with a bias", (CHOSEN, "chosen = (probabilities + bias).topk(k, dim=1).indices"), raises="Raised"),
    *(layer("bias_only_chooses", *mutant) for mutant in (
        ("the bias weighs as well", (GATHERED, "weights = (probabilities if bias is None else probabilities + bias).gather(1, chosen)")),
        ("the bias is left out", (CHOSEN, "chosen = probabilities.topk(k, dim=1).indices")),
        ("added to the logits", (CHOSEN, "chosen = (logits if bias is None else logits + bias).topk(k, dim=1).indices")),
        ("subtracted", (CHOSEN, "chosen = (probabilities if bias is None else probabilities - bias).topk(k, dim=1).indices")),
        ("the bias is used up", (WEIGHTS, "None if bias is None else bias.zero_()\n    " + WEIGHTS)),
    )),
    layer("routes_to_the_most_likely", "token after token", (WEIGHTS, "return chosen, torch.stack([w / w.sum() for w in weights])"), raises="non-empty"),
    *(layer("sorts_by_expert", *mutant) for mutant in (
        ("counts are no integers", (PERMUTED, PERMUTED.replace("minlength=experts)", "minlength=experts).double()"))),
        ("not sorted", (SORTED, "source = torch.arange(len(flat))")),
        ("from the last expert to the first", (SORTED, "source = flat.argsort(descending=True, stable=True)")),
        ("counts up to the last that was chosen", (PERMUTED, PERMUTED.replace(", minlength=experts", ""))),
        ("tokens modulo their number", (PERMUTED, PERMUTED.replace("source // chosen.shape[1]", "source % max(1, len(x))"))),
        ("where a choice goes, for where it comes from", (PERMUTED, PERMUTED.replace(", source\n", "").removesuffix(", source") + ", source.argsort()")),
        ("tokens, not choices, as the source", (PERMUTED, PERMUTED.removesuffix(", source") + ", source // chosen.shape[1]")),
        ("no expert twice", (SORTED, "source = torch.unique(flat, return_inverse=True)[1].argsort()[: len(x)]")),
        ("no gradient for x", (PERMUTED, PERMUTED.replace("x[", "x.detach()["))),
        ("the gradient of a token's mean row", (SORTED, SORTED + "\n    x = x.detach() + (x - x.detach()) / chosen.shape[1]")),
        ("counts tokens, not choices", (PERMUTED, PERMUTED.replace("torch.bincount(flat,", "torch.bincount(chosen[:, 0],"))),
    )),
    *(layer("each_expert_on_its_rows", *mutant) for mutant in (
        ("without the GELU", (PRODUCTS, PRODUCTS.replace("F.gelu(piece @ u.T)", "(piece @ u.T)"))),
        ("another activation", (PRODUCTS, PRODUCTS.replace("F.gelu(piece @ u.T)", "F.relu(piece @ u.T)"))),
        ("one expert for all", (PRODUCTS, "return torch.cat([F.gelu(piece @ up[0].T) @ down[0].T for piece in pieces])")),
        ("the wrong expert's second matrix", (PRODUCTS, PRODUCTS.replace("zip(pieces, up, down,", "zip(pieces, up, down.flip(0),"))),
        ("no gradient for the rows", (PIECES, "pieces = rows.detach().split(counts.tolist())")),
        ("no gradient for up", (PRODUCTS, PRODUCTS.replace("u.T", "u.detach().T"))),
        ("in equal parts", (PIECES, "size, rest = divmod(len(rows), len(up))\n    pieces = rows.split([size] * (len(up) - 1) + [size + rest])")),
        ("no graph without rows", (PRODUCTS, "if not len(rows):\n        return rows.detach()\n    " + PRODUCTS)),
    )),
    layer("each_expert_on_its_rows", "skips the experts without rows", (PRODUCTS, PRODUCTS.removesuffix("])") + " if len(piece)])"), raises="Raised"),
    *(layer("computes_no_other_rows", *mutant) for mutant in (
        ("all rows through each, then cut", (PIECES, "counts, ends = counts.tolist(), counts.cumsum(0).tolist()"), (PRODUCTS, "return torch.cat([(F.gelu(rows @ u.T) @ d.T)[e - n : e] for n, e, u, d in zip(counts, ends, up, down, strict=True)])")),
        ("padded to the busiest", (PIECES, "pieces = rows.split(counts.tolist())\n    most = int(counts.max())"), (PRODUCTS, "return torch.cat([(F.gelu(F.pad(piece, (0, 0, 0, most - len(piece))) @ u.T) @ d.T)[: len(piece)] for piece, u, d in zip(pieces, up, down, strict=True)])")),
        ("each product twice", (PRODUCTS, "torch.cat([piece @ u.T for piece, u in zip(pieces, up, strict=True)])\n    " + PRODUCTS)),
    )),
    *(layer("puts_rows_back", *mutant) for mutant in (
        ("left in the experts' order", (PLACED, "placed = rows")),
        ("the other way round", (PLACED, "placed = rows[source]")),
        ("without the weights", (SUMMED, SUMMED.replace(" * weights[:, :, None]", ""))),
        ("the mean, not the sum", (SUMMED, SUMMED.replace(".sum(dim=1)", ".mean(dim=1)"))),
        ("no gradient for the weights", (SUMMED, SUMMED.replace("weights[:, :, None]", "weights.detach()[:, :, None]"))),
        ("no gradient for the rows", (PLACED, "placed = torch.empty_like(rows).index_copy(0, source, rows.detach())")),
        ("weights in the experts' order", (SUMMED, SUMMED.replace("weights[:, :, None]", "weights.flatten()[source].view_as(weights)[:, :, None]"))),
    )),
    layer("puts_rows_back", "for k = 2 only", (SUMMED, "placed = placed.view(-1, 2, rows.shape[1])\n    return placed[:, 0] * weights[:, :1] + placed[:, 1] * weights[:, 1:]"), raises="Raised"),
    # balance
    *(balance("punishes_imbalance", *mutant) for mutant in (
        ("the first choice only", (SHARES, "f = torch.bincount(chosen[:, 0], minlength=experts) / len(chosen)")),
        ("squares of the shares", (TERM, "return experts * (f * f).sum() + 0 * logits.sum()")),
        ("squares of the probabilities", (TERM, "return experts * logits.softmax(dim=1).mean(dim=0).square().sum()")),
        ("probabilities of the chosen only", (TERM, "p = logits.softmax(dim=1)\n    return experts * (f * (p * torch.zeros_like(p).scatter(1, chosen, 1.0)).mean(dim=0)).sum()")),
        ("no gradient", (TERM, TERM.replace("logits.softmax", "logits.detach().softmax"))),
        ("the softmax of the mean", (TERM, "return experts * (f * logits.mean(dim=0).softmax(dim=0)).sum()")),
        ("less one", (TERM, TERM + " - 1")),
        ("a loss of one dimension", (TERM, "return experts * (f * logits.softmax(dim=1).mean(dim=0)).sum()[None]")),
        ("summed over the tokens", (TERM, TERM.replace("mean(dim=0)", "sum(dim=0)"))),
        ("a gradient turned round", (TERM, "loss = experts * (f * logits.softmax(dim=1).mean(dim=0)).sum()\n    return 2 * loss.detach() - loss")),
    )),
    balance("punishes_imbalance", "without the factor E", (TERM, TERM.replace("experts * ", "")), raises="lacks the factor"),
    balance("punishes_imbalance", "shares of the tokens", (SHARES, SHARES.replace("chosen.numel()", "len(chosen)")), raises="not of the tokens"),
    *(balance("nudges_by_the_sign", *mutant) for mutant in (
        ("the wrong way", (NUDGE, "bias -= rate * torch.sign(counts.float().mean() - counts)")),
        ("as far as it is off", (NUDGE, "bias += rate * (counts.float().mean() - counts)")),
        ("in shares", (NUDGE, "bias += rate * (counts.float().mean() - counts) / counts.float().mean()")),
        ("the median", (NUDGE, "bias += rate * torch.sign(counts.median() - counts)")),
        ("down at the mean, too", (NUDGE, "bias += rate * (1 - 2 * (counts >= counts.float().mean()).float())")),
        ("one is half a step", (NUDGE, "bias += rate * (counts.float().mean() - counts).clamp(-1, 1)")),
        ("the busiest only", (NUDGE, "bias[counts.argmax()] -= rate")),
        ("the mean in whole numbers", (NUDGE, "bias += rate * torch.sign(counts.sum() // len(counts) - counts)")),
        ("the mean of those with tokens", (NUDGE, "bias += rate * torch.sign(counts[counts > 0].float().mean() - counts)")),
        ("the counts are used up", (NUDGE, NUDGE + "\n    counts.zero_()")),
    )),
    balance("nudges_by_the_sign", "a new tensor", (NUDGE, "bias = bias + rate * torch.sign(counts.float().mean() - counts)"), raises="in place"),
    *(balance("first_come_first_served", *mutant) for mutant in (
        ("one for each, whatever the capacity", (WITHIN, "return (place <= max(1, capacity)).view_as(chosen)")),
        ("one too few", (WITHIN, "return (place < capacity).view_as(chosen)")),
        ("one too many", (WITHIN, "return (place <= capacity + 1).view_as(chosen)")),
        ("the last come first", (PLACE, PLACE.replace("F.one_hot(flat, experts).cumsum(dim=0)", "F.one_hot(flat, experts).flip(0).cumsum(dim=0).flip(0)"))),
        ("all first choices before the second", (PLACE, "by_choice = chosen.T.flatten()\n    place = F.one_hot(by_choice, experts).cumsum(dim=0).gather(1, by_choice[:, None]).view(*chosen.T.shape).T"), (WITHIN, "return place <= capacity")),
        ("everything is kept", (WITHIN, "return torch.ones_like(chosen, dtype=torch.bool)")),
        ("zeros and ones", (WITHIN, WITHIN + ".long()")),
        ("room for a column each", (PLACE, "place = torch.stack([F.one_hot(column, experts).cumsum(dim=0).gather(1, column[:, None])[:, 0] for column in chosen.T], dim=1)")),
        ("what is dropped", (WITHIN, "return (place > capacity).view_as(chosen)")),
    )),
    # expert parallel
    *(parallel("exchanges_rows", *mutant) for mutant in (
        ("no gradient", (BACK, "return torch.zeros_like(Exchange.forward(ctx, gradient, receive, send, group)), None, None, None")),
        ("half of the gradient", (BACK, BACK.replace("group), None", "group) / 2, None"))),
        ("rows turned round", (SENT, SENT + "\n        arrived = arrived.flip(0)")),
        ("its own rows stay where they are", (SENT, SENT + "\n        me = dist.get_rank(group)\n        arrived[sum(receive[:me]) : sum(receive[: me + 1])] = 0")),
        ("rows used up", (SENT, SENT + "\n        rows.zero_()")),
        ("the gradient used up", (BACK, "back = Exchange.forward(ctx, gradient, receive, send, group)\n        gradient.zero_()\n        return back, None, None, None")),
    )),
    *(parallel("exchanges_rows", *mutant, raises="Raised") for mutant in (
        ("the lists not swapped on the way back", (BACK, BACK.replace("receive, send", "send, receive"))),
        ("input and output in each other's place", (SENT, SENT.replace("receive, send", "send, receive"))),
        ("as many rows as were sent", (ARRIVED, "arrived = torch.empty_like(rows)")),
        ("one gradient for four arguments", (BACK, BACK.replace(", None, None, None", ""))),
    )),
    *(parallel("takes_any_layout", *mutant) for mutant in (
        ("read in the order of memory", (SENT, "rows = rows if rows.is_contiguous() else rows.T.contiguous().view(rows.shape)\n        " + SENT)),
        ("the gradient in the order of memory", (BACK, "gradient = gradient if gradient.is_contiguous() else gradient.T.contiguous().view(gradient.shape)\n        " + BACK)),
    )),
    parallel("takes_any_layout", "as they lie", (SENT, SENT.replace("rows.contiguous()", "rows")), raises="ontiguous"),
    *(parallel("equals_one_process", *mutant) for mutant in (
        ("not sorted by expert on arrival", (ORDER, "order = torch.arange(len(expert))")),
        ("sent back as sorted", (AS_THEY_CAME, "pass")),
        ("sorted once more", (AS_THEY_CAME, "results = results[order]")),
        ("experts of the first rank only", (EXPERT, EXPERT.replace("coming.flatten()", "coming.flip(0).flatten()"))),
        ("weights left out", (HOME, HOME.replace("source, weights)", "source, torch.ones_like(weights))"))),
        ("no gradient for x", (THERE, THERE.replace("(rows,", "(rows.detach().requires_grad_(),"))),
        ("no gradient for the experts", (RESULTS, RESULTS.replace("up, down)", "up.detach(), down.detach())"))),
        ("the gradient of this rank's tokens only", (THERE, THERE + "\n    me = dist.get_rank(group)\n    at = torch.arange(len(arrived))\n    mine = (at >= sum(receive[:me])) & (at < sum(receive[: me + 1]))"), (AS_THEY_CAME, AS_THEY_CAME + "\n    others = grouped(arrived[order], coming.sum(dim=0), up.detach(), down.detach())\n    others = torch.empty_like(others).index_copy(0, order, others)\n    results = results.where(mine[:, None], others)")),
        ("experts' gradients averaged over ranks", (RESULTS, RESULTS + "\n    up.register_hook(lambda g: g / ranks)")),
        ("weights shared out", (HOME, HOME.replace("weights)", "weights / weights.sum(dim=1, keepdim=True) * (1 if len(x) > 3 else 2))"))),
        ("computed in BF16", (RESULTS, "results = grouped(arrived[order].bfloat16(), coming.sum(dim=0), up.bfloat16(), down.bfloat16()).to(x.dtype)")),
        ("FP32 rows are rounded", (THERE, "arrived = Exchange.apply(rows.bfloat16().float() if rows.dtype == torch.float32 else rows, send, receive, group)")),
        ("rows of the busiest expert dropped", (RESULTS, RESULTS + "\n    results = results * (torch.arange(len(results)) < 9)[:, None]")),
    )),
    *(parallel("equals_one_process", *mutant, raises="Raised") for mutant in (
        ("no rows, no answer", (RANKS, "assert len(x)\n    " + RANKS)),
        ("no rows for this rank, no answer", (THERE, "assert sum(receive)\n    " + THERE)),
        ("k = 2", (RANKS, "assert chosen.shape[1] == 2\n    " + RANKS)),
    )),
    *(parallel("keeps_to_its_group", *mutant) for mutant in (
        ("the group of the world's neighbours", (RANKS, "group = group if dist.get_world_size() == dist.get_world_size(group) else dist.new_subgroups(2)[0]\n    " + RANKS)),
    )),
    *(parallel("keeps_to_its_group", *mutant, raises="Raised") for mutant in (
        ("counts among all ranks", (COUNTS_SENT, "dist.all_to_all_single(coming, counts)")),
        ("the world's size", (RANKS, "ranks, own = dist.get_world_size(), len(up)")),
        ("rows among all ranks", (SENT, SENT.replace(", group=group", ""))),
    )),
    *(parallel("keeps_what_comes_in", *mutant) for mutant in (
        ("x is used up", (HOME, HOME.replace("return ", "y = ") + "\n    x.data.zero_()\n    return y")),
        ("chosen are made local", (HOME, HOME.replace("return ", "y = ") + "\n    chosen %= own\n    return y")),
        ("weights are used up", (HOME, HOME.replace("return ", "y = ").replace("weights)", "weights.clone())") + "\n    weights.data.zero_()\n    return y")),
        ("experts are halved", (HOME, HOME.replace("return ", "y = ") + "\n    up.data.mul_(0.5)\n    return y")),
    )),
    *(parallel("sends_each_row_once", *mutant) for mutant in (
        ("the weights as well", (THERE, "dist.all_to_all_single(weights.new_empty(sum(receive)), weights.detach().flatten()[source], receive, send, group=group)\n    " + THERE)),
        ("rows in FP64", (THERE, "arrived = Exchange.apply(rows.double(), send, receive, group).to(x.dtype)")),
        ("waits for everybody", (THERE, "dist.barrier()\n    " + THERE)),
        ("all tokens to everybody", (THERE, THERE + "\n    dist.all_gather([torch.empty(7, x.shape[1]) for _ in range(ranks)], torch.zeros(7, x.shape[1]))")),
        ("padded to the longest", (THERE, "longest = torch.tensor(max(send))\n    dist.all_reduce(longest, op=dist.ReduceOp.MAX)\n    dist.all_to_all_single(rows.new_empty(ranks * int(longest), rows.shape[1]), rows.new_zeros(ranks * int(longest), rows.shape[1]))\n    " + THERE)),
        ("the experts' gradients over all ranks", (RESULTS, RESULTS + "\n    def again(gradient):\n        dist.all_reduce(gradient.clone())\n        return gradient\n\n    up.register_hook(again)")),
        ("counts forward and backward", (BACK, "dist.all_to_all_single(torch.empty(3, dtype=torch.long), torch.tensor(send))\n        " + BACK)),
        ("each rank's counts in turn", (COUNTS_SENT, COUNTS_SENT + "\n    for r in range(ranks):\n        dist.broadcast(counts.clone(), r)")),
    )),
    # gradients
    *(reduce("averages_among_their_copies", *mutant) for mutant in (
        ("the sum of the shared", (DIVIDED, DIVIDED.replace("(*shared, *experts)", "experts"))),
        ("shared ones over the replicas", (OVER_ALL, 'dist.all_reduce(parameter.grad, group=mesh.get_group("replica"))\n')),
        ("experts over the ranks of a replica", (OVER_COPIES, 'dist.all_reduce(parameter.grad, group=mesh.get_group("expert"))')),
        ("the largest", (OVER_ALL, "dist.all_reduce(parameter.grad, op=dist.ReduceOp.MAX)\n")),
        ("the first parameter only", (DIVIDED, DIVIDED.replace("(*shared, *experts)", "(*shared[:1], *experts[:1])"))),
        ("divided by the ranks of a replica", (DIVIDED, DIVIDED.replace("mesh.size()", 'mesh["expert"].size()'))),
        ("divided by two", (DIVIDED, DIVIDED.replace("mesh.size()", "2"))),
        ("parameters averaged, too", (DIVIDED, DIVIDED + "        parameter.data.mul_(0.5)\n")),
        ("rank 0 alone", (OVER_ALL, "dist.reduce(parameter.grad, 0)\n")),
    )),
    reduce("averages_among_their_copies", "experts over all ranks", (OVER_COPIES, "dist.all_reduce(parameter.grad)  #"), raises="different experts were mixed"),
    reduce("averages_among_their_copies", "experts' mean over their copies", (DIVIDED, '    for parameter in shared:\n        parameter.grad /= mesh.size()\n    for parameter in experts:\n        parameter.grad /= mesh["replica"].size()\n'), raises="the mean over its copies"),
    reduce("averages_among_their_copies", "experts left alone", ("    for parameter in experts:\n        " + OVER_COPIES + "\n    for parameter in (*shared, *experts):", "    for parameter in shared:"), raises="has left it"),
    *(reduce("sends_among_their_copies", *mutant) for mutant in (
        ("shared ones in both directions", (OVER_ALL, 'dist.all_reduce(parameter.grad, group=mesh.get_group("expert"))\n        dist.all_reduce(parameter.grad, group=mesh.get_group("replica"))\n')),
        ("experts gathered from everybody", (OVER_COPIES, "parts = [torch.empty_like(parameter.grad) for _ in range(dist.get_world_size())]\n        dist.all_gather(parts, parameter.grad)\n        parameter.grad = sum(parts[rank] for rank in dist.get_process_group_ranks(mesh.get_group('replica')))")),
        ("sent twice", (OVER_ALL, "dist.all_reduce(parameter.grad.clone())\n        dist.all_reduce(parameter.grad)\n")),
        ("in FP32", (OVER_COPIES, "small = parameter.grad.float()\n        dist.all_reduce(small, group=mesh.get_group('replica'))\n        " + OVER_COPIES)),
        ("experts among all ranks, others' as zeros", (OVER_COPIES, "at, each = mesh.get_local_rank('expert'), mesh['expert'].size()\n        slots = torch.zeros(each, *parameter.grad.shape, dtype=parameter.grad.dtype)\n        slots[at] = parameter.grad\n        dist.all_reduce(slots)\n        parameter.grad = slots[at]")),
    )),
]  # fmt: skip

RIGHT = {
    "places of each expert, and counts gathered": """
import torch
import torch.distributed as dist
import torch.nn.functional as F


def route(logits, k, bias=None):
    scores = logits.softmax(-1)
    _, chosen = torch.sort(scores.detach() + (0 if bias is None else bias), dim=1, descending=True)
    chosen = chosen[:, :k]
    return chosen, logits.gather(1, chosen).softmax(-1)


def permute(x, chosen, experts):
    flat = chosen.reshape(-1)
    places = [torch.nonzero(flat == e)[:, 0] for e in range(experts)]
    source = torch.cat(places)
    tokens = torch.div(source, chosen.shape[1], rounding_mode="floor")
    return x.index_select(0, tokens), torch.tensor([len(p) for p in places]), source


def grouped(rows, counts, up, down):
    y, at = 0 * rows + 0 * (up.sum() + down.sum()), 0
    for e, n in enumerate(counts.tolist()):
        if n:
            y[at : at + n] = F.linear(F.gelu(F.linear(rows[at : at + n], up[e])), down[e])
        at += n
    return y


def unpermute(rows, source, weights):
    n, k = weights.shape
    weighed = rows * weights.reshape(-1)[source][:, None]
    return torch.zeros(n, rows.shape[1], dtype=rows.dtype, device=rows.device).index_add(0, source // k, weighed)


def balance_loss(logits, chosen):
    n, experts = logits.shape
    f = F.one_hot(chosen, experts).to(logits.dtype).mean(dim=(0, 1))
    return experts * torch.dot(f, logits.softmax(-1).mean(0))


def nudge(bias, counts, rate):
    mean = counts.sum() / len(counts)
    bias[counts > mean] -= rate
    bias[counts < mean] += rate


def within_capacity(chosen, experts, capacity):
    room, kept = [capacity] * experts, torch.zeros_like(chosen, dtype=torch.bool)
    for i, row in enumerate(chosen.tolist()):
        for j, e in enumerate(row):
            kept[i, j] = room[e] > 0
            room[e] -= 1
    return kept


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive, group):
        ctx.send, ctx.receive, ctx.group = send, receive, group
        return moved(rows, send, receive, group)

    @staticmethod
    def backward(ctx, g):
        return moved(g, ctx.receive, ctx.send, ctx.group), None, None, None


def moved(t, send, receive, group):
    parts = [part.contiguous() for part in t.split(send)]
    got = [t.new_empty(n, t.shape[1]) for n in receive]
    flat = torch.cat(got)
    dist.all_to_all_single(flat, torch.cat(parts), receive, send, group=group)
    return flat


def expert_parallel(x, chosen, weights, up, down, group):
    n, own = dist.get_world_size(group), len(up)
    rows, counts, source = permute(x, chosen, n * own)
    everybody = torch.empty(n * n * own, dtype=counts.dtype)
    dist.all_gather_into_tensor(everybody, counts, group=group)
    me = dist.get_rank(group)
    table = everybody.view(n, n, own)  # from, to, expert
    send, receive = table[me].sum(1).tolist(), table[:, me].sum(1).tolist()
    arrived = Exchange.apply(rows, send, receive, group)
    blocks = arrived.split(table[:, me].flatten().tolist())  # by rank, then by expert
    sorted_rows = torch.cat([blocks[r * own + e] for e in range(own) for r in range(n)])
    y = grouped(sorted_rows, table[:, me].sum(0), up, down)
    pieces = y.split(table[:, me].T.flatten().tolist())  # by expert, then by rank
    y = torch.cat([pieces[e * n + r] for r in range(n) for e in range(own)])
    return unpermute(Exchange.apply(y, receive, send, group), source, weights)


def average_gradients(shared, experts, mesh):
    for parameters, group in ((shared, dist.group.WORLD), (experts, mesh["replica"].get_group())):
        flat = torch.cat([p.grad.flatten() for p in parameters])
        dist.all_reduce(flat, group=group)
        flat /= dist.get_world_size()
        for p, g in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            p.grad = g.view_as(p)
""",
    "formulas written out": """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed import _functional_collectives as funcol


def route(logits, k, bias=None):
    bias = torch.zeros(logits.shape[1], dtype=logits.dtype, device=logits.device) if bias is None else bias
    e = logits.exp()
    p = e / e.sum(1, keepdim=True)
    chosen = torch.argsort(-(p + bias).detach(), dim=1)[:, :k]
    at = torch.arange(len(logits), device=logits.device)[:, None]
    w = e[at, chosen]
    return chosen, w / w.sum(1, keepdim=True)


def permute(x, chosen, experts):
    n, k = chosen.shape
    source = torch.sort(chosen.flatten()).indices
    counts = (chosen.flatten()[:, None] == torch.arange(experts, device=x.device)).sum(0)
    return x.repeat_interleave(k, dim=0)[source], counts, source


def grouped(rows, counts, up, down):
    out, start = [], 0
    for e in range(len(up)):
        end = start + int(counts[e])
        h = torch.einsum("rc,hc->rh", rows[start:end], up[e])
        h = 0.5 * h * (1 + torch.erf(h / 2**0.5))
        out.append(torch.einsum("rh,ch->rc", h, down[e]))
        start = end
    return torch.vstack(out)


def unpermute(rows, source, weights):
    n, k = weights.shape
    back = rows[source.argsort()]
    return torch.einsum("nkc,nk->nc", back.reshape(n, k, rows.shape[1]), weights)


def balance_loss(logits, chosen):
    p = logits.softmax(1)
    total = 0
    for e in range(logits.shape[1]):
        total = total + (chosen == e).sum() / (chosen.shape[0] * chosen.shape[1]) * p[:, e].mean()
    return total * logits.shape[1]


def nudge(bias, counts, rate):
    off = counts * len(counts) - counts.sum()
    bias.add_((off < 0).to(bias.dtype), alpha=rate).sub_((off > 0).to(bias.dtype), alpha=rate)


def within_capacity(chosen, experts, capacity):
    kept = torch.zeros(chosen.numel(), dtype=torch.bool, device=chosen.device)
    for e in range(experts):
        kept[torch.nonzero(chosen.flatten() == e)[:capacity, 0]] = True
    return kept.reshape(chosen.shape)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive, group):
        ctx.arguments = (send, receive, group)
        return funcol.all_to_all_single(rows.contiguous(), receive, send, group) + 0

    @staticmethod
    def backward(ctx, gradient):
        send, receive, group = ctx.arguments
        return funcol.all_to_all_single(gradient.contiguous(), send, receive, group) + 0, None, None, None


def expert_parallel(x, chosen, weights, up, down, group):
    n, own = group.size(), len(up)
    rows, counts, source = permute(x, chosen, n * own)
    sizes = counts.int()
    mine = torch.empty_like(sizes)
    dist.all_to_all_single(mine, sizes, group=group)
    send = [int(s) for s in sizes.view(n, own).sum(1)]
    receive = [int(s) for s in mine.view(n, own).sum(1)]
    arrived = Exchange.apply(rows, send, receive, group)
    expert = torch.cat([torch.full((int(c),), i % own) for i, c in enumerate(mine)])
    out = 0 * arrived + 0 * (up.sum() + down.sum())
    for e in range(own):
        at = torch.nonzero(expert == e)[:, 0]
        out = out.index_add(0, at, F.gelu(arrived[at] @ up[e].mT) @ down[e].mT)
    return unpermute(Exchange.apply(out, receive, send, group), source, weights)


def average_gradients(shared, experts, mesh):
    n = dist.get_world_size()
    for p in shared:
        p.grad = funcol.all_reduce(p.grad / n, "sum", dist.group.WORLD) + 0
    for p in experts:
        if mesh.get_group("replica").size() > 1:
            p.grad = funcol.all_reduce(p.grad, "sum", mesh.get_group("replica")) + 0
        p.grad = p.grad / n
""",
    "the reference with other words": """
import torch
import torch.distributed as dist
import torch.nn.functional as F


def route(logits, k, bias=None):
    p = torch.softmax(logits, 1)
    biased = p if bias is None else p.detach() + bias
    _, chosen = biased.topk(k, sorted=False)
    w = torch.take_along_dim(p, chosen, 1)
    return chosen, F.normalize(w, p=1, dim=1)


def permute(x, chosen, experts):
    flat = chosen.ravel()
    source = flat.argsort()
    counts = torch.zeros(experts, dtype=torch.long, device=x.device).index_add(0, flat, torch.ones_like(flat))
    every = x[:, None].expand(-1, chosen.shape[1], -1).flatten(0, 1)
    return every[source], counts, source


def grouped(rows, counts, up, down):
    ends = counts.cumsum(0).tolist()
    return torch.cat([expert(rows[e - n : e], u, d) for e, n, u, d in zip(ends, counts.tolist(), up, down)])


def expert(rows, up, down):
    return F.linear(F.gelu(F.linear(rows, up)), down)


def unpermute(rows, source, weights):
    placed = torch.zeros_like(rows)
    placed = placed.scatter(0, source[:, None].expand_as(rows), rows)
    placed = placed * weights.flatten()[:, None]
    return placed.unflatten(0, weights.shape).sum(1)


def balance_loss(logits, chosen):
    counts = chosen.flatten().bincount(minlength=logits.shape[1]).to(logits.dtype)
    return logits.shape[1] / chosen.numel() / len(logits) * (logits.softmax(1) @ counts).sum()


def nudge(bias, counts, rate):
    counts = counts.double()
    bias.copy_(bias + rate * (counts.mean() - counts).sign())


def within_capacity(chosen, experts, capacity):
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    first = torch.searchsorted(flat[order].contiguous(), flat[order].contiguous())
    place = torch.empty_like(flat)
    place[order] = torch.arange(len(flat), device=flat.device) - first
    return (place < capacity).view(chosen.shape)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(rows, send, receive, group):
        y = torch.empty(sum(receive), rows.shape[1], dtype=rows.dtype, device=rows.device)
        work = dist.all_to_all_single(y, rows.clone().contiguous(), receive, send, group=group, async_op=True)
        work.wait()
        return y

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.send, ctx.receive, ctx.group = inputs

    @staticmethod
    def backward(ctx, g):
        return Exchange.forward(g, ctx.receive, ctx.send, ctx.group), None, None, None


def expert_parallel(x, chosen, weights, up, down, group):
    n = dist.get_world_size(group)
    e = up.shape[0]
    rows, counts, source = permute(x, chosen, n * e)
    theirs = torch.zeros_like(counts)
    dist.all_to_all_single(theirs, counts, group=group)
    send = counts.reshape(n, e).sum(-1).tolist()
    receive = theirs.reshape(n, e).sum(-1).tolist()
    got = Exchange.apply(rows, send, receive, group)
    which = torch.repeat_interleave(torch.arange(n * e) % e, theirs)
    again, per_expert, places = permute(got, which[:, None], e)
    y = grouped(again, per_expert, up, down)
    y = unpermute(y, places, torch.ones(len(got), 1, dtype=x.dtype))
    return unpermute(Exchange.apply(y, receive, send, group), source, weights)


def average_gradients(shared, experts, mesh):
    n, copies = mesh.size(), mesh.get_group("replica")
    for p in shared:
        p.grad.div_(n)
        dist.all_reduce(p.grad)
    for p in experts:
        p.grad.div_(n)
        dist.all_reduce(p.grad, group=copies)
""",
}
