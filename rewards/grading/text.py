"""Rewrites Unicode and LaTeX variants of an answer as plain ASCII: full-width digits, `\\dfrac`, `\\text{}`.

`tidy` never changes a value. Superscripts and vulgar fractions are rewritten before NFKC, which would turn 3² into 32
and 18½ into 181/2. Circled digits are labels and stay unchanged.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

# Marks each Latin word that LaTeX sets as text: it is prose, not a product of variables.
WORD_MARK = "\x02"

_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]"
)
_SUPERSCRIPT = re.compile("[\u00b9\u00b2\u00b3\u2070\u2071\u2074-\u207f]+")
_SUBSCRIPT = re.compile("[\u2080-\u208e\u2090-\u209c]+")
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e\u2189]")
_ROOT = re.compile(r"([√∛∜])\s*+(?:\(([^()]*)\)|([0-9]+(?:\.[0-9]+)?|[A-Za-z]))")
_INDEX = {"√": "", "∛": "[3]", "∜": "[4]"}
_DASH = re.compile(
    r"(?<![ぁ-ゖァ-ヺー一-鿿々])ー(?=\s*[0-9.\\])"
)  # the long-vowel mark typed as a minus sign
_LABEL = re.compile("([\u2460-\u24ff\u2776-\u2793]+)")  # circled numbers and the like
_GREEK = {  # μ and Ω are units
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "θ": "theta", "λ": "lambda", "π": "pi", "ρ": "rho",
    "σ": "sigma", "φ": "phi", "ω": "omega", "Δ": "Delta",
}  # fmt: skip
_SYMBOLS = str.maketrans(
    {
        **dict.fromkeys("\u02d7\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u2796", "-"),
        **dict.fromkeys("×✕✖⨯", r"\times "),
        **dict.fromkeys("·⋅∙•", r"\cdot "),
        **dict.fromkeys("≈≒≃≅", r"\approx "),
        **dict.fromkeys("≤≦⩽", r"\le "),
        **dict.fromkeys("≥≧⩾", r"\ge "),
        **dict.fromkeys("～〜", "〜"),  # a range; NFKC would turn it into TeX's blank ~
        "÷": "/",
        "⁄": "/",
        "√": r"\sqrt ",
        **{letter: rf"\{name} " for letter, name in _GREEK.items()},
        "∞": r"\infty ",
        "≠": r"\ne ",
        "±": r"\pm ",
        "∪": r"\cup ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
        "º": "°",
        "˚": "°",
        "、": ", ",
        "。": ".",
    }
)


def _macro(names: str) -> re.Pattern[str]:
    return re.compile(rf"\\(?:{names})(?![A-Za-z])")


_GROUP = r"\{(?:[^{}]++|\{(?:[^{}]++|\{[^{}]*+\})*+\})*+\}"  # up to three levels of braces
_TEXT_MACRO = re.compile(
    rf"\\(?:text(?:bf|it|rm|sf|tt|normal|up)?|mathrm|mathsf|mathtt|mbox|hbox|emph)\s*+({_GROUP})"
    r"|\{\s*\\rm(\s[^{}]*\})"
)
_STYLE_MACRO = re.compile(rf"\\(?:mathbf|mathit|boldsymbol|bm|pmb|underline|fbox|boxed)\s*+({_GROUP})")
_LATIN = re.compile(rf"(?<![\\A-Za-z{WORD_MARK}])[A-Za-z]+")
# After a currency sign, a letter is a scale (m: million) rather than a unit (m: metre).
_MONEY_SCALE = r"(?!\s*-?\s*\d[\d.,]*(?:[\s~]|\\[,;: !])*\x02?[mgLlshtNWVJCFAB](?![A-Za-z]))"
# Environments with one column show the lines of an equation; other environments are matrices.
_ENVIRONMENT = re.compile(
    r"\\begin\s*\{(align(?:ed|at)?|split|gather(?:ed)?|equation|multline)(\*?)\}(.*)\\end\s*\{\1\2\}"
    r"|\\begin\s*\{array\}\s*\{[lcr]\}([^&]*)\\end\s*\{array\}",
    re.DOTALL,
)
_REPLACEMENTS = (
    (re.compile(r"^\s*\\(?:(?:Long|long)?[Rr]ightarrow|implies|to)(?![A-Za-z])|^\s*[⇒→]"), ""),
    (re.compile(r"\\(?:checkmark|qed|notag|nonumber)(?![A-Za-z])|\\tag\*?\{[^{}]*\}|[✓✔✅]"), ""),
    (re.compile(r"\\(?:[hv]space\*?|[hv]?phantom)\s*+\{[^{}]*\}"), " "),
    (re.compile(r"\{\s*\}(?=\s*[\^_])"), ""),
    (re.compile(r"(?<!\\)\$([^$]*)(?<!\\)\$"), r" \1 "),
    (re.compile(r"(?<![A-Za-z\\])(?:US|AU?|CA?|HK|NZ|NT|MX|S|R)(?=\\?\$)"), " "),
    (re.compile(r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])\.?"), ""),
    (_macro("displaystyle|textstyle|tiny|small|[lL]arge|LARGE|[hH]uge|limits|nolimits|rm|bf|therefore"), ""),
    (re.compile(r"\\[()\[\]!]|∴|\\(?:text)?color\s*+\{[^{}]*\}"), ""),
    (re.compile(r"(?<![^-+*/=(,$])\{([0-9.,]++|[+-])\}"), r"\1"),  # braces that are not a macro's argument
    (re.compile(r"(?:^|\{)([^{}]*)\\over(?![A-Za-z])([^{}]*)(?:\}|$)"), r"\\frac{\1}{\2}"),
    (_macro("(?:[dtc]|nice|s)frac"), r"\\frac"),
    (_macro("[dt]binom"), r"\\binom"),
    (re.compile(r"(?<![A-Za-z\\\x02])(pi|(?:arc)?(?:sin|cos|tan)|log|ln|exp|sqrt)(?![A-Za-z])"), r"\\\1"),
    # 0.\dot{1}4285\dot{7}, as Japanese schools write a repeating decimal
    (re.compile(r"\\dot\s*+\{([0-9])\}(?:([0-9]*)\\dot\s*+\{([0-9])\})?"), r"\\overline{\1\2\3}"),
    (_macro("cdot|times|ast"), "*"),
    (re.compile(r"(?<=[0-9])\s++[xX]\s++(?=[0-9])"), "*"),
    (_macro("div"), "/"),
    (_macro("le|leq|leqq|leqslant"), "<="),
    (_macro("ge|geq|geqq|geqslant"), ">="),
    (_macro("lt"), "<"),
    (_macro("gt"), ">"),
    (_macro("neq"), r"\\ne"),
    (_macro("sim|simeq|doteq|fallingdotseq"), r"\\approx"),
    (re.compile(r"\\varnothing(?![A-Za-z])|\\\{\s*\\\}"), r"\\emptyset"),
    (re.compile(r"\\mathbb\s*+(?:\{R\}|R(?![A-Za-z]))"), r"(-\\infty,\\infty)"),
    (re.compile(r"(^|[\[(,])\s*+\+\s*+(?=\\infty)"), r"\1"),
    (re.compile(r"\^\s*+(?:\{\s*+\\circ\s*+\}|\\circ(?![A-Za-z]))|\\(?:text)?degree(?![A-Za-z])"), "°"),
    (re.compile(r"\\%"), "%"),
    (
        re.compile(
            r"(?:\\(?:yen|euro|pounds|texteuro|textyen)(?![A-Za-z])|\\?\$|[¥¢£¤\u0e3f\u20a0-\u20cf])"
            + _MONEY_SCALE
        ),
        " ",
    ),
)
_NEXT_EQUATION = re.compile(r"\\\\(?=\s*[^\s=][^=]*=)")
# A double backslash is a line break (of a matrix, if there is one), so it is matched before "\\ ".
_SPACING = re.compile(r"(\\\\)|\\[,;: ]|\\(?:quad|qquad|enspace|thinspace|hfill|newline)(?![A-Za-z])|[~\s]")
# \sqrt(2) is not LaTeX but unambiguous; \sqrt2, \frac12 and \frac{1}2 are LaTeX.
_CALLED_ROOT = re.compile(r"\\sqrt\s*+\(([^()]*)\)|\\sqrt\s*+([0-9A-Za-z])(?![0-9])")
_NUMERATOR = re.compile(r"\\frac\s*+(?:([0-9A-Za-z])|(?=\{))\s*+")
_DENOMINATOR = re.compile(rf"(\\frac{_GROUP})\s*+([0-9A-Za-z])")
_BLANK = re.compile(r"\\(?:text(?:bf|it|rm)?|mathrm|mbox|quad|qquad|[,;:! ()\[\]])|[\s{}$~]")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_EDGES = re.compile(r"^[\s`]+|[\s`.,;。、\\]+$")
_QUOTED = re.compile(r"[\"“「『【](.*)[\"”」』】]", re.DOTALL)


def fold(text: str) -> str:
    """Converts full-width characters and symbols to ASCII and drops invisible ones, without changing the value."""
    text = _INVISIBLE.sub("", text)
    if text.isascii():
        return text
    text = _SUPERSCRIPT.sub(lambda m: "^{" + unicodedata.normalize("NFKC", m[0]) + "}", text)
    text = _SUBSCRIPT.sub(lambda m: "_{" + unicodedata.normalize("NFKC", m[0]) + "}", text)
    text = _ROOT.sub(lambda m: rf"\sqrt{_INDEX[m[1]]}{{{m[2] or m[3]}}}", text)
    text = _VULGAR.sub(_vulgar, text.translate(_SYMBOLS))
    parts = _LABEL.split(text)
    parts[::2] = [unicodedata.normalize("NFKC", part) for part in parts[::2]]
    return _DASH.sub("-", "".join(parts).translate(_SYMBOLS))


@lru_cache(maxsize=8192)
def tidy(text: str) -> str:
    """The answer in a normalised spelling: no dollar signs, no text macros, one name for each operator."""
    text = fold(text).replace("{,}", ",")
    while (unwrapped := _TEXT_MACRO.sub(_mark_words, _STYLE_MACRO.sub(r"\1", text))) != text:
        text = unwrapped
    if r"\begin" in text:
        text = _ENVIRONMENT.sub(_lines, text)
    if not text.isalnum() or "pi" in text:
        for pattern, replacement in _REPLACEMENTS:
            text = pattern.sub(replacement, text)
        matrix = r"\begin" in text
        line_break = r"\\" if matrix else " "
        text = text if matrix else _NEXT_EQUATION.sub(", ", text)
        text = _SPACING.sub(lambda m: line_break if m[1] else " ", text)
        text = _CALLED_ROOT.sub(lambda m: rf"\sqrt{{{m[1] or m[2] or ''}}}", text)
        text = _NUMERATOR.sub(lambda m: rf"\frac{{{m[1]}}}" if m[1] else r"\frac", text)
        while (
            braced := _DENOMINATOR.sub(r"\1{\2}", text)
        ) != text:  # one level of nested fractions at a time
            text = braced
    text = _EDGES.sub("", text)
    if quoted := _QUOTED.fullmatch(text):
        text = _EDGES.sub("", quoted[1])
    while text[:2] == "**" == text[-2:] and len(text) > 4:
        text = _EDGES.sub("", text[2:-2])
    while text[:1] == "{" and closing(text, 0) == len(text) - 1:
        text = _EDGES.sub("", text[1:-1])
    return text


def _lines(match: re.Match[str]) -> str:
    """The lines of an environment; a line that starts with an equals sign continues the one before it."""
    content = (match[3] or match[4] or "").replace("&", " ").strip().removesuffix(r"\\")
    return re.sub(r"\\\\\s*(?==)", " ", content).replace(r"\\", ", ")


def is_blank(text: str) -> bool:
    """Whether this content shows nothing in print."""
    return not _BLANK.sub("", fold(text))


def closing(text: str, start: int) -> int:
    """Index of the brace that closes the one at `start`, or -1. Escaped braces do not count."""
    depth = 0
    for match in _BRACE.finditer(text, start):
        if match[0] == "{":
            depth += 1
        elif match[0] == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return -1


def _mark_words(match: re.Match[str]) -> str:
    return _LATIN.sub(rf"{WORD_MARK}\g<0>", (match[1] or match[2])[1:-1])


def _vulgar(match: re.Match[str]) -> str:
    numerator, denominator = unicodedata.normalize("NFKC", match[0]).split("⁄")
    return rf"\frac{{{numerator}}}{{{denominator}}}"
