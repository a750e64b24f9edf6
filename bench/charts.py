"""Line and scatter charts as SVG, with only the standard library.

A figure has a title, a legend and one or more panels; a panel has two axes and lines. Colours are classes
with a light and a dark definition, so that the same file reads well in both. All coordinates are computed
here; figures.py decides what a figure shows.
"""

import dataclasses
import math
from xml.sax.saxutils import escape

WIDTH = 880
MARGIN = 24
PANEL_LEFT, PANEL_RIGHT, PANEL_TOP, PANEL_BOTTOM = 50, 14, 46, 44
TITLE_PX, TEXT_PX, SMALL_PX = 18, 12, 11
CHARACTER_EM = 0.56  # mean advance of the system fonts; slightly too wide rather than too narrow
BOLD_WIDER = 1.08

# class -> (light, dark): colour-blind readers can tell them apart too, and never only by colour.
COLOURS = {
    "grey": ("#6e7781", "#9aa4af"), "blue": ("#0a69da", "#58a6ff"), "orange": ("#d4650a", "#f0883e"),
    "green": ("#1a7f37", "#3fb950"), "purple": ("#8250df", "#bc8cff"), "red": ("#cf222e", "#ff7b72"),
    "teal": ("#0c8599", "#39c5cf"), "brown": ("#8a5a00", "#d4a72c"), "pink": ("#bf3989", "#f778ba"),
}


@dataclasses.dataclass
class Axis:
    """An axis. `ticks` are (value, text); without them it has round values, formatted by `text_of`."""
    label: str
    low: float
    high: float
    log: bool = False
    ticks: list = None
    text_of: object = None

    def position(self, value):
        """Returns the position of a value: 0 at the low end, 1 at the high end."""
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def all_ticks(self):
        ticks = self.ticks
        if ticks is None:
            values = log_ticks(self.low, self.high) if self.log else linear_ticks(self.low, self.high)
            ticks = [(value, (self.text_of or plain)(value)) for value in values]
        return [(value, text) for value, text in ticks if -1e-9 <= self.position(value) <= 1 + 1e-9]


@dataclasses.dataclass
class Line:
    """A line. `points` are (x, y); `radii` has the size of each marker; `spread` (low, high) of each y."""
    name: str
    colour: str
    points: list
    radii: list = None
    label: str = None  # written beside one of the markers
    dashed: bool = False
    hollow: bool = False
    spread: list = None


@dataclasses.dataclass
class Panel:
    title: str
    x: Axis
    y: Axis
    lines: list
    left: int = PANEL_LEFT  # the room for what is written beside the vertical axis


def plain(value):
    if value >= 10_000:
        return format(int(value), ",")
    return "%g" % value


def linear_ticks(low, high, wanted=5):
    """Returns multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / wanted
    power = 10 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low, high):
    """Returns the powers of ten, with finer steps between them if there are few."""
    decades = math.log10(high / low)
    finest = ((1, (1, 1.5, 2, 3, 4, 5, 6, 8)), (1.6, (1, 2, 3, 5)), (2.4, (1, 2, 5)), (3.2, (1, 3)))
    steps = next((steps for most, steps in finest if decades <= most), (1,))
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [n * 10.0 ** p for p in powers for n in steps]
    return [float("%.12g" % v) for v in found if low * 0.999999 <= v <= high * 1.000001]


def log_axis(label, values, text_of=None, padding=0.08, factor_min=4):
    """Makes a logarithmic axis around `values`, with some margin; wide enough that small differences look small."""
    low, high = min(values), max(values)
    room = max((high / low) ** padding, math.sqrt(factor_min / (high / low)))
    return Axis(label, low / room, high * room, True, None, text_of)


def linear_axis(label, values, text_of=None):
    """Makes a linear axis from zero to just above the largest value."""
    return Axis(label, 0, max(values) * 1.08 or 1, False, None, text_of)


def text_width(text, px):
    return len(text) * px * CHARACTER_EM


def number(value):
    return ("%.2f" % value).rstrip("0").rstrip(".")


class Drawing:
    """Collects elements; every text is escaped here."""

    def __init__(self):
        self.parts = []

    def add(self, element, **attributes):
        body = attributes.pop("body", None)
        written = " ".join('%s="%s"' % (key.rstrip("_").replace("_", "-"),
                                        escape(number(v) if isinstance(v, (int, float)) else v, {'"': "&quot;"}))
                           for key, v in attributes.items() if v is not None)
        end = "/>" if body is None else ">%s</%s>" % (body, element)
        self.parts.append("<%s %s%s" % (element, written, end))

    def text(self, x, y, text, class_="text", anchor=None):
        self.add("text", x=x, y=y, class_=class_, text_anchor=anchor, body=escape(text))

    def line(self, x1, y1, x2, y2, class_):
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def style():
    def rules(shade):
        lines = [".card{fill:%s}" % ("#ffffff", "#0d1117")[shade], ".frame{fill:%s}" % ("#f6f8fa", "#161b22")[shade],
                 ".title{fill:%s}" % ("#1f2328", "#f0f6fc")[shade], ".text{fill:%s}" % ("#1f2328", "#e6edf3")[shade],
                 ".small{fill:%s}" % ("#59636e", "#9198a1")[shade], ".grid{stroke:%s}" % ("#d8dee4", "#2d333b")[shade],
                 ".axis{stroke:%s}" % ("#818b98", "#656c76")[shade],
                 ".label{stroke:%s}" % ("#f6f8fa", "#161b22")[shade],
                 ".hollow{fill:%s}" % ("#f6f8fa", "#161b22")[shade]]
        for name, pair in COLOURS.items():
            lines.append(".{0}-line{{stroke:{1}}} .{0}-fill{{fill:{1}}}".format(name, pair[shade]))
        return "\n".join(lines)

    return """text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;font-size:%dpx}
.title{font-size:%dpx;font-weight:600} .head{font-weight:600} .small{font-size:%dpx}
.label{font-size:%dpx;font-weight:600;paint-order:stroke;stroke-width:3px;stroke-linejoin:round}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round} .dashed{stroke-dasharray:5 4}
.spread{stroke-width:1.4;opacity:.55} .marker{stroke-width:1.6} .grid,.axis{stroke-width:1}
%s
@media (prefers-color-scheme:dark){
%s
}""" % (TEXT_PX, TITLE_PX, SMALL_PX, SMALL_PX, rules(0), rules(1))


class Frame:
    """The place of a panel's plot, and the places taken in it."""

    def __init__(self, panel, left, top, width, height):
        self.panel = panel
        self.left, self.top = left + panel.left, top + (PANEL_TOP if panel.title else PANEL_TOP - 18)
        self.right, self.bottom = left + width - PANEL_RIGHT, top + height - PANEL_BOTTOM
        self.width, self.height = self.right - self.left, self.bottom - self.top
        self.taken = []

    def at(self, x, y):
        return (self.left + self.panel.x.position(x) * self.width,
                self.bottom - self.panel.y.position(y) * self.height)

    def place(self, text, points):
        """Returns (x, y, anchor) where a label covers least, and marks that place as taken.

        `points` are (x, y, radius) of the markers that the label may stand beside; nearer and earlier is better.
        """
        width, height = text_width(text, SMALL_PX) * BOLD_WIDER, SMALL_PX
        best = None
        for order, (x, y, radius) in enumerate(points):
            reach = (x - width - 40, y - 50, x + width + 40, y + 50)
            near = [box for box in self.taken if overlap(box, reach)]
            for away in (0, 8, 16, 24):
                aside, above, below = radius + 5 + away, radius + 5 + away, radius + 12 + away
                for dx, dy, anchor in ((aside, 4, "start"), (-aside, 4, "end"),
                                       (0, -above, "middle"), (0, below, "middle"), (6, -above, "start"),
                                       (6, below, "start"), (-6, -above, "end"), (-6, below, "end")):
                    left = x + dx - {"start": 0, "middle": width / 2, "end": width}[anchor]
                    box = (left, y + dy - height + 1, left + width, y + dy + 3)
                    outside = (max(0, self.left - box[0]) + max(0, box[2] - self.right) + max(0, self.top - box[1])
                               + max(0, box[3] - self.bottom))
                    cost = outside * 100 + 5 * sum(overlap(box, other) for other in near) + order * 3 + away * 2
                    if best is None or cost < best[0]:
                        best = (cost, box, (x + dx, y + dy, anchor))
        self.taken.append(best[1])
        return best[2]


def overlap(a, b):
    return max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1]))


def draw_axes(out, frame):
    panel = frame.panel
    out.add("rect", x=frame.left, y=frame.top, width=frame.width, height=frame.height, class_="frame")
    out.text(frame.left, frame.top - 26, panel.title, "text head")
    out.text(frame.left, frame.top - 9, panel.y.label, "small")
    for value, text in panel.y.all_ticks():
        y = frame.at(panel.x.low, value)[1]
        out.line(frame.left, y, frame.right, y, "grid")
        out.text(frame.left - 7, y + 4, text, "small", "end")
    free_from = -math.inf
    for value, text in panel.x.all_ticks():
        x = frame.at(value, panel.y.low)[0]
        out.line(x, frame.top, x, frame.bottom, "grid")
        half = text_width(text, SMALL_PX) / 2
        if x - half >= free_from:  # a narrow panel has no room for every number
            out.text(x, frame.bottom + 16, text, "small", "middle")
            free_from = x + half + 5
    out.line(frame.left, frame.bottom, frame.right, frame.bottom, "axis")
    out.text((frame.left + frame.right) / 2, frame.bottom + 34, panel.x.label, "small", "middle")


def draw_lines(out, frame):
    for line in frame.panel.lines:
        points = [frame.at(x, y) for x, y in line.points]
        for (x, _), (low, high) in zip(points, line.spread or ()):
            top, bottom = frame.at(frame.panel.x.low, high)[1], frame.at(frame.panel.x.low, low)[1]
            out.line(x, max(top, frame.top), x, min(bottom, frame.bottom), "spread %s-line" % line.colour)
        if len(points) > 1:
            path = "M" + "L".join("%s,%s" % (number(x), number(y)) for x, y in points)
            out.add("path", d=path, class_="line %s-line%s" % (line.colour, " dashed" if line.dashed else ""))
        for (x, y), radius in zip(points, line.radii or ()):
            inside = "hollow" if line.hollow else line.colour + "-fill"
            out.add("circle", cx=x, cy=y, r=radius, class_="marker %s %s-line" % (inside, line.colour))
            frame.taken.append((x - radius, y - radius, x + radius, y + radius))
        # Labels keep clear of the lines between points too.
        for (x1, y1), (x2, y2) in zip(points, points[1:]):
            steps = int(max(abs(x2 - x1), abs(y2 - y1)) / 4) if line.radii else 0
            for i in range(1, steps):
                x, y = x1 + (x2 - x1) * i / steps, y1 + (y2 - y1) * i / steps
                frame.taken.append((x - 2, y - 2, x + 2, y + 2))
    for line in frame.panel.lines:
        if line.label:
            points = [frame.at(*point) + (radius,) for point, radius in zip(line.points, line.radii)]
            x, y, anchor = frame.place(line.label, points[::-1])
            out.text(x, y, line.label, "label %s-fill" % line.colour, anchor)


def draw_legend(out, lines, left, top):
    """Draws entries in rows as wide as the figure, markers below lines. Returns the height."""
    x, y, markers = left, top, False
    for line in lines:
        width = 28 + text_width(line.name, TEXT_PX) + 18
        is_marker = bool(line.radii)
        if x > left and (x + width > WIDTH - MARGIN or is_marker != markers):
            x, y = left, y + 21
        markers = is_marker
        if is_marker:
            out.add("circle", cx=x + 11, cy=y - 4, r=line.radii[0],
                    class_="marker %s %s-line" % ("hollow" if line.hollow else line.colour + "-fill", line.colour))
        else:
            out.add("path", d="M%s,%sh22" % (number(x), number(y - 4)),
                    class_="line %s-line%s" % (line.colour, " dashed" if line.dashed else ""))
        out.text(x + 28, y, line.name)
        x += width
    return y - top + 20


def figure(title, subtitle, description, panels, legend, columns=1, panel_height=300, footer=""):
    """Returns the whole SVG. `description` is for readers who cannot see it; `legend` lines are drawn as samples;
    `footer` says where it was measured."""
    out = Drawing()
    top = MARGIN + TITLE_PX - 4
    out.text(MARGIN, top, title, "title")
    for line in wrapped(subtitle, WIDTH - 2 * MARGIN):
        top += 19
        out.text(MARGIN, top, line, "small")
    top += 26
    top += draw_legend(out, legend, MARGIN, top) - 10 if legend else 0
    gap = 12
    width = (WIDTH - 2 * MARGIN - gap * (columns - 1)) / columns
    for index, panel in enumerate(panels):
        row, column = divmod(index, columns)
        frame = Frame(panel, MARGIN + column * (width + gap) - 6, top + row * (panel_height + 8), width, panel_height)
        draw_axes(out, frame)
        draw_lines(out, frame)
    rows = math.ceil(len(panels) / columns)
    height = top + rows * (panel_height + 8) + 4
    if footer:
        out.text(MARGIN, height + 12, footer, "small")
        height += 28
    head = ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" '
            'aria-labelledby="title desc">' % (WIDTH, height, WIDTH, height))
    return "\n".join([head, '<title id="title">%s</title>' % escape(title),
                      '<desc id="desc">%s</desc>' % escape(description), "<style>%s</style>" % style(),
                      '<rect class="card" width="%d" height="%d" rx="8"/>' % (WIDTH, height)]
                     + out.parts + ["</svg>"]) + "\n"


def wrapped(text, width):
    lines = [""]
    for word in text.split():
        longer = (lines[-1] + " " + word).strip()
        if text_width(longer, SMALL_PX) > width and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return [line for line in lines if line]
