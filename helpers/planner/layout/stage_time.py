"""The seconds of a stage's actions, with the messages of data parallelism where they can hide.

Without zero3 the gradients of a block are reduced as soon as its last backward pass is done, beside that of the block
before; and where the state is sharded, updated weights are gathered a block ahead of the first forward pass.

In a pipeline a rank goes on with other actions while its last gradients are reduced, and the weights of its later
stages are gathered while its first one runs (Megatron-LM, `--overlap-grad-reduce` and `--overlap-param-gather`).
"""

from dataclasses import replace

from ...meter.work import Work
from ...pipelines.play import FOR_INPUT, FOR_WEIGHTS, Pass
from . import stage_run as runs
from .layout import Layout
from .stage_run import StageRun
from .streams import Streams, Timing
from .trace import Arrival, Event, Message, Place


class StageTime:
    """How long a stage's actions take.

    Args:
        layout: of the step.
        run: what the stage does.
        streams: of the rank.
        later: whether the rank has stages before this one.

    Attributes:
        timings: of each action.
        gathering: seconds in which the weights of a later stage are gathered.
        exposed: seconds of data parallelism after the last pass, where a layout hides nothing of it.
    """

    def __init__(self, layout: Layout, run: StageRun, streams: Streams, later: bool = False) -> None:
        self.timings: dict[runs.ActionKey, Timing] = {}
        self.gathering = self.exposed = 0.0
        spread = layout.zero != "zero3" and layout.data * layout.context > 1
        if spread and not layout.data_overlap:
            whole = _reductions(layout, run, 1)
            self.exposed = streams.sending(whole if layout.zero == "none" else [*whole, *_weights(layout, run, 1)])
        for key, places in run.actions.items():
            if key[0] == runs.BEFORE:
                continue
            if spread and layout.data_overlap:
                if key == (runs.BACKWARD, runs.LAST):
                    places = _reducing(layout, run, places)
                elif layout.zero != "none" and key == (runs.FORWARD, _first(run)):
                    if later:
                        self.gathering = len(places) * streams.sending(_weights(layout, run, len(places)))
                    else:
                        places = _gathering(layout, run, places)
            if key[0] == runs.UPDATE and layout.buffer_passes:
                places = [replace(places[0], events=[*_passes(layout, run), *places[0].events]), *places[1:]]
            goes_on = layout.pipeline > 1 and key == (runs.BACKWARD, runs.LAST)
            self.timings[key] = streams.run(places, waits=not goes_on)

    def seconds(self, key: runs.ActionKey, action: Pass) -> float:
        """Return the seconds of an action; a backward pass may be split in two."""
        timing = self.timings[key]
        if action.kind == FOR_WEIGHTS:
            return timing.weights
        return timing.seconds - (timing.weights if action.kind == FOR_INPUT else 0.0)


def _first(run: StageRun) -> str:
    return next(which for kind, which in run.actions if kind == runs.FORWARD)


def _messages(run: StageRun, collective: str, wire: str, bytes_each: float) -> list[Message]:
    """Return what a stage sends on the wire of its dense parameters, and on that of its experts'."""
    numbers = {wire: run.parameters, "expert shard": run.expert_parameters}
    return [Message(collective, wire, int(number * bytes_each), False) for wire, number in numbers.items() if number]


def _reductions(layout: Layout, run: StageRun, places: int) -> list[Message]:
    """Return the messages that add up a stage's gradients, one of as many parts as it has places."""
    each = (2 if layout.precision == "bf16" and layout.engine != "megatron" else 4) / places
    if layout.zero == "none":
        return _messages(run, "all-reduce", "data", each)
    if layout.replicate == 1:
        return _messages(run, "reduce-scatter", "data", each)
    messages = _messages(run, "reduce-scatter", "shard", each)  # then added up over the groups that have each share
    return [*messages, Message("all-reduce", "replicate", int(run.parameters * each / layout.shards), False)]


def _passes(layout: Layout, run: StageRun) -> list[Event]:
    """Return the passes over the buffer of gradients; the update counts them, as nothing is sent beside them."""
    nbytes = (2 if layout.narrow_gradients else 4) * (run.parameters + run.expert_parameters)
    moved = {"aten.zero_": nbytes, "aten.linalg_vector_norm": nbytes}
    moved |= {"aten.mul_": 2 * nbytes} if layout.data * layout.context > 1 else {}
    return [Work(name, "pointwise", 0, each, "float32", ()) for name, each in moved.items()]


def _reducing(layout: Layout, run: StageRun, places: list[Place]) -> list[Place]:
    messages = _reductions(layout, run, len(places))
    return [replace(place, events=[*place.events, *messages]) for place in places]


def _weights(layout: Layout, run: StageRun, places: int) -> list[Message]:
    each = (2 if layout.engine == "megatron" else 4) / places
    return _messages(run, "all-gather", "data" if layout.replicate == 1 else "shard", each)


def _gathering(layout: Layout, run: StageRun, places: list[Place]) -> list[Place]:
    messages = _weights(layout, run, len(places))
    arrivals: list[Event] = [Arrival(message.collective) for message in messages]
    return [replace(place, events=[*messages, *arrivals, *place.events]) for place in places]
