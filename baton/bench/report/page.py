"""The shell of a report: one HTML file with its style in it and nothing to load."""

from collections.abc import Iterable, Sequence
from html import escape

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1340px; margin: 2rem auto; padding: 0 1rem; color: #111827;
       background: white; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: .5rem 0; }
td, th { padding: .2rem .8rem; border-bottom: 1px solid #e5e7eb; text-align: right;
         font-variant-numeric: tabular-nums; }
td:first-child, th:first-child { text-align: left; }
.words td { text-align: left; }
.note { background: #fef3c7; border-left: 4px solid #d97706; padding: .5rem 1rem; margin: .5rem 0; }
.charts { display: flex; flex-wrap: wrap; gap: 1rem; } .charts svg { max-width: 100%; height: auto; }
code { background: #f3f4f6; padding: .1rem .3rem; overflow-wrap: anywhere; }
"""


def page(title: str, *parts: str) -> str:
    """A whole document; `parts` are HTML already."""
    head = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>{escape(title)}</title>"
    body = "\n".join((f"<h1>{escape(title)}</h1>", *parts))
    return (
        f"<!doctype html>\n<html lang='en'><head>{head}<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def heading(text: str) -> str:
    """Of a section."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str) -> str:
    """Plain words."""
    return f"<p>{escape(text)}</p>"


def notes(texts: Iterable[str]) -> str:
    """What a reader must not miss."""
    return "\n".join(f"<p class='note'>{escape(text)}</p>" for text in texts)


def table(rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> str:
    """With a header, numbers to the right; without one, words to the left."""
    head = "<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in header) + "</tr>" if header else ""
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    kind = "" if header else " class='words'"
    return f"<table{kind}>{head}{body}</table>"


def charts(svgs: Iterable[str]) -> str:
    """Side by side where there is room."""
    return "<div class='charts'>" + "\n".join(svgs) + "</div>"
