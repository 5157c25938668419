"""Whether messages arrive in the order in which they are received, for ranks whose messages carry no tags."""

from ...pipelines.action import Action
from ...pipelines.placement import in_a_row, rank_of
from .lists import Case, Lists

Channels = dict[tuple[int, int, str], list[Action]]  # (from this rank, to that one, letter) -> what for, in order


def taken_for_another(case: Case, lists: Lists) -> str | None:
    """Describe the first message that a rank would take for another; None if it receives all in the order of sending.

    The engine's messages have tags, as gloo allows, so they can be received in any order. NCCL has no tags: there a
    rank receives the next message, whatever it needs.
    """
    sent, taken = _messages(case, lists)
    for channel, needed in taken.items():
        source, target, _ = channel
        for comes, wanted in zip(sent.get(channel, []), needed, strict=False):
            if comes != wanted:
                return (
                    "these lists run here, because gloo's messages carry tags. NCCL's do not: "
                    f"rank {source} sends {comes} when rank {target} needs {wanted}, and one is taken for the other."
                )
    return None


def _messages(case: Case, lists: Lists) -> tuple[Channels, Channels]:
    """Return the messages sent and received: the receiver's actions, activations as F and their gradients as B."""
    placement, stages = in_a_row(case.ranks, case.chunks), range(case.chunks * case.ranks)
    sent: Channels = {}
    taken: Channels = {}
    for rank, actions in enumerate(lists):
        for kind, micro_batch, chunk in actions:
            if kind == "W":  # stays where it is
                continue
            letter, way = ("F", 1) if kind == "F" else ("B", -1)
            stage = placement[rank][chunk]
            if stage + way in stages:
                to = rank_of(placement, stage + way)
                action = Action(letter, micro_batch, placement[to].index(stage + way))
                sent.setdefault((rank, to, letter), []).append(action)
            if stage - way in stages:
                source = rank_of(placement, stage - way)
                taken.setdefault((source, rank, letter), []).append(Action(letter, micro_batch, chunk))
    return sent, taken
