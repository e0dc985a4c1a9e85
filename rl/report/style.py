"""The look of every picture: readable with color blindness, in a dark and a light theme, with Japanese text if asked.

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

Words = Mapping[str, str]  # labels by name: one language of rl/report/words.py
Colors = Sequence[str]
Themed = dict[str, Path]  # {"light": PNG, "dark": PNG}

# Okabe and Ito's palette ("Color Universal Design", 2008), ordered for each theme so that colors contrast with the
# background and neighbors in a stack also differ in lightness.
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
MARKERS = "osD^vPX*"  # one per color of a theme, for color-blind readers

_drawing = threading.RLock()  # matplotlib's settings are global: one figure at a time


def save_themed(folder: Path, name: str, draw: Callable[[Colors], Figure | None]) -> Themed:
    """Draws `name`-light.png and `name`-dark.png into the folder; {} if `draw` returns None."""
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
    """The figure in 256 colors: looks the same for lines and text, with a third of the bytes."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=144)
    # Maximum coverage keeps the colors of thin lines; the default merges them into common colors.
    return Image.open(drawn).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)


@contextmanager
def style(theme: str) -> Iterator[Colors]:
    """matplotlib's settings for one theme while a figure is drawn and saved; gives the series' colors."""
    import matplotlib

    _add_japanese_font()
    ink, paper, grid = (THEMES[theme][part] for part in ("ink", "paper", "grid"))
    settings: dict[Any, Any] = {
        "font.family": ["DejaVu Sans", "IPAexGothic"],  # the second for glyphs that the first lacks
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
    """Registers IPAexGothic; importing its package would set it for every figure of the process."""
    from matplotlib import font_manager

    spec = importlib.util.find_spec("matplotlib_fontja")
    assert spec and spec.origin, "matplotlib-fontja is a dependency of this project"
    font_manager.fontManager.addfont(Path(spec.origin).parent / "fonts" / "ipaexg.ttf")
