"""How every picture looks: readable by a color-blind person, in dark and light, with Japanese words where asked.

matplotlib's global settings are left as they were.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

Words = Mapping[str, str]  # what to write beside or instead of a name: one language of rl/report/words.py
Colors = Sequence[str]
Themed = dict[str, Path]  # {"light": PNG, "dark": PNG}

# Okabe and Ito's palette ("Color Universal Design", 2008), for each theme in an order in which the colors
# stand out from the paper and neighbors in a stack differ in lightness too.
THEMES = {
    "light": {
        "ink": "#1f2328",
        "paper": "#ffffff",
        "grid": "#d8dee4",
        "series": "#0072B2 #E69F00 #D55E00 #56B4E9 #CC79A7 #009E73 #8c959f #000000",
    },
    "dark": {
        "ink": "#e6edf3",
        "paper": "#0d1117",
        "grid": "#30363d",
        "series": "#56B4E9 #E69F00 #D55E00 #0072B2 #CC79A7 #009E73 #8c959f #F0E442",
    },
}
MARKERS = "osD^vPX*"  # one for each color of a theme, for eyes that see no hue

_drawing = threading.RLock()  # the settings are the process's: one figure at a time


def save_themed(folder: Path, name: str, draw: Callable[[Colors], Figure | None]) -> Themed:
    """Draws `name`-light.png and `name`-dark.png into the folder; {} when `draw` has nothing to show."""
    folder.mkdir(parents=True, exist_ok=True)
    files: Themed = {}
    for theme in THEMES:
        with style(theme) as colors:
            figure = draw(colors)
            if figure is not None:
                files[theme] = folder / f"{name}-{theme}.png"
                render(figure).save(files[theme], optimize=True)
    return files


def render(figure: Figure) -> Image:
    """The figure in 256 colors: lines and letters lose nothing by it but two thirds of a PNG's bytes."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=144)
    # Maximum coverage keeps a thin line's color, which the default would mix into the nearest common one.
    return Image.open(drawn).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)


@contextmanager
def style(theme: str) -> Iterator[Colors]:
    """matplotlib's settings for one theme while a figure is drawn and saved; gives the series' colors."""
    import matplotlib

    _add_japanese_font()
    ink, paper, grid = (THEMES[theme][part] for part in ("ink", "paper", "grid"))
    settings: dict[Any, Any] = {
        "font.family": ["DejaVu Sans", "IPAexGothic"],  # the second where the first lacks a glyph
        "figure.facecolor": paper,
        "savefig.facecolor": paper,
        "axes.facecolor": paper,
        "axes.edgecolor": grid,
        "axes.labelcolor": ink,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": grid,
        "grid.linewidth": 0.6,
        "text.color": ink,
        "xtick.color": ink,
        "ytick.color": ink,
        "xtick.labelsize": 8.5,
        "ytick.labelsize": 8.5,
    }
    with _drawing, matplotlib.rc_context(settings):
        yield THEMES[theme]["series"].split()


@functools.cache
def _add_japanese_font() -> None:
    """Makes IPAexGothic known; importing its package would set it for every figure in the process."""
    from matplotlib import font_manager

    spec = importlib.util.find_spec("matplotlib_fontja")
    assert spec and spec.origin, "matplotlib-fontja is a dependency of this project"
    font_manager.fontManager.addfont(Path(spec.origin).parent / "fonts" / "ipaexg.ttf")
