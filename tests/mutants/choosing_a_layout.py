"""Wrong and right answers for the practice tasks of choosing a layout."""

from . import Mutant

GRID, LAWS, DECIDE, BILL = (f"choosing_a_layout.{part}" for part in ("grid", "laws", "decide", "bill"))


def grid(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, GRID, check, replace, raises)


def laws(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, LAWS, check, replace, raises)


def decide(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, DECIDE, check, replace, raises)


def bill(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, BILL, check, replace, raises)


# the grid
NUMBERED = "ranks = torch.arange(math.prod(sizes.values())).view(*sizes.values())"
ALONG = "along = ranks.movedim(list(sizes).index(dimension), -1)"
LISTED = "return along.reshape(-1, sizes[dimension]).tolist()"
RING = "return 2 * (n - 1) / n * nbytes"
OF_STAGE = 'blocks = model.blocks // sizes["pipeline"]'
NEIGHBOURS = 'neighbours = (stage > 0) + (stage < sizes["pipeline"] - 1)'
TENSOR = '"tensor": ring(sizes["tensor"], model.message) * model.all_reduces * blocks * m'
PIPELINE = '"pipeline": neighbours * m * model.message'
DATA = '"data": ring(sizes["data"], model.weights * blocks / sizes["tensor"])'
# the laws
TOKENS = "arch, tokens = layout.arch, layout.micro_batch_size * layout.seq / layout.tensor"
STATE = "state = 16 * arch.count() / (layout.tensor * layout.pipeline * layout.shard)"
IN_FLIGHT = "min(layout.pipeline, layout.micro_batches)"
FULL = "else 2 * width * blocks + 34 * width"
NONE = "activations = 34 * width * blocks if"
LOGITS = "logits = 4 * tokens * arch.vocab if layout.pipeline == 1 else 0"
FLOPS = "flops = arch.flops_per_token(layout.seq) * layout.tokens / layout.ranks * (4 / 3 if again else 1)"
COMPUTE = "compute = flops / (0.5 * cluster.gpu.flops16)"
OF_RANK = "parameters = arch.count() / (layout.tensor * layout.pipeline)"
LEAVES = "leaves = 8 * parameters * (layout.shard - 1) / layout.shard * m"
DATA_RING = "data = leaves / ring_bandwidth(cluster, layout.shard, layout.tensor)"
MESSAGE = "message = 2 * layout.micro_batch_size * layout.seq * arch.hidden"
REDUCES = "reduces = (6 if again else 4) * arch.layers / layout.pipeline * m"
AROUND = "around = 2 * (layout.tensor - 1) / layout.tensor * message"
TENSOR_RING = "tensor = reduces * around / ring_bandwidth(cluster, layout.tensor)"
SUM = "return state + activations + logits"
STEP = "return (max(compute, data) + tensor) * (1 + (layout.pipeline - 1) / m)"
FITTING = "fitting = [layout for layout in layouts if memory(layout) <= cluster.gpu.room]"
QUICKEST = "return min(fitting, key=lambda layout: seconds(layout, cluster), default=None)"
# the bill
STEPS = "steps = math.ceil(tokens / found.layout.tokens)"
EACH = "each = found.low / best, found.seconds / ((worst + best) / 2), found.high / worst"
DAYS = "days = tuple(steps * seconds / 86_400 for seconds in each)"
HOURS = "gpu_hours = tuple(24 * found.layout.ranks * time for time in days)"
DOLLARS = '"dollars": tuple(price * hours for hours in gpu_hours)'

MUTANTS = [
    # the grid
    *(grid("groups_along_each_dimension", *mutant) for mutant in (
        ("the first dimension counts fastest", (NUMBERED, "ranks = torch.arange(math.prod(sizes.values())).view(*reversed(sizes.values())).permute(*reversed(range(len(sizes))))")),
        ("always the last dimension", (ALONG, "along = ranks")),
        ("always the first dimension", (ALONG, "along = ranks.movedim(0, -1)")),
        ("neighbours, whatever the dimension", (LISTED, "return ranks.reshape(-1, sizes[dimension]).tolist()")),
        ("this group for each rank", (LISTED, "return [group for group in along.reshape(-1, sizes[dimension]).tolist() for _ in group]")),
        ("the group of rank 0 alone", (LISTED, LISTED + "[:1]")),
        ("ranks from 1", (LISTED, "return (along + 1).reshape(-1, sizes[dimension]).tolist()")),
        ("all others in one", (LISTED, "return along.reshape(-1, sizes[dimension]).T.tolist()")),
    )),
    *(grid("order_within_a_group", *mutant) for mutant in (
        ("groups backwards", (LISTED, LISTED + "[::-1]")),
        ("backwards within a group", (LISTED, "return along.flip(-1).reshape(-1, sizes[dimension]).tolist()")),
    )),
    *(grid("tensor_sends_messages", *mutant) for mutant in (
        ("the whole message", (RING, "return nbytes")),
        ("a gather for an all-reduce", (RING, "return (n - 1) / n * nbytes")),
        ("a ring without an end", (RING, "return 2 * nbytes")),
        ("blocks of the whole model", (OF_STAGE, "blocks = model.blocks")),
        ("one micro-batch", (TENSOR, TENSOR.removesuffix(" * m"))),
        ("one all-reduce", (TENSOR, TENSOR.replace(" * model.all_reduces", ""))),
        ("two all-reduces, whatever the block", (TENSOR, TENSOR.replace("model.all_reduces", "2"))),
        ("a part of the message", (TENSOR, TENSOR.replace("model.message", 'model.message / sizes["tensor"]'))),
        ("the data ranks' ring", (TENSOR, TENSOR.replace('sizes["tensor"]', 'sizes["data"]'))),
    )),
    *(grid("pipeline_sends_both_ways", *mutant) for mutant in (
        ("all send both ways", (NEIGHBOURS, "neighbours = 2")),
        ("forward only", (NEIGHBOURS, 'neighbours = int(stage < sizes["pipeline"] - 1)')),
        ("back only", (NEIGHBOURS, "neighbours = int(stage > 0)")),
        ("one message a step", (PIPELINE, PIPELINE.replace(" * m ", " "))),
        ("round a ring", (PIPELINE, '"pipeline": ring(sizes["pipeline"], m * model.message)')),
        ("for each block", (PIPELINE, PIPELINE + " * blocks")),
    )),
    *(grid("data_sends_gradients", *mutant) for mutant in (
        ("each micro-batch", (DATA, DATA + " * m")),
        ("whole matrices", (DATA, DATA.replace(' / sizes["tensor"]', ""))),
        ("the whole model", (DATA, DATA.replace("* blocks", "* model.blocks"))),
        ("one block", (DATA, DATA.replace(" * blocks", ""))),
        ("a share of the gradients", (DATA, DATA.replace("model.weights", 'model.weights / sizes["data"]'))),
    )),
    *(grid("one_rank_sends_nothing", *mutant) for mutant in (
        ("no group, no traffic at all", (RING, "return 2 * (n - 1) / n * nbytes * (1 not in sizes.values())")),
        ("rings of one", (RING, "return 2 * max(1, n - 1) / n * nbytes")),
        ("somebody after the last", (NEIGHBOURS, "neighbours = max(1, " + NEIGHBOURS.removeprefix("neighbours = ") + ")")),
    )),
    # the laws
    *(laws("state_of_this_rank", *mutant) for mutant in (
        ("12 bytes", (STATE, STATE.replace("16", "12"))),
        ("all of the model", (STATE, "state = 16 * arch.count() / layout.shard")),
        ("tensor ranks forgotten", (STATE, STATE.replace("layout.tensor * ", ""))),
        ("stages forgotten", (STATE, STATE.replace("layout.pipeline * ", ""))),
        ("not sharded", (STATE, STATE.replace(" * layout.shard", ""))),
        ("only the moments are sharded", (STATE, "state = (8 + 8 / layout.shard) * arch.count() / (layout.tensor * layout.pipeline)")),
    )),
    *(laws("activations_in_flight", *mutant) for mutant in (
        ("one in flight", (IN_FLIGHT, "1")),
        ("all in flight", (IN_FLIGHT, "layout.micro_batches")),
        ("more than there are", (IN_FLIGHT, "layout.pipeline")),
        ("blocks of the whole model", ("blocks = arch.layers / layout.pipeline * ", "blocks = arch.layers * ")),
        ("not split by tensor ranks", (TOKENS, TOKENS.replace(" / layout.tensor", "")), (LOGITS, LOGITS.replace("arch.vocab", "arch.vocab / layout.tensor"))),
        ("one sequence", (TOKENS, TOKENS.replace("layout.micro_batch_size * ", ""))),
        ("2 bytes", (NONE, NONE.replace("34", "2"))),
    )),
    *(laws("full_recompute_keeps_inputs", *mutant) for mutant in (
        ("as without", (FULL, "else 34 * width * blocks")),
        ("inputs only", (FULL, "else 2 * width * blocks")),
        ("nothing but one block", (FULL, "else 34 * width")),
        ("one block of each micro-batch in flight", (FULL, "else 2 * width * blocks + 34 * width * min(layout.pipeline, layout.micro_batches)")),
    )),
    *(laws("logits_of_the_whole_model", *mutant) for mutant in (
        ("left out", (LOGITS, "logits = 0")),
        ("on each stage", (LOGITS, LOGITS.removesuffix(" if layout.pipeline == 1 else 0"))),
        ("16 bits", (LOGITS, LOGITS.replace("4 *", "2 *"))),
        ("whole on tensor ranks", (LOGITS, LOGITS.replace("arch.vocab", "arch.vocab * layout.tensor"))),
    )),
    *(laws("computes_at_half_the_peak", *mutant) for mutant in (
        ("at the peak", (COMPUTE, COMPUTE.replace("0.5 * ", ""))),
        ("6 N D without attention", (FLOPS, FLOPS.replace("arch.flops_per_token(layout.seq)", "6 * arch.count()"))),
        ("all tokens on each rank", (FLOPS, FLOPS.replace(" / layout.ranks", ""))),
        ("recomputation for nothing", (FLOPS, FLOPS.removesuffix(" * (4 / 3 if again else 1)"))),
        ("twice for recomputation", (FLOPS, FLOPS.replace("4 / 3", "2"))),
        ("shared by shard ranks alone", (FLOPS, FLOPS.replace("layout.ranks", "layout.shard"))),
        ("not by the stages", (FLOPS, FLOPS.replace("layout.ranks", "layout.ranks * layout.pipeline"))),
    )),
    *(laws("tensor_waits_on_its_link", *mutant) for mutant in (
        ("always inside", (TENSOR_RING, "tensor = reduces * around / cluster.inside")),
        ("always outside", (TENSOR_RING, "tensor = reduces * around / cluster.outside")),
        ("one a block", (REDUCES, REDUCES.replace("(6 if again else 4)", "1"))),
        ("none for recomputation", (REDUCES, REDUCES.replace("(6 if again else 4)", "4"))),
        ("one micro-batch", (REDUCES, REDUCES.removesuffix(" * m"))),
        ("FP32 messages", (MESSAGE, MESSAGE.replace("2 *", "4 *"))),
        ("layers of all stages", (REDUCES, REDUCES.replace(" / layout.pipeline", ""))),
        ("half a ring", (AROUND, AROUND.replace("2 * (", "("))),
        ("hidden behind computation", (STEP, STEP.replace("max(compute, data) + tensor", "max(compute, data, tensor)"))),
        ("as far apart as data ranks", (TENSOR_RING, TENSOR_RING.replace("layout.tensor)", "layout.tensor, layout.tensor)"))),
    )),
    *(laws("data_hides_behind_compute", *mutant) for mutant in (
        ("added up", (STEP, STEP.replace("max(compute, data)", "compute + data"))),
        ("once a step", (LEAVES, LEAVES.removesuffix(" * m"))),
        ("one gather", (LEAVES, LEAVES.replace("8 *", "6 *"))),
        ("all of it leaves", (LEAVES, LEAVES.replace(" * (layout.shard - 1) / layout.shard", ""))),
        ("parameters of the whole model", (OF_RANK, "parameters = arch.count() / layout.pipeline")),
        ("neighbours", (DATA_RING, DATA_RING.replace(", layout.tensor)", ")"))),
        ("parameters of all stages", (OF_RANK, "parameters = arch.count() / layout.tensor")),
    )),
    laws("memory_is_the_sum", "a GiB for all cases", (SUM, SUM + " + 2**30")),
    laws("memory_is_the_sum", "state of the stage in the middle", (SUM, SUM + " + (layout.pipeline > 2) * 2**20")),
    laws("seconds_are_the_sum", "a millisecond to start", (STEP, STEP + " + 1e-3")),
    laws("seconds_are_the_sum", "the optimizer's update, too", (STEP, STEP + " + 2e-12 * parameters / layout.shard")),
    *(laws("bubble_stretches_the_step", *mutant) for mutant in (
        ("none", (STEP, STEP.partition(" * (1 +")[0])),
        ("the share of the whole step", (STEP, STEP.replace("(1 + (layout.pipeline - 1) / m)", "(1 + (layout.pipeline - 1) / (m + layout.pipeline - 1))"))),
        ("a stage too many", (STEP, STEP.replace("(layout.pipeline - 1) / m", "layout.pipeline / m"))),
        ("tensor ranks wait without it", (STEP, "return max(compute, data) * (1 + (layout.pipeline - 1) / m) + tensor")),
    )),
    *(laws("fastest_that_fits", *mutant) for mutant in (
        ("the fastest", (FITTING, "fitting = layouts")),
        ("the smallest", (QUICKEST, "return min(fitting, key=memory, default=None)")),
        ("the first that fits", (QUICKEST, "return next(iter(fitting), None)")),
        ("the slowest", (QUICKEST, QUICKEST.replace("min(", "max("))),
        ("room for twice as much", (FITTING, FITTING.replace("cluster.gpu.room", "2 * cluster.gpu.room"))),
        ("a tenth is left free", (FITTING, FITTING.replace("cluster.gpu.room", "cluster.gpu.room / 2"))),
        ("nothing ever", (QUICKEST, "return None")),
        ("less than the room", (FITTING, FITTING.replace("<=", "<"))),
    )),
    laws("none_where_nothing_fits", "the smallest, then", (FITTING, FITTING + "\n    fitting = fitting or sorted(layouts, key=memory)[:1]")),
    laws("none_where_nothing_fits", "no default", (QUICKEST, QUICKEST.replace(", default=None", "")), raises="Raised"),
    # the decision
    *(decide("answers_the_question", *mutant) for mutant in (
        ("four GPUs", ("\"context\": 8", "\"context\": 4")),
        ("half the GPUs", ("\"context\": 2, ", "")),
        ("a step too long", ("\"micro_batches\": 4", "\"micro_batches\": 8")),
        ("shorter sequences", ("shard=1, **split, seq=question.seq", "shard=1, **split, seq=question.seq // 2")),
        ("another precision", ("shard=1, **split,", "shard=1, **split, precision=\"bf16\",")),
        ("another model", ("Layout(question.arch, shard=1", "Layout(__import__(\"dataclasses\").replace(question.arch, layers=16), shard=1")),
        ("no layout at all", ("return Layout(question.arch, shard=1", "return dict(arch=question.arch, shard=1")),
    )),
    decide("fits_by_the_planner", "nothing is recomputed", ("\"selective\"", "\"none\""), raises="does not fit by"),
    *(decide("near_the_best", *mutant) for mutant in (
        ("everything is recomputed", ("\"selective\"", "\"full\"")),
        ("recomputed without need", ("shard=32,", "shard=32, recompute=\"full\",")),
        ("a pipeline of as many micro-batches", ("shard=32, **split", "shard=8, pipeline=8, micro_batches=4")),
    )),
    # the bill
    bill("whole_steps", "a part of a step", (STEPS, "steps = tokens / found.layout.tokens")),
    bill("whole_steps", "the last one is left out", (STEPS, "steps = tokens // found.layout.tokens")),
    *(bill("days_at_likely_speed", *mutant) for mutant in (
        ("always training", (EACH, EACH.replace("found.seconds / ((worst + best) / 2)", "found.seconds"))),
        ("goodput times seconds", (EACH, EACH.replace("found.seconds / ((worst + best) / 2)", "found.seconds * (worst + best) / 2"))),
        ("at the best goodput", (EACH, EACH.replace("found.seconds / ((worst + best) / 2)", "found.seconds / best"))),
        ("the mean of the ends", (EACH, EACH + "\n    each = each[0], (each[0] + each[2]) / 2, each[2]")),
        ("hours for days", (DAYS, DAYS.replace("86_400", "3_600"))),
    )),
    *(bill("ends_belong_together", *mutant) for mutant in (
        ("the quickest at the worst", (EACH, "each = found.low / worst, found.seconds / ((worst + best) / 2), found.high / best")),
        ("steps alone are uncertain", (EACH, "each = tuple(seconds / ((worst + best) / 2) for seconds in (found.low, found.seconds, found.high))")),
        ("goodput alone is uncertain", (EACH, "each = found.seconds / best, found.seconds / ((worst + best) / 2), found.seconds / worst")),
        ("high before low", (EACH, EACH + "\n    each = each[::-1]")),
    )),
    bill("hours_of_all_gpus", "of one GPU", (HOURS, HOURS.replace(" * found.layout.ranks", ""))),
    bill("hours_of_all_gpus", "of the likely run", (HOURS, HOURS.replace("* time for time in days", "* days[1] for time in days"))),
    bill("dollars_follow", "a day's price", (DOLLARS, DOLLARS.replace("price * hours", "price * hours / 24"))),
    bill("dollars_follow", "of one GPU", (DOLLARS, DOLLARS.replace("price * hours", "price * hours / found.layout.ranks"))),
    bill("dollars_follow", "the likely price", (DOLLARS, DOLLARS.replace("price * hours for", "price * gpu_hours[1] for"))),
]  # fmt: skip

HEAD = """
import itertools
import math
from collections import defaultdict

import numpy as np
from helpers.exercises.choosing_a_layout.ring import ring_bandwidth
from helpers.planner.layout.layout import Layout
"""

RIGHT = {
    "by strides, in loops": HEAD
    + """
def groups(sizes, dimension):
    names = list(sizes)
    stride = 1
    for name in names[names.index(dimension) + 1 :]:
        stride *= sizes[name]
    total = 1
    for size in sizes.values():
        total *= size
    firsts = [r for r in range(total) if r // stride % sizes[dimension] == 0]
    return [[first + i * stride for i in range(sizes[dimension])] for first in firsts]


def sent(sizes, stage, model, m):
    p, d, t = sizes["pipeline"], sizes["data"], sizes["tensor"]
    nbytes = {"tensor": 0.0, "pipeline": 0.0, "data": 0.0}
    for _ in range(m):
        for _ in range(model.blocks // p):
            nbytes["tensor"] += model.all_reduces * 2 * (model.message - model.message / t)
        if stage != 0:
            nbytes["pipeline"] += model.message
        if stage != p - 1:
            nbytes["pipeline"] += model.message
    gradients = model.weights * (model.blocks // p) / t
    nbytes["data"] = 2 * (gradients - gradients / d)
    return nbytes


def memory(layout):
    a = layout.arch
    total = 16 * a.count() / layout.tensor / layout.pipeline / layout.shard
    split = layout.micro_batch_size * layout.seq / layout.tensor
    flying = layout.pipeline if layout.micro_batches > layout.pipeline else layout.micro_batches
    layers = a.layers / layout.pipeline
    if layout.recompute == "full":
        total += split * a.hidden * (2 * layers * flying + 34)
    else:
        total += 34 * split * a.hidden * layers * flying
    if layout.pipeline == 1:
        total += 4 * split * a.vocab
    return total


def seconds(layout, cluster):
    a = layout.arch
    turn = a.flops_per_token(layout.seq) * layout.micro_batch_size * layout.seq
    turn /= layout.tensor * layout.pipeline * cluster.gpu.flops16 / 2
    messages = 4
    if layout.recompute == "full":
        turn, messages = turn * 4 / 3, 6
    mine = a.count() / layout.tensor / layout.pipeline
    gathers = (2 + 2 + 4) * (mine - mine / layout.shard)
    turn = max(turn, gathers / ring_bandwidth(cluster, layout.shard, stride=layout.tensor))
    activation = 2 * layout.seq * layout.micro_batch_size * a.hidden
    wait = messages * a.layers / layout.pipeline * 2 * (activation - activation / layout.tensor)
    turn += wait / ring_bandwidth(cluster, layout.tensor)
    return turn * (layout.micro_batches + layout.pipeline - 1)


def best(layouts, cluster):
    chosen, least = None, math.inf
    for layout in layouts:
        if memory(layout) <= cluster.gpu.room and seconds(layout, cluster) < least:
            chosen, least = layout, seconds(layout, cluster)
    return chosen


def decide(question):
    if question.sequences < 8:
        layout = {"context": question.gpus, "micro_batches": question.sequences, "recompute": "selective"}
        return Layout(question.arch, seq=question.seq, context_method="all-to-all", **layout)
    split = question.gpus // question.sequences
    return Layout(question.arch, seq=question.seq, tensor=split, shard=question.sequences, zero="zero1", engine="megatron")


def bill(found, tokens, price, goodput):
    steps = -(-tokens // found.layout.tokens)
    pairs = (found.low, max(goodput)), (found.seconds, sum(goodput) / 2), (found.high, min(goodput))
    rows = {"days": [], "gpu_hours": [], "dollars": []}
    for step, share in pairs:
        hours = steps * step / share / 3600
        rows["days"].append(hours / 24)
        rows["gpu_hours"].append(hours * found.layout.ranks)
        rows["dollars"].append(hours * found.layout.ranks * price)
    return rows
""",
    "with NumPy, sorted": HEAD
    + """
def groups(sizes, dimension):
    grid = np.arange(np.prod(list(sizes.values()))).reshape(tuple(sizes.values()))
    axis = [*sizes].index(dimension)
    return [tuple(row) for row in np.moveaxis(grid, axis, -1).reshape(-1, grid.shape[axis])]


def sent(sizes, stage, model, m):
    share = {name: (size - 1) / size for name, size in sizes.items()}
    blocks = model.blocks / sizes["pipeline"]
    first, last = stage == 0, stage + 1 == sizes["pipeline"]
    return dict(
        tensor=np.float64(2 * share["tensor"] * m * blocks * model.all_reduces * model.message),
        pipeline=m * model.message * (2 - first - last),
        data=2 * share["data"] * blocks * model.weights / sizes["tensor"],
    )


def memory(layout):
    width = layout.arch.hidden * layout.seq * layout.micro_batch_size
    each = {"none": 34, "full": 2}[layout.recompute]
    kept = each * width * layout.arch.layers / layout.pipeline * min(layout.micro_batches, layout.pipeline)
    kept += {"none": 0, "full": 34}[layout.recompute] * width
    kept += (layout.pipeline == 1) * 4 * layout.arch.vocab * layout.seq * layout.micro_batch_size
    return (16 * layout.arch.count() / layout.pipeline / layout.shard + kept) / layout.tensor


def seconds(layout, cluster):
    full = layout.recompute == "full"
    flops = layout.arch.flops_per_token(layout.seq) * layout.tokens * (4 if full else 3) / 3
    compute = 2 * flops / layout.ranks / cluster.gpu.flops16
    mine = layout.arch.count() / (layout.tensor * layout.pipeline)
    data = layout.micro_batches * 8 * mine * (1 - 1 / layout.shard) / ring_bandwidth(cluster, layout.shard, layout.tensor)
    numbers = layout.micro_batch_size * layout.seq * layout.arch.hidden * layout.arch.layers / layout.pipeline
    tensor = 2 * 2 * numbers * (6 if full else 4) * layout.micro_batches * (1 - 1 / layout.tensor)
    wait = tensor / ring_bandwidth(cluster, layout.tensor, 1)
    busy = np.maximum(compute, data) + wait
    return busy + busy / layout.micro_batches * (layout.pipeline - 1)


def best(layouts, cluster):
    for layout in sorted(layouts, key=lambda layout: seconds(layout, cluster)):
        if not memory(layout) > cluster.gpu.room:
            return layout


LAYOUTS = {
    131_072: dict(shard=1, context=8, context_method="ring", micro_batches=4, recompute="selective"),
    8_192: dict(shard=16, context=4, micro_batch_size=2, zero="zero1", engine="megatron"),
}


def decide(question):
    return Layout(arch=question.arch, seq=question.seq, **LAYOUTS[question.seq])


def bill(found, tokens, price, goodput):
    steps = math.ceil(tokens / found.layout.tokens)
    shares = np.array([goodput[1], np.mean(goodput), goodput[0]])
    hours = steps * np.array([found.low, found.seconds, found.high]) / shares / 3600
    paid = hours * found.layout.ranks
    return {"days": tuple(hours / 24), "gpu_hours": tuple(paid), "dollars": tuple(paid * price)}
""",
    "one line where one will do": HEAD
    + """
def groups(sizes, dimension):
    others = [range(n) if name != dimension else (0,) for name, n in sizes.items()]
    strides = [math.prod([*sizes.values()][i + 1 :]) for i in range(len(sizes))]
    step = strides[list(sizes).index(dimension)]
    starts = [sum(c * s for c, s in zip(at, strides)) for at in itertools.product(*others)]
    return [list(range(start, start + step * sizes[dimension], step)) for start in starts]


def sent(sizes, stage, model, m):
    ends = len({0, sizes["pipeline"] - 1} & {stage}) + (sizes["pipeline"] == 1)
    each = model.blocks // sizes["pipeline"]
    return {
        "data": 2 * (1 - 1 / sizes["data"]) * model.weights * each / sizes["tensor"],
        "pipeline": (2 - ends) * m * model.message,
        "tensor": 2 * (1 - 1 / sizes["tensor"]) * model.message * model.all_reduces * each * m,
    }


def memory(layout):
    a, t, p = layout.arch, layout.tensor, layout.pipeline
    numbers = a.hidden * layout.micro_batch_size * layout.seq / t
    pieces = a.layers / p * min(p, layout.micro_batches)
    kept = numbers * (34 * pieces if layout.recompute != "full" else 34 + 2 * pieces)
    return 16 * a.count() / (t * p * layout.shard) + kept + (0 if p > 1 else 4 * numbers / a.hidden * a.vocab)


def seconds(layout, cluster):
    a, t, p, d, m = layout.arch, layout.tensor, layout.pipeline, layout.shard, layout.micro_batches
    passes = 3 + (layout.recompute == "full")
    compute = a.flops_per_token(layout.seq) / 3 * passes * layout.tokens / layout.ranks / cluster.gpu.flops16 * 2
    data = (m * 8 * a.count() / (t * p)) * (d - 1) / d / ring_bandwidth(cluster, d, t)
    wait = 2 * passes * m * a.layers / p * 2 * (t - 1) / t * 2 * layout.micro_batch_size * layout.seq * a.hidden
    wait = wait - (2 * m * a.layers / p * 2 * (t - 1) / t * 2 * layout.micro_batch_size * layout.seq * a.hidden)
    return (max(compute, data) + wait / ring_bandwidth(cluster, t)) * (m + p - 1) / m


def best(layouts, cluster):
    by_time = sorted((seconds(l, cluster), i) for i, l in enumerate(layouts) if memory(l) <= cluster.gpu.room)
    return layouts[by_time[0][1]] if by_time else None


def decide(question):
    cut = {"context": 2, "shard": 32, "reshard_after_forward": False}
    if question.gpus == 8:
        cut = {"tensor": 2, "context": 4, "context_method": "all-to-all", "micro_batches": 4, "recompute": "selective"}
    return Layout(question.arch, **cut, seq=question.seq)


def bill(found, tokens, price, goodput):
    worst, top = goodput
    steps = (tokens + found.layout.tokens - 1) // found.layout.tokens
    days = [steps * s / g / 86400 for s, g in ((found.low, top), (found.seconds, (worst + top) / 2), (found.high, worst))]
    return {"days": days, "gpu_hours": [24 * found.layout.ranks * d for d in days], "dollars": [24 * price * found.layout.ranks * d for d in days]}
""",
}
