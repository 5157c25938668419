"""Published failures of large training jobs, each with its source."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedRun:
    """Failures of a job, as its source counts them.

    Attributes:
        name: of the job.
        gpus: GPUs of the job.
        days: days of observation.
        failures: interruptions in that time.
        counted: which failures the source counts.
        source: the publication, and the place in it.
    """

    name: str
    gpus: int
    days: float
    failures: int
    counted: str
    source: str

    @property
    def per_gpu_day(self) -> float:
        """Failures per GPU and day."""
        return self.failures / (self.gpus * self.days)

    @property
    def hours_between(self) -> float:
        """Mean hours between failures of the job."""
        return 24 * self.days / self.failures


PUBLISHED_RUNS = (
    PublishedRun(
        "Llama 3 405B", 16_384, 54, 419, "unexpected interruptions", "The Llama 3 Herd of Models, section 3.3.4"
    ),
    PublishedRun(
        "OPT-175B",
        992,
        60,
        105,
        "at least 35 manual and an estimated 70 automatic restarts for hardware",
        "OPT, section 2.5",
    ),
    PublishedRun("504 B200", 504, 55, 10, "GPU failures only", "Lablup 2026, From Detection to Recovery"),
)
