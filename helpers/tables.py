"""Tables that several labs print."""

from collections.abc import Mapping

from .count import TENANTS
from .memory import MemoryMeter
from .units import human_bytes


def tenant_table(runs: Mapping[str, MemoryMeter]) -> str:
    """Return the most that each tenant held in each run, a row a tenant; the last column compares last with first.

    Tenants reach their own maxima at different moments, so a column adds up to more than its peak.
    """
    meters = list(runs.values())
    rows = [(tenant, [meter.largest[tenant] for meter in meters]) for tenant in TENANTS]
    rows = [(name, held) for name, held in rows if any(held)] + [("PEAK", [meter.peak_bytes for meter in meters])]
    lines = [f"{'':18}" + "".join(f"{name:>13}" for name in runs) + f"{'last/first':>12}"]
    for name, held in rows:
        ratio = f"{held[-1] / held[0]:.2f}" if held[0] else "new"
        lines.append(f"{name:18}" + "".join(f"{human_bytes(n):>13}" for n in held) + f"{ratio:>12}")
    return "\n".join(lines)
