"""Bar charts as SVG text: panels beside each other, in each one a bar for every value, grouped under labels."""

from xml.sax.saxutils import escape

BAR, GAP, LEFT, WIDTH, TOP = 16, 10, 200, 260, 46
COLOURS = ["#2b6cb0", "#dd6b20", "#718096", "#38a169", "#b83280"]


def round_up(x):
    """The least 1, 2 or 5 times a power of ten that is not under x > 0."""
    step = 10.0 ** -12
    while True:
        for m in (1, 2, 5):
            if step * m >= x * (1 - 1e-9):
                return step * m
        step *= 10


def panel(x0, title, groups, series):
    """groups: [(label, {series: value})]. Returns (lines of SVG, height)."""
    top = max((v for _, values in groups for v in values.values()), default=0)
    scale = WIDTH / round_up(top) if top > 0 else 0
    out = [f'<text x="{x0}" y="24" font-weight="bold">{escape(title)}</text>']
    y = TOP
    for label, values in groups:
        shown = [s for s in series if s in values]
        out.append(f'<text x="{x0 + LEFT - 8}" y="{y + BAR * len(shown) / 2 + 4:.1f}" text-anchor="end">{escape(label)}</text>')
        for s in shown:
            v = values[s]
            out.append(f'<rect x="{x0 + LEFT}" y="{y}" width="{max(v * scale, 0):.1f}" height="{BAR - 3}" '
                       f'fill="{COLOURS[series.index(s) % len(COLOURS)]}"><title>{escape(s)}: {v:.4g}</title></rect>')
            out.append(f'<text x="{x0 + LEFT + max(v * scale, 0) + 4:.1f}" y="{y + BAR - 5}" font-size="11">{v:.4g}</text>')
            y += BAR
        y += GAP
    return out, y


def bars(panels):
    """panels: [(title, groups)] with groups as in panel(). The series' colours are those of their first appearance."""
    series = list(dict.fromkeys(s for _, groups in panels for _, values in groups for s in values))
    out, height, step = [], TOP, LEFT + WIDTH + 70
    for i, (title, groups) in enumerate(panels):
        lines, h = panel(10 + i * step, title, groups, series)
        out += lines
        height = max(height, h)
    for i, s in enumerate(series):
        out.append(f'<rect x="{10 + 140 * i}" y="{height}" width="12" height="12" fill="{COLOURS[i % len(COLOURS)]}"/>')
        out.append(f'<text x="{28 + 140 * i}" y="{height + 11}">{escape(s)}</text>')
    width = 20 + max(step * len(panels), 140 * len(series))
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height + 26}" font-family="sans-serif" font-size="13">',
                      '<rect width="100%" height="100%" fill="white"/>', *out, "</svg>", ""])
