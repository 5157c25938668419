"""Wrong and right answers for the practice tasks of lean optimizers."""

from . import Mutant

BLOCKS, ADAM, BACKWARD = (f"lean_optimizers.{part}" for part in ("blocks", "adam", "backward"))
SCALE, BYTES, NEAREST = "one_scale_for_each_block", "codes_are_bytes", "takes_the_nearest"
ZEROS, DECODES, TABLE = "zeros_stay_zeros", "decodes_by_its_book", "needs_no_table"
FIRST, FOLLOWS, KEEPS = "first_step_is_adams", "follows_adam", "keeps_two_bytes"
ONE, SMALL, WAITS = "one_parameter_at_a_time", "small_ones_stay_whole", "waits_for_a_gradient"
STEPS, FREES = "steps_like_one_optimizer", "frees_each_gradient_at_once"
EACH, OFF = "one_optimizer_for_each", "comes_off_again"

SCALES = "scales = blocks.abs().amax(1)"
SCALED = "scaled = blocks / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]"
PADDED = "blocks = F.pad(flat, (0, -len(flat) % block)).view(-1, block)"
SEARCH = "codes = torch.bucketize(scaled, borders, out_int32=True)"
ENCODED = "return codes.flatten()[: len(flat)].to(torch.uint8), scales"
EACH_SCALE = "scale_of_each = scales.repeat_interleave(block)[: len(codes)]"
DECODED = "return (book[codes.int()] * scale_of_each).view(shape)"

COUNT = 't = state["step"] = state.get("step", 0) + 1'
STORE = "state[name] = encode(moment, book, 256) if p.numel() >= 4096 else moment"
MOMENTS = "m, v = moments"
ROOT = 'root = (v / (1 - beta2**t)).sqrt_().add_(group["eps"])'
UPDATE = 'p.addcdiv_(m, root, value=-group["lr"] / (1 - beta1**t))'
LERP = "moment.lerp_(new, 1 - beta)"
PARAMETERS = 'for p in (p for p in group["params"] if p.grad is not None):'
ROUNDED = "decode(*state[name], book, 256, p.shape) if p.numel() >= 4096 else moment"

TRAINED = "dict.fromkeys(p for p in parameters if p.requires_grad)"
MAKE = "optimizer = make_optimizer([parameter])"
DEF = "def step(parameter, optimizer=optimizer):"
STEP, DROP = "            optimizer.step()\n", "            optimizer.zero_grad()\n"
HOOK = "handles.append(parameter.register_post_accumulate_grad_hook(step))"
RETURN = "return optimizers, handles"


def one(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, BACKWARD, check, replace, raises)


def blocks(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, BLOCKS, check, replace, raises)


def adam(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, ADAM, check, replace, raises)


MUTANTS = [
    # the code of a block
    blocks(SCALE, "one scale for everything", (SCALES, "scales = blocks.abs().amax().repeat(len(blocks))")),
    blocks(SCALE, "the largest number, sign and all", (SCALES, "scales = blocks.amax(1)")),
    blocks(SCALE, "the mean magnitude", (SCALES, "scales = blocks.abs().mean(1)")),
    blocks(SCALE, "only full blocks", (PADDED, "blocks = F.pad(flat, (0, -len(flat) % block)).view(-1, block)[: max(1, len(flat) // block)]")),
    blocks(SCALE, "scales in 16 bits", (ENCODED, ENCODED + ".half()")),
    blocks(SCALE, "rows in place of blocks", (PADDED, "blocks = x.view(len(x), -1)")),
    blocks(SCALE, "scales of the whole padded tensor as a column", (ENCODED, ENCODED + "[:, None]")),
    blocks(BYTES, "codes of four bytes", (".to(torch.uint8), scales", ", scales")),
    blocks(BYTES, "codes of the padding, too", ("codes.flatten()[: len(flat)]", "codes.flatten()")),
    blocks(BYTES, "codes in the tensor's shape", ("codes.flatten()[: len(flat)].to(torch.uint8)", "codes.flatten()[: len(flat)].to(torch.uint8).view(x.shape)[None]")),
    blocks(BYTES, "a view of wide codes", ("codes.flatten()[: len(flat)].to(torch.uint8)", "codes.flatten().view(torch.uint8)[::4][: len(flat)]")),
    blocks(NEAREST, "the next below", ("(book[1:] + book[:-1]) / 2", "book[1:]")),
    blocks(NEAREST, "the next above", ("(book[1:] + book[:-1]) / 2", "book[:-1]")),
    blocks(NEAREST, "a scale twice too large", (SCALED, SCALED + " / 2")),
    blocks(NEAREST, "not divided", (SCALED, "scaled = blocks")),
    blocks(NEAREST, "magnitudes alone", (SCALED, SCALED.replace("blocks /", "blocks.abs() /"))),
    blocks(NEAREST, "equal steps, whatever the book", (SEARCH, "codes = ((scaled - book[0]) / (1 - book[0]) * (len(book) - 1)).round().int()")),
    blocks(ZEROS, "a scale of one for zeros", (SCALES, "scales = blocks.abs().amax(1)\n    scales = torch.where(scales == 0, 1.0, scales)")),
    blocks(ZEROS, "a scale that is never below a thousandth", (SCALES, SCALES + ".clamp(min=1e-3)")),
    blocks(ZEROS, "a floor under the divisor", ("torch.finfo(torch.float32).tiny", "1e-8")),
    blocks(DECODES, "scales forgotten", (DECODED, "return book[codes.int()].view(shape)")),
    blocks(DECODES, "one scale for all", (EACH_SCALE, "scale_of_each = scales.amax()")),
    blocks(DECODES, "codes as numbers", (DECODED, "return (codes.float() / 255 * scale_of_each).view(shape)")),
    blocks(DECODES, "flat", (DECODED, "return book[codes.int()] * scale_of_each")),
    blocks(DECODES, "in FP64", (DECODED, "return (book.double()[codes.int()] * scale_of_each).view(shape)")),
    blocks(DECODES, "the next value of the book", (DECODED, "return (book[codes.int() + 1] * scale_of_each).view(shape)")),
    blocks(DECODES, "scales dealt round", (EACH_SCALE, "scale_of_each = scales.repeat(block)[: len(codes)]")),
    blocks(TABLE, "all distances", (SEARCH, "codes = (scaled[..., None] - book).abs().argmin(-1)")),
    blocks(TABLE, "divides its input", ("flat = x.flatten()", "flat = x.mul_(1.5).flatten()")),
    # Adam with it
    adam(FIRST, "rounds first", (LERP, LERP + "\n                    if p.numel() >= 4096:\n                        moment = decode(*encode(moment, book, 256), book, 256, p.shape)")),
    adam(FIRST, "no bias correction", ("value=-group[\"lr\"] / (1 - beta1**t)", "value=-group[\"lr\"]")),
    adam(FIRST, "no correction of v", ("(v / (1 - beta2**t))", "v.clone()")),
    adam(FIRST, "no epsilon", ('.add_(group["eps"])', "")),
    adam(FIRST, "epsilon under the root", (ROOT, 'root = (v / (1 - beta2**t)).add_(group["eps"]).sqrt_()')),
    adam(FIRST, "uphill", ('value=-group["lr"]', 'value=group["lr"]')),
    adam(FIRST, "nothing moves", (UPDATE, "pass")),
    adam(FIRST, "the gradient, not its mean", (UPDATE, UPDATE.replace("m,", "p.grad,"))),
    adam(FOLLOWS, "begins anew in each step", ("moment = state.get(name)", "moment = None")),
    adam(FOLLOWS, "the learning rate that it was made with", ('value=-group["lr"]', 'value=-self.defaults["lr"]')),
    adam(FOLLOWS, "the first group's learning rate", ('value=-group["lr"]', 'value=-self.param_groups[0]["lr"]')),
    adam(FOLLOWS, "the betas that it was made with", ('group["betas"], self.books', 'self.defaults["betas"], self.books')),
    adam(FOLLOWS, "the epsilon that it was made with", ('.add_(group["eps"])', '.add_(self.defaults["eps"])')),
    adam(FOLLOWS, "always the first step", ("state.get(\"step\", 0) + 1", "1")),
    adam(FOLLOWS, "one beta for both", ('group["betas"], self.books', '[group["betas"][0]] * 2, self.books')),
    adam(FOLLOWS, "one book for both", ("self.books, strict", "[self.books[0]] * 2, strict")),
    adam(FOLLOWS, "books swapped", ("self.books, strict", "self.books[::-1], strict")),
    adam(FOLLOWS, "a book swapped when it is read", ("decode(*moment, book,", "decode(*moment, self.books[name == 'm'],")),
    adam(FOLLOWS, "the usual betas", ('group["betas"], self.books', "(0.9, 0.999), self.books")),
    adam(FOLLOWS, "stores what came, not what is", ("encode(moment, book, 256) if", "encode(new, book, 256) if")),
    adam(FOLLOWS, "the first moment forgets at once", (LERP, "moment.lerp_(new, 1 - beta if name == 'v' else 1.0)")),
    adam(KEEPS, "FP32 moments", (STORE, "state[name] = encode(moment, book, 256) if p.numel() >= 4096 else moment\n                    state[name + ' whole'] = moment")),
    adam(KEEPS, "roots kept", (UPDATE, UPDATE + '\n                state["root"] = root')),
    adam(KEEPS, "kept on the side", (MOMENTS, MOMENTS + "\n                self.__dict__.setdefault('kept', []).append(moments)")),
    adam(KEEPS, "small blocks", (STORE, STORE.replace("256", "64")), ("decode(*moment, book, 256, p.shape)", "decode(*moment, book, 64, p.shape)")),
    adam(KEEPS, "4,096 numbers are few", (STORE, STORE.replace(">=", ">")), ("elif p.numel() >= 4096", "elif p.numel() > 4096")),
    adam(ONE, "all unpacked first", (PARAMETERS, "held = [torch.empty_like(q) for q in group['params'] for _ in range(2)]\n            " + PARAMETERS)),
    adam(ONE, "moments kept until the step is over", ("        for group in self.param_groups:", "        kept = []\n        for group in self.param_groups:"), (MOMENTS, MOMENTS + "\n                kept.append(moments)")),
    adam(SMALL, "everything in 8 bits", (STORE, STORE.replace(" if p.numel() >= 4096 else moment", "")), ("elif p.numel() >= 4096:", "else:")),
    adam(SMALL, "from 4,000 on", (STORE, STORE.replace("4096", "4000")), ("elif p.numel() >= 4096", "elif p.numel() >= 4000")),
    adam(SMALL, "small ones by their sign", (UPDATE, UPDATE.replace("m,", "m if p.numel() >= 4096 else m.sign() * root,"))),
    adam(WAITS, "one count for all", (COUNT, "t = self.t = getattr(self, 't', 0) + (p is group['params'][0])")),
    adam(WAITS, "zeros for a gradient that is missing", (PARAMETERS, "for p in group['params']:\n                p.grad = torch.zeros_like(p) if p.grad is None else p.grad")),
    adam(WAITS, "no gradient, no mercy", (PARAMETERS, "for p in group['params']:"), raises="NoneType"),
    adam(WAITS, "weights shrink meanwhile", (PARAMETERS, "for p in group['params']:\n                p.mul_(0.999)\n            " + PARAMETERS)),
    # the steps
    one(STEPS, "a hook that comes before the gradient", ("register_post_accumulate_grad_hook(step)", "register_hook(lambda gradient, step=step: step(None))")),
    one(STEPS, "steps twice", (STEP, STEP + STEP)),
    one(STEPS, "drops the gradient first", (STEP + DROP, DROP + STEP)),
    one(STEPS, "old gradients add up", (DROP, "")),
    one(STEPS, "no weight decay", (STEP, "            optimizer.param_groups[0]['weight_decay'] = 0\n" + STEP)),
    one(STEPS, "learning rate fixed when it was made", (STEP, "            optimizer.param_groups[0]['lr'] = optimizer.defaults['lr']\n" + STEP)),
    one(STEPS, "state born anew in every step", (STEP, "            make_optimizer([parameter]).step()\n")),
    one(STEPS, "plain SGD by hand", (STEP, "            parameter.data.add_(parameter.grad, alpha=-optimizer.param_groups[0]['lr'])\n")),
    one(STEPS, "all hooks step the last optimizer", (DEF, "def step(parameter):")),
    one(STEPS, "all hooks step the first optimizer", (STEP, "            optimizers[0].step()\n")),
    one(STEPS, "returns other optimizers", (RETURN, "return [make_optimizer(o.param_groups[0]['params']) for o in optimizers], handles")),
    one(STEPS, "each gradient clipped on its own", (STEP, "            torch.nn.utils.clip_grad_norm_([parameter], 0.01)\n" + STEP)),
    one(STEPS, "steps in every second backward pass", (STEP, "            optimizer.turn = not getattr(optimizer, 'turn', False)\n            if optimizer.turn:\n                optimizer.step()\n")),
    one(STEPS, "steps by the sign", (STEP, "            parameter.grad.sign_()\n" + STEP)),
    # the memory
    one(FREES, "gradients not freed", (DROP, "")),
    one(FREES, "gradients zeroed in place", ("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)")),
    one(FREES, "biases not freed", ("            optimizer.zero_grad()", "            if parameter.dim() > 1:\n                optimizer.zero_grad()")),
    one(FREES, "gradients kept in a list until the next pass", (DROP, "            kept = globals().setdefault('_kept', [])\n            kept[:] = kept[-19:] + [parameter.grad]\n" + DROP)),
    one(FREES, "steps when the backward pass is over", (
        STEP + DROP,
        "            def later():\n                optimizer.step()\n                optimizer.zero_grad()\n            torch.autograd.Variable._execution_engine.queue_callback(later)\n",
    )),
    one(FREES, "steps layer by layer, one pass late", (
        STEP + DROP,
        "            waiting = globals().setdefault('_waiting', [])\n            waiting.append(optimizer)\n            if len(waiting) >= 20:\n                for each in waiting:\n                    each.step()\n                    each.zero_grad()\n                waiting.clear()\n",
    )),
    one(FREES, "a new optimizer in each step", (STEP, "            make_optimizer([parameter]).step()\n")),
    # whose optimizer
    one(EACH, "a tied weight gets two", (TRAINED, "[p for p in parameters if p.requires_grad]")),
    one(EACH, "a hook on a frozen parameter", (" if p.requires_grad", ""), raises="register"),
    one(EACH, "one optimizer that steps all", (
        MAKE, "optimizer = optimizers[0] if optimizers else make_optimizer(list(trained))"
    )),
    one(EACH, "frozen ones get an optimizer and no hook", (
        TRAINED, "dict.fromkeys(parameters)"), (HOOK, "if parameter.requires_grad:\n            " + HOOK
    )),
    one(EACH, "biases and norms are left out", (TRAINED, "dict.fromkeys(p for p in parameters if p.requires_grad and p.dim() > 1)")),
    one(EACH, "steps twice as often, half as far", (STEP, "            for group in optimizer.param_groups:\n                group['lr'] /= 2\n" + STEP + STEP)),
    one(EACH, "a new one in each step", (STEP, "            make_optimizer([parameter]).step()\n")),
    one(EACH, "two are made, one is used", (MAKE, MAKE[:12] + "make_optimizer([parameter]) and make_optimizer([parameter])")),
    one(EACH, "the first is not returned", (RETURN, "return optimizers[1:], handles")),
    # the handles
    one(OFF, "no handles", (RETURN, "return optimizers, []")),
    one(OFF, "only the last handle", (RETURN, "return optimizers, handles[-1:]")),
    one(OFF, "handles of something else", (HOOK, "parameter.register_post_accumulate_grad_hook(step)\n        handles.append(parameter.register_post_accumulate_grad_hook(lambda p: None))")),
    one(OFF, "freeing stays on", (HOOK, HOOK + "\n        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, 'grad', None))")),
]  # fmt: skip

RIGHT = {
    "functions, block by block": """
import torch


def encode(x, book, block):
    codes, scales = [], []
    for part in x.detach().reshape(-1).split(block):
        scale = part.abs().max()
        scaled = torch.where(scale > 0, part / scale, torch.zeros_like(part))
        right = torch.searchsorted(book, scaled).clamp(1, len(book) - 1)
        lower = (scaled - book[right - 1]) < (book[right] - scaled)
        codes.append((right - lower.long()).to(torch.uint8))
        scales.append(scale)
    return torch.cat(codes), torch.stack(scales)


def decode(codes, scales, book, block, shape):
    parts = [book.index_select(0, part.long()) * s for part, s in zip(codes.split(block), scales)]
    return torch.cat(parts).reshape(shape)


class Adam8(torch.optim.Optimizer):
    def __init__(self, params, books, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))
        self.books = books

    def unpack(self, p, name, book):
        state = self.state[p]
        if name not in state:
            return torch.zeros_like(p)
        return decode(*state[name], book, 256, p.shape) if p.numel() >= 4096 else state[name]

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state["t"] = state.get("t", 0) + 1
                m = self.unpack(p, "m", self.books[0]) * b1 + p.grad * (1 - b1)
                v = self.unpack(p, "v", self.books[1]) * b2 + p.grad**2 * (1 - b2)
                p -= group["lr"] * (m / (1 - b1 ** state["t"])) / ((v / (1 - b2 ** state["t"])).sqrt() + group["eps"])
                for name, moment, book in (("m", m, self.books[0]), ("v", v, self.books[1])):
                    state[name] = moment if p.numel() < 4096 else encode(moment, book, 256)


def step_in_backward(parameters, make_optimizer):
    optimizers, handles = [], []

    def hook_for(optimizer):
        def hook(p):
            optimizer.step()
            p.grad = None

        return hook

    for p in {id(p): p for p in parameters if p.requires_grad}.values():
        optimizers.append(make_optimizer([p]))
        handles.append(p.register_post_accumulate_grad_hook(hook_for(optimizers[-1])))
    return optimizers, handles
""",
    "one hook and a dictionary": """
import torch
from torch.nn.functional import pad


def encode(x, book, block):
    n = x.numel()
    rows = pad(x.flatten(), (0, (block - n % block) % block)).reshape(-1, block)
    scales = torch.linalg.vector_norm(rows, ord=torch.inf, dim=1)
    safe = torch.where(scales == 0, torch.ones_like(scales), scales)
    place = torch.searchsorted((book[1:] + book[:-1]) / 2, (rows / safe.unsqueeze(1)).contiguous(), out_int32=True)
    return place.to(torch.uint8).flatten()[:n].clone(), scales


def decode(codes, scales, book, block, shape):
    rows = pad(book[codes.long()], (0, -len(codes) % block)).view(-1, block)
    return (rows * scales.unsqueeze(1)).flatten()[: len(codes)].view(shape)


class Moment:
    def __init__(self, p, book):
        self.book, self.whole = book, p.numel() < 4096

    def blend(self, state, name, p, new, beta):
        if name not in state:
            old = torch.zeros_like(p)
        else:
            old = state[name] if self.whole else decode(state[name], state[name + " scales"], self.book, 256, p.shape)
        now = torch.lerp(old, new, 1 - beta)
        if self.whole:
            state[name] = now
        else:
            state[name], state[name + " scales"] = encode(now, self.book, 256)
        return now


class Adam8(torch.optim.Optimizer):
    def __init__(self, params, books, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        self.books = books

    def step(self):
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        self.update(p, self.state[p], group["lr"], *group["betas"], group["eps"])

    def update(self, p, state, lr, beta1, beta2, eps):
        t = state.get("t", 0) + 1
        state["t"] = t
        m = Moment(p, self.books[0]).blend(state, "m", p, p.grad, beta1)
        v = Moment(p, self.books[1]).blend(state, "v", p, p.grad * p.grad, beta2)
        p.sub_(lr * (m / (1 - beta1**t)) / (torch.sqrt(v / (1 - beta2**t)) + eps))


def step_in_backward(parameters, make_optimizer):
    optimizer_of = {}

    def hook(p):
        optimizer_of[id(p)].step()
        p.grad = None

    handles = []
    for p in list(parameters):
        if not p.requires_grad or id(p) in optimizer_of:
            continue
        optimizer_of[id(p)] = make_optimizer([p])
        handles.append(p.register_post_accumulate_grad_hook(hook))
    return list(optimizer_of.values()), handles
""",
    "a class that is the hook": """
import torch


def borders_of(book):
    return torch.stack([book[:-1], book[1:]]).mean(0)


def encode(x, book, block):
    flat = x.reshape(-1)
    which = torch.arange(len(flat), device=x.device) // block
    scales = torch.zeros(int(which[-1]) + 1, device=x.device)
    scales = scales.scatter_reduce(0, which, flat.abs(), "amax")
    scaled = (flat / scales[which]).nan_to_num(0.0)
    return torch.bucketize(scaled, borders_of(book), right=True).to(torch.uint8), scales


def decode(codes, scales, book, block, shape):
    which = torch.arange(len(codes), device=codes.device) // block
    return torch.take(book, codes.long()).mul(scales[which]).reshape(shape)


class Adam8(torch.optim.Optimizer):
    def __init__(self, params, books, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        self.books = books

    @torch.no_grad()
    def step(self):
        for group, p in [(g, p) for g in self.param_groups for p in g["params"] if p.grad is not None]:
            whole = torch.optim.Adam([torch.nn.Parameter(p)], lr=group["lr"], betas=group["betas"], eps=group["eps"], foreach=False)
            (twin,) = whole.param_groups[0]["params"]
            twin.grad = p.grad
            state = self.state[p]
            if state:
                whole.state[twin]["step"] = torch.tensor(float(state["step"]))
                for name, book in zip(("exp_avg", "exp_avg_sq"), self.books):
                    kept = state[name]
                    whole.state[twin][name] = decode(*kept, book, 256, p.shape) if type(kept) is tuple else kept
            whole.step()
            p.copy_(twin)
            after = whole.state[twin]
            state["step"] = int(after["step"])
            for name, book in zip(("exp_avg", "exp_avg_sq"), self.books):
                state[name] = encode(after[name], book, 256) if p.numel() >= 4096 else after[name]


class Stepper:
    def __init__(self, p, make_optimizer):
        self.optimizer = make_optimizer(iter([p]))
        self.handle = p.register_post_accumulate_grad_hook(self)

    def __call__(self, p):
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def step_in_backward(parameters, make_optimizer):
    seen, steppers = set(), []
    for p in parameters:
        if p.requires_grad and p not in seen:
            seen.add(p)
            steppers.append(Stepper(p, make_optimizer))
    return tuple(s.optimizer for s in steppers), [s.handle for s in steppers]
""",
}
