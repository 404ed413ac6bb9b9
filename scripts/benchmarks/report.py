"""What a benchmark hands back: measurements, and a table made of them."""

import os
import platform
import statistics
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Series:
    """One quantity, measured once per round."""

    values: list

    @property
    def median(self):
        return statistics.median(self.values)

    def __truediv__(self, other):
        """Round by round, so that what slows a whole round cancels out."""
        return Series([a / b for a, b in zip(self.values, other.values)])

    def __sub__(self, other):
        return Series([a - b for a, b in zip(self.values, other.values)])

    def scaled(self, factor):
        return Series([factor * value for value in self.values])

    def format(self, digits):
        return (f"{self.median:.{digits}f} "
                f"({min(self.values):.{digits}f}-{max(self.values):.{digits}f})")

    def as_json(self):
        return {"median": self.median, "min": min(self.values), "max": max(self.values),
                "values": self.values}


@dataclass
class Goal:
    """What a figure should be, at least or at most."""

    what: str
    value: Series
    at_least: float = None
    at_most: float = None
    digits: int = 2

    @property
    def is_reached(self):
        if self.at_least is not None:
            return self.value.median >= self.at_least
        return self.value.median <= self.at_most

    def as_text(self):
        sign, bound = (">=", self.at_least) if self.at_least is not None else ("<=", self.at_most)
        return (f"{'reached' if self.is_reached else 'NOT reached'}: {self.what}: "
                f"{self.value.format(self.digits)}, goal {sign} {bound:g}")

    def as_json(self):
        return {"what": self.what, "value": self.value.as_json(), "at_least": self.at_least,
                "at_most": self.at_most, "reached": self.is_reached}


def _cpu():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


@dataclass
class Report:
    title: str
    columns: list
    rows: list
    notes: list
    measurements: dict  # nested dicts of numbers and Series
    goals: list = field(default_factory=list)
    machine: dict = field(default_factory=lambda: {
        "kernel": platform.release(),
        "cpu": _cpu(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "cpus": len(os.sched_getaffinity(0)),
    })

    def as_markdown(self):
        lines = [f"## {self.title}", ""]
        lines.append("| " + " | ".join(self.columns) + " |")
        lines.append("|" + "---|" * len(self.columns))
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        lines.append("")
        lines += [f"- {goal.as_text()}" for goal in self.goals]
        lines += [f"- {note}" for note in self.notes]
        lines.append(f"- Linux {self.machine['kernel']}, {self.machine['cpus']} CPUs")
        return "\n".join(lines) + "\n"

    def as_json(self):
        def plain(value):
            if isinstance(value, Series):
                return value.as_json()
            if isinstance(value, dict):
                return {str(key): plain(item) for key, item in value.items()}
            return value

        return {"title": self.title, "machine": self.machine, "columns": self.columns,
                "rows": self.rows, "notes": self.notes,
                "goals": [goal.as_json() for goal in self.goals],
                "measurements": plain(self.measurements)}
