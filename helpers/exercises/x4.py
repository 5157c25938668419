"""X4: LoRA, from the layer to a plan for 7B. Ten checks of a point each.

Layers are compared in FP64 with the formula. The plan is judged by the planner, outside of the learner's code. The
fine-tune runs on a small Llama that has learned some English, and is asked for Python source; what was trained, by
which optimizer and in which mode, is recorded by hooks.
"""

import copy
import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..core.data import Split, english, python_source
from ..core.device import pick_device
from ..core.units import GiB, human_bytes
from ..meter.recorder import MemoryMeter
from ..planner import Recipe, RecipeError, find_gpu, plan
from .base import Check, Evidence, Part
from .probing.distance import relative_distance
from .probing.fingerprint import OTHER_DATA, fingerprint
from .probing.plain import plain

EXACT = 1e-9  # relative, in FP64
GPU = "rtx-4090-24gb"
EFFECTIVE = 32
RANK = 8
ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def _flat(t: Tensor) -> list[float]:
    return t.detach().double().flatten().cpu().tolist()


# -- part 1: the layer --------------------------------------------------------------------------------------


def _layer(lora_linear: type[nn.Module], seed: int, rank: int, alpha: float, dropout: float = 0.0) -> Any:
    """Return a linear layer (12 -> 7) in FP64, the learner's layer around a copy of it, and rows x (5, 12)."""
    torch.manual_seed(seed)
    linear = nn.Linear(12, 7).double()
    return linear, lora_linear(copy.deepcopy(linear), rank, alpha, dropout), torch.randn(5, 12, dtype=torch.float64)


def _trained(layer: nn.Module) -> list[list[Any]]:
    """Return shape and dtype of each trained parameter, e.g. [[3, 12], "float64"]."""
    parameters = [p for p in layer.parameters() if p.requires_grad]
    return [[list(p.shape), str(p.dtype).removeprefix("torch.")] for p in parameters]


def _is_adapter(trained: list[list[Any]], rank: int) -> bool:
    """Whether what is trained is A (rank, 12) and B (7, rank) in FP64, and nothing else."""
    return sorted(trained) == sorted([[[rank, 12], "float64"], [[7, rank], "float64"]])


def _wrong_adapter(trained: list[list[Any]], rank: int) -> str | None:
    """Say what of A (rank, 12) and B (7, rank) is missing, or what is trained besides them."""
    if sorted(shape for shape, _ in trained) != sorted([[rank, 12], [7, rank]]):
        shapes = ", ".join(str(tuple(shape)) for shape, _ in trained) or "none"
        return f"Trained are parameters of shapes {shapes}; A ({rank}, 12) and B (7, {rank}) are right, and no others."
    for shape, dtype in trained:
        if dtype != "float64":
            name = "A" if shape[1] == 12 else "B"
            return f"{name} is {dtype} where the layer's weight is float64: give it the weight's dtype and device."
    return None


def _thin(layer: nn.Module) -> tuple[nn.Parameter, nn.Parameter]:
    """Return A (rank, 12) and B (7, rank), told apart by their shapes, of a layer that trains nothing else."""
    A, B = sorted((p for p in layer.parameters() if p.requires_grad), key=lambda p: p.shape[1] != 12)
    return A, B


def _gradient(p: Tensor) -> Tensor:
    return torch.zeros_like(p) if p.grad is None else p.grad


def _fill(layer: nn.Module, seed: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Set A and B to random numbers, as if they had been trained."""
    A, B = _thin(layer)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for p in (A, B):
            p.copy_(torch.randn(p.shape, dtype=torch.float64, generator=generator))
    return A, B


def _inputs(linear: nn.Linear, A: Tensor, B: Tensor, x: Tensor) -> Evidence:
    """Return what the formula needs: all that the layer was given, before it had a chance to change it."""
    named = {"weight": linear.weight, "bias": linear.bias, "A": A, "B": B, "x": x}
    return {name: _flat(tensor) for name, tensor in named.items()}


def _tensors(inputs: Evidence) -> list[Tensor]:
    """Return weight (7, 12), bias (7,), A (rank, 12), B (7, rank) and x (n, 12), each with a gradient to come."""
    shapes = {"weight": (7, 12), "bias": (7,), "A": (-1, 12), "B": (7, -1), "x": (-1, 12)}
    return [
        torch.tensor(inputs[name], dtype=torch.float64).view(shape).requires_grad_() for name, shape in shapes.items()
    ]


class StartsAsTheBase(Check):
    """At first the layer gives the base's output exactly; only A and B are trained, and training can begin."""

    points = 1
    hint = (
        "Print name, shape, dtype and requires_grad of each parameter. One of the two thin matrices starts at zero, "
        "the other must not: which one is multiplied by the input first?"
    )

    @staticmethod
    def probe(seed: int, lora_linear: type[nn.Module]) -> Evidence:
        linear, layer, x = _layer(lora_linear, seed, 3, 6.0, 0.5)
        trained = _trained(layer)
        if not _is_adapter(trained, 3):
            return {"trained": trained}
        layer.train()
        same = torch.equal(plain(layer(x)), linear(x))
        A, B = _thin(layer)
        layer(x).square().sum().backward()
        return {
            "trained": trained,
            "same": same,
            "rank of A": int(torch.linalg.matrix_rank(A.detach())),
            "B": B.detach().abs().max().item(),
            "gradient of B": 0.0 if B.grad is None else B.grad.norm().item(),
            "base has gradients": any(p.grad is not None for p in layer.parameters() if p is not A and p is not B),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = _wrong_adapter(seen["trained"], 3)
        if wrong:
            return wrong
        if seen["B"] != 0:
            return "B (out, r) does not start at zero: before its first step the layer already changes the output."
        if not seen["same"]:
            return "Before training, in training mode, the output is not that of the base. Does dropout touch the base?"
        if seen["rank of A"] == 0:
            return "A and B are both zero: each one's gradient is multiplied by the other, so neither will ever move."
        if seen["rank of A"] < 3:
            return f"A starts with rank {seen['rank of A']} where 3 was asked for: are its rows alike?"
        if not seen["gradient of B"] > 0:
            return "B gets no gradient."
        if seen["base has gradients"]:
            return "The base's weights got gradients: they are not frozen."
        return None


class CorrectsByAlphaOverRank(Check):
    """The output is x Wᵀ + bias + (alpha / rank) (x Aᵀ) Bᵀ, with right gradients; dropout only while training."""

    points = 1
    hint = (
        "Compare rank 2 and alpha 6 with rank 4 and alpha 6 by hand. nn.Dropout knows by itself when it is at work; "
        "F.dropout must be told: F.dropout(x, p, self.training)."
    )
    CASES = ((2, 6.0), (4, 6.0), (4, 1.0))  # rank and alpha
    DROPOUT = 0.25

    @staticmethod
    def probe(seed: int, lora_linear: type[nn.Module]) -> Evidence:
        cases, restless = [], False
        for rank, alpha in CorrectsByAlphaOverRank.CASES:
            linear, layer, x = _layer(lora_linear, seed, rank, alpha, 0.5)
            trained = _trained(layer)
            if not _is_adapter(trained, rank):
                return {"trained": trained, "rank": rank}
            A, B = _fill(layer, seed)
            inputs = _inputs(linear, A, B, x)
            layer.eval()
            restless |= not torch.equal(plain(layer(x)), layer(x))
            x.requires_grad_()
            y = layer(x)
            y.square().sum().backward()
            outcome = {
                "output": _flat(y),
                "gradient of A": _flat(_gradient(A)),
                "gradient of B": _flat(_gradient(B)),
                "gradient of x": _flat(_gradient(x)),
            }
            cases.append({"inputs": inputs, "outcome": outcome})
        return {"cases": cases, "restless": restless} | CorrectsByAlphaOverRank._dropout(seed, lora_linear)

    @staticmethod
    def _dropout(seed: int, lora_linear: type[nn.Module]) -> Evidence:
        """Look at the correction of single inputs, in training mode, a hundred times."""
        linear, layer, _ = _layer(lora_linear, seed, 4, 6.0, CorrectsByAlphaOverRank.DROPOUT)
        A, B = _fill(layer, seed)
        layer.train()
        eye = torch.eye(12, dtype=torch.float64)  # a row is one input: its correction is whole, or none
        inputs = _inputs(linear, A, B, eye)
        corrections = torch.stack([layer(eye) - linear(eye) for _ in range(100)]).detach()  # (100, 12, 7)
        dropped = corrections.abs().amax(-1) < 1e-12  # (100, 12)
        whole = [corrections[~dropped[:, i], i] for i in range(12)]  # of each input those not dropped, (n, 7)
        return {
            "single inputs": inputs,
            "dropped": dropped.double().mean().item(),
            "least and most": [[_flat(rows.amin(0)), _flat(rows.amax(0))] if len(rows) else [] for rows in whole],
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if "trained" in seen:
            return _wrong_adapter(seen["trained"], seen["rank"])
        if seen["restless"]:
            return "Two calls in evaluation mode, with the same input, differ: dropout is at work there."
        for (rank, alpha), entry in zip(CorrectsByAlphaOverRank.CASES, seen["cases"], strict=True):
            case = f"rank {rank}, alpha {alpha:g}"
            for name, right in CorrectsByAlphaOverRank._right(entry["inputs"], alpha / rank).items():
                values = entry["outcome"][name]
                off = relative_distance(values, right)
                if name.startswith("gradient") and not any(values):
                    return f"{case}: there is no {name}."
                if not off <= EXACT:
                    a, b = (torch.tensor(numbers).norm().item() for numbers in (values, right))
                    return f"{case}, evaluation mode: the {name} is {off:.2g} off and {a / b:.3g} times as long."
        return CorrectsByAlphaOverRank._wrong_dropout(seen)

    @staticmethod
    def _right(inputs: Evidence, scale: float) -> dict[str, list[float]]:
        """Return the output by the formula, and the gradients of the sum of its squares."""
        weight, bias, A, B, x = _tensors(inputs)
        y = F.linear(x, weight, bias) + scale * (x @ A.T) @ B.T
        gradients = torch.autograd.grad(y.square().sum(), (A, B, x))
        names = ("output", "gradient of A", "gradient of B", "gradient of x")
        return {name: _flat(tensor) for name, tensor in zip(names, (y, *gradients), strict=True)}

    @staticmethod
    def _wrong_dropout(seen: Evidence) -> str | None:
        share = CorrectsByAlphaOverRank.DROPOUT
        _, _, A, B, eye = _tensors(seen["single inputs"])
        full = 6.0 / 4 * (eye @ A.T) @ B.T / (1 - share)  # (12, 7)
        for row, both in zip(full, seen["least and most"], strict=True):
            if not all(((torch.tensor(end, dtype=torch.float64) - row).abs() < 1e-9).all() for end in both):
                return (
                    "In training mode a single input is neither dropped nor kept at 1 / (1 - p) of its correction. "
                    "Dropout belongs in front of A."
                )
        if not abs(seen["dropped"] - share) <= 0.08:  # 1,200 draws: six standard deviations
            return f"With dropout 0.25, {seen['dropped']:.0%} of the inputs were dropped in training mode."
        return None


class MergesOnce(Check):
    """merge() writes the correction into the weight, unmerge() takes it out; calling either twice changes nothing."""

    points = 1
    hint = "The layer must remember whether it is merged, and its forward pass must look."
    CALLS = ("merged", "merged twice", "unmerged", "unmerged twice")

    @staticmethod
    def probe(seed: int, lora_linear: type[nn.Module]) -> Evidence:
        linear, layer, x = _layer(lora_linear, seed, 3, 6.0)
        trained = _trained(layer)
        if not _is_adapter(trained, 3):
            return {"trained": trained}
        A, B = _fill(layer, seed)
        inputs = _inputs(linear, A, B, x)
        layer.eval()
        with torch.no_grad():
            before, calls = _flat(layer(x)), []
            for call in MergesOnce.CALLS:
                layer.unmerge() if call.startswith("unmerged") else layer.merge()
                weight = next(p for p in layer.parameters() if tuple(p.shape) == (7, 12))
                layer.train(call == "merged twice")  # no dropout here: the mode must make no difference
                calls.append(
                    {
                        "frozen": not weight.requires_grad,
                        "output": _flat(layer(x)),
                        "weight": _flat(weight),
                        "A": _flat(A),
                        "B": _flat(B),
                    }
                )
        return {"trained": trained, "inputs": inputs, "output before": before, "calls": calls}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = _wrong_adapter(seen["trained"], 3)
        if wrong:
            return wrong
        inputs = seen["inputs"]
        weight, bias, A, B, x = _tensors(inputs)
        merged = weight + 2.0 * B @ A
        output = _flat(F.linear(x, merged, bias))
        off = relative_distance(seen["output before"], output)
        if not off <= EXACT:
            return f"The output before is {off:.2g} off, relative."
        for call, after in zip(MergesOnce.CALLS, seen["calls"], strict=True):
            if not after["frozen"]:
                return f"{call.capitalize()}, the linear layer's weight is trained."
            right = inputs["weight"] if call.startswith("unmerged") else _flat(merged)
            for name, values, target in (("output", after["output"], output), ("weight", after["weight"], right)):
                off = relative_distance(values, target)
                if not off <= EXACT:
                    return f"The {name} {call} is {off:.2g} off, relative."
            if not relative_distance(after["A"] + after["B"], inputs["A"] + inputs["B"]) <= EXACT:
                return f"{call.capitalize()}, A or B is not what it was before."
        return None


# -- part 2: the adapter ------------------------------------------------------------------------------------


def _config(**sizes: Any) -> Any:
    from transformers import LlamaConfig

    small = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2}
    return LlamaConfig(**small | {"num_attention_heads": 4, "max_position_embeddings": 64} | sizes)


class AdapterSitsWhereItShould(Check):
    """Each linear layer of attention and MLP has an adapter of that rank, alpha is twice the rank, the rest frozen."""

    points = 1
    hint = "target_modules names layers by the end of their name. Print the model once and read the names."

    @staticmethod
    def probe(seed: int, adapter_config: Any, trained_parameters: Any) -> Evidence:
        from peft import get_peft_model
        from transformers import LlamaForCausalLM

        rank = 3 + seed % 6
        model = get_peft_model(LlamaForCausalLM(_config()), adapter_config(rank))
        layers = {n: m for n, m in model.named_modules() if hasattr(m, "lora_A")}
        return {
            "where": sorted({name.rsplit(".", 1)[1] for name in layers}),
            "layers": len(layers),
            "ranks": sorted({next(iter(m.r.values())) for m in layers.values()}),
            "scales": sorted({next(iter(m.scaling.values())) for m in layers.values()}),
            "dropouts": sorted({getattr(next(iter(m.lora_dropout.values())), "p", 0.0) for m in layers.values()}),
            "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "starts at": max(p.detach().abs().max().item() for n, p in model.named_parameters() if "lora_B" in n),
            "others": sorted(n for n, p in model.named_parameters() if p.requires_grad and "lora_" not in n)[:3],
            "task": str(getattr(adapter_config(rank), "task_type", None)),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        missing, extra = (
            sorted(set(a) - set(b)) for a, b in ((ALL_LINEAR, seen["where"]), (seen["where"], ALL_LINEAR))
        )
        if missing or extra:
            return f"Layers without an adapter: {missing or 'none'}; layers that should have none: {extra or 'none'}."
        if seen["layers"] != expected["layers"]:
            return f"{seen['layers']} layers have an adapter; {expected['layers']} is right for 2 blocks."
        if seen["ranks"] != expected["ranks"]:
            return f"adapter_config({expected['ranks'][0]}) makes adapters of rank {seen['ranks']}."
        if seen["scales"] != [2.0]:
            return f"alpha / r is {seen['scales']}; with alpha twice the rank it is 2."
        if seen["others"]:
            return f"Besides the adapters this is trained: {', '.join(seen['others'])}."
        if seen["dropouts"] != [0.05]:
            return f"Dropout is {seen['dropouts']}; 0.05 was asked for."
        if seen["starts at"] != 0 or seen["trained"] != expected["trained"]:
            return f"No plain LoRA with B at zero: {seen['trained']:,} trained, {expected['trained']:,} in such a one."
        if "CAUSAL_LM" not in seen["task"]:
            return f"task_type is {seen['task']}; that of a causal language model is CAUSAL_LM."
        return None


class CountIsPredicted(Check):
    """The number of trained parameters is said beforehand, for any Llama, without making one."""

    points = 1
    hint = (
        "r (in + out) for each layer, times the number of blocks. With grouped-query attention k and v are narrower: "
        "num_key_value_heads heads of head_dim. And head_dim need not be hidden_size / num_attention_heads."
    )
    SIZES = (
        {},
        {"num_key_value_heads": 2, "num_hidden_layers": 3},
        {"head_dim": 24, "num_key_value_heads": 1},
        {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
        {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
         "num_key_value_heads": 8},
    )  # fmt: skip

    @staticmethod
    def probe(seed: int, adapter_config: Any, trained_parameters: Any) -> Evidence:
        rank = 4 + seed % 5
        with MemoryMeter(device=torch.device("cpu")) as meter:
            counts = [int(trained_parameters(_config(**sizes), rank)) for sizes in CountIsPredicted.SIZES]
        return {"rank": rank, "counts": counts, "bytes": meter.peak_bytes}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for sizes, got, want in zip(CountIsPredicted.SIZES, seen["counts"], expected["counts"], strict=True):
            if got != want:
                return f"Llama with {sizes or 'the small sizes'}, r={seen['rank']}: {got:,} said, {want:,} there."
        if seen["bytes"] > 2**24:
            return f"{human_bytes(seen['bytes'])} were allocated for counting: it should be done without a model."
        return None


# -- part 3: the plan ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)
def _planned(recipe: Recipe) -> tuple[bool, int, tuple[int, int]]:
    """Return whether the planner lets `recipe` onto the GPU, its peak, and what the allocator may reserve for it."""
    result = plan(recipe)
    return result.fits[GPU], result.peak_allocated_bytes, result.reserved_bytes


def _recipe(seen: Evidence) -> Recipe:
    return Recipe(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in seen["recipe"].items()}
    )


def _plan_evidence(fine_tune_plan: Any) -> Evidence:
    recipe = fine_tune_plan()
    if not isinstance(recipe, Recipe):
        raise TypeError(f"fine_tune_plan returned a {type(recipe).__name__}; it must return a Recipe")
    return {"recipe": {name: getattr(recipe, name) for name in Recipe.__dataclass_fields__}}


def _wrong_task(recipe: dict[str, Any]) -> str | None:
    """Say what of the task the recipe has changed."""
    asked = {
        "model": "llama-2-7b", "precision": "bf16", "optimizer": "adamw", "lora_rank": 16, "quantize": "none",
        "ranks": 1, "offload": "none",
    }  # fmt: skip
    for name, value in asked.items():
        if recipe[name] != value:
            return f"{name} is {recipe[name]!r}; the task says {value!r}."
    if set(recipe["lora_targets"]) != set(ALL_LINEAR[:4]):
        return f"lora_targets are {', '.join(recipe['lora_targets']) or 'none'}; the task says q, k, v and o."
    if recipe["seq"] not in (512, 1024, 2048, 4096):
        return f"seq is {recipe['seq']}; the task leaves 512, 1024, 2048 and 4096."
    effective = recipe["micro_batch_size"] * recipe["gradient_accumulation_steps"]
    if effective != EFFECTIVE:
        sequences, steps = recipe["micro_batch_size"], recipe["gradient_accumulation_steps"]
        return f"{sequences} sequences in {steps} micro-batches make {effective}, not {EFFECTIVE}."
    return None


class PlanFits(Check):
    """The plan is of the task given, makes an effective batch of 32, and the planner lets it onto a GPU of 24 GB."""

    points = 1
    hint = (
        "plan(recipe) shows what is allocated, what would be reserved for it and, under fits, each GPU. Which of "
        "micro_batch_size, seq and checkpointing costs what?"
    )

    @staticmethod
    def probe(seed: int, fine_tune_plan: Any) -> Evidence:
        return _plan_evidence(fine_tune_plan)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = _wrong_task(seen["recipe"])
        if wrong:
            return wrong
        try:
            fits, peak, reserved = _planned(_recipe(seen))
        except RecipeError as error:
            return f"The planner refuses it: {error}"
        if fits:
            return None
        total, low, high = (n / GiB for n in (find_gpu(GPU).total, *reserved))
        diagnosis = (
            f"{peak / GiB:.1f} GiB are allocated at its peak, and the allocator would reserve {low:.1f} to {high:.1f}"
        )
        diagnosis += f"; {GPU} has {total:.1f}, some of it for the CUDA context."
        return (
            diagnosis if peak / GiB > total else f"{diagnosis} Even if it hands back what it cached, it does not fit."
        )


class PlanUsesTheRoom(Check):
    """No plan of the task that fits has more tokens in a micro-batch."""

    points = 1
    hint = "Double the tokens until it no longer fits. Checkpointing costs time, and buys room for many more of them."

    @staticmethod
    def probe(seed: int, fine_tune_plan: Any) -> Evidence:
        return _plan_evidence(fine_tune_plan)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        got, best = (entry["recipe"]["micro_batch_size"] * entry["recipe"]["seq"] for entry in (seen, expected))
        if got < best:
            return f"{got:,} tokens are in a micro-batch; {best:,} would fit."
        return PlanFits.judge(seen, expected)


# -- part 4: the fine-tune ----------------------------------------------------------------------------------

LENGTH, ROWS, STEPS = 48, 16, 60


def _windows(ids: Tensor, n: int, generator: torch.Generator) -> Tensor:
    starts = torch.randint(len(ids) - LENGTH, (n,), generator=generator)
    return torch.stack([ids[i : i + LENGTH] for i in starts.tolist()])


@functools.lru_cache(maxsize=2)
def _pretrained(seed: int) -> nn.Module:
    """Return a small Llama that has read some English."""
    from transformers import LlamaForCausalLM

    device, text = pick_device(), english()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(_config()).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(80):
        ids = _windows(text.train_x, ROWS, generator).to(device)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def _batches(text: Split, n: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [_windows(text.train_x, ROWS, generator).to(pick_device()) for _ in range(n)]


def _fresh(seed: int) -> nn.Module:
    """Return a copy of the small Llama; the random numbers that follow are the same whether it was trained just now."""
    model = copy.deepcopy(_pretrained(seed))
    torch.manual_seed(seed)
    return model


def small_llama(seed: int = 0) -> tuple[nn.Module, list[Tensor], Tensor]:
    """Return what part 4 is tried on.

    Returns:
        a small Llama that has read some English, in evaluation mode; 60 batches of Python source, token ids (16, 48);
        64 stretches of held-out Python source, (64, 48).
    """
    return _fresh(seed), _batches(python_source(), STEPS, seed), _held_out(seed)


def _held_out(seed: int, rows: int = 64) -> Tensor:
    return _windows(python_source().test_x, rows, torch.Generator().manual_seed(seed)).to(pick_device())


@torch.no_grad()
def _loss(model: nn.Module, seed: int) -> float:
    """Return the loss on held-out Python. The model sees no token before it has predicted it."""
    ids, losses = _held_out(seed, 256), []
    for length in range(6, ids.shape[1], 6):
        logits = plain(model(input_ids=ids[:, :length]).logits)[:, -1]
        losses.append(F.cross_entropy(logits.float(), ids[:, length]))
    return torch.stack(losses).mean().item()


class _Optimizers:
    """A context that records, at each step of any optimizer, which parameters it holds."""

    def __init__(self) -> None:
        self.steps = 0
        self.held: set[int] = set()
        self.kinds: set[str] = set()

    def __enter__(self) -> "_Optimizers":
        self._handle = register_optimizer_step_pre_hook(self._step)
        return self

    def _step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self.steps += 1
        self.kinds.add(type(optimizer).__name__)
        self.held |= {id(p) for group in optimizer.param_groups for p in group["params"]}

    def __exit__(self, *_: object) -> None:
        self._handle.remove()


class LearnsTheNewText(Check):
    """After one pass over the batches, in training mode, the loss on other Python fell by 0.7 of what LoRA can do."""

    points = 1
    hint = (
        "For each batch in turn: clear gradients, forward, backward, step. Where only the loss is too high: LoRA "
        "bears, and needs, a larger learning rate than full training; try 5e-3 to 2e-2."
    )
    SHARE = 0.7  # of the fall in loss of the reference

    @staticmethod
    def probe(seed: int, fine_tune: Any, merged_model: Any) -> Evidence:
        model = _fresh(seed)
        before = _loss(model, seed)
        batches = _batches(python_source(), STEPS, seed)
        given = [ids.sum().item() for ids in batches]  # tells batches apart
        texts = fingerprint(*batches, _held_out(seed), english().train_x)
        read: list[float] = []
        modes: set[bool] = set()
        stale: list[float] = []

        def spy(module: nn.Module, args: Any, kwargs: Any) -> None:
            read.append((kwargs["input_ids"] if "input_ids" in kwargs else args[0]).sum().item())
            modes.add(module.training)
            stale.append(
                max((p.grad.abs().max().item() for p in module.parameters() if p.grad is not None), default=0.0)
            )

        handle = model.register_forward_pre_hook(spy, with_kwargs=True)
        with _Optimizers() as optimizers:
            tuned = fine_tune(model, batches)
        handle.remove()
        passes, in_modes, left = list(read), sorted(modes), max(stale, default=0.0)  # a copied base still has the spy
        left_training = tuned.training
        tuned.eval()
        return {
            "texts": texts,
            "before": before,
            "after": _loss(tuned, seed),
            "in order": passes == given,
            "passes": len(passes),
            "stale": left,
            "optimizers": sorted(optimizers.kinds),
            "modes": in_modes,
            "steps": optimizers.steps,
            "left training": left_training,
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["texts"] != expected["texts"] or not abs(seen["before"] / expected["before"] - 1) <= 0.01:
            return OTHER_DATA
        if not seen["in order"]:
            ran = f"The model ran {seen['passes']} times"
            return f"{ran}, and not once on each of the {STEPS} batches, whole and in order."
        if seen["steps"] != STEPS:
            return f"{seen['steps']} updates were made for {STEPS} batches."
        if seen["optimizers"] != ["AdamW"]:
            return f"The optimizer is {', '.join(seen['optimizers'])}; AdamW was asked for."
        if seen["stale"]:
            return "Gradients of the batch before were still there when the next one began."
        if seen["modes"] != [True]:
            return "The model was in evaluation mode while it was trained: dropout slept."
        if seen["left training"]:
            return "The model is returned in training mode; whoever uses it next would drop out activations."
        fall, possible = (entry["before"] - entry["after"] for entry in (seen, expected))
        if not fall >= LearnsTheNewText.SHARE * possible:
            enough = seen["before"] - LearnsTheNewText.SHARE * possible
            return (
                f"The loss went from {seen['before']:.3f} to {seen['after']:.3f}; {expected['after']:.3f} can be "
                f"reached, {enough:.3f} is enough. Which learning rate does it take?"
            )
        return None


class BaseIsFrozen(Check):
    """The base is unchanged to the last bit; gradients and the optimizer's state exist for adapters only."""

    points = 1
    hint = "Which parameters does the optimizer get? requires_grad tells them apart. Look at the base's .grad, too."

    @staticmethod
    def probe(seed: int, fine_tune: Any, merged_model: Any) -> Evidence:
        model = _fresh(seed)
        base = [p.detach().clone() for p in model.parameters()]
        batches = _batches(python_source(), 4, seed)
        with _Optimizers() as optimizers, MemoryMeter(device=pick_device()) as meter:
            tuned = fine_tune(model, batches)
        frozen = [p for p in tuned.parameters() if not p.requires_grad]
        trained = [p for p in tuned.parameters() if p.requires_grad]
        survived = [any(p.shape == b.shape and torch.equal(plain(p), b) for p in frozen) for b in base]
        return {
            "lost": survived.count(False),
            "tensors": len(base),
            "trained": sum(p.numel() for p in trained),
            "gradients": sum(p.grad is not None for p in frozen),
            "strangers": len(optimizers.held - {id(p) for p in trained}),
            "peak": meter.peak_bytes,
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["lost"]:
            return f"{seen['lost']} of the base's {seen['tensors']} tensors have changed, or are trained now."
        if seen["trained"] != expected["trained"]:
            return f"{seen['trained']:,} parameters are trained; adapters of rank {RANK} have {expected['trained']:,}."
        if seen["gradients"]:
            return f"{seen['gradients']} frozen tensors have gradients."
        if seen["strangers"]:
            return f"The optimizer holds {seen['strangers']} tensors that are not trained."
        if not seen["peak"] <= 1.5 * expected["peak"]:
            peak, enough = human_bytes(seen["peak"]), human_bytes(expected["peak"])
            return f"The peak of the fine-tune is {peak} above what was there before; {enough} is enough."
        return None


class MergedIsEqual(Check):
    """Merged, it is an ordinary model again: the base's parameters by name, and the same output."""

    points = 1
    hint = "PEFT's merge_and_unload does both. Compare the logits in evaluation mode."

    @staticmethod
    def probe(seed: int, fine_tune: Any, merged_model: Any) -> Evidence:
        base = _pretrained(seed)
        tuned = fine_tune(_fresh(seed), _batches(python_source(), 8, seed))
        ids = _batches(python_source(), 1, seed + 1)[0]
        with torch.no_grad():
            unmerged = plain(tuned.eval()(input_ids=ids).logits).clone()
            merged = merged_model(tuned)
            logits = plain(merged.eval()(input_ids=ids).logits)
            moved = ((unmerged - base(input_ids=ids).logits).norm() / unmerged.norm()).item()
        return {
            "off": ((logits - unmerged).norm() / unmerged.norm()).item(),
            "moved": moved,
            "same names": [n for n, _ in merged.named_parameters()] == [n for n, _ in base.named_parameters()],
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["same names"]:
            return "Its parameters are not those of the base, by name: adapters, or a wrapper, are still there."
        if not seen["off"] <= 1e-4:
            return f"The merged model's output is {seen['off']:.2g} off, relative, from the unmerged one's."
        if not seen["moved"] > 1e-3:
            return "The output is that of the base: no adapter has been merged."
        return None


PARTS = (
    Part("x4.layer", ("LoRALinear",), (StartsAsTheBase, CorrectsByAlphaOverRank, MergesOnce)),
    Part("x4.adapter", ("adapter_config", "trained_parameters"), (AdapterSitsWhereItShould, CountIsPredicted)),
    Part("x4.plan", ("fine_tune_plan",), (PlanFits, PlanUsesTheRoom)),
    Part("x4.finetune", ("fine_tune", "merged_model"), (LearnsTheNewText, BaseIsFrozen, MergedIsEqual)),
)
