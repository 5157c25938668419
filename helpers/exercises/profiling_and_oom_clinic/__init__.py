"""Practice checks of profiling and the OOM clinic: a replay, a reader of snapshots, an allocator, six sick loops."""

from ..base import Part
from .clinic import (
    EvaluationKeepsNothing,
    GradientsMakeRoom,
    HeadInChunks,
    HistoryKeepsNoGraph,
    HookKeepsNoOutput,
    OptimizerHasNoFullTemporaries,
)
from .replay import REPLAY
from .small_allocator import SMALL_ALLOCATOR
from .snapshot import SNAPSHOT

PARTS = (
    Part("profiling_and_oom_clinic.replay", ("replay",), REPLAY),
    Part("profiling_and_oom_clinic.snapshot", ("still_there",), SNAPSHOT),
    Part("profiling_and_oom_clinic.allocator", ("SmallAllocator",), SMALL_ALLOCATOR),
    Part("profiling_and_oom_clinic.history", ("train_and_log",), (HistoryKeepsNoGraph,)),
    Part("profiling_and_oom_clinic.head", ("head_loss",), (HeadInChunks,)),
    Part("profiling_and_oom_clinic.evaluation", ("evaluate",), (EvaluationKeepsNothing,)),
    Part("profiling_and_oom_clinic.optimizer", ("make_optimizer",), (OptimizerHasNoFullTemporaries,)),
    Part("profiling_and_oom_clinic.hook", ("log_means",), (HookKeepsNoOutput,)),
    Part("profiling_and_oom_clinic.second", ("train",), (GradientsMakeRoom,)),
)
