"""Practice checks of profiling and the OOM clinic: a replay, a reader of snapshots, and six sick training loops."""

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
from .snapshot import SNAPSHOT

PARTS = (
    Part("profiling_and_oom_clinic.replay", ("replay",), REPLAY),
    Part("profiling_and_oom_clinic.snapshot", ("still_there",), SNAPSHOT),
    Part("profiling_and_oom_clinic.history", ("train_and_log",), (HistoryLetsGo,)),
    Part("profiling_and_oom_clinic.head", ("head_loss",), (HeadInPieces,)),
    Part("profiling_and_oom_clinic.evaluation", ("evaluate",), (EvaluationKeepsNothing,)),
    Part("profiling_and_oom_clinic.optimizer", ("make_optimizer",), (OptimizerTakesTurns,)),
    Part("profiling_and_oom_clinic.hook", ("log_means",), (HookForgets,)),
    Part("profiling_and_oom_clinic.second", ("train",), (GradientsMakeRoom,)),
)
