"""Practice checks of token data: packed documents, blocks for ranks and workers, an epoch that is taken up again.

No check uses a clock. What workers fetch is told by what was read and delivered.
"""

from ..base import Part
from .pack import PACK
from .resume import RESUME
from .shard import SHARD

PARTS = (
    Part("tokens.pack", ("pack", "document_mask"), PACK),
    Part("tokens.shard", ("share",), SHARD),
    Part("tokens.resume", ("ResumableLoader",), RESUME),
)
