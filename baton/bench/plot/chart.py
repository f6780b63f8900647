"""A chart as SVG text: lines, points and bars between two axes, with a legend."""

import math
from collections.abc import Iterable, Sequence
from html import escape

from baton.bench.plot.axis import Axis, tick_text

COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")
WIDTH, HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 34, 46
_FONT = "font-family='system-ui, sans-serif' font-size='12'"

Points = Sequence[tuple[float, float]]


class Chart:
    """Draw with `line`, `points`, `bars` and `rule`, then take `svg()`."""

    def __init__(self, title: str, x: Axis, y: Axis) -> None:
        self._title, self._x, self._y = title, x, y
        self._marks: list[str] = []
        self._legend: list[tuple[str, str]] = []

    def line(self, name: str, points: Points, dashed: bool = False) -> None:
        """Points joined in their order; one that is not finite breaks the line."""
        colour = self._colour(name)
        dash = " stroke-dasharray='5 4'" if dashed else ""
        for run in _runs(points):
            path = " ".join(f"{self._px(x):.1f},{self._py(y):.1f}" for x, y in run)
            self._marks.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.8'{dash}/>")

    def points(self, name: str, points: Points, texts: Iterable[str] = ()) -> None:
        """A dot each; `texts` are shown where the pointer rests on it."""
        colour = self._colour(name)
        labels = list(texts) or [""] * len(points)
        for (x, y), text in zip(points, labels, strict=True):
            if math.isfinite(x) and math.isfinite(y):
                title = f"<title>{escape(text)}</title>" if text else ""
                place = f"cx='{self._px(x):.1f}' cy='{self._py(y):.1f}'"
                self._marks.append(f"<circle {place} r='3' fill='{colour}' fill-opacity='0.6'>{title}</circle>")

    def bars(self, name: str, edges: Sequence[float], heights: Sequence[float]) -> None:
        """A histogram: `heights[i]` between `edges[i]` and `edges[i + 1]`."""
        colour = self._colour(name)
        for left, right, height in zip(edges, edges[1:], heights, strict=False):
            if height:
                x, top = self._px(left), self._py(height)
                size = f"width='{max(0.5, self._px(right) - x - 0.5):.1f}' height='{self._py(0.0) - top:.1f}'"
                title = f"<title>{tick_text(left)} to {tick_text(right)}: {height:g}</title>"
                place = f"x='{x:.1f}' y='{top:.1f}' {size}"
                self._marks.append(f"<rect {place} fill='{colour}' fill-opacity='0.7'>{title}</rect>")

    def rule(self, name: str, x: float) -> None:
        """A dashed line upwards at `x`, with its name, as for a limit."""
        if self._x.low <= x <= self._x.high:
            self.line(name, [(x, self._y.low), (x, self._y.high)], dashed=True)

    def svg(self) -> str:
        """One <svg> element, with all it needs in it."""
        parts = [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}' "
            f"role='img' aria-label='{escape(self._title, quote=True)}' {_FONT}>",
            f"<rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>",
            f"<text x='{_LEFT}' y='15' font-weight='600'>{escape(self._title)}</text>",
            *self._grid(),
            *self._marks,
            *self._legend_marks(),
        ]
        return "\n".join([*parts, "</svg>"])

    def _grid(self) -> list[str]:
        bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
        marks = []
        for value in self._x.ticks():
            x = self._px(value)
            marks.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{_TOP}' y2='{bottom}' stroke='#e5e7eb'/>")
            marks.append(f"<text x='{x:.1f}' y='{bottom + 16}' text-anchor='middle'>{tick_text(value)}</text>")
        for value in self._y.ticks():
            y = self._py(value)
            marks.append(f"<line x1='{_LEFT}' x2='{right}' y1='{y:.1f}' y2='{y:.1f}' stroke='#e5e7eb'/>")
            marks.append(f"<text x='{_LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>{tick_text(value)}</text>")
        middle_x, middle_y = (_LEFT + right) / 2, (_TOP + bottom) / 2
        marks.append(f"<text x='{middle_x}' y='{HEIGHT - 10}' text-anchor='middle'>{escape(self._x.label)}</text>")
        turned = f"transform='translate(14 {middle_y}) rotate(-90)'"
        marks.append(f"<text {turned} text-anchor='middle'>{escape(self._y.label)}</text>")
        return marks

    def _legend_marks(self) -> list[str]:
        if len(self._legend) < 2:
            return []
        marks, x = [], float(WIDTH - _RIGHT)
        for name, colour in reversed(self._legend):
            x -= 7 * len(name) + 24
            marks.append(f"<rect x='{x:.0f}' y='20' width='10' height='10' fill='{colour}'/>")
            marks.append(f"<text x='{x + 14:.0f}' y='29'>{escape(name)}</text>")
        return marks

    def _colour(self, name: str) -> str:
        for known, colour in self._legend:
            if known == name:
                return colour
        colour = COLOURS[len(self._legend) % len(COLOURS)]
        self._legend.append((name, colour))
        return colour

    def _px(self, x: float) -> float:
        return _LEFT + self._x.share(x) * (WIDTH - _LEFT - _RIGHT)

    def _py(self, y: float) -> float:
        return HEIGHT - _BOTTOM - self._y.share(y) * (HEIGHT - _TOP - _BOTTOM)


def _runs(points: Points) -> list[list[tuple[float, float]]]:
    """Stretches of finite points."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if all(math.isfinite(value) for value in point):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]
