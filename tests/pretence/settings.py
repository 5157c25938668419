"""The machines on which every lab's source is run.

One GPU with hardware for all formats; one without BF16 and with little memory; and four, so that ranks get a GPU each.
Labs with ranks run more of them than GPUs in the first two, where ranks must fall back to the CPU together.
"""

from pathlib import Path

SETTINGS: dict[str, list[str]] = {
    "h100": ["--gpu", "h100"],
    "t4": ["--gpu", "t4"],
    "h100x4": ["--gpu", "h100", "--gpus", "4"],
}
# A minute or less on a pretended machine; `make test` takes its sample from these, `make test-all` runs all labs.
QUICK = (
    "00_start_here",
    "04_x2_batch_256",
    "06_memory_profiling",
    "06b_oom_clinic",
    "13_tensor_parallel",
    "14_pipeline",
)
_TRAINS_7B = ("20_x4_lora",)  # where there is room, which no CPU can wait for


def settings_of(path: Path) -> list[str]:
    """Return the names of the settings in which the source at `path` runs: four GPUs only where it starts ranks."""
    if path.stem in _TRAINS_7B:
        return ["t4"]
    many = any(name in path.read_text(encoding="utf-8") for name in ("run_ranks", "torchrun", "device_count"))
    return list(SETTINGS) if many else ["h100", "t4"]
