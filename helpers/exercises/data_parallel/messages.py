"""What a rank sends and receives point to point: each message with its size and the rank at the other end."""

from typing import Any

from ...meter.operations_seen import OperationWatch

POINT_TO_POINT = {"send": "send", "recv_": "recv", "recv_any_source_": "recv"}


class Messages(OperationWatch):
    """Records sends, receives and collectives of the code in its `with` block, in order.

    Attributes:
        sent, received: (the other rank, bytes) of each message; -1 for a receive from any rank.
        collectives: names of the other calls, as the dispatcher has them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[int, int]] = []
        self.received: list[tuple[int, int]] = []
        self.collectives: list[str] = []

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Record the operation if it goes to other ranks."""
        if func.namespace in ("c10d", "_c10d_functional"):
            name = func._schema.name.partition("::")[2]
            kind = POINT_TO_POINT.get(name)
            if kind:
                nbytes = sum(tensor.nbytes for tensor in args[0])
                log = self.sent if kind == "send" else self.received
                log.append((-1 if name == "recv_any_source_" else int(args[2]), nbytes))
            elif not name.startswith("wait"):
                self.collectives.append(name.rstrip("_"))

    @property
    def nbytes(self) -> int:
        """Bytes that this rank has sent."""
        return sum(nbytes for _, nbytes in self.sent)
