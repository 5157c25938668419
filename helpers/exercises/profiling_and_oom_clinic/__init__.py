"""Practice checks of profiling and the OOM clinic: a replay, a reader of snapshots, an allocator, six sick loops."""

from ..base import Part
from .clinic import (
    EvaluationKeepsNothing,
    GradientsMakeRoom,
    HeadInPieces,
    HistoryLetsGo,
    HookForgets,
    OptimizerTakesTurns,
)
from .replay import REPLAY
from .small_allocator import SMALL_ALLOCATOR
from .snapshot import SNAPSHOT

PARTS = (
    Part("profiling_and_oom_clinic.replay", ("replay",), REPLAY),
    Part("profiling_and_oom_clinic.snapshot", ("still_there",), SNAPSHOT),
    Part("profiling_and_oom_clinic.allocator", ("SmallAllocator",), SMALL_ALLOCATOR),
    Part("profiling_and_oom_clinic.history", ("train_and_log",), (HistoryLetsGo,)),
    Part("profiling_and_oom_clinic.head", ("head_loss",), (HeadInPieces,)),
    Part("profiling_and_oom_clinic.evaluation", ("evaluate",), (EvaluationKeepsNothing,)),
    Part("profiling_and_oom_clinic.optimizer", ("make_optimizer",), (OptimizerTakesTurns,)),
    Part("profiling_and_oom_clinic.hook", ("log_means",), (HookForgets,)),
    Part("profiling_and_oom_clinic.second", ("train",), (GradientsMakeRoom,)),
)
