"""Published failures of large training jobs, each with its source."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedRun:
    """Failures of a job, as somebody has counted them.

    Attributes:
        name: of the job.
        gpus: at work.
        days: observed.
        failures: that interrupted it.
        counted: which failures are counted.
        source: where it says so.
    """

    name: str
    gpus: int
    days: float
    failures: int
    counted: str
    source: str

    @property
    def per_gpu_day(self) -> float:
        """Failures for each GPU and day."""
        return self.failures / (self.gpus * self.days)

    @property
    def hours_between(self) -> float:
        """Hours between two failures of the job."""
        return 24 * self.days / self.failures


PUBLISHED_RUNS = (
    PublishedRun(
        "Llama 3 405B", 16_384, 54, 419, "unexpected interruptions", "The Llama 3 Herd of Models, section 3.3.4"
    ),
    PublishedRun(
        "OPT-175B", 992, 60, 105, "restarts for hardware, 35 by hand and 70 automatic", "OPT, section 2.5: at least"
    ),
    PublishedRun("504 B200", 504, 55, 10, "GPU failures only", "Lablup 2026, From Detection to Recovery"),
)
