"""Practice checks of the out-of-memory clinic: six sick loops, each to be cured."""

from ..base import Part
from .clinic import (
    EvaluationKeepsNothing,
    GradientsMakeRoom,
    HeadInChunks,
    HistoryKeepsNoGraph,
    HookKeepsNoOutput,
    OptimizerHasNoFullTemporaries,
)

PARTS = (
    Part("oom_clinic.history", ("train_and_log",), (HistoryKeepsNoGraph,)),
    Part("oom_clinic.head", ("head_loss",), (HeadInChunks,)),
    Part("oom_clinic.evaluation", ("evaluate",), (EvaluationKeepsNothing,)),
    Part("oom_clinic.optimizer", ("make_optimizer",), (OptimizerHasNoFullTemporaries,)),
    Part("oom_clinic.hook", ("log_means",), (HookKeepsNoOutput,)),
    Part("oom_clinic.second", ("train",), (GradientsMakeRoom,)),
)
