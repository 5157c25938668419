"""Who holds memory: every allocation on a virtual GPU, with the line, the module and the phase that made it.

At the time nothing more is known than where the program is. What an allocation was for, its category, shows later: a
parameter when an optimizer or a module holds it, a gradient when the optimizer comes for it, an activation when it
lives on into the backward pass.
"""

import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from ..meter.work import Work
from .dispatch import thread
from .homes import home_of, parts, storage_of
from .memory import gpu
from .traffic import Traffic
from .user_line import Place, is_python_inside_backward, place

_PARTS = 4  # that come in one tensor at most: ids, labels, positions and a mask
_LABELED = 3  # steps after which modules are looked at; what they hold does not change later
SETUP, FORWARD, BACKWARD, UPDATE = "setup", "forward", "backward", "optimizer step"


@dataclass(slots=True, eq=False)
class Named:
    """A module that ran, for the records of its allocations: it may be gone, and a record travels without it.

    Attributes:
        name: in its model; "" until the ledger has looked.
    """

    name: str = ""


@dataclass(slots=True, eq=False)
class Allocation:
    """One allocation.

    Attributes:
        index: of the GPU.
        nbytes: of the allocator's block.
        line: of the user's program, "file:line".
        module: whose forward pass made it.
        phase, ended: in which it was made and freed; `ended` is "" while it lives.
        recomputed: whether activation checkpointing made it a second time.
        graph: whether autograd was on, which may save it for the backward pass.
        unwound: whether an out-of-memory error freed it.
        item: bytes of an element, of parameters and optimizer state; 0 where unknown.
        frozen: whether it is a parameter or a buffer that gets no gradient.
        backward: the backward pass in which it was made with autograd on, for a second derivative; -1 elsewhere.
        outlived: whether it was there after that pass.
        category: one of `helpers.meter.categories`; "" while nothing is known.
        born, died: places in the ledger's list of events; -1 while it lives.
        reserved: bytes that the allocator held right after it.
    """

    index: int
    nbytes: int
    line: str
    module: Named | None
    phase: str
    recomputed: bool
    category: str
    born: int
    reserved: int
    died: int = -1
    ended: str = ""
    graph: bool = False
    unwound: bool = False
    item: int = 0
    frozen: bool = False
    backward: int = -1
    outlived: bool = True


class Refusal(NamedTuple):
    """An allocation that did not fit.

    Attributes:
        place: in the ledger's list of events.
        index: of the GPU.
        nbytes: that were asked for.
        line: of the user's program.
        free: bytes that were free on the GPU.
    """

    place: int
    index: int
    nbytes: int
    line: str
    free: int


class Ledger:
    """The allocations of a program, in order, and the work of its operations.

    Attributes:
        events: an allocation at its birth and again at its death.
        marks: places in `events` at which an optimizer step ended.
        works: for each step, and the one that has begun, how often each work was done, by phase.
        refusals: each allocation that did not fit.
        refused_phase: in which the last of them was asked for.
        traffic: the collectives of one rank of many.
        over: the place in `events` at which the program was ended; 0 where it ended by itself.
        checkpoints: whether the program has used activation checkpointing.
        turned_on_in_eval: whether a model that trains in eval mode has turned on checkpointing, which transformers
            then leaves out.
        mostly_frozen: whether most weights of the models that train are frozen, as with LoRA.
        fusable: whether an optimizer could use a fused kernel, and does not.
        updates_in_backward: whether an optimizer has stepped inside a backward pass.
        copies_in_bf16: whether autocast makes its copies of weights in BF16.
        arrivals: bytes that came from the host in forward passes after the first step, by the first dimension of the
            tensor; early_arrivals: those before, with what is moved only once; arrivals_without_graph: those that came
            with autograd off, as in an evaluation.
        given, given_without_graph: the first dimensions of what models were given, with autograd on and off.
        idle_optimizers: how many have not stepped when the program was ended.
        rows_before_forward: the first dimension of what came last before the first forward pass; 0 if nothing came.
    """

    def __init__(self) -> None:
        self.events: list[Allocation] = []
        self.marks: list[int] = []
        self.works: list[Counter[tuple[Work, str, bool]]] = [Counter()]
        self.refusals: list[Refusal] = []
        self.refused_phase = ""
        self.traffic: Traffic | None = None
        self.arrivals: Counter[int] = Counter()
        self.early_arrivals: Counter[int] = Counter()
        self.given: set[int] = set()
        self.given_without_graph: set[int] = set()
        self.arrivals_without_graph: Counter[int] = Counter()
        self.over = self.rows_before_forward = self.idle_optimizers = 0
        self.checkpoints = self.fusable = self.updates_in_backward = self.copies_in_bf16 = False
        self.turned_on_in_eval = self.mostly_frozen = False
        self._steps_before_refusal = 0
        self._whole: tuple[int, Counter[tuple[Work, str, bool]]] | None = None  # the step, if it has ended already
        self._graph = True
        self.updating = self.backward_seen = False
        self._stepping: weakref.ref[torch.optim.Optimizer] | None = None
        self._roots: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._modules: weakref.WeakKeyDictionary[torch.nn.Module, Named] = weakref.WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the program's objects behind: a ledger travels to another process as a record."""
        live = ("_stepping", "_roots", "_modules")
        return {name: value for name, value in vars(self).items() if name not in live}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._stepping, self._roots, self._modules = None, weakref.WeakSet(), weakref.WeakKeyDictionary()

    def born(self, index: int, nbytes: int) -> Allocation:
        """Return the record of an allocation."""
        here = place()
        module = None
        if here.module is not None:
            self._roots.add(here.root)
            module = self._modules.setdefault(here.module, Named())
        phase, recomputed = self._phase()
        self.checkpoints = self.checkpoints or recomputed or "checkpoint" in here.functions
        if phase == FORWARD and thread.arriving_rows:
            self._arrivals_now()[thread.arriving_rows] += nbytes
        elif phase == SETUP and thread.arriving_rows and not thread.arriving_weight:
            self.rows_before_forward = thread.arriving_rows
        if thread.casting_weights is not None:
            category = "weight copies"
            self.copies_in_bf16 = thread.casting_weights is torch.bfloat16
        elif recomputed:
            category = "recomputed activations"
        else:
            category = "inputs and other" if thread.arriving or phase == SETUP else ""
        reserved = gpu(index).cache.reserved
        now = len(self.events)
        record = Allocation(index, nbytes, here.line, module, phase, recomputed, category, now, reserved)
        record.graph = self._builds_graph(here)
        if phase == BACKWARD and record.graph and not recomputed:
            record.backward = torch._C._current_graph_task_id()
        if phase == FORWARD and here.given:
            self._note_given(here)
        if not self.over:
            self.events.append(record)
        return record

    def _note_given(self, here: Place) -> None:
        """Note the first dimensions of what the outermost module was given."""
        on = torch.is_grad_enabled() or (bool(here.functions) and self._graph)  # a checkpoint turns it off
        given = self.given if on else self.given_without_graph
        for value in here.given:
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(tensor, torch.Tensor) and tensor.dim():
                    given.add(tensor.shape[0])

    def _arrivals_now(self) -> Counter[int]:
        if not torch.is_grad_enabled():
            return self.arrivals_without_graph
        return self.arrivals if self.marks else self.early_arrivals

    def stacked(self, rows: Sequence[torch.Tensor], batch: torch.Tensor) -> None:
        """Take `rows` that came from the host one by one for the rows of `batch`, not for batches of their own."""
        arrivals = self._arrivals_now()
        for row in rows:
            found = getattr(storage_of(row), "rows", 0)
            taken = min(row.nbytes, arrivals[found]) if found else 0
            arrivals[found] -= taken
            arrivals[batch.shape[0]] += taken

    def taken_apart(self, whole: torch.Tensor) -> None:
        """Take the second dimension of a tensor that holds a few matrices, such as ids and labels, for the batch."""
        if whole.is_floating_point() or whole.dim() != 3 or not 0 < whole.shape[0] <= _PARTS:
            return
        storage, (found, batch, _) = storage_of(whole), whole.shape
        if getattr(storage, "rows", 0) != found:
            return
        storage.rows = 0  # its other parts say the same
        arrivals = self._arrivals_now()
        taken = min(whole.nbytes, arrivals[found])
        arrivals[found] -= taken
        arrivals[batch] += taken
        if self.rows_before_forward == found:
            self.rows_before_forward = batch

    def _builds_graph(self, here: Place) -> bool:
        """Say whether autograd is on; inside an `autograd.Function`, where it is always off, whether it was before."""
        on = torch.is_grad_enabled()
        if on or not here.functions:
            self._graph = on
        return on or (here.functions - {"checkpoint"} == {"apply"} and self._graph)

    def died(self, record: Allocation) -> None:
        """Note the end of an allocation."""
        if self.over and record.born >= self.over:
            return
        record.died, record.ended = len(self.events), self._phase()[0]
        record.outlived = record.backward != torch._C._current_graph_task_id()
        record.unwound = self.ran_out and record.born < self.refusals[-1].place
        self.events.append(record)

    def refused(self, index: int, nbytes: int) -> None:
        """Note that a GPU had no room."""
        self.refused_phase = self._phase()[0]
        self.label_modules()
        if torch.is_grad_enabled() or self.refused_phase == BACKWARD:
            self._look_at_models()
        if self._stepping is not None and (optimizer := self._stepping()) is not None:
            self._label_state(optimizer)
        self.refusals.append(Refusal(len(self.events), index, nbytes, place().line, gpu(index).free))
        self._steps_before_refusal = len(self.marks)

    @property
    def ran_out(self) -> bool:
        """Whether a refusal was the end: no step ended after it."""
        return bool(self.refusals) and len(self.marks) == self._steps_before_refusal

    def worked(self, work: Work) -> None:
        """Count the work of an operation."""
        self.works[-1][work, *self._phase()] += 1

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Learn what is a parameter and what a gradient."""
        self.updating, self._stepping = True, weakref.ref(optimizer)
        self.updates_in_backward = self.updates_in_backward or torch._C._current_graph_task_id() != -1
        self.fusable = self.fusable or any(not group.get("fused", True) for group in optimizer.param_groups)
        for parameter in _parameters(optimizer):
            _label(parameter, "parameters")
            _label(parameter.grad, "gradients")

    def after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Learn what is the optimizer's."""
        self.updating, self._stepping = False, None
        self._label_state(optimizer)

    @staticmethod
    def _label_state(optimizer: torch.optim.Optimizer) -> None:
        for state in optimizer.state.values():
            for value in tree_leaves(state):  # LBFGS keeps lists
                _label(value, "optimizer state")

    def may_end_step(self) -> None:
        """Note that the step ends here, unless this is called again before `end_step`."""
        self._whole = len(self.events), self.works[-1].copy()
        if self.traffic is not None:
            self.traffic.may_end_step()

    def end_step(self) -> None:
        """Let a new step begin: where `may_end_step` was called last, or else here."""
        if len(self.marks) < _LABELED:
            self.label_modules()
            self._look_at_models()
        mark, works = self._whole or (len(self.events), self.works[-1])
        self.marks.append(mark)
        self.works[-1:] = works, self.works[-1] - works
        self._whole = None
        if self.traffic is not None:
            self.traffic.end_step()

    def end_run(self) -> None:
        """Forget what was allocated after the last step, and record only what is freed: the program is ended there."""
        if self.over:
            return
        self.over = self.marks[-1]
        freed = [record for record in self.events[self.over :] if record.born < self.over]
        del self.events[self.over :]
        for record in freed:
            record.died = len(self.events)
            self.events.append(record)

    def copied_parameter(self, parameter: torch.nn.Parameter) -> None:
        """Learn that a copy of a parameter is one, too: that of an average of weights, which may never run."""
        _label(parameter, "parameters")

    def label_modules(self) -> None:
        """Learn the parameters and buffers of all models that ran, and the names of modules, while they live."""
        names: dict[int, str] = {}
        roots = list(self._roots)
        inside = {id(module) for root in roots for module in root.modules() if module is not root}
        for root in sorted(roots, key=lambda root: id(root) in inside):  # a checkpointed block runs as a root, too
            for name, module in root.named_modules():
                if not name or name[0].isdigit():  # of an `nn.Sequential`
                    name = f"{type(root).__name__}.{name}".rstrip(".")
                names.setdefault(id(module), name)
            for tensor in (*root.parameters(), *root.buffers()):
                _label(tensor, "parameters")
            for parameter in root.parameters():
                _label(parameter.grad, "gradients")
        for module, named in list(self._modules.items()):
            named.name = names.get(id(module), type(module).__name__)

    def _look_at_models(self) -> None:
        """Learn how the models that train are set up."""
        weights: Counter[bool] = Counter()  # elements, by whether they are trained
        for root in list(self._roots):
            found: Counter[bool] = Counter()
            for parameter in root.parameters():
                found[parameter.requires_grad] += parameter.numel()
            if found[True]:
                weights += found
                self.turned_on_in_eval = self.turned_on_in_eval or any(
                    vars(module).get("gradient_checkpointing") and not module.training for module in root.modules()
                )
        self.mostly_frozen = weights[False] > weights[True]

    def with_gradients(self) -> Iterator[torch.Tensor]:
        """Yield the parameters of all models that ran which have gradients."""
        for root in list(self._roots):
            yield from (parameter for parameter in root.parameters() if parameter.grad is not None)

    def _phase(self) -> tuple[str, bool]:
        if torch._C._current_graph_task_id() != -1:
            self.backward_seen = True
            if self.updating:
                return UPDATE, False
            return BACKWARD, torch.is_grad_enabled() and is_python_inside_backward()
        if self.updating:
            return UPDATE, False
        return (FORWARD if self._roots else SETUP), False


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _label(tensor: Any, category: str) -> None:
    if isinstance(tensor, torch.Tensor):
        home = home_of(tensor)
        if home is not None and home.record is not None:
            home.record.category, home.record.item = category, _item(tensor)
            home.record.frozen = category == "parameters" and not tensor.requires_grad


def _item(tensor: torch.Tensor) -> int:
    while inner := parts(tensor):
        tensor = inner[0]
    return tensor.element_size()
