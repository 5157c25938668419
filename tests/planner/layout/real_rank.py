"""One rank of a layout that trains for real: the planner's modules with weights, over gloo, in the schedule's order.

The training loop, the groups and the update are written here a second time, as an engine writes them.
"""

import contextlib
from unittest.mock import patch

from helpers.planner.layout.attention import Wires
from helpers.planner.layout.decoder import Experts, Stage
from helpers.planner.layout.layout_plan import stage_kinds
from helpers.planner.layout.parallelize import recompute
from helpers.planner.layout.schedule import orders
from helpers.planner.simulate.contexts import no_collector, resizing_counted

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from tests.planner.layout.cpu_kernels import cpu_kernels
from tests.planner.layout.real_wire import Meter, Post, RealWire

LOW = {"fp32": torch.float32, "bf16": torch.bfloat16, "bf16-amp": torch.bfloat16}
STEPS = 2  # the first makes the optimizer's state


class Groups:
    """The process groups of a layout, in the order pipeline x replicate x shard x context x tensor."""

    def __init__(self, layout, meter):
        sizes = (layout.pipeline, layout.replicate, layout.shard, layout.context, layout.tensor)
        grid = torch.arange(layout.ranks).view(sizes)
        experts = grid.reshape(layout.pipeline, layout.replicate, -1, layout.expert)
        self.wires = {}
        for name, ranks in {
            "pipeline": grid.movedim(0, -1),
            "context": grid.movedim(3, -1),
            "tensor": grid,
            "expert": experts,
        }.items():  # groups of their own, even where the same ranks have one: a mesh would take that
            own, _ = dist.new_subgroups_by_enumeration(ranks.flatten(0, -2).tolist())
            self.wires[name] = own
            meter.names[own.group_name] = name
        self.dense = self._sharding(grid.flatten(2, 3).movedim(2, 3), layout, "shard", meter)
        self.expert = None
        if layout.arch.experts:
            whole = DeviceMesh("cpu", experts, mesh_dim_names=("p", "replicate", "expert shard", "expert"))
            self.expert = self._named(whole, layout, "expert shard", meter)

    def _sharding(self, ranks, layout, wire, meter):
        whole = DeviceMesh("cpu", ranks, mesh_dim_names=("p", "replicate", "others", wire))
        return self._named(whole, layout, wire, meter)

    @staticmethod
    def _named(whole, layout, wire, meter):
        for name in ("replicate", wire):
            meter.names[whole.get_group(name).group_name] = name
        return whole["replicate", wire] if layout.replicate > 1 else whole[wire]


class RealRank:
    """One rank: its stages, optimizers and messages."""

    def __init__(self, layout, meter):
        self.layout, self.meter = layout, meter
        self.low = LOW[layout.precision]
        groups = Groups(layout, meter)
        self.groups, self.post = groups, Post(groups.wires["pipeline"], meter.sent)
        self.number = dist.get_rank(groups.wires["pipeline"])
        kinds = stage_kinds(layout)
        self.last_stage = len(kinds) - 1
        layers = layout.stage_layers()
        self.stages = {s: self._build(kinds[s], layers[s]) for s in range(self.number, len(kinds), layout.pipeline)}
        self.optimizers = {s: self._optimizer(stage) for s, stage in self.stages.items()}
        self.order = orders(layout)[self.number]
        self.inputs, self.outputs, self.halves, self.local = {}, {}, {}, {}

    def _build(self, kind, layers):
        layout, groups = self.layout, self.groups
        wires = Wires(*(RealWire(name, self.meter, groups.wires[name]) for name in ("tensor", "context", "expert")))
        with torch.device("meta"):
            stage = Stage(layout, wires, layers, (kind.first, kind.last))
        recompute(stage, layout)
        sixteen = layout.precision == "bf16" or layout.engine == "megatron"
        stage.to(self.low if sixteen else torch.float32)
        if layout.zero == "zero3":
            self._shard(stage)
        stage.to_empty(device="cpu")
        for parameter in stage.parameters():
            torch.nn.init.normal_(getattr(parameter, "_local_tensor", parameter).detach(), 0.0, 0.05)
        return stage

    def _shard(self, stage):
        layout, groups = self.layout, self.groups
        policy = MixedPrecisionPolicy()
        if layout.precision == "bf16-amp" or layout.accumulate_whole:
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        how = {"mp_policy": policy, "reshard_after_forward": layout.reshard_after_forward}
        for layer in stage.blocks:
            if isinstance(layer.mlp, Experts):
                fully_shard(layer.mlp, mesh=groups.expert, **how)
            fully_shard(layer, mesh=groups.dense, **how)
        if stage.embedding is not None and not layout.plain_ends:
            fully_shard(stage.embedding, mesh=groups.dense, **how | {"reshard_after_forward": True})
        if stage.head is not None and not layout.plain_ends:  # its weights are needed again at once
            fully_shard(stage.head, mesh=groups.dense, **how | {"reshard_after_forward": False})
        fully_shard(stage, mesh=groups.dense, **how)

    def _optimizer(self, stage):
        """AdamW; of Megatron on FP32 masters, with gradients added up in one FP32 buffer."""
        parameters = list(stage.parameters())
        if self.layout.engine != "megatron":
            return torch.optim.AdamW(parameters, fused=True)
        count = sum(p.numel() for p in parameters)
        stage.buffer = torch.zeros(count)
        stage.masters = torch.cat([p.detach().flatten().float() for p in parameters]).requires_grad_()
        at = 0
        for parameter in parameters:
            parameter.place = stage.buffer[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
            parameter.register_post_accumulate_grad_hook(_add_to_buffer)
        return torch.optim.AdamW([stage.masters], fused=True)

    # -- a step

    def step(self):
        for action in self.order:
            {"F": self.forward, "B": self.backward, "I": self.backward_input, "W": self.backward_weights}[action.kind](
                action.stage, action.micro_batch
            )
        self.post.finish()
        for number, stage in self.stages.items():
            self.update(stage, self.optimizers[number])

    def forward(self, stage, micro_batch):
        layout, size = self.layout, self.layout.micro_batch_size
        labels = torch.zeros(size, layout.local_seq, dtype=torch.long) if stage == self.last_stage else None
        if stage == 0:
            x = torch.zeros(size, layout.local_seq, dtype=torch.long)
        else:
            tokens = layout.local_seq // (layout.tensor if layout.splits_tokens else 1)
            x = torch.empty(size, tokens, layout.arch.hidden, dtype=self.low)
            self._receive("F", x, stage - 1, stage, micro_batch)
            x.requires_grad_()
        autocast = layout.precision.endswith("-amp") and layout.zero != "zero3" and layout.engine != "megatron"
        with torch.autocast("cpu", self.low, enabled=autocast):
            out = self.stages[stage](x, labels)
        torch.clear_autocast_cache()
        self.outputs[stage, micro_batch] = out
        if stage > 0:
            self.inputs[stage, micro_batch] = x
        if stage < self.last_stage:
            self._send("F", out, stage, stage + 1, micro_batch)

    def backward(self, stage, micro_batch):
        self._synchronize(stage, micro_batch)
        out, gradient = self._out_and_gradient(stage, micro_batch)
        out.backward(gradient)
        del out, gradient
        if stage > 0:
            self._send("B", self.inputs.pop((stage, micro_batch)).grad, stage, stage - 1, micro_batch)

    def backward_input(self, stage, micro_batch):
        """The half that the stage before waits for; the first stage leaves all to the other half, as PyTorch does."""
        self._synchronize(stage, None)
        out, gradient = self._out_and_gradient(stage, micro_batch)
        if stage == 0:
            self.halves[stage, micro_batch] = out, gradient
            return
        x = self.inputs.pop((stage, micro_batch))
        gradients = None if gradient is None else [gradient]
        with patch.object(torch.Tensor, "detach_", lambda out: out):  # a view cannot; it is dropped here anyway
            of_input, groups = stage_backward_input([out], gradients, [x], self.stages[stage].parameters())
        self._send("B", of_input[0], stage, stage - 1, micro_batch)
        self.halves[stage, micro_batch] = groups

    def backward_weights(self, stage, micro_batch):
        if stage == 0:
            out, gradient = self.halves.pop((stage, micro_batch))
            out.backward(gradient)
        else:
            groups = self.halves.pop((stage, micro_batch))
            stage_backward_weight(self.stages[stage].parameters(), groups)
        if micro_batch == self.layout.micro_batches - 1 and self.layout.zero == "zero3":
            self._reduce(self.stages[stage])

    @staticmethod
    def _reduce(stage):
        """Reduce the gradients that were added up, as PyTorch's schedules do after the last backward pass."""
        stage.set_is_last_backward(True)
        stage.set_reshard_after_backward(True)
        stage.set_requires_gradient_sync(True)
        root = stage._get_fsdp_state()
        for state in root._state_ctx.all_states:
            for group in state._fsdp_param_groups:
                group.post_backward()
        root._root_post_backward_final_callback()

    def _out_and_gradient(self, stage, micro_batch):
        out = self.outputs.pop((stage, micro_batch))
        if stage == self.last_stage:
            return out / self.layout.micro_batches, None
        gradient = torch.empty_like(out)
        self._receive("B", gradient, stage + 1, stage, micro_batch)
        return out, gradient

    def _synchronize(self, stage, micro_batch):
        last = micro_batch == self.layout.micro_batches - 1
        if self.layout.pipeline > 1 and self.layout.zero == "zero3":
            self.stages[stage].set_is_last_backward(last)
            self.stages[stage].set_reshard_after_backward(last)
        if self.layout.accumulate_whole or (self.layout.pipeline > 1 and self.layout.zero == "zero3"):
            self.stages[stage].set_requires_gradient_sync(last)

    def update(self, stage, optimizer):
        if self.layout.engine == "megatron":
            stage.masters.grad = stage.buffer
        own = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [getattr(p.grad, "_local_tensor", p.grad) for p in own]
        norm = torch.nn.utils.get_total_norm(gradients)  # of this rank: one number, whose sum is not counted
        torch.nn.utils.clip_grads_with_norm_([_Holder(g) for g in gradients], 1.0, norm)
        del gradients
        optimizer.step()
        optimizer.zero_grad()
        if self.layout.engine == "megatron":
            stage.buffer.zero_()
            at = 0
            for parameter in stage.parameters():
                parameter.detach().copy_(stage.masters.detach()[at : at + parameter.numel()].view_as(parameter))
                at += parameter.numel()

    # -- messages between stages; those between two stages of one rank stay where they are

    def _send(self, kind, x, stage, to, micro_batch):
        self.post.send(x, to % self.layout.pipeline, self._tag(kind, to, micro_batch))

    def _receive(self, kind, x, source, stage, micro_batch):
        self.post.receive(x, source % self.layout.pipeline, self._tag(kind, stage, micro_batch))

    def _tag(self, kind, stage, micro_batch):
        return (micro_batch * (self.last_stage + 1) + stage) * 2 + (kind == "B")


class _Holder:
    """A tensor's gradient, for the function that clips."""

    def __init__(self, grad):
        self.grad = grad


def _add_to_buffer(parameter):
    parameter.place.add_(parameter.grad)
    parameter.grad = None


def train(layout):
    """Be one rank; returns its pipeline rank, peak bytes, what it sent in the second step, and what is unknown."""
    meter = Meter()
    with contextlib.ExitStack() as contexts:
        for context in (cpu_kernels(), no_collector(), meter, resizing_counted(meter)):
            contexts.enter_context(context)
        rank = RealRank(layout, meter)
        hooks = torch.autograd.graph.saved_tensors_hooks(meter.pack, meter.unpack)
        with hooks:
            for _ in range(STEPS):
                meter.sent.clear()
                begun = meter.ticks
                rank.step()
        return rank.number, meter.peak(begun), dict(meter.sent), dict(meter.unknown)
