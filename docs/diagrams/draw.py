"""Draws each Mermaid source of this folder as two SVG files, one for light pages and one for dark pages.

::

    python docs/diagrams/draw.py             # into this folder
    python docs/diagrams/draw.py elsewhere

Needs the extra ``docs``. The SVG files are committed, so that the README shows them without a build.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import mmdr

FOLDER: Final = Path(__file__).parent

PALETTES: Final = {
    "light": {"page": "#ffffff", "box": "#eef3fb", "edge": "#3b6fb6", "text": "#1c2733", "line": "#5b6b7d"}
    | {"alarm": "#fdeceb", "alarm_edge": "#c9483b"},
    "dark": {"page": "#131416", "box": "#1e2a3a", "edge": "#6ea3e8", "text": "#dbe4ee", "line": "#9aa7b5"}
    | {"alarm": "#3a1f1c", "alarm_edge": "#e0766a"},
}


def drawings() -> Iterator[tuple[str, str]]:
    """The name of each SVG file, and what it should hold."""
    for source in sorted(FOLDER.glob("*.mmd")):
        for name, palette in PALETTES.items():
            directive = f"%%{{init: {json.dumps(_theme(palette))}}}%%\n"
            svg = mmdr.render(directive + source.read_text(encoding="utf-8")).svg()
            # Lines stop short of the labels that they cross.
            labels = "#merman .messageText,#merman text[data-merman-source-classes*=edgeLabel]"
            halo = f"{labels}{{paint-order:stroke;stroke:{palette['page']};stroke-width:6px}}"
            svg = svg.replace("</style>", f"{halo}</style>", 1)
            # An identifier of its own, since pages show several drawings.
            svg = svg.replace("merman", f"{source.stem}-{name}")
            yield f"{source.stem}-{name}.svg", f"{svg}\n"


def _theme(palette: dict[str, str]) -> dict[str, Any]:
    box = {"Bkg": palette["box"], "Border": palette["edge"], "TextColor": palette["text"]}
    return {
        "theme": "base",
        "sequence": {"actorMargin": 40},
        "themeVariables": {
            **{f"actor{part}": colour for part, colour in box.items()},
            "actorLineColor": palette["line"],
            "background": palette["page"],
            "edgeLabelBackground": palette["page"],
            "fontFamily": "system-ui, sans-serif",
            "lineColor": palette["line"],
            "noteBkgColor": palette["alarm"],
            "noteBorderColor": palette["alarm_edge"],
            "noteTextColor": palette["text"],
            "primaryBorderColor": palette["edge"],
            "primaryColor": palette["box"],
            "primaryTextColor": palette["text"],
            "signalColor": palette["line"],
            "signalTextColor": palette["text"],
        },
    }


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else FOLDER
    for file, drawing in drawings():
        (target / file).write_text(drawing, encoding="utf-8")
