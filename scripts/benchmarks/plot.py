"""The README's chart: how fast the same tensors are read through each mount, native files being 1.

Written by hand, since the few rules that make it readable on light and dark pages take more words
with a library than the bars do.
"""

from html import escape

GROUPS = {"first": "first read", "second": "second read", "cat": "cat *, fresh mount",
          "ls -l": "ls -l"}
NATIVE, OURS = "native files", "safetensorfs"
# One hue for ours; the others differ in lightness too, for those who see no hues.
COLOURS = {NATIVE: "#8c959f", OURS: "#1f6feb", "squashfuse": "#d4a72c", "squashfuse_ll": "#bf5b04",
           "fuse-zip": "#3fa55b", "archivemount": "#a475f9", "ratarmount": "#d1497b"}
WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 46, 30
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #768390 }
.value { font-size: 9.5px; text-anchor: middle }
.ours { font-weight: bold; fill: #1f6feb }
.group { text-anchor: middle }
.axis { text-anchor: end }
.grid { stroke: #8c959f; stroke-opacity: .35 }
.spread { stroke: #768390 }
@media (prefers-color-scheme: dark) {
  text { fill: #adbac7 }
  .ours { fill: #539bf5 }
  .spread { stroke: #adbac7 }
}
"""


def _grid(scale, top):
    lines = []
    for step in range(0, int(top * 4 + 1e-9) + 1):
        y = scale(step / 4)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" '
                     f'y2="{y:.1f}"/>')
        lines.append(f'<text class="axis" x="{LEFT - 6}" y="{y + 4:.1f}">{step / 4:g}</text>')
    return lines


def _legend(names):
    lines, x = [], LEFT
    for name in names:
        lines.append(f'<rect x="{x}" y="12" width="11" height="11" rx="2" fill="{COLOURS[name]}"/>')
        lines.append(f'<text x="{x + 16}" y="22">{escape(name)}</text>')
        x += 32 + 6.1 * len(name)
    return lines


def _bar(name, share, x, width, scale):
    """A bar, its spread, and its number, which goes above the spread."""
    value, low, high = share["median"], share["min"], share["max"]
    middle, base, limit = x + width / 2, scale(0), TOP - 8
    kind = "value ours" if name == OURS else "value"
    ends = [max(limit, scale(end)) for end in (low, high)]
    top = max(limit, scale(value))
    return [
        f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{base - top:.1f}" '
        f'fill="{COLOURS[name]}"/>',
        f'<line class="spread" x1="{middle:.1f}" x2="{middle:.1f}" y1="{ends[0]:.1f}" '
        f'y2="{ends[1]:.1f}"/>',
        f'<text class="{kind}" x="{middle:.1f}" y="{min(top, ends[1]) - 3:.1f}">{value:.2f}</text>',
    ]


def draw(measurements):
    """SVG of the measurements of `scripts/bench peers`."""
    names = [name for name in COLOURS if name in measurements]
    shares = {name: measurements[name]["share_of_native"] for name in names}
    top = max(1.0, *(shares[name][key]["median"] for name in names for key in GROUPS))
    scale = lambda value: HEIGHT - BOTTOM - value / top * (HEIGHT - BOTTOM - TOP)
    body = [*_legend(names), *_grid(scale, top)]
    group_width = (WIDTH - LEFT - RIGHT) / len(GROUPS)
    width = (group_width - 18) / len(names)
    for number, (key, label) in enumerate(GROUPS.items()):
        left = LEFT + number * group_width
        for place, name in enumerate(names):
            body += _bar(name, shares[name][key], left + 9 + place * width, width - 2, scale)
        body.append(f'<text class="group" x="{left + group_width / 2:.1f}" y="{HEIGHT - 10}">'
                    f'{escape(label)}</text>')
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'width="{WIDTH}" height="{HEIGHT}">',
        "<title>Speed through a mount as a share of native files</title>",
        f"<style>{STYLE}</style>", *body, "</svg>", ""])
