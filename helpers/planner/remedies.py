"""What to change in a recipe that does not fit: each change alone, the largest micro-batch, and combinations.

A search tries dozens of recipes, so each is estimated from two shallow copies of its model (`shallow.py`). Where an
estimate lies close to what the GPU has, the whole step is planned.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from .catalog.models import limits
from .config import RecipeError, TrainingConfig
from .reserved import reserved_between

if TYPE_CHECKING:
    from .catalog.gpus import Gpu
    from .plan import Plan

WORTHWHILE = 0.995  # a remedy lowers the peak at least to this share
SURELY = 0.93  # of the room: what is allocated up to here fits, whatever the allocator does
LEAST_SEQ = 128
MOST_PLANS = 2  # of the whole step, in a search


_OF_TOKENS = ("activations", "recomputed activations", "temporaries", "kernel workspace", "inputs and other")
_UPDATE = "optimizer step"  # the phase
_OF_UPDATES = ("optimizer state", "temporaries")
_OF_FLOOR = ("parameters", "gradients", "optimizer state")  # of what stays through a whole step
_SAME = re.compile(r"^same (numbers|gradient)(, (?!except)|$)")  # what a change claims of its numbers


@dataclass(frozen=True)
class Change:
    """One thing to change.

    Attributes:
        option: as the command has it.
        meaning: in words.
        fields: of the recipe.
        saves: categories whose bytes it can save; () for any.
        trains_all: whether the whole model is still trained, on sequences as long.
        updates: whether it can lower what an update needs, and not only what the passes need.
        exact: whether the numbers are the same as without it, apart from the order of sums.
    """

    option: str
    meaning: str
    fields: Mapping[str, Any]
    saves: tuple[str, ...] = ()
    trains_all: bool = True
    updates: bool = True
    exact: bool = True

    @property
    def lowers_floor(self) -> bool:
        """Whether less may stay in memory through a whole step."""
        return not self.saves or any(category in _OF_FLOOR for category in self.saves)


def candidates(recipe: TrainingConfig, bf16: bool = True) -> Iterator[Change]:
    """Yield what could be changed, the least trouble first; the micro-batch is a search of its own.

    Args:
        recipe: to change.
        bf16: whether the GPUs compute in BF16; those before Ampere emulate it, which takes several times as long.
    """
    if recipe.attention == "eager":
        yield Change("--attention sdpa", "same numbers", {"attention": "sdpa"}, _OF_TOKENS, updates=False)
    if recipe.optimizer in ("adamw", "adam") and recipe.optimizer_impl == "foreach":
        yield Change("--optimizer-impl fused", "same numbers", {"optimizer_impl": "fused"}, ("temporaries",))
    if recipe.checkpointing != "every":
        saves = (*_OF_TOKENS, "weight copies")
        fields = {"checkpointing": "every"}
        yield Change("--activation-checkpointing full", "same gradient", fields, saves, updates=False)
    if recipe.gradient_accumulation_steps == 1 and recipe.set_to_none:
        fields, saves = {"step_in_backward": True}, ("gradients", *_OF_UPDATES)
        yield Change("--step-in-backward", "same numbers, no gradient clipping", fields, saves)
    if recipe.loss == "full" and recipe.method == "sft":
        meaning = "Liger's kernel, which never writes the logits"
        yield Change("--loss fused", meaning, {"loss": "fused"}, _OF_TOKENS, updates=False)
    if recipe.precision == "fp32":
        mixed = "bf16-amp" if bf16 else "fp16-amp"
        fields = {"precision": mixed}
        yield Change(f"--precision {mixed}", "16-bit activations", fields, _OF_TOKENS, updates=False, exact=False)
    if recipe.optimizer in ("adamw", "adam") and not recipe.lora_rank:
        fields = {"optimizer": "adamw-8bit", "optimizer_impl": "foreach"}
        yield Change("--optimizer adamw-8bit", "8-bit moments", fields, _OF_UPDATES, exact=False)
    if recipe.optimizer == "adamw-8bit" and recipe.offload == "none":
        fields, meaning = {"optimizer": "adamw-8bit-paged"}, "8-bit moments, which move to the host if the GPU is full"
        yield Change("--optimizer adamw-8bit-paged", meaning, fields, _OF_UPDATES, exact=False)
    if recipe.offload == "none" and not recipe.paged:
        yield Change("--offload optimizer", "the host runs the optimizer", {"offload": "optimizer"}, _OF_UPDATES)
    if recipe.ranks > 1 and recipe.shard != "zero3":
        parallel = replace(recipe.parallel, zero="zero3")
        fields = {"parallel": parallel, "set_to_none": True}
        yield Change("--zero-stage 3", "more communication", fields)
    if recipe.precision in ("fp32", "fp16-amp", "bf16-amp") and bf16:
        yield Change("--precision bf16", "16-bit weights, too", {"precision": "bf16"}, exact=False)
    if not recipe.lora_rank:
        yield Change("--lora-rank 16", "trains adapters only", {"lora_rank": 16}, trains_all=False, exact=False)
    elif recipe.quantize == "none" and recipe.precision != "fp32":
        yield Change("--quantize nf4-dq", "a 4-bit base", {"quantize": "nf4-dq"}, trains_all=False, exact=False)
    if recipe.seq >= 2 * LEAST_SEQ:
        seq = recipe.seq // 2
        yield Change(f"--seq {seq}", "shorter sequences", {"seq": seq}, _OF_TOKENS, False, updates=False, exact=False)


@dataclass(frozen=True)
class Remedy:
    """Changes, and what becomes of the recipe with them.

    Attributes:
        recipe: with the changes.
        allocated: bytes at the peak.
        reserved: bytes between which the reserved ones lie.
        fits: whether every GPU asked about has room for it.
        tight: whether the allocator may want more than one of them has, although it fits.
        seconds: of a step, where they are forecast.
        slower: by which the time for each token or image grows; of FLOPs where no seconds are forecast.
        floor: bytes that stay in memory through a whole step, however small the micro-batch is.
        in_update: whether the most is allocated while the optimizer steps.
    """

    changes: tuple[Change, ...]
    recipe: TrainingConfig
    allocated: int
    reserved: tuple[int, int]
    fits: bool
    tight: bool
    seconds: float | None
    slower: float
    floor: int
    in_update: bool

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values; `change` says it in words."""
        meanings = dict.fromkeys(change.meaning for change in self.changes)
        if not all(change.exact for change in self.changes):  # the numbers of all changes together are not the same
            meanings = dict.fromkeys(filter(None, (_SAME.sub("", meaning) for meaning in meanings)))
        return {
            "change": f"{' '.join(change.option for change in self.changes)}: {'; '.join(meanings)}",
            "peak_allocated_bytes": self.allocated,
            "reserved_bytes": self.reserved,
            "fits": self.fits,
            "tight": self.tight,
            "seconds": self.seconds,
            "slower": round(self.slower, 4),
            "recipe": asdict(self.recipe),
        }


class RemedySearch:
    """Tries changes of a recipe that does not fit.

    Args:
        base: its plan.
        gpus: that it is asked about.
        plan_one: plans a changed recipe in full.
        batch_norm: whether the model normalizes over the batch.
    """

    def __init__(
        self, base: "Plan", gpus: Sequence["Gpu"], plan_one: Callable[[TrainingConfig], "Plan"], batch_norm: bool
    ) -> None:
        self._base, self._gpus, self._plan_one, self._batch_norm = base, gpus, plan_one, batch_norm
        self._images = any(limits(base.recipe.model)[1:])
        smallest = min(gpus, key=lambda gpu: gpu.room)
        self._room, self._workspace = smallest.room, smallest.cublas_workspace
        self._bf16 = all(gpu.bf16 for gpu in gpus)
        self._known: dict[TrainingConfig, Remedy | None] = {}
        self._plans = MOST_PLANS

    def remedies(self) -> list[Remedy]:
        """Return what lowers the peak, what suffices first and in order of trouble.

        Combinations follow where no change suffices alone and still trains the whole model.
        """
        recipe = self._base.recipe
        changes = [change for change in candidates(recipe, self._bf16) if not (self._images and "seq" in change.fields)]
        found = [self.largest_micro_batch(()), *(self.tried((each,)) for each in changes if self._may_suffice(each))]
        pair = tuple(change for change in changes if "checkpointing" in change.fields)
        smaller = recipe.micro_batch_size > 1 and self._base.floor_bytes <= self._room
        if pair and smaller and self._may_lower(pair[0]) and not _fits(self.tried(pair)):
            found.append(self.largest_micro_batch(pair))
        if not any(_fits(remedy) and remedy.changes[0].trains_all for remedy in found):
            whole = [change for change in changes if change.trains_all]
            less = [change for change in whole if change.meaning.startswith("same")]
            less += [change for change in changes if not change.trains_all]
            cuts = [(), (self._micro_batch(1),)] if recipe.micro_batch_size > 1 else [()]
            tries = (self.combination(order, cut) for order in (whole, less) for cut in cuts)
            found.append(next(filter(None, tries), None))
        by_recipe = {remedy.recipe: remedy for remedy in found if remedy}
        return sorted(by_recipe.values(), key=lambda remedy: not remedy.fits)

    def _may_suffice(self, change: Change) -> bool:
        """Return whether there would be room if all went that the change can save at the peak."""
        return self._may_lower(change) and self._base.peak_allocated_bytes - self._most_saved(change) <= self._room

    def _may_lower(self, change: Change) -> bool:
        """Return whether the change can lower the peak enough, if everything that it can save went."""
        whole = self._base.peak_allocated_bytes
        helps = change.updates or not self._base.peak_at.startswith(_UPDATE)
        return helps and whole - self._most_saved(change) < WORTHWHILE * whole

    def _most_saved(self, change: Change) -> int:
        """Return the bytes at the peak of all categories that the change can save."""
        held = self._base.at_peak
        return sum(held.get(category, 0) for category in change.saves or held)

    def tried(self, changes: tuple[Change, ...]) -> Remedy | None:
        """Return what the changes do; None where they cannot be combined, or do not lower the peak."""
        fields: dict[str, Any] = {}
        for change in changes:
            fields |= change.fields
        try:
            recipe = replace(self._base.recipe, **fields)
            if recipe not in self._known:
                self._known[recipe] = self._estimated(changes, recipe)
        except RecipeError:  # they do not go with the rest of the recipe, or with the model
            return None
        remedy = self._known[recipe]
        return remedy and replace(remedy, changes=changes)

    def _estimated(self, changes: tuple[Change, ...], recipe: TrainingConfig) -> Remedy | None:
        from .costs import forecasts
        from .shallow import estimate

        guess = estimate(recipe)
        if guess.allocated >= WORTHWHILE * self._base.peak_allocated_bytes:
            return None
        allocated, reserved = guess.allocated, reserved_between(guess.allocated, guess.reserved, self._workspace)
        fits = allocated <= SURELY * self._room
        if not fits and allocated <= self._room and self._plans:
            self._plans -= 1
            plan = self._plan_one(recipe)
            allocated, reserved, fits = plan.peak_allocated_bytes, plan.reserved_bytes, all(plan.fits.values())
        tight = fits and reserved[1] > self._room
        name = self._gpus[0].name
        forecast, before = forecasts(guess.simulation, allocated, self._gpus).get(name), self._base.forecasts.get(name)
        if forecast and before:
            slower = before.per_second / forecast.per_second - 1
        else:
            slower = (guess.simulation.flops / _tokens(recipe)) / (self._base.flops / _tokens(self._base.recipe)) - 1
        seconds, floor = forecast and forecast.seconds, guess.simulation.floor_bytes
        in_update = guess.phase.startswith(_UPDATE)
        return Remedy(changes, recipe, allocated, reserved, fits, tight, seconds, slower, floor, in_update)

    def largest_micro_batch(self, changes: tuple[Change, ...]) -> Remedy | None:
        """Return the largest micro-batch that fits and divides the batch of a step; the smallest where none does.

        None is tried where even parameters, gradients and state are too large.
        """
        recipe = self._base.recipe
        changed = self.tried(changes) if changes else None
        if (changed.floor if changed else self._base.floor_bytes) > self._room:
            return None
        batch = _batch(recipe)
        sizes = [size for size in range(1, recipe.micro_batch_size) if batch % size == 0]
        if not sizes:
            return None

        def at(size: int) -> Remedy | None:
            return self.tried((*changes, self._micro_batch(size)))

        best = at(1)
        if not _fits(best):
            return best
        # Bytes grow about in proportion: look first where the line to the whole micro-batch leaves the room.
        whole = changed.allocated if changed else self._base.peak_allocated_bytes
        each = max(1.0, (whole - best.allocated) / (recipe.micro_batch_size - 1))
        guess = 1 + (SURELY * self._room - best.allocated) / each
        low, high = 0, len(sizes)  # of `sizes`: the first fits, and what would come after the last does not
        middle = max(1, sum(size <= guess for size in sizes) - 1)
        while high - low > 1:
            tried = at(sizes[middle])
            if _fits(tried):
                low, best = middle, tried
            else:
                high = middle
            middle = low + 1 if low else (low + high) // 2
        return best

    def _micro_batch(self, size: int) -> Change:
        steps = _batch(self._base.recipe) // size
        fields = {"micro_batch_size": size, "gradient_accumulation_steps": steps}
        meaning = "same gradient, except with BatchNorm" if self._batch_norm else "same gradient"
        return Change(f"--micro-batch-size {size} --gradient-accumulation-steps {steps}", meaning, fields)

    def combination(self, order: Sequence[Change], cut: tuple[Change, ...] = ()) -> Remedy | None:
        """Return the first changes of `order`, one more at a time, that suffice together; without needless ones.

        They are compared at the micro-batch of the recipe, or at that of `cut`, where state is a larger share.
        """
        kept: tuple[Change, ...] = ()
        waiting, seen, peak = list(order), {change.option for change in order}, self._base.peak_allocated_bytes
        later: list[Change] = []  # until it is the passes, or the update, that are too large
        too_much, in_update = self._base.floor_bytes > self._room, self._base.peak_at.startswith(_UPDATE)
        if cut:
            smaller = self.tried(cut)
            if smaller is None:
                return None
            peak, in_update = smaller.allocated, smaller.in_update
        while waiting:
            change = waiting.pop(0)
            if not (change.lowers_floor if too_much else change.updates or not in_update):
                later.append(change)
                continue
            others = tuple(each for each in kept if not set(each.fields) & set(change.fields))
            tried = self.tried((*others, change, *cut))
            if tried is None or tried.allocated >= WORTHWHILE * peak:
                continue
            kept, peak = (*others, change), tried.allocated
            too_much, in_update = tried.floor > self._room, tried.in_update
            done = tried if tried.fits and not cut else self.largest_micro_batch(kept)
            if _fits(done):
                return self._without_needless(done)
            new = [each for each in candidates(tried.recipe, self._bf16) if each.option not in seen]
            seen |= {each.option for each in new}
            waiting += [each for each in new if each.trains_all or not all(one.trains_all for one in order)]
            if not too_much:  # what has to wait for the passes goes back to `later`; what undoes a change is gone
                fields = {name for change in kept for name in change.fields}
                waiting, later = [each for each in later if not fields & set(each.fields)] + waiting, []
        return None

    def _without_needless(self, remedy: Remedy) -> Remedy:
        for change in remedy.changes[:-1]:
            fewer = self.tried(tuple(each for each in remedy.changes if each != change))
            remedy = fewer if fewer and fewer.fits else remedy
        return remedy


def _fits(remedy: Remedy | None) -> bool:
    return remedy is not None and remedy.fits


def _tokens(recipe: TrainingConfig) -> int:
    """Return the tokens of a step; of images, their number times a constant."""
    return _batch(recipe) * recipe.seq


def _batch(recipe: TrainingConfig) -> int:
    return recipe.micro_batch_size * recipe.gradient_accumulation_steps
