"""What a benchmark hands back: measurements, and a table made of them."""

import os
import platform
import statistics
from dataclasses import dataclass, field


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

    def format(self, digits):
        return (f"{self.median:.{digits}f} "
                f"({min(self.values):.{digits}f}-{max(self.values):.{digits}f})")

    def as_json(self):
        return {"median": self.median, "min": min(self.values), "max": max(self.values),
                "values": self.values}


@dataclass
class Report:
    title: str
    columns: list
    rows: list
    notes: list
    measurements: dict  # nested dicts of numbers and Series
    machine: dict = field(default_factory=lambda: {
        "kernel": platform.release(),
        "cpus": len(os.sched_getaffinity(0)),
    })

    def as_markdown(self):
        lines = [f"## {self.title}", ""]
        lines.append("| " + " | ".join(self.columns) + " |")
        lines.append("|" + "---|" * len(self.columns))
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        lines.append("")
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

        return {"title": self.title, "machine": self.machine, "notes": self.notes,
                "measurements": plain(self.measurements)}
