"""Wrong and right answers for the practice task of lean optimizers."""

from . import Mutant

BACKWARD = "lean_optimizers.backward"
STEPS, FREES = "steps_like_one_optimizer", "frees_each_gradient_at_once"
EACH, OFF = "one_optimizer_for_each", "comes_off_again"

TRAINED = "dict.fromkeys(p for p in parameters if p.requires_grad)"
MAKE = "optimizer = make_optimizer([parameter])"
DEF = "def step(parameter, optimizer=optimizer):"
STEP, DROP = "            optimizer.step()\n", "            optimizer.zero_grad()\n"
HOOK = "handles.append(parameter.register_post_accumulate_grad_hook(step))"
RETURN = "return optimizers, handles"


def one(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, BACKWARD, check, replace, raises)


MUTANTS = [
    # the steps
    one(STEPS, "a hook that comes before the gradient", ("register_post_accumulate_grad_hook(step)", "register_hook(lambda gradient, step=step: step(None))")),
    one(STEPS, "steps twice", (STEP, STEP + STEP)),
    one(STEPS, "drops the gradient first", (STEP + DROP, DROP + STEP)),
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
    "one hook and a dictionary": """
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
import functools


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
