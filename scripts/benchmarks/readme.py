"""The tables of the README's section "Figures", from what was measured."""

import os
import sys

from . import plot

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def figure(series, digits=2, factor=1):
    """Median and spread of a Series in JSON."""
    median, low, high = (factor * series[key] for key in ("median", "min", "max"))
    return f"{median:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def table(columns, rows):
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns),
            *("| " + " | ".join(row) + " |" for row in rows), ""]


def read_table(part):
    of = part["measurements"]
    servers = "FUSE, splice", "FUSE, mapping"
    rows = []
    for key, line in of.items():
        if not isinstance(line, dict):
            continue
        digits = 2 if line["unit"] == "GB/s" else 1
        best = max if line["unit"] == "GB/s" else min
        medians = [line[name]["median"] for name in servers if name in line]
        rows.append([
            f"{line['label']}, {line['unit']}", f"{line['native']['median']:.{digits}f}",
            f"{best(medians):.{digits}f}" if medians else "",
            f"{line['safetensorfs']['median']:.{digits}f}",
            figure(line["share_of_native"]),
            figure(line["share_of_minimal"]) if "share_of_minimal" in line else ""])
    return table([f"`scripts/bench read`: a tensor of {of['nbytes'] / 1e6:.0f} MB", "native",
                  "smallest FUSE server", "safetensorfs", "share of native",
                  "share of that server"], rows)


def peers_table(part):
    of = part["measurements"]
    names = [name for name in plot.COLOURS if name in of]
    rows = [[f"`{name}`" if name != plot.NATIVE else name,
             *(figure(of[name]["share_of_native"][key]) for key in plot.GROUPS)] for name in names]
    labels = [f"`{label}`" if key == "ls -l" else label.replace("cat *", "`cat *`")
              for key, label in plot.GROUPS.items()]
    return table(["`scripts/bench peers`: speed as a share of native files", *labels], rows)


def scale_table(part):
    of = part["measurements"]
    counts = [key for key in of if key not in ("0", "folder")]
    cells = [
        ("mount, and `ls -f` complete, s", lambda m: figure(m["mount_and_ls"], 3)),
        ("times as fast as `safe_open(f).keys()`", lambda m: figure(m["times_keys"], 2)),
        ("`ls -l`, s", lambda m: figure(m["ls_l"], 3)),
        ("`stat` of a name at random, us", lambda m: figure(m["lookup"], 1, 1e6)),
        ("memory of the daemon (VmRSS), MB", lambda m: f"{m['rss']['median'] / 1e6:.1f}"),
    ]
    rows = [[label, *(cell(of[count]) for count in counts)] for label, cell in cells]
    columns = ["`scripts/bench scale`: tensors", *(f"{int(count):,}" for count in counts)]
    lines = table(columns, rows)
    if "folder" in of:
        folder = of["folder"]
        lines += [f"A folder of {folder['checkpoints']:,} checkpoints of 160 tensors: mounted in "
                  f"{figure(folder['mount'], 2)} s, `find` in {figure(folder['find'], 2)} s, "
                  f"{folder['rss']['median'] / 1e6:.1f} MB of memory.", ""]
    return lines


def load_file_table(part):
    of = part["measurements"]
    rows = [[f"`{name}`", figure(series["load"], 2, 1e3), figure(series["times"], 1)]
            for name, series in of.items() if name != "gpu"]
    if isinstance(of["gpu"], dict):
        rows += [[f"`{name}`", figure(series, 2, 1e3), ""] for name, series in of["gpu"].items()]
    what = part["title"].removeprefix("Load ")
    lines = table([f"`scripts/bench load_file`: {what}", "ms", "times"], rows)
    return lines + [*(f"{note[0].upper()}{note[1:]}." for note in part["notes"]
                      if note.startswith("times as fast")), ""]


def attach_table(part):
    rows = []
    for count, series in part["measurements"].items():
        for name, of in series.items():
            rows.append([f"{int(count):,}", name, figure(of["first"], 1, 1e3),
                         figure(of["again"], 1, 1e3)])
    return table(["`scripts/bench attach`: tensors", "call, in a second process", "first, ms",
                  "next, ms"], rows)


def report_table(name, part):
    """As the part itself prints it."""
    columns = [f"`scripts/bench {name}`: {part['columns'][0]}", *part["columns"][1:]]
    return table(columns, part["rows"])


TABLES = {"read": read_table, "peers": peers_table, "scale": scale_table,
          "load_file": load_file_table, "attach": attach_table}


def text_of(results, svg):
    """What goes between the markers; svg: the chart's path, None for none."""
    parts = results["parts"]
    machine = next(iter(parts.values()))["machine"]
    lines = [
        f"{machine['cpus']} cores of {machine['cpu']}, Linux {machine['kernel']}, source in the page "
        "cache; medians of interleaved rounds (smallest-largest), ratios taken round by round. "
        "Written by `scripts/bench readme`; each table names the part of `scripts/bench all` that "
        "measured it.", ""]
    if svg and "peers" in parts:
        lines += [f"![Speed through a mount as a share of native files]({svg})", ""]
    for name, make in TABLES.items():
        if name in parts:
            lines += make(parts[name])
    for name in "control", "device_load":
        if name in parts:
            lines += report_table(name, parts[name])
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return "\n".join([*lines, f"Versions: {versions}.", ""])


def write_chart(results, svg):
    if "peers" not in results["parts"]:
        sys.exit("bench: no results of `scripts/bench peers` to draw")
    svg.write_text(plot.draw(results["parts"]["peers"]["measurements"]))


def write_tables(results, readme, svg):
    text = readme.read_text()
    before, begin, rest = text.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"bench: {readme} has no lines {BEGIN} and {END}")
    path = os.path.relpath(svg, readme.parent)
    readme.write_text(f"{before}{BEGIN}\n\n{text_of(results, path)}\n{END}{after}")
