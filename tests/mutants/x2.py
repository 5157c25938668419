"""Wrong and right answers for X2."""

from . import Mutant

STEP, TOKENS, SCALED, EPOCH, NORM = "x2.step", "x2.tokens", "x2.scaled", "x2.epoch", "x2.groupnorm"
FULL, RAGGED, ONE, MEMORY = (
    "update_equals_full_batch",
    "ragged_last_micro_batch",
    "one_step_of_micro_batches",
    "memory_falls_to_the_micro_batch",
)
WEIGH, CLIP = "tokens_weigh_the_same", "clips_the_whole_gradient_once"
EACH, LAST, SCHEDULER = "each_group_counts", "last_group_counts", "scheduler_steps_with_the_optimizer"
REPLACED = "every_batch_norm_is_replaced"

# Words of the reference that mutants replace.
LOOP = "    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):\n"
STEP_LOSS = "        loss = loss_fn(model(xs), ys) * (len(xs) / len(x))\n"
STEP_TAIL = (
    STEP_LOSS
    + "        loss.backward()\n        total = total + loss.detach()\n    optimizer.step()\n    return total\n"
)
TOKEN_TAIL = (
    '        loss = F.cross_entropy(logits.flatten(0, 1), ys.flatten(), reduction="sum") / counted\n'
    "        loss.backward()\n        total = total + loss.detach()\n    optimizer.step()\n"
)
SCALED_LOSS = (
    "        loss = F.cross_entropy(model(xs), ys) * (len(xs) / len(x))\n        scaler.scale(loss).backward()\n"
)
EPOCH_LOSS = "        loss = loss_fn(model(x), y) * len(x)  # the sum over rows\n"
NORM_HEAD = "def with_group_norm(model, groups):\n"
NEW_NORM = "norm = nn.GroupNorm(groups, child.num_features, eps=child.eps)"
STEP_HEAD = (
    "def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch):\n    optimizer.zero_grad()\n"
    "    total = torch.zeros((), device=x.device)\n"
)


def one(name: str, part: str, rejected_by: str, *replace: tuple[str, str]) -> Mutant:
    return Mutant(name, part, rejected_by, replace)


def step(name: str, rejected_by: str, body: str) -> Mutant:
    """A mutant with another body of the accumulated step."""
    return Mutant(
        name,
        STEP,
        rejected_by,
        ((STEP_HEAD + LOOP + STEP_TAIL, STEP_HEAD.partition("\n")[0] + "\n" + body),),
    )


def norm_class(name: str, forward: str) -> Mutant:
    """A mutant whose new norms have another forward pass."""
    kind = f"class GroupNorm(nn.GroupNorm):\n    def forward(self, x):\n        return {forward}\n\n\n"
    return one(name, NORM, REPLACED, (NORM_HEAD, kind + NORM_HEAD), (NEW_NORM, NEW_NORM.replace("nn.", "")))


MUTANTS = [
    # the step
    step("learning rate divided", FULL, """
    optimizer.zero_grad()
    total = torch.zeros(())
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch)):
        loss = loss_fn(model(xs), ys) * len(xs)
        loss.backward()
        total = total + loss.detach()
    for group in optimizer.param_groups:
        group["lr"] /= len(x)
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] *= len(x)
    return total / len(x)
"""),
    one("loss function hard-wired", STEP, FULL, (STEP_LOSS, STEP_LOSS.replace("loss_fn", "F.cross_entropy"))),
    one("rows in another order", STEP, ONE, (
        STEP_HEAD + LOOP, STEP_HEAD + LOOP.replace("x.split", "x.flip(0).split").replace("y.split", "y.flip(0).split"))),
    one("returns a loss with a dimension", STEP, ONE, (STEP_TAIL, STEP_TAIL.replace("return total", "return total[None]"))),
    one("returns nothing", STEP, ONE, (STEP_TAIL, STEP_TAIL.replace("    return total\n", ""))),
    step("one big batch", ONE, """
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()
"""),
    step("one big batch past the spy, and micro-batches for show", ONE, """
    optimizer.zero_grad()
    for xs in x.split(micro_batch):
        with torch.no_grad():
            model(xs)
    loss = loss_fn(model.forward(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()
"""),
    step("one big batch, memory tells", MEMORY, """
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()
"""),
    step("summed losses with one backward", MEMORY, """
    optimizer.zero_grad()
    pieces = zip(x.split(micro_batch), y.split(micro_batch))
    loss = sum(loss_fn(model(xs), ys) * len(xs) / len(x) for xs, ys in pieces)
    loss.backward()
    optimizer.step()
    return loss.detach()
"""),
    step("full batch behind a faked forward", MEMORY, """
    optimizer.zero_grad()
    hooks, model._forward_pre_hooks = model._forward_pre_hooks, type(model._forward_pre_hooks)()
    loss = loss_fn(model(x), y)
    loss.backward()
    model._forward_pre_hooks = hooks
    for xs in x.split(micro_batch):
        for hook in list(hooks.values()):
            hook(model, (xs,))
    optimizer.step()
    return loss.detach()
"""),
    step("outputs kept to the end", MEMORY, """
    optimizer.zero_grad()
    kept, total = [], torch.zeros(())
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch)):
        loss = loss_fn(model(xs), ys) * len(xs) / len(x)
        loss.backward(retain_graph=True)
        kept.append(loss)
    optimizer.step()
    return sum(kept).detach()
"""),
    step("mean of the gradients' signs", FULL, """
    optimizer.zero_grad()
    total = torch.zeros(())
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch)):
        loss = loss_fn(model(xs), ys) * len(xs) / len(x)
        loss.backward()
        total = total + loss.detach()
    for p in model.parameters():
        p.grad.sign_()
    optimizer.step()
    return total
"""),
    one("no division", STEP, FULL, (STEP_LOSS, "        loss = loss_fn(model(xs), ys)\n")),
    one("division by a constant", STEP, FULL, (STEP_LOSS, "        loss = loss_fn(model(xs), ys) / 4\n")),
    one("division twice", STEP, FULL, (STEP_LOSS, STEP_LOSS.replace(")\n", ") * (len(xs) / len(x))\n"))),
    one("mean of means", STEP, RAGGED, (STEP_LOSS,
        "        loss = loss_fn(model(xs), ys) / len(x.split(micro_batch))\n")),
    one("rows over micro-batch size", STEP, RAGGED, (STEP_LOSS,
        "        loss = loss_fn(model(xs), ys) * micro_batch / len(x)\n")),
    one("ragged micro-batch dropped", STEP, RAGGED, (STEP_LOSS,
        "        if len(xs) < micro_batch:\n            break\n" + STEP_LOSS)),
    one("zero_grad missing", STEP, FULL, (STEP_HEAD, STEP_HEAD.replace("    optimizer.zero_grad()\n", ""))),
    one("zero_grad for each micro-batch", STEP, FULL, (STEP_LOSS, STEP_LOSS + "        optimizer.zero_grad()\n")),
    one("a step for each micro-batch", STEP, ONE, (STEP_TAIL,
        STEP_TAIL.replace("    optimizer.step()\n", "").replace("loss.detach()\n", "loss.detach()\n        optimizer.step()\n"))),
    one("returns the last loss", STEP, ONE, (STEP_TAIL, STEP_TAIL.replace("return total", "return loss.detach()"))),
    one("returns a live graph", STEP, ONE, (STEP_TAIL, STEP_TAIL.replace("loss.detach()", "loss"))),
    one("micro-batches of one row", STEP, ONE, (STEP_HEAD + LOOP, STEP_HEAD + LOOP.replace("micro_batch", "1"))),
    # tokens
    one("mean of token means", TOKENS, WEIGH, ('reduction="sum") / counted', "reduction='mean') * (len(xs) / len(ids))")),
    one("all tokens counted", TOKENS, WEIGH, ("(targets != -100).sum()", "targets.numel()")),
    one("tokens of the micro-batch counted", TOKENS, WEIGH, ("/ counted", "/ (ys != -100).sum().clamp(min=1)")),
    one("NaN from an empty micro-batch", TOKENS, WEIGH, ('reduction="sum") / counted',
        "reduction='mean') * ((ys != -100).sum() / counted)")),
    one("whole text at once", TOKENS, WEIGH, ("ids.split(micro_batch), targets.split(micro_batch)",
        "ids.split(len(ids)), targets.split(len(ids))")),
    one("returns a live token loss", TOKENS, WEIGH, (
        'reduction="sum") / counted\n        loss.backward()\n        total = total + loss.detach()',
        'reduction="sum") / counted\n        loss.backward()\n        total = total + loss')),
    one("old gradients in the token step", TOKENS, WEIGH, (
        "    optimizer.zero_grad()\n    counted", "    counted")),
    one("old gradients under the scaler", SCALED, CLIP, (
        "max_norm):\n    optimizer.zero_grad()\n", "max_norm):\n")),
    one("token losses summed, one backward", TOKENS, WEIGH, (TOKEN_TAIL, TOKEN_TAIL.replace(
        "        loss.backward()\n", "").replace("loss.detach()", "loss").replace(
        "    optimizer", "    total.backward()\n    total = total.detach()\n    optimizer"))),
    one("a step for each micro-batch of tokens", TOKENS, WEIGH, (TOKEN_TAIL, TOKEN_TAIL.replace(
        "    optimizer", "        optimizer"))),
    one("returns the last token loss", TOKENS, WEIGH, (TOKEN_TAIL, TOKEN_TAIL.replace("total + ", ""))),
    one("micro-batches of four rows whatever is asked", TOKENS, WEIGH, (
        "ids.split(micro_batch), targets.split(micro_batch)", "ids.split(4), targets.split(4)")),
    one("old gradients in the epoch", EPOCH, EACH, (
        "    optimizer.zero_grad()\n    micro_batches = 0\n", "    micro_batches = 0\n")),
    one("a copy of the model", NORM, REPLACED, ("    return model\n", "    import copy\n\n    return copy.deepcopy(model)\n")),
    one("a second forward pass of the tokens", TOKENS, WEIGH, ("        logits = model(xs)  # (n, T, vocabulary)\n",
        "        model(xs)\n        logits = model(xs)\n")),
    one("padding taken to be at the end", TOKENS, WEIGH, ("        logits = model(xs)  # (n, T, vocabulary)\n",
        "        lengths = (ys != -100).sum(1)\n"
        "        ys = ys.masked_fill(torch.arange(ys.size(1)) >= lengths[:, None], -100)\n        logits = model(xs)\n")),
    one("logits kept", TOKENS, WEIGH, ("    counted = (targets != -100).sum()\n",
        "    kept, counted = [], (targets != -100).sum()\n"), ("        logits = model(xs)  # (n, T, vocabulary)\n",
        "        logits = model(xs)\n        kept.append(logits)\n")),
    # scaler and clipping
    one("clips scaled gradients", SCALED, CLIP, (
        "    scaler.unscale_(optimizer)\n    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n",
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n    scaler.unscale_(optimizer)\n")),
    one("learning rate of the token step divided", TOKENS, WEIGH, (TOKEN_TAIL,
        TOKEN_TAIL.replace(" / counted", "").replace("total + loss.detach()", "total + loss.detach() / counted").replace(
            "    optimizer.step()\n", "    for group in optimizer.param_groups:\n        group['lr'] /= counted.item()\n"
            "    optimizer.step()\n    for group in optimizer.param_groups:\n        group['lr'] *= counted.item()\n"))),
    one("never clips", SCALED, CLIP, ("    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n", "")),
    one("clips each micro-batch", SCALED, CLIP, ("        scaler.scale(loss).backward()\n",
        "        scaler.scale(loss).backward()\n"
        "        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm * 1024)\n")),
    one("update for each micro-batch", SCALED, CLIP, ("        scaler.scale(loss).backward()\n",
        "        scaler.scale(loss).backward()\n        scaler.update(1024.0)\n")),
    Mutant("scaler left out", SCALED, CLIP, (("scaler.scale(loss).backward()", "loss.backward()"),),
        raises="Attempted unscale_ but _scale is None"),
    one("unscale for each micro-batch", SCALED, CLIP, (
        "        scaler.scale(loss).backward()\n    scaler.unscale_(optimizer)\n",
        "        scaler.scale(loss).backward()\n        scaler.unscale_(optimizer)\n        scaler.update(1024.0)\n")),
    one("whole batch under the scaler", SCALED, CLIP, (SCALED_LOSS, SCALED_LOSS.replace("xs", "x").replace("ys", "y")
        + "        break\n")),
    one("rows in another order under the scaler", SCALED, CLIP, (
        "max_norm):\n    optimizer.zero_grad()\n", "max_norm):\n    optimizer.zero_grad()\n    x, y = x.flip(0), y.flip(0)\n")),
    one("scaled losses summed, one backward", SCALED, CLIP, (
        "max_norm):\n    optimizer.zero_grad()\n", "max_norm):\n    optimizer.zero_grad()\n    total = 0.0\n"),
        (SCALED_LOSS, SCALED_LOSS.replace("scaler.scale(loss).backward()", "total = total + loss")
        + "    scaler.scale(total).backward()\n")),
    one("scaled, and weighed like whole micro-batches", SCALED, CLIP, (SCALED_LOSS, SCALED_LOSS.replace(
        "len(xs) / len(x)", "micro_batch / len(x)"))),
    one("scale asked for and not used", SCALED, CLIP, (SCALED_LOSS, SCALED_LOSS.replace(
        "scaler.scale(loss).backward()", "scaler.scale(loss)\n        loss.backward()"))),
    one("step past the scaler", SCALED, CLIP, ("    scaler.step(optimizer)\n", "    optimizer.step()\n")),
    one("scaler never updated", SCALED, CLIP, ("    scaler.update()\n", "")),
    one("scaler updated before the step", SCALED, CLIP, (
        "    scaler.step(optimizer)\n    scaler.update()\n",
        "    step, states = scaler.step, dict(scaler._per_optimizer_states)\n    scaler.update()\n"
        "    scaler._per_optimizer_states.update(states)\n    step(optimizer)\n")),
    one("clips each parameter by itself", SCALED, CLIP, (
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n    scaler.step",
        "    for p in model.parameters():\n        torch.nn.utils.clip_grad_norm_([p], max_norm)\n    scaler.step")),
    one("something comes back from the scaled step", SCALED, CLIP, (
        "    scaler.update()\n", "    scaler.update()\n    return loss.detach()\n")),
    one("an overflow is an error", SCALED, CLIP, (
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n    scaler.step",
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, error_if_nonfinite=True)\n    scaler.step")),
    one("a micro-batch that overflows is left out", SCALED, CLIP, ("        scaler.scale(loss).backward()\n",
        "        if loss.isfinite():\n            scaler.scale(loss).backward()\n")),
    one("clips each group of parameters by itself", SCALED, CLIP, (
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n    scaler.step",
        "    for group in optimizer.param_groups:\n"
        "        torch.nn.utils.clip_grad_norm_(group['params'], max_norm)\n    scaler.step")),
    # the epoch
    one("whole epoch in memory", EPOCH, EACH, ("for x, y in loader:", "for x, y in list(loader):")),
    one("copies of the whole epoch in memory", EPOCH, EACH, (
        "for x, y in loader:", "for x, y in [(x.clone(), y.clone()) for x, y in loader]:")),
    one("a row of each micro-batch kept", EPOCH, EACH, (
        "    micro_batches = 0\n    for", "    kept, micro_batches = [], 0\n    for"),
        (EPOCH_LOSS, "        kept.append(x[:1])\n" + EPOCH_LOSS)),
    one("full groups divided by twice their rows", EPOCH, EACH, (
        "accumulate:\n            update()", "accumulate:\n            rows, total = rows * 2, total * 2\n            update()")),
    one("loss function of the epoch hard-wired", EPOCH, EACH, (EPOCH_LOSS, EPOCH_LOSS.replace("loss_fn", "F.cross_entropy"))),
    one("learning rate of the epoch divided", EPOCH, EACH, (
        "        for parameter in model.parameters():\n"
        "            parameter.grad /= rows  # the group's size is known only now\n        optimizer.step()\n",
        "        for group in optimizer.param_groups:\n            group['lr'] /= rows\n        optimizer.step()\n"
        "        for group in optimizer.param_groups:\n            group['lr'] *= rows\n")),
    one("weights decay once more", EPOCH, EACH, (
        "        optimizer.step()\n        optimizer.zero_grad()\n",
        "        optimizer.step()\n        for p in model.parameters():\n            p.data.mul_(0.999)\n"
        "        optimizer.zero_grad()\n")),
    one("losses of the epoch with graphs", EPOCH, EACH, ("total + loss.item()", "total + loss")),
    one("sums of losses instead of means", EPOCH, EACH, ("losses.append(total / rows)", "losses.append(total)")),
    one("a loss for each micro-batch", EPOCH, EACH, (
        "        losses.append(total / rows)\n", ""), ("        loss.backward()\n        rows,",
        "        loss.backward()\n        losses.append(loss.item() / len(x))\n        rows,")),
    one("epoch returns nothing", EPOCH, EACH, ("    return losses", "    return None")),
    one("micro-batches cut in two", EPOCH, EACH, (EPOCH_LOSS,
        "        loss = sum(loss_fn(model(a), b) * len(a) for a, b in zip(x.chunk(2), y.chunk(2)))\n")),
    one("pairs of micro-batches swapped", EPOCH, EACH, ("for x, y in loader:",
        "for x, y in (pair for one in loader for pair in [*[p for p in [next(loader, None)] if p], one]):")),
    one("an update for no rest", EPOCH, LAST, ("    if micro_batches:\n        update()\n    return",
        "    if not micro_batches:\n        optimizer.step()\n    if micro_batches:\n        update()\n    return")),
    one("the rest joins the last full group's loss", EPOCH, LAST, ("    return losses",
        "    if micro_batches and len(losses) > 1:\n        losses[-2:] = [sum(losses[-2:]) / 2]\n    return losses")),
    one("loss of the rest over a full group's rows", EPOCH, LAST, ("    return losses",
        "    if micro_batches:\n        losses[-1] *= micro_batches / accumulate\n    return losses")),
    one("scheduler before the optimizer", EPOCH, SCHEDULER, ("        scheduler.step()\n", ""),
        ("        optimizer.step()\n        optimizer.zero_grad()\n",
         "        scheduler.step()\n        optimizer.step()\n        optimizer.zero_grad()\n")),
    one("last partial group dropped", EPOCH, LAST, ("    if micro_batches:\n        update()\n    return", "    return")),
    one("last group divided like a full one", EPOCH, LAST, ("    if micro_batches:\n        update()",
        "    if micro_batches:\n        rows = rows * accumulate / micro_batches\n        update()")),
    one("update for each micro-batch of the epoch", EPOCH, EACH, ("if micro_batches == accumulate:", "if True:")),
    one("gradients leak into the next group", EPOCH, EACH, (
        "        optimizer.step()\n        optimizer.zero_grad()\n        scheduler", "        optimizer.step()\n        scheduler")),
    one("micro-batches weigh the same", EPOCH, EACH, ("* len(x)  # the sum over rows", "* 16")),
    one("scheduler for each micro-batch", EPOCH, SCHEDULER, ("        scheduler.step()\n", ""),
        ("        micro_batches += 1\n", "        micro_batches += 1\n        scheduler.step()\n")),
    one("scheduler forgotten", EPOCH, SCHEDULER, ("        scheduler.step()\n", "")),
    one("scheduler once an epoch", EPOCH, SCHEDULER, ("        scheduler.step()\n", ""),
        ("    return losses", "    scheduler.step()\n    return losses")),
    one("scheduler after full groups only", EPOCH, SCHEDULER, ("        scheduler.step()\n",
        "        if micro_batches == accumulate:\n            scheduler.step()\n")),
    one("scheduler twice at the end", EPOCH, SCHEDULER, ("    return losses", "    if micro_batches:\n"
        "        scheduler.step()\n    return losses")),
    one("a rest of one micro-batch dropped", EPOCH, LAST, ("    if micro_batches:\n", "    if micro_batches > 1:\n")),
    one("a rest of one row dropped", EPOCH, LAST, ("    if micro_batches:\n", "    if rows > 1:\n")),
    one("groups have two micro-batches at least", EPOCH, EACH, ("== accumulate:", "== max(2, accumulate):")),
    one("losses in a tensor", EPOCH, EACH, ("    return losses", "    return torch.tensor(losses)")),
    one("a graph for each group", EPOCH, EACH, ("    losses, rows, total = [], 0, 0.0\n",
        "    losses, rows, total, graphs = [], 0, 0.0, []\n"), ("        loss.backward()\n        rows,", "        graphs.append(loss)\n        rows,"),
        ("    def update():\n", "    def update():\n        sum(graphs).backward()\n        graphs.clear()\n")),
    one("clips in the epoch", EPOCH, EACH, ("        optimizer.step()\n        optimizer.zero_grad()\n        scheduler",
        "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        optimizer.step()\n"
        "        optimizer.zero_grad()\n        scheduler")),
    one("the optimizer's state dropped", EPOCH, EACH, ("        optimizer.step()\n        optimizer.zero_grad()\n        scheduler",
        "        optimizer.step()\n        optimizer.state.clear()\n        optimizer.zero_grad()\n        scheduler")),
    one("the epoch in evaluation mode", EPOCH, EACH, ("    optimizer.zero_grad()\n    micro_batches = 0\n",
        "    model.eval()\n    optimizer.zero_grad()\n    micro_batches = 0\n")),
    one("the model left in evaluation mode", EPOCH, EACH, ("    return losses", "    model.eval()\n    return losses")),
    # normalization
    one("children only", NORM, REPLACED, ("list(model.modules())", "[model]")),
    one("scale and shift forgotten", NORM, REPLACED, (
        '                norm.load_state_dict({"weight": child.weight, "bias": child.bias})\n', "")),
    one("eps forgotten", NORM, REPLACED, (", eps=child.eps", "")),
    one("one group", NORM, REPLACED, ("nn.GroupNorm(groups,", "nn.GroupNorm(1,")),
    one("FP32 only", NORM, REPLACED, ("norm.to(child.weight.device, child.weight.dtype)", "norm.to(child.weight.device)")),
    one("left on the CPU", NORM, REPLACED, ("norm.to(child.weight.device, child.weight.dtype)", "norm.to(child.weight.dtype)")),
    one("shift forgotten", NORM, REPLACED, ('{"weight": child.weight, "bias": child.bias}',
        '{"weight": child.weight, "bias": child.bias * 0}')),
    one("BatchNorm without running statistics", NORM, REPLACED, (NEW_NORM,
        "norm = nn.BatchNorm2d(child.num_features, eps=child.eps, track_running_stats=False)")),
    one("every kind of BatchNorm", NORM, REPLACED, ("nn.BatchNorm2d", "nn.modules.batchnorm._BatchNorm")),
    one("mode forgotten", NORM, REPLACED, (".train(child.training)", "")),
    one("the model's mode", NORM, REPLACED, (".train(child.training)", ".train(model.training)")),
    one("model set to training", NORM, REPLACED, ("    return model\n", "    return model.train()\n")),
    one("other weights touched", NORM, REPLACED, ("    return model\n",
        "    for m in model.modules():\n        if isinstance(m, nn.Conv2d):\n            m.weight.data.mul_(0.999)\n    return model\n")),
    one("four groups at most", NORM, REPLACED, ("nn.GroupNorm(groups,", "nn.GroupNorm(min(groups, 4),")),
    one("running mean taken off the shift", NORM, REPLACED, ('"bias": child.bias}', '"bias": child.bias - child.running_mean}')),
    one("everything trainable again", NORM, REPLACED, ("    return model\n", "    return model.requires_grad_()\n")),
    one("norms in boxes", NORM, REPLACED, ("setattr(module, name, norm)", "setattr(module, name, nn.Sequential(norm))")),
    one("scales in another order", NORM, REPLACED, ('{"weight": child.weight,', '{"weight": child.weight.flip(0),')),
    norm_class("statistics over the batch", "nn.functional.batch_norm(x, None, None, self.weight, self.bias, True)"),
    norm_class("scale and shift not applied", "nn.functional.group_norm(x, self.num_groups) + 0 * (self.weight.sum() + self.bias.sum())"),
]  # fmt: skip

RIGHT = {
    "by index, in one list": """
import torch
import torch.nn.functional as F
from torch import nn


def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch):
    n = x.shape[0]
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None
    weighted = []
    for start in range(0, n, micro_batch):
        end = min(start + micro_batch, n)
        loss = loss_fn(model(x[start:end]), y[start:end])
        (loss * (end - start) / n).backward()
        weighted.append(loss.item() * (end - start) / n)
    optimizer.step()
    return torch.tensor(sum(weighted))


def token_step(model, optimizer, ids, targets, micro_batch):
    model.zero_grad()
    valid = int((targets >= 0).sum())
    summed = 0.0
    for start in range(0, len(ids), micro_batch):
        y = targets[start : start + micro_batch]
        logits = model(ids[start : start + micro_batch])
        rows = F.cross_entropy(logits.transpose(1, 2), y, reduction="none").sum()
        (rows / valid).backward()
        summed += rows.detach().item()
    optimizer.step()
    return torch.tensor(summed / valid)


def scaled_step(model, optimizer, scaler, x, y, micro_batch, max_norm):
    model.zero_grad()
    factor = scaler.scale(torch.ones(()))
    for start in range(0, len(x), micro_batch):
        part = slice(start, start + micro_batch)
        loss = F.cross_entropy(model(x[part]), y[part], reduction="sum") / len(x)
        loss.backward(gradient=factor)
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], max_norm)
    scaler.step(optimizer)
    scaler.update()


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate):
    from itertools import islice

    stream, losses = iter(loader), []
    while group := list(islice(stream, accumulate)):
        rows = sum(len(x) for x, _ in group)
        optimizer.zero_grad()
        loss = 0.0
        for x, y in group:
            part = loss_fn(model(x), y) * (len(x) / rows)
            part.backward()
            loss += float(part.detach())
        optimizer.step()
        scheduler.step()
        losses.append(loss)
    return losses


def with_group_norm(model, groups):
    def replace(parent):
        for name, child in list(parent.named_children()):
            if type(child) is nn.BatchNorm2d:
                new = nn.GroupNorm(groups, child.num_features, child.eps, dtype=child.weight.dtype)
                new.weight, new.bias = child.weight, child.bias
                new.training = child.training
                parent.add_module(name, new)
            else:
                replace(child)

    replace(model)
    return model
""",
    "gradients divided at the end": """
import torch
import torch.nn.functional as F
from torch import nn


def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch):
    optimizer.zero_grad(set_to_none=False)
    summed, rows, at = 0.0, len(x), 0
    while at < rows:
        xs, ys = x[at : at + micro_batch], y[at : at + micro_batch]
        loss = loss_fn(model(xs), ys) * xs.size(0)
        loss.backward()
        summed = summed + loss.detach()
        at += micro_batch
    with torch.no_grad():
        for p in model.parameters():
            p.grad.div_(rows)
    optimizer.step()
    return summed / rows


def token_step(model, optimizer, ids, targets, micro_batch):
    optimizer.zero_grad()
    losses = []
    for xs, ys in zip(torch.split(ids, micro_batch), torch.split(targets, micro_batch)):
        loss = nn.CrossEntropyLoss(reduction="sum", ignore_index=-100)(model(xs).flatten(0, 1), ys.flatten())
        loss.backward()
        losses.append(loss.detach())
    count = targets.ne(-100).sum()
    for p in model.parameters():
        p.grad.mul_(1 / count)
    optimizer.step()
    return torch.stack(losses).sum() / count


def scaled_step(model, optimizer, scaler, x, y, micro_batch, max_norm):
    optimizer.zero_grad()
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch)):
        weight = xs.shape[0] / x.shape[0]
        (scaler.scale(F.cross_entropy(model(xs), ys)) * weight).backward()
    scaler.unscale_(optimizer)
    total = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    for p in model.parameters():
        p.grad.mul_(min(1.0, max_norm / (total.item() + 1e-6)))
    scaler.step(optimizer)
    scaler.update()


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate):
    losses, group = [], []

    def flush():
        optimizer.zero_grad()
        rows = sum(x.size(0) for x, y in group)
        total = torch.zeros(())
        for x, y in group:
            loss = loss_fn(model(x), y) * x.size(0) / rows
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        scheduler.step()
        losses.append(total)
        group.clear()

    for pair in loader:
        group.append(pair)
        if len(group) == accumulate:
            flush()
    if group:
        flush()
    return losses


def with_group_norm(model, groups):
    found = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]
    for name, old in found:
        parent = model.get_submodule(name.rpartition(".")[0])
        new = nn.GroupNorm(groups, old.num_features, eps=old.eps).to(old.weight)
        with torch.no_grad():
            new.weight.copy_(old.weight)
            new.bias.copy_(old.bias)
        setattr(parent, name.rpartition(".")[2], new.train(old.training))
    return model
""",
}
