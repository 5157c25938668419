"""A model as its traffic sees it: equal blocks, what they weigh, and what goes from one to the next."""

from typing import NamedTuple


class ModelOfBlocks(NamedTuple):
    """Sizes that decide what ranks send.

    Attributes:
        blocks: how many; they are cut into stages of equal numbers.
        weights: bytes of one block's gradients, before any of it is split.
        message: bytes that go from block to block, for one micro-batch.
        all_reduces: of a message, that tensor ranks need for one block and micro-batch, forward and backward.
    """

    blocks: int
    weights: int
    message: int
    all_reduces: int
