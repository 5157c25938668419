"""Wrong and right answers for the practice tasks of activation checkpointing."""

from . import Mutant

RECOMPUTE, REPEATABLE, POLICY, MOVED, FIT = (
    f"activation_checkpointing.{part}" for part in ("recompute", "repeatable", "policy", "moved", "fit")
)


def recompute(check: str, name: str, *replace: tuple[str, str]) -> Mutant:
    return Mutant(name, RECOMPUTE, check, replace)


def repeat(check: str, name: str, *replace: tuple[str, str]) -> Mutant:
    return Mutant(name, REPEATABLE, check, replace)


def policy(check: str, name: str, *replace: tuple[str, str]) -> Mutant:
    return Mutant(name, POLICY, check, replace)


def moved(check: str, name: str, *replace: tuple[str, str]) -> Mutant:
    return Mutant(name, MOVED, check, replace)


def fit(check: str, name: str, *replace: tuple[str, str]) -> Mutant:
    return Mutant(name, FIT, check, replace)


FORWARD = "        ctx.run = run\n        ctx.save_for_backward(x)\n        return run(x)\n"
DETACHED = "x = x.detach().requires_grad_()"
RESULT = "ctx.save_for_backward(x)\n        return run(x)\n"
AGAIN = "        with torch.enable_grad():\n            y = ctx.run(x)\n"
PASS_BACK = "torch.autograd.backward(y, gradient)"
NOTED = "noted = random_states(), torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)"
NONE_YET = "    noted = None\n\n    def again"
SAME = "with torch.autocast(kind, dtype, enabled):"
STAYS = "if exists or tensor.nbytes < least or not tensor.is_floating_point():"
KEEP = "CheckpointPolicy.MUST_SAVE if worth_it else CheckpointPolicy.PREFER_RECOMPUTE"
CONTEXTS = "return functools.partial(create_selective_checkpoint_contexts, policy)"
LEAST = "min(fitting, key=lambda chosen: sum(flops[i] for i in chosen), default=None)"

MUTANTS = [
    *(recompute("gives_the_same_result", *mutant) for mutant in (
        ("run twice over", (RESULT, RESULT.replace("run(x)", "run(run(x))"))),
        ("the input itself", (RESULT, RESULT.replace("run(x)", "x.clone()"))),
        ("in 32 bits", (RESULT, RESULT.replace("run(x)", "run(x).float().double()"))),
        ("nothing but zeros", (RESULT, RESULT.replace("return run(x)", "run(x)\n        return torch.zeros_like(x)"))),
    )),
    *(recompute("keeps_the_input_alone", *mutant) for mutant in (
        ("the graph of the first run", (FORWARD, FORWARD.replace("return run(x)", "with torch.enable_grad():\n            ctx.y = run(x.detach().requires_grad_())\n        return ctx.y.detach()"))),
        ("the graph of the second run", ("        " + PASS_BACK, "        ctx.y = y\n        torch.autograd.backward(y, gradient, retain_graph=True)")),
        ("a copy of the input", ("ctx.save_for_backward(x)", "ctx.save_for_backward(x.clone())")),
        ("the result, saved for backward", (FORWARD, FORWARD.replace("ctx.save_for_backward(x)\n        return run(x)", "y = run(x)\n        ctx.save_for_backward(x, y)\n        return y")), ("(x,) = ctx.saved_tensors", "x, _ = ctx.saved_tensors")),
        ("the result as well", (FORWARD, FORWARD.replace("return run(x)", "ctx.y = run(x)\n        return ctx.y.clone()"))),
    )),
    *(recompute("runs_once_in_each_pass", *mutant) for mutant in (
        ("twice on the way back", (AGAIN, AGAIN + "            y = ctx.run(x)\n")),
        ("a trial on the way there", (RESULT, RESULT.replace("return", "run(x)\n        return"))),
        ("not at all on the way back", (FORWARD, "        with torch.enable_grad():\n            ctx.x = x.detach().requires_grad_()\n            ctx.y = run(ctx.x)\n        return ctx.y.detach()\n"),
         ("        (x,) = ctx.saved_tensors\n", "        x = ctx.x\n"), (f"        {DETACHED}  # a new beginning: the graph of this stretch ends here\n", ""), (AGAIN, "        y = ctx.y\n")),
    )),
    *(recompute("gives_the_input_its_gradient", *mutant) for mutant in (
        ("of the sum of the result", (PASS_BACK, "torch.autograd.backward(y, torch.ones_like(y))")),
        ("of the mean", (PASS_BACK, "torch.autograd.backward(y, gradient / len(y))")),
        ("passed through", ("return None, x.grad", "return None, gradient")),
        ("none", ("return None, x.grad", "return None, None")),
        ("twice", ("return None, x.grad", "return None, 2 * x.grad")),
        ("clipped", ("return None, x.grad", "return None, x.grad.clamp(-1, 1)")),
    )),
    *(Mutant(name, RECOMPUTE, "gives_the_input_its_gradient", replace, raises) for name, raises, *replace in (
        ("not detached", "not on a detached x", (DETACHED, "x.requires_grad_().retain_grad()")),
        ("swapped", "The order is that of forward", ("return None, x.grad", "return x.grad, None")),
        ("not recorded", "the second run has left no graph", (AGAIN, "        y = ctx.run(x)\n")),
        ("from the sum", "belongs to the result of run(x) as it is", (PASS_BACK, "torch.autograd.backward(y.sum(), gradient)")),
    )),
    *(recompute("adds_to_parameters", *mutant) for mutant in (
        ("one run for all calls", ("ctx.run = run", "Recompute.run = run"), ("y = ctx.run(x)", "y = Recompute.run(x)")),
        ("only where a gradient is", (PASS_BACK, "mine = [p for p in ctx.run.layers.parameters() if p.grad is not None]\n        x.grad, *more = torch.autograd.grad(y, [x, *mine], gradient)\n        for p, g in zip(mine, more):\n            p.grad += g")),
        ("for the input alone", (PASS_BACK, "x.grad, = torch.autograd.grad(y, x, gradient)")),
        ("twice", (PASS_BACK, "torch.autograd.backward(y, gradient, retain_graph=True)\n        x.grad = None\n        " + PASS_BACK)),
        ("overwritten", (PASS_BACK, "for p in ctx.run.layers.parameters():\n            p.grad = None\n        " + PASS_BACK)),
        ("of the sum of the result", (PASS_BACK, "torch.autograd.backward(y, torch.ones_like(y), retain_graph=True)\n        x.grad, = torch.autograd.grad(y, x, gradient)")),
    )),
    # repeatable
    *(repeat("draws_the_same_numbers", *mutant) for mutant in (
        ("no state", ("        set_random_states(states)\n        with", "        with")),
        ("the second call's state for the third", ("        return y\n", "        noted = now, dtype, enabled\n        return y\n")),
        ("a seed of its own for later calls", ("        set_random_states(states)\n        with", "        torch.manual_seed(0)\n        with")),
        ("noted after the first call", (f"            {NOTED}\n            return run(x)", f"            y = run(x)\n            {NOTED}\n            return y")),
    )),
    *(repeat("notes_what_the_first_call_sees", *mutant) for mutant in (
        ("noted when made", (NONE_YET, "    noted = None\n    made = random_states()\n\n    def again"), ("states, dtype, enabled = noted", "_, dtype, enabled = noted\n        states = made")),
        ("begun when made", (NONE_YET, "    noted = None\n    made = random_states()\n\n    def again"), (NOTED, "set_random_states(made)\n            " + NOTED)),
        ("a seed of its own", (NOTED, "torch.manual_seed(0)\n            " + NOTED)),
    )),
    *(repeat("runs_on_the_given_x", *mutant) for mutant in (
        ("the first result for ever", ("            y = run(x)\n", "            y = again.first\n"), ("            return run(x)", "            again.first = run(x)\n            return again.first")),
        ("the first x for ever", ("            y = run(x)\n", "            y = run(again.first)\n"), ("            return run(x)", "            again.first = x\n            return run(x)")),
        ("twice in a later call", ("            y = run(x)\n", "            run(x)\n            set_random_states(states)\n            y = run(x)\n")),
        ("never recorded later", ("            y = run(x)\n", "            with torch.no_grad():\n                y = run(x)\n")),
        ("always recorded later", ("            y = run(x)\n", "            with torch.enable_grad():\n                y = run(x)\n")),
        ("recorded as the first call was", (NOTED, f"again.on = torch.is_grad_enabled()\n            {NOTED}"), ("            y = run(x)\n", "            with torch.set_grad_enabled(again.on):\n                y = run(x)\n")),
        ("a copy of x", ("            y = run(x)\n", "            y = run(x.detach().requires_grad_())\n")),
        ("one note for all functions", ("nonlocal noted", "noted = repeatable.__dict__.get(run)"), (f"{NOTED}\n", f"{NOTED}\n            repeatable.__dict__[run] = noted\n")),
    )),
    *(repeat("leaves_the_generator", *mutant) for mutant in (
        ("left where run ended", ("        set_random_states(now)\n", "")),
        ("left where the first call began", ("set_random_states(now)", "set_random_states(states)")),
        ("the first call puts back, too", ("            return run(x)", "            y = run(x)\n            set_random_states(noted[0])\n            return y")),
        ("later calls end where the first did", ("            return run(x)", "            y = run(x)\n            noted = *noted, random_states()\n            return y"), ("states, dtype, enabled = noted", "states, dtype, enabled, after = noted"), ("set_random_states(now)", "set_random_states(after)")),
    )),
    *(repeat("runs_under_the_same_autocast", *mutant) for mutant in (
        ("whatever is on", (SAME, "if True:")),
        ("always on", (SAME, "with torch.autocast(kind, dtype):")),
        ("always off", (SAME, "with torch.autocast(kind, enabled=False):")),
        ("switched on, never off", (SAME, "with torch.autocast(kind, dtype, enabled or torch.is_autocast_enabled(kind)):")),
        ("off if it is off now", (SAME, "with torch.autocast(kind, dtype, enabled and torch.is_autocast_enabled(kind)):")),
        ("left on", (SAME, "torch.set_autocast_enabled(kind, enabled)\n        if True:")),
    )),
    *(repeat("runs_in_the_same_format", *mutant) for mutant in (
        ("the format of the moment", (SAME, "with torch.autocast(kind, enabled=enabled):")),
        ("always BF16", (SAME, "with torch.autocast(kind, torch.bfloat16, enabled):")),
        ("the format of the moment where autocast is on", (SAME, "with torch.autocast(kind, torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else dtype, enabled):")),
    )),
    # the policy
    *(policy("counts_products", *mutant) for mutant in (
        ("multiplications alone", ("2 * args[FACTOR[op]]", "args[FACTOR[op]]")),
        ("a whole number for least", (">= least", ">= int(least)")),
        ("the rows", ("args[FACTOR[op]].shape[-1]", "args[FACTOR[op]].shape[-2]")),
        ("the columns of the second factor", ("args[FACTOR[op]].shape[-1]", "args[FACTOR[op] + 1].shape[-1]")),
        ("the bias for a factor", ("args[FACTOR[op]].shape[-1]", "args[0].shape[-1]")),
        ("all products alike", ("return 2 * args[FACTOR[op]].shape[-1]", "return math.inf")),
        ("no batches of products", ("if op in FACTOR:", "if op in FACTOR and op is not aten.bmm.default:")),
        ("FLOPs of the whole product", ("2 * args[FACTOR[op]].shape[-1]", "2 * args[FACTOR[op]].numel()")),
        ("the wrong way round", (KEEP, "CheckpointPolicy.PREFER_RECOMPUTE if worth_it else CheckpointPolicy.MUST_SAVE")),
    )),
    *(Mutant(name, POLICY, "counts_products", ((CONTEXTS, new),), "must return a function without arguments") for name, new in (
        ("the policy itself", "return policy"),
        ("the contexts", "return create_selective_checkpoint_contexts(policy)"),
    )),
    *(policy("counts_attention", *mutant) for mutant in (
        ("attention is free", ("4 * args[1].shape[-2] if is_attention(op) else 0", "0")),
        ("scores alone", ("4 * args[1].shape[-2]", "2 * args[1].shape[-2]")),
        ("queries", ("args[1].shape[-2]", "args[0].shape[-2]")),
        ("the size of a head", ("args[1].shape[-2]", "args[1].shape[-1]")),
        ("always", ("4 * args[1].shape[-2]", "math.inf")),
    )),
    policy("decides_each_time", "once for each kind", ("    def policy(", "    known = {}\n\n    def policy("), ("flops_per_element(op, args) >= least", "known.setdefault(op, flops_per_element(op, args) >= least)")),
    Mutant("contexts made once", POLICY, "decides_each_time", ((CONTEXTS, "made = create_selective_checkpoint_contexts(policy)\n    return lambda: made"),), "backward an extra time"),
    policy("keeps_exactly_least", "more than least", (">= least", "> least")),
    *(policy("drops_the_rest", *mutant) for mutant in (
        ("everything else kept", ("if is_attention(op) else 0", "if is_attention(op) else math.inf")),
        ("a FLOP a number", ("if is_attention(op) else 0", "if is_attention(op) else 1")),
        ("softmax is attention", ("if is_attention(op) else 0", 'if is_attention(op) or "softmax" in op.name() else 0'), ("4 * args[1]", '4 * args["softmax" not in op.name()]')),
        ("norms are kept", (KEEP, '(CheckpointPolicy.MUST_SAVE if worth_it or "norm" in op.name() else CheckpointPolicy.PREFER_RECOMPUTE)')),
    )),
    # the hooks
    *(moved("brings_back_what_was_saved", *mutant) for mutant in (
        ("fetched at once", ("return True, put(tensor)", "return False, get(put(tensor))")),
        ("put away and left there", ("return True, put(tensor)", "put(tensor)\n        return False, tensor.detach()")),
        ("tensors are taken for what stays", ("return False, tensor.detach()", "return tensor.detach()"), ("return True, put(tensor)", "return put(tensor)"), ("away, kept = packed\n        return get(kept) if away else kept", "return packed if isinstance(packed, torch.Tensor) else get(packed)")),
        ("half of it the second time", ("return get(kept) if away else kept", "known = unpack.__dict__\n        known[id(packed)] = known.get(id(packed), 2.0) / 2\n        return get(kept) * known[id(packed)] if away else kept")),
        ("zeros instead", ("return get(kept) if away else kept", "return torch.zeros_like(get(kept)) if away else kept")),
        ("in BF16", ("return get(kept) if away else kept", "return get(kept).bfloat16().double() if away else kept")),
    )),
    *(Mutant(name, MOVED, "brings_back_what_was_saved", replace, raises) for name, raises, *replace in (
        ("a ticket for one journey", "pop from empty list", ("return True, put(tensor)", "return True, [put(tensor)]"), ("get(kept) if", "get(kept.pop()) if")),
        ("tuples are taken for what stays", "unpack_hook", ("return True, put(tensor)", "return put(tensor)"), ("away, kept = packed\n        return get(kept) if away else kept", "return packed[1] if isinstance(packed, tuple) else get(packed)")),
        ("0 is no ticket", "unpack_hook", ("return False, tensor.detach()", "return None, tensor.detach()"), ("return True, put(tensor)", "return put(tensor), None"), ("return get(kept) if away else kept", "return kept if isinstance(away, int) and not away else get(away) if away is not None else kept")),
    )),
    *(moved("leaves_parameters", *mutant) for mutant in (
        ("parameters go, too", (STAYS, STAYS.replace("exists or ", ""))),
        ("parameters by identity", ("{p.untyped_storage().data_ptr() for p in parameters}", "{id(p) for p in parameters}"), ("tensor.untyped_storage().data_ptr() in there", "id(tensor) in there")),
        ("by its first number", ("{p.untyped_storage().data_ptr() for p in parameters}", "{p.data_ptr() for p in parameters}"), ("tensor.untyped_storage().data_ptr() in there", "tensor.data_ptr() in there")),
        ("by class", ("exists = tensor.untyped_storage().data_ptr() in there", "exists = isinstance(tensor, nn.Parameter)")),
        ("trained ones alone", ("for p in parameters}", "for p in parameters if p.requires_grad}")),
        ("the first parameter alone", ("for p in parameters}", "for p in list(parameters)[:1]}")),
        ("matrices stay", ("exists = tensor.untyped_storage().data_ptr() in there", "exists = tensor.untyped_storage().data_ptr() in there or tensor.dim() == 2")),
    )),
    *(moved("leaves_what_is_small", *mutant) for mutant in (
        ("everything", (STAYS, STAYS.replace("tensor.nbytes < least or ", ""))),
        ("16 bits stay", ("tensor.nbytes < least", "tensor.nbytes < least or tensor.itemsize == 2")),
        ("numbers for bytes", ("tensor.nbytes < least", "tensor.numel() < least")),
        ("exactly least stays", ("tensor.nbytes < least", "tensor.nbytes <= least")),
        ("the large stay", ("tensor.nbytes < least", "tensor.nbytes > least")),
        ("the storage's bytes, in KiB", ("tensor.nbytes < least", "tensor.untyped_storage().nbytes() // 1024 < least // 1024")),
    )),
    *(moved("leaves_what_is_no_float", *mutant) for mutant in (
        ("all formats", (STAYS, STAYS.replace(" or not tensor.is_floating_point()", ""))),
        ("all but integers of 64 bits", ("not tensor.is_floating_point()", "tensor.dtype == torch.int64")),
        ("all but truth values", ("not tensor.is_floating_point()", "tensor.dtype == torch.bool")),
    )),
    *(moved("keeps_nothing_that_moved", *mutant) for mutant in (
        ("the tensor beside its ticket", ("return True, put(tensor)", "return True, (put(tensor), tensor.detach())"), ("return get(kept) if away", "return get(kept[0]) if away")),
        ("all tensors in a list", ("return True, put(tensor)", "held.append(tensor.detach())\n        return True, put(tensor)"), ("    def pack(tensor):", "    held = []\n\n    def pack(tensor):")),
    )),
    moved("makes_no_cycle", "what stays is not detached", ("return False, tensor.detach()", "return False, tensor")),
    # the budget
    *(fit("fits_at_the_least_cost", *mutant) for mutant in (
        ("recomputed block forgotten", (" + max((kept[i] for i in chosen), default=0)", "")),
        ("inputs forgotten", ("sum(inputs[i] for i in chosen)", "0")),
        ("sum of recomputed blocks", ("max((kept[i] for i in chosen), default=0)", "sum(kept[i] for i in chosen)")),
        ("the first eight blocks", ("for r in range(n + 1))", "for r in range(n + 1) if r <= 8)"), ("itertools.combinations(range(n), r)", "itertools.combinations(range(min(n, 8)), r)")),
        ("fewest blocks", ("key=lambda chosen: sum(flops[i] for i in chosen)", "key=len")),
        ("least memory", ("key=lambda chosen: sum(flops[i] for i in chosen)", "key=held")),
        ("most recomputation", ("return min(", "return max(")),
        ("always all", ("for r in range(n + 1)", "for r in (n,)")),
        ("budget ignored", ("if held(chosen) <= budget", "if True")),
    )),
    fit("fills_the_budget", "strictly below", ("held(chosen) <= budget", "held(chosen) < budget")),
    *(fit("takes_none_if_all_fits", *mutant) for mutant in (
        ("never none", ("for r in range(n + 1)", "for r in range(1, n + 1)")),
        ("None for no block", (LEAST, f"{LEAST} or None")),
    )),
    *(fit("says_when_nothing_fits", *mutant) for mutant in (
        ("an empty list", ("default=None)", "default=[])")),
        ("all of them", ("default=None)", "default=range(n))")),
    )),
]  # fmt: skip

RIGHT = {
    "functions in functions": """
import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x):
        ctx.inputs = run, x.detach()
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx, gradient):
        run, x = ctx.inputs
        with torch.set_grad_enabled(True):
            own = x.requires_grad_(True)
            (run(own) * gradient).sum().backward()
        return None, own.grad


def repeatable(run):
    surroundings = []

    def again(x):
        if not surroundings:
            surroundings.append(torch.get_rng_state())
            surroundings.append(torch.is_autocast_enabled("cpu"))
            surroundings.append(torch.get_autocast_dtype("cpu"))
            return run(x)
        state, on, dtype = surroundings
        with torch.random.fork_rng(devices=[]), torch.autocast("cpu", dtype=dtype, enabled=on):
            torch.set_rng_state(state)
            return run(x)

    return again


def keep_costly(least):
    def terms(name, args):
        if name in ("aten::mm", "aten::bmm", "aten::linear"):
            return args[0].size(-1)
        if name == "aten::addmm":
            return args[1].size(1)
        if name.startswith("aten::_scaled_dot_product"):
            return 2 * args[1].size(2)
        return 0

    def decide(context, op, *args, **kwargs):
        if 2 * terms(op.name(), args) < least:
            return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE

    return lambda: create_selective_checkpoint_contexts(decide)


def moved(parameters, put, get, least):
    addresses = [p.untyped_storage().data_ptr() for p in parameters]

    def goes(tensor):
        large = tensor.numel() * tensor.element_size() >= least
        return tensor.dtype.is_floating_point and large and tensor.untyped_storage().data_ptr() not in addresses

    def pack(tensor):
        if goes(tensor):
            ticket = put(tensor)
            return lambda: get(ticket)
        stays = tensor.detach()
        return lambda: stays

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda fetch: fetch())


def choose_blocks(kept, inputs, flops, budget):
    best = None
    for mask in range(2 ** len(kept)):
        on = [bool(mask >> i & 1) for i in range(len(kept))]
        memory = sum(i if c else k for c, k, i in zip(on, kept, inputs))
        memory += max([k for c, k in zip(on, kept) if c] + [0])
        cost = sum(f for c, f in zip(on, flops) if c)
        if memory <= budget and (best is None or cost < best[0]):
            best = cost, [i for i, c in enumerate(on) if c]
    return None if best is None else best[1]
""",
    "classes": """
import contextlib

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x):
        ctx.save_for_backward(x)
        ctx.run = run
        ctx.set_materialize_grads(True)
        return run(x)

    @staticmethod
    @torch.enable_grad()
    def backward(ctx, gradient):
        leaf = ctx.saved_tensors[0].detach().clone().requires_grad_()
        leaves = []
        result = ctx.run(leaf)
        result.backward(gradient)
        return None, leaf.grad.detach()


class repeatable:
    def __init__(self, run):
        self.run = run
        self.first = True

    def __call__(self, x):
        before = torch.default_generator.get_state()
        kind = x.device.type
        if self.first:
            self.first = False
            self.state = before
            self.autocast = dict(device_type=kind, dtype=torch.get_autocast_dtype(kind))
            self.enabled = torch.is_autocast_enabled(kind)
            return self.run(x)
        try:
            torch.default_generator.set_state(self.state)
            with torch.autocast(**self.autocast, enabled=self.enabled, cache_enabled=False):
                return self.run(x)
        finally:
            torch.default_generator.set_state(before)


class keep_costly:
    def __init__(self, least):
        self.least = least

    def __call__(self):
        return create_selective_checkpoint_contexts(self.policy)

    def policy(self, context, op, *args, **kwargs):
        packet, cost = op.overloadpacket, 0.0
        aten = torch.ops.aten
        if packet in (aten.mm, aten.bmm):
            cost = 2.0 * args[1].shape[-2]
        elif packet is aten.addmm:
            cost = 2.0 * args[2].shape[0]
        elif "_scaled_dot_product" in packet.__name__:
            cost = 4.0 * args[2].shape[-2]
        return CheckpointPolicy.MUST_SAVE if cost >= self.least else CheckpointPolicy.PREFER_RECOMPUTE


class Ticket:
    def __init__(self, what):
        self.what = what


class moved:
    def __init__(self, parameters, put, get, least):
        self.own = {p.untyped_storage()._cdata for p in parameters}
        self.put, self.get, self.least = put, get, least

    def pack(self, tensor):
        if tensor.untyped_storage()._cdata in self.own or tensor.nbytes < self.least:
            return tensor.detach()
        return Ticket(self.put(tensor)) if tensor.is_floating_point() else tensor.detach()

    def unpack(self, kept):
        return self.get(kept.what) if isinstance(kept, Ticket) else kept

    def __enter__(self):
        self.context = torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)
        return self.context.__enter__()

    def __exit__(self, *error):
        return self.context.__exit__(*error)


def choose_blocks(kept, inputs, flops, budget):
    answers = []

    def go(i, chosen, memory, largest, cost):
        if i == len(kept):
            if memory + largest <= budget:
                answers.append((cost, chosen))
            return
        go(i + 1, chosen, memory + kept[i], largest, cost)
        go(i + 1, chosen | {i}, memory + inputs[i], max(largest, kept[i]), cost + flops[i])

    go(0, frozenset(), 0, 0, 0)
    return min(answers, key=lambda a: a[0])[1] if answers else None
""",
    "other roads": """
import contextlib
import itertools

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(run, x):
        return run(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.run, x = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, gradient):
        leaf = torch.empty_like(ctx.saved_tensors[0]).copy_(ctx.saved_tensors[0]).requires_grad_()
        with torch.enable_grad():
            y = ctx.run(leaf)
        y.backward(gradient.clone())
        return None, leaf.grad


def repeatable(run):
    @contextlib.contextmanager
    def as_it_was():
        now = torch.random.get_rng_state()
        with torch.amp.autocast_mode.autocast(again.kind, again.dtype, again.on):
            torch.random.set_rng_state(again.state)
            yield
        torch.random.set_rng_state(now)

    def again(x):
        if hasattr(again, "state"):
            with as_it_was():
                return run(x)
        again.kind = x.device.type
        again.on, again.dtype = torch.is_autocast_enabled(again.kind), torch.get_autocast_dtype(again.kind)
        again.state = torch.random.get_rng_state()
        return run(x)

    return again


def keep_costly(least):
    aten = torch.ops.aten
    costs = {
        aten.mm.default: lambda a, b: 2 * b.shape[0],
        aten.bmm.default: lambda a, b: 2 * b.shape[1],
        aten.addmm.default: lambda bias, a, b: 2 * a.shape[1],
        aten.linear.default: lambda x, weight, *bias: 2 * weight.shape[1],
    }

    def policy(context, op, *args, **kwargs):
        cost = costs.get(op, lambda *args: 0)(*args)
        if str(op).startswith("aten._scaled_dot_product"):
            cost = 4 * args[2].shape[-2]
        return (CheckpointPolicy.PREFER_RECOMPUTE, CheckpointPolicy.MUST_SAVE)[cost >= least]

    def contexts():
        return create_selective_checkpoint_contexts(policy)

    return contexts


@contextlib.contextmanager
def moved(parameters, put, get, least):
    weights = list(parameters)

    def stays(tensor):
        if not torch.is_floating_point(tensor) or tensor.nbytes < least:
            return True
        return any(tensor.untyped_storage()._cdata == w.untyped_storage()._cdata for w in weights)

    def pack(tensor):
        return ("here", tensor.detach()) if stays(tensor) else ("there", put(tensor))

    def unpack(packed):
        where, what = packed
        return what if where == "here" else get(what)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


def choose_blocks(kept, inputs, flops, budget):
    def cost(choice):
        return sum(itertools.compress(flops, choice))

    for choice in sorted(itertools.product((False, True), repeat=len(kept)), key=cost):
        peak = max(itertools.compress(kept, choice), default=0)
        for block, (k, i) in enumerate(zip(kept, inputs)):
            peak += i if choice[block] else k
        if peak <= budget:
            return {block for block, chosen in enumerate(choice) if chosen}
    return None
""",
}
