"""The kinds of word problem: number ranges, steps of arithmetic, and the text in English and Japanese.

`{a}`..`{e}` are the problem's numbers, `{name}` and `{item}` its words. A step is one operation on two
one-character operands: a number of the problem, a digit, or the result of an earlier step (x, y, z, w in order).
"""

from __future__ import annotations

from dataclasses import dataclass

RESULTS = "xyzw"  # names of the step results, in order


@dataclass(frozen=True)
class Wording:
    """A kind in one language: the question, and a description of each step's result."""

    question: str
    finds: tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """One kind of problem. `ranges` gives each number's inclusive range, for a, b, c, ... in order."""

    name: str
    ranges: tuple[tuple[int, int], ...]
    steps: tuple[str, ...]
    en: Wording
    ja: Wording


NAMES = {
    "en": ("Tom", "Anna", "Ben", "Lucy", "Sam", "Emma", "Mike", "Kate"),
    "ja": ("健太", "美咲", "翔", "さくら", "大輔", "由美", "直樹", "花子"),
}
ITEMS = {
    "en": ("apples", "oranges", "lemons", "cookies", "candies", "marbles"),
    "ja": ("りんご", "みかん", "レモン", "クッキー", "あめ", "ビー玉"),
}

KINDS = (
    Kind(
        "bags",
        ((2, 6), (2, 6), (2, 9)),
        ("a*b", "x+c"),
        Wording(
            "{name} has {a} bags with {b} {item} in each, and {c} more {item} on the table."
            " How many {item} does {name} have in all?",
            ("in bags", "in all"),
        ),
        Wording(
            "{name}は{item}が{b}個ずつ入った袋を{a}袋と、ほかに{item}を{c}個持っています。{item}は全部で何個ありますか？",
            ("袋の中は", "全部で"),
        ),
    ),
    Kind(
        "change",
        ((2, 6), (2, 9), (8, 30)),
        ("a*b", "c-x"),
        Wording(
            "{name} buys {a} notebooks for {b} dollars each and pays with {c} dollars."
            " How many dollars does {name} get back?",
            ("price", "change"),
        ),
        Wording(
            "{name}は1個{b}円のあめを{a}個買い、{c}円出しました。おつりは何円ですか？",
            ("代金は", "おつりは"),
        ),
    ),
    Kind(
        "sharing",
        ((3, 20), (3, 20), (2, 9)),
        ("a+b", "x/c"),
        Wording(
            "{name} bought {a} {item} on Monday and {b} on Tuesday, and shares them equally among {c} friends."
            " How many {item} does each friend get?",
            ("in all", "each"),
        ),
        Wording(
            "{name}は{item}を月曜に{a}個、火曜に{b}個買い、{c}人の友だちに同じ数ずつ分けました。1人分は何個ですか？",
            ("全部で", "1人分は"),
        ),
    ),
    Kind(
        "reading",
        ((10, 30), (2, 9), (2, 6)),
        ("b*c", "a-x"),
        Wording(
            "A book has {a} pages. {name} reads {b} pages a day for {c} days. How many pages are left?",
            ("read", "left"),
        ),
        Wording(
            "本は{a}ページあります。{name}は1日に{b}ページずつ{c}日間読みました。残りは何ページですか？",
            ("読んで", "残りは"),
        ),
    ),
    Kind(
        "bus",
        ((9, 30), (2, 8), (2, 9)),
        ("a-b", "x+c"),
        Wording(
            "There are {a} people on a bus. At the stop {b} people get off and {c} get on."
            " How many people are on the bus now?",
            ("staying", "now"),
        ),
        Wording(
            "バスに{a}人乗っています。停留所で{b}人降りて{c}人乗りました。今、何人乗っていますか？",
            ("降りて", "今は"),
        ),
    ),
    Kind(
        "shopping",
        ((2, 6), (2, 6), (2, 6), (2, 6)),
        ("a*b", "c*d", "x+y"),
        Wording(
            "{name} buys {a} pens at {b} dollars each and {c} books at {d} dollars each."
            " How many dollars is that in all?",
            ("pens", "books", "in all"),
        ),
        Wording(
            "{name}は1本{b}円のえんぴつを{a}本と、1枚{d}円の色紙を{c}枚買いました。代金は全部で何円ですか？",
            ("えんぴつは", "色紙は", "全部で"),
        ),
    ),
    Kind(
        "ages",
        ((4, 10), (2, 7), (2, 6)),
        ("a+b", "a+x", "c*2", "y+z"),
        Wording(
            "{name} is {a} years old and has a sister who is {b} years older."
            " How old will the two be together in {c} years?",
            ("sister", "now", "added", "in all"),
        ),
        Wording(
            "{name}は{a}才で、姉は{name}より{b}才年上です。{c}年後、2人の年の合計は何才ですか？",
            ("姉は", "今は", "増えて", "全部で"),
        ),
    ),
    Kind(
        "savings",
        ((3, 9), (2, 6), (2, 9)),
        ("a*b", "x-c"),
        Wording(
            "{name} saves {a} dollars a week for {b} weeks and then spends {c} dollars on a toy."
            " How many dollars does {name} have left?",
            ("saved", "left"),
        ),
        Wording(
            "{name}は毎週{a}円ずつ{b}週間ためて、{c}円のあめを買いました。残りは何円ですか？",
            ("ためて", "残りは"),
        ),
    ),
    Kind(
        "running",
        ((3, 8), (2, 6), (2, 4), (2, 5)),
        ("a*b", "c*d", "x-y"),
        Wording(
            "{name} runs {a} km a day for {b} days and walks {c} km a day for {d} days."
            " How many more km does {name} run than walk?",
            ("run", "walk", "more"),
        ),
        Wording(
            "{name}は1日に{a}kmずつ{b}日走り、1日に{c}kmずつ{d}日歩きました。走ったのは歩いたのより何km長いですか？",
            ("走って", "歩いて", "ちがいは"),
        ),
    ),
    Kind(
        "roses",
        ((2, 6), (3, 9), (2, 9), (2, 6)),
        ("a*b", "x-c", "y/d"),
        Wording(
            "{name} grows {a} rows of {b} roses, gives {c} roses away, and puts the rest equally into {d} vases."
            " How many roses are in each vase?",
            ("in all", "left", "each"),
        ),
        Wording(
            "ばらが{b}本ずつ{a}列あります。{name}は{c}本を人にあげ、残りを{d}つの花びんに同じ数ずつ入れました。"
            "1つの花びんに何本ありますか？",
            ("ばらは", "残りは", "1つには"),
        ),
    ),
    Kind(
        "half",
        ((4, 50), (2, 9)),
        ("a/2", "x+b"),
        Wording(
            "{name} has {a} {item} and gives half of them to a friend. Then {name} buys {b} more."
            " How many {item} does {name} have now?",
            ("half", "now"),
        ),
        Wording(
            "{name}は{item}を{a}個持っていて、半分を友だちにあげました。そのあと{b}個買いました。今、何個ありますか？",
            ("半分は", "今は"),
        ),
    ),
    Kind(
        "fence",
        ((3, 12), (2, 9), (2, 9)),
        ("a+b", "x*2", "y-c"),
        Wording(
            "{name} has a field that is {a} m long and {b} m wide, and {c} m of fence."
            " How many more m of fence does {name} need to go around it?",
            ("sides", "around", "need"),
        ),
        Wording(
            "{name}はたて{a}m、横{b}mの畑をさくで囲みます。さくは{c}mあります。あと何m必要ですか？",
            ("たてと横", "まわりは", "あと"),
        ),
    ),
    Kind(
        "eggs",
        ((8, 30), (2, 9), (2, 8)),
        ("a-b", "x/c"),
        Wording(
            "{name} collects {a} eggs, but {b} of them break. The rest go into boxes of {c}."
            " How many boxes does {name} fill?",
            ("left", "boxes"),
        ),
        Wording(
            "{name}は卵を{a}個集めましたが、{b}個われました。残りを{c}個ずつ箱に入れます。箱はいくつできますか？",
            ("残りは", "箱は"),
        ),
    ),
    Kind(
        "cards",
        ((2, 9), (2, 6), (2, 9)),
        ("a*b", "a+x", "y-c"),
        Wording(
            "{name} has {a} cards and a friend has {b} times as many. Together they give {c} cards away."
            " How many cards do the two have left?",
            ("friend", "in all", "left"),
        ),
        Wording(
            "{name}はカードを{a}枚、友だちはその{b}倍持っています。2人で{c}枚を人にあげました。"
            "2人のカードは残り何枚ですか？",
            ("友だちは", "全部で", "残りは"),
        ),
    ),
    Kind(
        "hall",
        ((2, 5), (2, 5), (2, 4), (2, 4), (2, 9)),
        ("a*b", "c*d", "x+y", "z-e"),
        Wording(
            "A hall has {a} tables for {b} people each and {c} benches for {d} people each. {name} and friends take"
            " {e} seats. How many seats are free?",
            ("tables", "benches", "seats", "free"),
        ),
        Wording(
            "会場に{b}人がけの机が{a}台と、{d}人がけの長いすが{c}台あります。{name}たち{e}人がすわると、"
            "空いている席はいくつですか？",
            ("机は", "長いすは", "全部で", "空きは"),
        ),
    ),
)
