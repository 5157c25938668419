"""Wrong and right answers for X3."""

from . import Mutant, one

EPOCH, EVALUATE, WORKER = "x3.epoch", "x3.evaluate", "x3.worker"
JOINT, RAGGED, SYNC = "update_equals_joint_batch", "ragged_groups_weigh_by_rows", "one_synchronisation_an_update"
ORDER, LOSS = "every_epoch_in_a_new_order", "loss_is_of_all_ranks"
ONCE, SHARES = "every_test_row_counts_once", "evaluation_shares_the_work"
AGREE, SAVES, CLOSES = "replicas_share_the_work_and_agree", "rank0_saves_for_all", "closes_and_reports"

# Words of the reference that mutants replace.
FORWARD = 'F.cross_entropy(model(x.to(here)), y.to(here), reduction="sum")'
NO_SYNC = "with contextlib.nullcontext() if last else model.no_sync():"
DIVIDE = "p.grad /= rows  # DDP has divided by the number of ranks"
LAST = "last = i % accumulate == 0 or i == len(loader)"
SHARE = "Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))"
WRAP = "DistributedDataParallel(job.make_model().to(here))  # sends rank 0's weights to all"
SAMPLER = "DistributedSampler(job.train, shuffle=True, seed=job.seed)"
SAVE = "    if dist.get_rank() == 0:\n        torch.save(model.module.state_dict(), job.checkpoint)\n"
CLOSE = "    dist.barrier()\n    dist.destroy_process_group()\n"
BACKWARD = "            loss.backward()\n"
STEP = "            optimizer.step()\n"
BEGIN = "    rows = 0\n    optimizer.zero_grad()\n"
SEEN = "        seen += torch.tensor([loss.item(), len(x)], device=here)\n"
EVAL = "    inner.eval()\n"
TRAINED = "[p for p in model.parameters() if p.requires_grad]"
OPEN = """        torch.cuda.set_device(here)
        dist.init_process_group("nccl", device_id=here)
"""

MUTANTS = [
    # the epoch
    one("sum for mean", EPOCH, JOINT, DIVIDE, "pass"),
    one("divided by the joint rows", EPOCH, JOINT, DIVIDE, "p.grad /= rows * dist.get_world_size()"),
    one("averaged twice", EPOCH, JOINT, DIVIDE, "p.grad /= rows\n                dist.all_reduce(p.grad)\n                p.grad /= dist.get_world_size() ** 2"),
    one("DDP left out", EPOCH, JOINT, FORWARD, FORWARD.replace("model(x", "model.module(x")),
    one("old gradients leak in", EPOCH, JOINT, "    rows = 0\n    optimizer.zero_grad()\n", "    rows = 0\n"),
    one("never cleared", EPOCH, JOINT, "            optimizer.step()\n            optimizer.zero_grad()\n", "            optimizer.step()\n"),
    one("an update for each micro-batch", EPOCH, JOINT, LAST, "last = True"),
    one("one update an epoch", EPOCH, JOINT, LAST, "last = i == len(loader)"),
    one("last synchronisation missing", EPOCH, JOINT, NO_SYNC, "with model.no_sync():"),
    one("rank 0 steps alone", EPOCH, JOINT, "            optimizer.step()\n", "            if dist.get_rank() == 0:\n                optimizer.step()\n"),
    one("divided by micro-batches", EPOCH, RAGGED, "rows += len(x)", "rows += 4"),
    one("the rest is thrown away", EPOCH, RAGGED, LAST, "last = i % accumulate == 0"),
    one("the rest has the divisor of a full group", EPOCH, RAGGED, DIVIDE, "p.grad /= 4 * accumulate if i % accumulate else rows"),
    one("mean of means", EPOCH, RAGGED, FORWARD, FORWARD.replace('reduction="sum"', 'reduction="mean"') + " * 4"),
    Mutant("a group in one forward pass", EPOCH, JOINT, (
        ("    for i, (x, y) in enumerate(loader, start=1):\n        last = i % accumulate == 0 or i == len(loader)\n",
         "    batches = list(loader)\n    groups = [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]\n"
         "    for group in groups:\n        x, y = (torch.cat([pair[j] for pair in group]) for j in (0, 1))\n        last = True\n"),)),
    one("the sampler's own seed", WORKER, AGREE, ", seed=job.seed)", ")"),
    one("sync on each micro-batch", EPOCH, SYNC, NO_SYNC, "with contextlib.nullcontext():"),
    one("no_sync around the backward pass only", EPOCH, SYNC, NO_SYNC + "\n            loss = " + FORWARD, "loss = " + FORWARD + "\n        " + NO_SYNC),
    one("extra all-reduce of all gradients", EPOCH, SYNC, DIVIDE, "dist.all_reduce(p.grad)\n                p.grad /= rows * dist.get_world_size()"),
    one("one-process fake", EPOCH, SYNC, FORWARD, FORWARD.replace("model(x", "model.module(x")),
    one("no set_epoch", EPOCH, ORDER, "    loader.sampler.set_epoch(epoch)\n", ""),
    Mutant(
        "set_epoch too late", EPOCH, ORDER, (
            ("    loader.sampler.set_epoch(epoch)\n", ""),
            ("    dist.all_reduce(seen)\n", "    loader.sampler.set_epoch(epoch)\n    dist.all_reduce(seen)\n"))),
    one("an epoch of its own on each rank", EPOCH, ORDER, "set_epoch(epoch)", "set_epoch(epoch + 10 * dist.get_rank())"),
    one("goes through the loader twice", EPOCH, ORDER, "    dist.all_reduce(seen)\n", "    list(loader)\n    dist.all_reduce(seen)\n"),
    one("loss of this rank", EPOCH, LOSS, "    dist.all_reduce(seen)\n", ""),
    one("loss of the last micro-batch", EPOCH, LOSS, "seen += torch.tensor(", "seen = torch.tensor("),
    one("sum of losses", EPOCH, LOSS, "(seen[0] / seen[1])", "seen[0]"),
    one("mean of means of losses", EPOCH, LOSS, "[loss.item(), len(x)]", "[loss.item() / len(x), 1.0]"),
    one("a tensor comes back", EPOCH, LOSS, "(seen[0] / seen[1]).item()", "seen[0] / seen[1]"),
    Mutant("the loss of a second look, after the update", EPOCH, LOSS, (
        ("        seen += torch.tensor([loss.item(), len(x)], device=here)\n", "        group = [*(group if rows > len(x) else []), (x, y)]\n"),
        ("            rows = 0\n", "            rows = 0\n            with torch.no_grad():\n                for a, b in group:\n                    again = F.cross_entropy(model.module(a.to(here)), b.to(here), reduction=\"sum\")\n                    seen += torch.tensor([again.item(), len(a)], device=here)\n"))),
    one("the rate divided for the gradient", EPOCH, JOINT, "            for p in trained:\n                p.grad /= rows  # DDP has divided by the number of ranks\n            optimizer.step()\n",
        "            rate = optimizer.param_groups[0]['lr']\n            optimizer.param_groups[0]['lr'] = rate / rows\n            optimizer.step()\n            optimizer.param_groups[0]['lr'] = rate\n"),
    one("the graphs of a group alive at once", EPOCH, JOINT, BACKWARD, "        group = loss if not rows else group + loss\n        if last:\n            group.backward()\n"),
    one("evaluation mode", EPOCH, JOINT, BEGIN, BEGIN + "    model.eval()\n"),
    one("left in evaluation mode", EPOCH, JOINT, "    dist.all_reduce(seen)\n", "    dist.all_reduce(seen)\n    model.eval()\n"),
    one("gradients clipped", EPOCH, JOINT, STEP, "            nn.utils.clip_grad_norm_(trained, 5.0)\n" + STEP),
    one("a second forward pass for the loss", EPOCH, JOINT, SEEN, "        with torch.no_grad():\n            again = F.cross_entropy(model.module(x.to(here)), y.to(here), reduction=\"sum\")\n" + SEEN.replace("loss", "again")),
    Mutant("frozen parameters thawed", EPOCH, JOINT, (
        ("    trained = [p for p in model.parameters() if p.requires_grad]\n", "    model.requires_grad_(True)\n    trained = list(model.parameters())\n"),
        (DIVIDE, "p.grad /= rows"))),
    one("x stays on the CPU", EPOCH, JOINT, "model(x.to(here))", "model(x)"),
    one("y stays on the CPU", EPOCH, JOINT, FORWARD, FORWARD.replace("y.to(here)", "y")),
    one("under autocast", EPOCH, JOINT, FORWARD, "0\n            with torch.autocast(here.type, torch.bfloat16):\n                loss = " + FORWARD),
    one("gradients must be there", EPOCH, JOINT, BEGIN, "    rows = 0\n    for p in trained:\n        p.grad.zero_()\n", "NoneType"),
    one("divided by all micro-batches that a group may have", EPOCH, RAGGED, DIVIDE, "p.grad /= 4 * accumulate"),
    one("rows counted from the data set", EPOCH, RAGGED, DIVIDE, "p.grad /= min(rows, len(loader.dataset) // dist.get_world_size() - (i - 1) // accumulate * accumulate * 4)"),
    one("rows counted from the sampler", EPOCH, RAGGED, DIVIDE, "p.grad /= rows if not last or i < len(loader) else len(loader.sampler) - (i - 1) // accumulate * accumulate * 4"),
    one("weights sent after each update", EPOCH, SYNC, STEP, STEP + "            for p in trained:\n                dist.broadcast(p.data, src=0)\n"),
    one("all gradients gathered, too", EPOCH, SYNC, STEP, "            flat = torch.cat([p.grad.flatten() for p in trained])\n            dist.all_gather([torch.empty_like(flat) for _ in range(dist.get_world_size())], flat)\n" + STEP),
    one("counts the epochs itself", EPOCH, ORDER, "set_epoch(epoch)", "set_epoch(loader.sampler.epoch + 1 if epoch else 0)"),
    one("the sampler's seed for its epoch", EPOCH, ORDER, "loader.sampler.set_epoch(epoch)", "loader.sampler.seed = epoch"),
    Mutant("the mean goes on from the last epoch", EPOCH, LOSS, (
        ("seen = torch.zeros(2, dtype=torch.float64, device=here)", "seen = loader.__dict__.setdefault('seen', torch.zeros(2, dtype=torch.float64, device=here))"),
        ("    dist.all_reduce(seen)\n", "    seen = seen.clone()\n    dist.all_reduce(seen)\n"))),
    one("divided by the rows of the data set", EPOCH, LOSS, "(seen[0] / seen[1])", "(seen[0] / len(loader.dataset))"),
    one("only rank 0 knows the loss", EPOCH, LOSS, "    dist.all_reduce(seen)\n", "    dist.reduce(seen, dst=0)\n"),
    one("the loss rounded", EPOCH, LOSS, "(seen[0] / seen[1]).item()", "round((seen[0] / seen[1]).item(), 4)"),
    # evaluation
    one("padded by a sampler", EVALUATE, ONCE, SHARE,
        "Subset(dataset, list(torch.utils.data.DistributedSampler(dataset, shuffle=False)))"),
    one("metrics of rank 0 only", EVALUATE, ONCE, "    dist.all_reduce(totals)\n", "    dist.broadcast(totals, src=0)\n"),
    one("metrics of each rank", EVALUATE, ONCE, "    dist.all_reduce(totals)\n", ""),
    one("the rest is dropped", EVALUATE, ONCE, "range(dist.get_rank(), len(dataset), dist.get_world_size())",
        "range(dist.get_rank(), len(dataset) - len(dataset) % dist.get_world_size(), dist.get_world_size())"),
    one("last batch dropped", EVALUATE, ONCE, "DataLoader(mine, batch_size=batch_size)", "DataLoader(mine, batch_size=batch_size, drop_last=True)"),
    one("mean of means", EVALUATE, ONCE, "totals[2] += len(y)", "totals[2] += batch_size"),
    one("dropout stays on", EVALUATE, ONCE, "    inner.eval()\n", ""),
    one("only rank 0 knows", EVALUATE, ONCE, "    dist.all_reduce(totals)\n", "    dist.reduce(totals, dst=0)\n"),
    Mutant(
        "through DDP's forward", EVALUATE, ONCE, (("inner(x.to(here))", "model(x.to(here))"),), "not come back"),
    one("every rank does everything", EVALUATE, SHARES, SHARE, "dataset"),
    one("one large batch", EVALUATE, SHARES, "DataLoader(mine, batch_size=batch_size)", "DataLoader(mine, batch_size=len(dataset))"),
    one("graph recorded", EVALUATE, SHARES, "with torch.no_grad():", "with contextlib.nullcontext():"),
    one("training mode", EVALUATE, SHARES, "    inner.eval()\n", ""),
    one("always back to training", EVALUATE, SHARES, "inner.train(was_training)", "inner.train()"),
    one("left in evaluation mode", EVALUATE, SHARES, "    inner.train(was_training)\n", ""),
    one("the wrapper left in evaluation mode", EVALUATE, SHARES, "    inner.eval()\n", "    model.eval()\n"),
    one("another entry beside the two", EVALUATE, ONCE, "(totals[1] / totals[2]).item()}", "(totals[1] / totals[2]).item(), \"rows\": totals[2].item()}"),
    one("means of ranks averaged", EVALUATE, ONCE, "    dist.all_reduce(totals)\n", "    totals /= totals[2].clone().clamp(min=1)\n    dist.all_reduce(totals)\n"),
    one("percent", EVALUATE, ONCE, "(totals[1] / totals[2])", "(100 * totals[1] / totals[2])"),
    one("tensors come back", EVALUATE, ONCE, "(totals[1] / totals[2]).item()", "totals[1] / totals[2]"),
    one("the first data set for ever", EVALUATE, ONCE, "    mine = " + SHARE, "    mine = evaluate.__dict__.setdefault('mine', " + SHARE + ")"),
    one("graphs switched off for good", EVALUATE, SHARES, "    with torch.no_grad():\n", "    torch.set_grad_enabled(False)\n    for _ in range(1):\n"),
    one("every rank reads all rows", EVALUATE, SHARES, SHARE, "[dataset[i] for i in range(len(dataset))][dist.get_rank() :: dist.get_world_size()]"),
    one("frozen for good", EVALUATE, SHARES, EVAL, EVAL + "    inner.requires_grad_(False)\n"),
    one("gradients cleared", EVALUATE, SHARES, EVAL, EVAL + "    inner.zero_grad()\n"),
    one("statistics thrown away", EVALUATE, SHARES, EVAL, EVAL + "    for layer in inner.modules():\n        getattr(layer, 'reset_running_stats', int)()\n"),
    one("BatchNorm stays in training mode", EVALUATE, SHARES, EVAL, EVAL + "    inner.norm.train()\n"),
    one("only the mode of the outermost layer", EVALUATE, SHARES, EVAL, "    inner.training = False\n"),
    one("x stays on the CPU", EVALUATE, SHARES, "inner(x.to(here)), y.to(here)", "inner(x), y.to(here)"),
    one("y stays on the CPU", EVALUATE, SHARES, "inner(x.to(here)), y.to(here)", "inner(x.to(here)), y"),
    one("two passes for two numbers", EVALUATE, SHARES, "(logits.argmax(1) == y)", "(inner(x.to(here)).argmax(1) == y)"),
    # the worker
    Mutant("evaluated on rank 0, then broadcast", WORKER, CLOSES, (
        ("**job.evaluate(model, job.test, job.micro_batch)})", "**told[0]})"),
        ("        history.append(", "        told = [job.evaluate(model, job.test, job.micro_batch) if dist.get_rank() == 0 else None]\n        dist.broadcast_object_list(told, src=0)\n        history.append("))),
    Mutant("evaluated when all epochs are over", WORKER, CLOSES, (
        ("**job.evaluate(model, job.test, job.micro_batch)})", "})"),
        ("    if dist.get_rank() == 0:", "    for entry in history:\n        entry.update(job.evaluate(model, job.test, job.micro_batch))\n    if dist.get_rank() == 0:"))),
    one("evaluated before the epoch, too", WORKER, CLOSES, "        history.append(", "        job.evaluate(model, job.test, job.micro_batch)\n        history.append("),
    one("evaluate gets the model inside", WORKER, CLOSES, "job.evaluate(model, job.test", "job.evaluate(model.module, job.test"),
    one("a new optimizer each epoch", WORKER, AGREE, "    for epoch in range(job.epochs):\n", "    for epoch in range(job.epochs):\n        optimizer = job.make_optimizer([p for p in model.parameters() if p.requires_grad])\n"),
    one("biases are not trained", WORKER, AGREE, "make_optimizer([p for p in model.parameters() if p.requires_grad])", "make_optimizer([p for p in model.parameters() if p.requires_grad and p.dim() > 1])"),
    one("the last micro-batch dropped", WORKER, AGREE, "sampler=sampler)", "sampler=sampler, drop_last=True)"),
    Mutant("an inner model is trained, averaged by hooks", WORKER, AGREE, (
        ("job.train_epoch(model, loader", "job.train_epoch(model.module, loader"),
        ("    history = []\n", "    history = []\n    for p in model.module.parameters():\n        if p.requires_grad:\n            p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad.div_(dist.get_world_size())))\n"))),
    Mutant(
        "DDP left out", WORKER, AGREE, (
            (WRAP, "job.make_model().to(here)"), ("model.module.state_dict()", "model.state_dict()"),
            ("return model.module, history", "return model, history"))),
    one("same shard on each rank", WORKER, AGREE, SAMPLER, "DistributedSampler(job.train, num_replicas=dist.get_world_size(), rank=0, seed=job.seed)"),
    one("every rank trains on everything", WORKER, AGREE, SAMPLER, "DistributedSampler(job.train, num_replicas=1, rank=0, seed=job.seed)"),
    one("different seeds unsynchronised", WORKER, AGREE, WRAP,
        "DistributedDataParallel(job.make_model().to(here))\n    model.module.load_state_dict(job.make_model().state_dict())"),
    one("a seed of its own on each rank", WORKER, AGREE, "seed=job.seed", "seed=job.seed + dist.get_rank()"),
    one("not shuffled with the job's seed", WORKER, AGREE, "seed=job.seed", "seed=0 * job.seed + 77"),
    one("not shuffled", WORKER, AGREE, "shuffle=True", "shuffle=False"),
    one("wrong batch size", WORKER, AGREE, "batch_size=job.micro_batch, sampler", "batch_size=2 * job.micro_batch, sampler"),
    one("one epoch too few", WORKER, AGREE, "range(job.epochs)", "range(job.epochs - 1)"),
    one("epochs from one", WORKER, AGREE, "job.accumulate, epoch)", "job.accumulate, epoch + 1)"),
    one("accumulation ignored", WORKER, AGREE, "optimizer, job.accumulate", "optimizer, 1"),
    one("optimizer holds frozen parameters", WORKER, AGREE, "([p for p in model.parameters() if p.requires_grad])", "(model.parameters())"),
    one("the wrapper comes back", WORKER, AGREE, "return model.module, history", "return model, history"),
    one("saving from each rank", WORKER, SAVES, SAVE, "    torch.save(model.module.state_dict(), job.checkpoint)\n"),
    one("saving from rank 1", WORKER, SAVES, "if dist.get_rank() == 0:", "if dist.get_rank() == 1:"),
    one("nothing saved", WORKER, SAVES, SAVE, ""),
    one("names of the wrapper", WORKER, SAVES, "torch.save(model.module.state_dict()", "torch.save(model.state_dict()"),
    one("the whole model saved", WORKER, SAVES, "torch.save(model.module.state_dict(), job.checkpoint)", "torch.save({'model': model.module.state_dict()}, job.checkpoint)"),
    Mutant(
        "saved before training", WORKER, SAVES, (
            ("    history = []\n", "    history = []\n    early = {k: v.clone() for k, v in model.module.state_dict().items()}\n"),
            ("torch.save(model.module.state_dict()", "torch.save(early"))),
    one("nobody waits for the file", WORKER, SAVES, "    dist.barrier()\n    dist.destroy", "    dist.destroy"),
    one("waits before saving", WORKER, SAVES, SAVE + "    dist.barrier()\n", "    dist.barrier()\n" + SAVE),
    one("group left open", WORKER, CLOSES, CLOSE, "    dist.barrier()\n"),
    one("group closed on rank 0 only", WORKER, CLOSES, "    dist.destroy_process_group()\n", "    if dist.get_rank() == 0:\n        dist.destroy_process_group()\n"),
    one("history of the last epoch", WORKER, CLOSES, "history.append({\"train_loss\": train_loss, **job.evaluate(model, job.test, job.micro_batch)})",
        "history = [{\"train_loss\": train_loss, **job.evaluate(model, job.test, job.micro_batch)}]"),
    one("evaluated on training rows", WORKER, CLOSES, "job.evaluate(model, job.test", "job.evaluate(model, job.train"),
    one("training loss left out", WORKER, CLOSES, "\"train_loss\": train_loss, ", ""),
    one("loader processes", WORKER, AGREE, "sampler=sampler)", "sampler=sampler, num_workers=1)"),
    one("frozen parameters thawed", WORKER, AGREE, TRAINED, "list(model.requires_grad_(True).parameters())"),
    one("a copy comes back", WORKER, AGREE, "return model.module, history", "import copy\n\n    return copy.deepcopy(model.module), history"),
    one("the checkpoint comes back in a new model", WORKER, AGREE, "return model.module, history", "new = job.make_model()\n    new.load_state_dict(model.module.state_dict())\n    return new, history"),
    one("the mean of all ranks' weights", WORKER, AGREE, WRAP, "job.make_model().to(here)\n    for p in model.parameters():\n        dist.all_reduce(p.data)\n        p.data /= dist.get_world_size()\n    model = DistributedDataParallel(model)"),
    one("averaged by hooks as well", WORKER, AGREE, "    history = []\n", "    history = []\n    for p in model.module.parameters():\n        if p.requires_grad:\n            p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad.div_(dist.get_world_size())))\n"),
    one("each local rank 0 saves", WORKER, SAVES, "if dist.get_rank() == 0:", "import os\n\n    if int(os.environ[\"LOCAL_RANK\"]) == 0:"),
    one("parameters only, no buffers", WORKER, SAVES, "torch.save(model.module.state_dict()", "torch.save(dict(model.module.named_parameters(remove_duplicate=False))"),
    one("the model pickled", WORKER, SAVES, "torch.save(model.module.state_dict()", "torch.save(model.module"),
    one("saved in FP32", WORKER, SAVES, "torch.save(model.module.state_dict()", "torch.save({k: v.float() for k, v in model.module.state_dict().items()}"),
    one("sleeps in place of waiting", WORKER, SAVES, "    dist.barrier()\n", "    time.sleep(1)\n"),
    Mutant("state taken, waited, then saved", WORKER, SAVES, (
        ("    if dist.get_rank() == 0:\n", "    state = model.module.state_dict()\n    dist.barrier()\n    if dist.get_rank() == 0:\n"),
        ("torch.save(model.module.state_dict(), job.checkpoint)\n    dist.barrier()\n", "torch.save(state, job.checkpoint)\n"))),
    one("saved on a thread", WORKER, SAVES, "torch.save(model.module.state_dict(), job.checkpoint)", "import threading\n\n        threading.Thread(target=torch.save, args=(model.module.state_dict(), job.checkpoint)).start()"),
    one("gloo on GPUs", WORKER, CLOSES, 'dist.init_process_group("nccl", device_id=here)', 'dist.init_process_group("gloo", device_id=here)'),
    one("no device_id", WORKER, CLOSES, ", device_id=here)", ")"),
    one("no current device", WORKER, CLOSES, OPEN, OPEN.partition("\n")[2]),
    one("all on GPU 0", WORKER, CLOSES, "    here = rank_device()\n", '    here = torch.device(rank_device().type, 0) if rank_device().type == "cuda" else rank_device()\n'),
    one("the model stays on the CPU", WORKER, CLOSES, "job.make_model().to(here)", "job.make_model()"),
    one("the last metrics in each entry", WORKER, CLOSES, "    if dist.get_rank() == 0:\n", "    for entry in history:\n        entry |= {name: history[-1][name] for name in (\"loss\", \"accuracy\")}\n    if dist.get_rank() == 0:\n"),
    one("history on rank 0 only", WORKER, CLOSES, "    dist.destroy_process_group()\n", "    history = history if dist.get_rank() == 0 else []\n    dist.destroy_process_group()\n"),
]  # fmt: skip

RIGHT = {
    "by hand, without no_sync": """
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def train_epoch(model, loader, optimizer, accumulate, epoch):
    net, n = model.module, dist.get_world_size()
    params = [p for p in net.parameters() if p.requires_grad]
    loader.sampler.set_epoch(epoch)
    batches = list(loader)
    total = count = 0.0
    for start in range(0, len(batches), accumulate):
        group = batches[start : start + accumulate]
        rows = sum(len(y) for _, y in group)
        for p in params:
            p.grad = None
        for x, y in group:
            x, y = x.to(params[0].device), y.to(params[0].device)
            loss = F.cross_entropy(net(x), y) * len(y) / rows
            loss.backward()
            total, count = total + loss.item() * rows, count + len(y)
        flat = torch.cat([p.grad.flatten() for p in params]) / n
        dist.all_reduce(flat)
        for p, g in zip(params, flat.split([p.numel() for p in params])):
            p.grad = g.view_as(p)
        optimizer.step()
    both = [None] * n
    dist.all_gather_object(both, (total, count))
    return sum(t for t, _ in both) / sum(c for _, c in both)


def evaluate(model, dataset, batch_size):
    net = model.module
    mode = net.training
    net.train(False)
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = [i for i in range(len(dataset)) if i % n == rank]
    loss, right = 0.0, 0
    with torch.inference_mode():
        for start in range(0, len(mine), batch_size):
            rows = [dataset[i] for i in mine[start : start + batch_size]]
            x = torch.stack([x for x, _ in rows])
            y = torch.stack([y for _, y in rows])
            out = net(x.to(next(net.parameters()).device)).cpu()
            loss += F.cross_entropy(out, y, reduction="sum").item()
            right += int((out.argmax(-1) == y).sum())
    if mode:
        net.train()
    all_of_them = [None] * n
    dist.all_gather_object(all_of_them, (loss, right))
    size = len(dataset)
    return {"accuracy": sum(r for _, r in all_of_them) / size, "loss": sum(v for v, _ in all_of_them) / size}


def worker(job):
    rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda = torch.cuda.device_count() >= n
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(rank)
    device_id = device if cuda else None
    dist.init_process_group(backend="nccl" if cuda else "gloo", rank=rank, world_size=n, device_id=device_id)
    try:
        net = job.make_model().to(device)
        ddp = DDP(net, gradient_as_bucket_view=True)
        optimizer = job.make_optimizer(filter(lambda p: p.requires_grad, net.parameters()))
        loader = DataLoader(job.train, job.micro_batch, sampler=DistributedSampler(job.train, n, rank, seed=job.seed))
        history = []
        for epoch in range(job.epochs):
            entry = {"train_loss": job.train_epoch(ddp, loader, optimizer, job.accumulate, epoch)}
            entry.update(job.evaluate(ddp, job.test, job.micro_batch))
            history += [entry]
        if rank == 0:
            torch.save({k: v.cpu() for k, v in net.state_dict().items()}, job.checkpoint)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return net, history
""",
    "islice groups, counts all-reduced": """
import contextlib
from itertools import islice

import torch
import torch.distributed as dist
from helpers import rank_device
from torch import nn
from torch.distributed import init_process_group
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Subset


def train_epoch(model, loader, optimizer, accumulate, epoch):
    loader.sampler.set_epoch(epoch)
    device = next(model.parameters()).device
    batches = iter(loader)
    losses, seen = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    while group := list(islice(batches, accumulate)):
        optimizer.zero_grad(set_to_none=True)
        rows = torch.tensor(sum(len(y) for _, y in group), dtype=torch.float64)
        dist.all_reduce(rows)  # of all ranks
        *held, (x, y) = group
        with model.no_sync():
            for a, b in held:
                loss = nn.functional.cross_entropy(model(a.to(device)), b.to(device), reduction="sum")
                (loss * dist.get_world_size() / rows).backward()
                losses += loss.detach().cpu()
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device), reduction="sum")
        (loss * dist.get_world_size() / rows).backward()
        losses += loss.detach().cpu()
        seen += rows
        optimizer.step()
    dist.all_reduce(losses)
    return float(losses / seen)


@torch.no_grad()
def evaluate(model, dataset, batch_size):
    net = model.module
    device = next(net.parameters()).device
    before = net.training
    net.eval()
    per = -(-len(dataset) // dist.get_world_size())
    first = per * dist.get_rank()
    mine = Subset(dataset, list(range(len(dataset)))[first : first + per])
    sums = {"loss": 0.0, "accuracy": 0.0}
    for x, y in DataLoader(mine, batch_size):
        out = net(x.to(device)).cpu()
        sums["loss"] += nn.functional.cross_entropy(out, y, reduction="sum").item()
        sums["accuracy"] += (out.argmax(1) == y).sum().item()
    net.train(before)
    for name, value in sums.items():
        tensor = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(tensor)
        sums[name] = tensor.item() / len(dataset)
    return sums


def worker(job):
    gpu = torch.cuda.is_available() and torch.cuda.device_count() > 1
    device = rank_device()
    if gpu:
        torch.cuda.set_device(device)
        init_process_group("nccl", init_method="env://", device_id=device)
    else:
        init_process_group("gloo", init_method="env://")
    model = job.make_model().to(device)
    ddp = nn.parallel.DistributedDataParallel(model, device_ids=[device] if gpu else None)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = job.make_optimizer(trained)
    sampler = DistributedSampler(job.train, seed=job.seed)
    loader = DataLoader(job.train, batch_size=job.micro_batch, sampler=sampler, num_workers=0)
    history = [
        {"train_loss": job.train_epoch(ddp, loader, optimizer, job.accumulate, e)}
        | job.evaluate(ddp, job.test, job.micro_batch)
        for e in range(job.epochs)
    ]
    if not dist.get_rank():
        torch.save(model.state_dict(), job.checkpoint)
    token = [None]
    dist.broadcast_object_list(token, src=0)  # rank 0 comes here after saving
    dist.destroy_process_group()
    return model, history
""",
}
