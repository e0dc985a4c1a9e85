"""Marks, numbers, units, names and texts of translations: hand-made pairs in both directions, and properties."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.data.translate.answers import calculations, disagree, split_answer, value_of
from rl.data.translate.checks import Direction, text_faults
from rl.data.translate.journal import Reply
from rl.data.translate.marks import in_language, mask, restore, without_marks
from rl.data.translate.names import changed_names, shared_names
from rl.data.translate.numbers import compare
from rl.data.translate.rows import Part
from rl.data.translate.units import added_units
from tests.helpers.openai_server import kana
from tests.helpers.recipes import shared_dir

SAME = [  # the same numbers in other spellings
    ("She has 48 friends in April.", "4月に友達が48人います。"),
    ("She has 48 friends.", "友達が４８人います。"),
    ("She has 48 friends.", "友達が四十八人います。"),
    ("half as many", "半分の数"), ("twice as many", "2倍の数"), ("twice as many", "倍の数"),
    ("two brothers", "二人の兄弟"), ("two brothers", "2人の兄弟"), ("both of them", "2人とも"),
    ("3/4 of the cake", "ケーキの4分の3"), ("three-fourths of it", "その四分の三"), ("one-third", "3分の1"),
    ("3 1/2 cups", "3と1/2カップ"), ("3.5 cups", "3カップ半"),
    ("2.5 hours", "2時間30分"), ("2 hours and 30 minutes", "2時間30分"), ("90 minutes", "1時間30分"),
    ("2 and a half hours", "2時間半"), ("half an hour", "30分"),
    ("1.5 million people", "150万人"), ("12,000 people", "1万2000人"), ("12,000 people", "1万2千人"),
    ("2 billion dollars", "20億ドル"), ("350 thousand", "35万"), ("1,250 grams", "1250グラム"),
    ("20% off", "20パーセント引き"), ("20% off", "２割引き"), ("a dozen eggs", "12個の卵"), ("a dozen eggs", "卵1ダース"),
    ("9:30 pm", "午後9時30分"), ("9:30 pm", "21時30分"), ("at 5 pm", "17時に"),
    ("one hundred and five", "105"), ("twenty-five students", "25人の生徒"), ("forty thousand", "4万"),
    ("an hour", "1時間"), ("the second day", "2日目"),
    ("7 turkeys", "七面鳥が7羽"), ("a lot of time", "十分な時間"), ("together", "一緒に"), ("the best", "一番"),
    ("5 nickels", "5セント硬貨5枚"), ("in 2010", "2010年に"),
]  # fmt: skip
CHANGED = [  # (source, translation, lost, new)
    ("48 friends", "84人の友達", ["48"], ["84"]),
    ("five miles", "8キロメートル", ["five"], ["8"]),
    ("$12 an hour", "時給1,800円", ["12"], ["1,800"]),
    ("seven days", "七面鳥", ["seven"], []),
    ("3/4 of it", "その3分の2", ["3/4"], ["3分の2"]),
    ("1.5 million", "150億", ["1.5 million"], ["150億"]),
    ("2.5 hours", "2時間15分", ["2.5"], ["2時間15分"]),
    ("12 apples a year", "1年のりんご", ["12"], []),
    ("three cats", "猫", ["three"], []),
    ("cats", "三匹の猫", [], ["三"]),
]


@pytest.mark.parametrize(("english", "japanese"), SAME, ids=[f"{e} | {j}" for e, j in SAME])
def test_the_same_numbers_in_other_spellings(english, japanese):
    for pair in ((english, japanese, "en", "ja"), (japanese, english, "ja", "en")):
        found = compare(*pair)
        assert (found.lost, found.new) == ([], []), pair


def test_words_explain_a_number_and_replace_none():
    """A week may become 7日間, but 7 days may not become a week: the solution counts with 7."""
    assert compare("a week and a year", "7日間と12か月", "en", "ja").new == []
    assert compare("7日間", "a week", "ja", "en").lost == ["7"]


@pytest.mark.parametrize(("english", "japanese", "lost", "new"), CHANGED, ids=[row[0] for row in CHANGED])
def test_numbers_lost_and_new(english, japanese, lost, new):
    found = compare(english, japanese, "en", "ja")
    assert (found.lost, found.new) == (lost, new)


@pytest.mark.parametrize(
    ("source", "translation", "to", "units"),
    [
        ("$12 an hour", "時給12ドル", "ja", []),
        ("$12 an hour", "時給12円", "ja", ["yen"]),
        ("5 miles", "5キロメートル", "ja", ["kilometre"]),
        ("5 meters and 3 km", "5メートルと3キロ", "ja", []),
        ("3 kilos", "3キロ", "ja", []),
        ("a circle of 5", "5円形", "ja", []),
        ("20 square feet", "20平方フィート", "ja", []),
        ("20 square feet", "20平方メートル", "ja", ["metre"]),
        ("70 degrees", "摂氏70度", "ja", ["Celsius"]),
        ("12ドルで5キロ", "12 yen for 5 feet", "en", ["yen", "foot"]),
        ("徒歩5分", "5 minutes on foot", "en", []),
        ("庭の花5本", "5 flowers in the yard", "en", []),
    ],
)
def test_units_that_were_brought_in(source, translation, to, units):
    assert added_units(source, translation, "en" if to == "ja" else "ja", to) == units


@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        ("Natalia", ("ナタリア", "ナタリー")), ("Michael", ("マイケル", "ミハエル")), ("Betty", ("ベティ", "ベッティー")),
        ("James", ("ジェームズ", "ジェイムス")), ("Julie", ("ジュリー", "ジュリ")), ("Steve", ("スティーブ", "スティーヴン")),
    ],
)  # fmt: skip
def test_one_name_in_two_spellings(name, spellings):
    one, other = spellings
    assert changed_names(f"{one}は本を読みます。", f"{other}は本を読みます。", "ja", [name], name)
    assert not changed_names(f"{one}は本を読みます。", f"{one}は本を読みました。", "ja", [name], name)
    assert not changed_names(f"{one}は本を読みます。", "本を読みました。", "ja", [name], name)


def test_people():
    assert changed_names("健太さんは走ります。", "健さんは走ります。", "ja") == ["?: 健"]
    assert changed_names("健太さんは走ります。", "健太さんとお母さんは走ります。", "ja") == []
    assert (
        changed_names("ケンは走ります。", "マイラさんは走ります。", "ja", [], "Ken runs. Maila runs.") == []
    )
    assert changed_names("Natalia runs.", "Then Natalie runs.", "en") == ["Natalia: Natalie"]
    assert shared_names("Tom has a dog. How old is Tom?", "Tom says: How many? The dog is Tom's.") == ["Tom"]


JAPANESE = Direction("en", "ja")
SOURCE = "Tom has three dogs and a cat, and he feeds each of them twice a day."
GOOD = "トムは犬を3匹と猫を1匹飼っていて、それぞれに1日2回えさをやります。"


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        (GOOD, []),
        ("", ["empty"]), ("…", ["empty"]), (SOURCE, ["same_as_source"]), ("x\ud800", ["broken_text"]),
        ("I'm sorry, but I can't translate this.", ["refusal", "wrong_language"]),
        ("<think>トムは犬を", ["thinking"]), ("承知しました。" + GOOD, ["thinking"]), (GOOD + "\n（訳注：猫は1匹）", ["thinking"]),
        ("```\n" + GOOD, ["markdown"]), ("**トム**は犬を3匹と猫を1匹飼っていて、えさをやります。", ["markdown"]),
        ("汤姆有三只狗和一只猫，他每天给它们每只喂食两次，他非常喜欢它们。", ["wrong_language"]),
        ("Tom hat drei Hunde und eine Katze, und er füttert sie.", ["wrong_language"]),
        ("トム", ["length_ratio"]), (GOOD * 4, ["length_ratio"]),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_texts(text, reasons):
    found = [fault.reason for fault in text_faults(SOURCE, text, JAPANESE)]
    assert found[: len(reasons)] == reasons and bool(found) == bool(reasons)


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        (GOOD, []), ("3x=6, x=2", []), ("12 km + 3 km = 15 km", []), ("**5個**です。", []),
        ("He has 3 apples left.", ["wrong_language"]), (SOURCE, ["wrong_language"]),
        ("汤姆有三只狗和一只猫，他每天给它们每只喂食两次，他非常喜欢它们。", ["wrong_language"]),
        ("<think>トムは犬を", ["thinking"]), ("申し訳ありませんが、お答えできません。", ["refusal"]), ("…", ["empty"]),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_texts_whose_source_is_unknown(text, reasons):
    assert [fault.reason for fault in text_faults("", text, JAPANESE)] == reasons


def test_equations_are_the_same_in_both_languages():
    assert [*text_faults("x+3y=6, x=2", "x+3y=6, x=2", JAPANESE)] == []
    assert [fault.reason for fault in text_faults("x eggs", "x eggs", JAPANESE)] == ["same_as_source"]


def test_prices_are_no_formula():
    """All of the text between two dollar signs counts, on one line as on two."""
    source = "Each hour of work gives $12.\nShe earned that for one whole hour and then got $5 more."
    japanese = "時給は$12です。彼女は1時間ちょうど働いてその分をもらい、さらに$5です。"
    assert [*text_faults(source, japanese, JAPANESE)] == []


def test_formulas_leave_as_marks():
    question = mask("In 2010 at 9:30 she paid $1.5 million for 3/4 of it.", "marker", shown=True)
    assert question.text == "In [[1:2010]] at [[2:9:30]] she paid $[[3:1.5 million]] for [[4:3/4]] of it."
    solution = mask(
        "So 0.2 x 50 = $<<0.2*50=10>>10, or 20% of (3+7)*5=<<10*5=50>>50 eggs.", "marker", shown=False
    )
    assert solution.text == "So [[1]], or [[2]] of [[3]] eggs."
    assert solution.pieces == ["0.2 x 50 = $<<0.2*50=10>>10", "20%", "(3+7)*5=<<10*5=50>>50"]
    assert solution.single == {1, 3}
    tex = mask("Let $x^2 = 4$ and \\(y\\). Then \\boxed{\\frac{1}{2}} in 3 steps.", "boxed", shown=False)
    assert tex.text == "Let [[1]] and [[2]]. Then [[3]] in [[4]] steps." and tex.single == {1, 2, 3}


def test_what_a_translator_did_to_the_marks():
    masked = mask("4 + 5 = <<4+5=9>>9 and 3 and 2nd", "marker", shown=False)
    found = restore("［［1］］と[[ 3 ]]個、[[1:9]]、[[7]]", masked, "ja")
    assert found.text == "4 + 5 = <<4+5=9>>9と2個、4 + 5 = <<4+5=9>>9、[[7]]"
    assert (found.lost, found.repeated, found.unknown) == ([2], [1], [7])
    percent = mask("80% of 25 eggs", "marker", shown=True)
    assert restore("[[2]]個の[[1:80%]]パーセント", percent, "ja").text == "25個の80%"
    assert restore("[[2]]％の[[1]]", percent, "ja").text == "25％の80%"


@pytest.mark.parametrize(
    ("piece", "to", "written"),
    [
        ("2nd", "ja", "2"), ("1.5 million", "ja", "1,500,000"), ("1,000", "ja", "1,000"), ("3分の2", "en", "2/3"),
        ("1万2000", "en", "12,000"), ("1億2000万", "en", "120,000,000"), ("３５", "en", "35"), ("2.5", "en", "2.5"),
    ],
)  # fmt: skip
def test_numbers_as_the_language_writes_them(piece, to, written):
    assert in_language(piece, to) == written


@given(
    st.text(st.sampled_from("ab 12.,%$()+-=*/<>x[]:：［］円万人半分のst\\{}\n"), max_size=60), st.booleans()
)
def test_every_text_survives_its_marks(text, shown):
    """What a faithful translator copies comes back as it was, and no digit is left outside the marks of a solution."""
    for layout in ("marker", "boxed"):
        masked = mask(text, layout, shown)
        restored = restore(masked.text, masked, "ja")
        assert restored.lost == restored.repeated == restored.unknown == []
        assert restored.text == restore(mask(text, layout, False).text, mask(text, layout, False), "ja").text
        assert not any(c.isdecimal() for c in without_marks(mask(text, layout, False).text))


@pytest.mark.parametrize(
    ("calculation", "value"),
    [("48/2", 24), ("2*(3+4)", 14), ("20%", Fraction(1, 5)), ("$5*3", 15), ("007+1", 8), (".5*4", 2), ("2^3", 8), ("a+1", None), ("", None), ("1/0", None)],
)  # fmt: skip
def test_arithmetic(calculation, value):
    assert value_of(calculation) == value


def test_translations_by_hand_pass():
    """14 rows of GSM8K, translated by a person as the prompts ask: none has a fault."""
    english = (shared_dir() / "data" / "gsm8k" / "train.jsonl").read_text("utf-8").splitlines()
    lines = (Path(__file__).parents[1] / "data" / "gsm8k_translations.jsonl").read_text("utf-8").splitlines()
    for made in map(json.loads, lines):
        row = json.loads(english[made["row"]])
        question = Part(mask(row["question"], "marker", True), row["question"], is_question=True)
        restored, changes = question.read(Reply(made["question"], "stop", 1, 1), JAPANESE)
        assert question.faults(restored, Reply(made["question"], "stop", 1, 1), JAPANESE) == [] == changes
        if made["solution"]:
            body = split_answer(row["answer"], "marker").solution
            texts = (row["question"], restored.text)
            solution = Part(mask(body, "marker", False), body, is_question=False, question=texts)
            reply = Reply(made["solution"], "stop", 1, 1)
            assert solution.faults(solution.read(reply, JAPANESE)[0], reply, JAPANESE) == []


def test_the_real_rows():
    """Every solution of GSM8K leaves without digits and comes back as it was; no calculation contradicts itself."""
    rows = (shared_dir() / "data" / "gsm8k" / "test.jsonl").read_text("utf-8").splitlines()
    for row in map(json.loads, rows[::5]):
        solution = split_answer(row["answer"], "marker").solution
        masked = mask(solution, "marker", shown=False)
        assert restore(masked.text, masked, "en").text == solution
        assert not any(c.isdecimal() for c in without_marks(masked.text)), masked.text
        assert not any(map(disagree, calculations(solution)))
        assert compare(row["question"], row["question"], "en", "en").lost == []
        question = mask(row["question"], "marker", shown=True)
        answer = restore(kana(question.text), question, "ja")
        assert compare(row["question"], answer.text, "en", "ja").new == [], answer.text
