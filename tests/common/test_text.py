"""Words for messages."""

from fastget.common.text import and_more, close_matches, csv_cell, escaped, from_csv_cell, nearest, printable


def test_and_more() -> None:
    assert and_more(list("abc")) == "a, b, c"
    assert and_more(range(1205)) == "0, 1, 2, 3, 4 and 1,200 more"


def test_nearest() -> None:
    assert nearest("papr", ["default", "paper"]) == " (did you mean 'paper'?)"
    assert nearest("papr", {"paper": 1}) == " (did you mean 'paper'?)"
    assert nearest("xyz", ["default", "paper"]) == ""
    assert nearest("tape", ["paper"]) != nearest("tape", ["paper"], cutoff=0.9)


def test_close_matches() -> None:
    assert close_matches("resnet5", ["vgg16", "resnet50", "resnet152"], most=3) == ["resnet50", "resnet152"]


def test_a_name_is_printable() -> None:
    assert printable("naïve 中文 [b]") == "naïve 中文 [b]"
    assert printable("a\x1b[31m\nb\udc80") == "a\ufffd[31m\ufffdb\ufffd"
    assert printable("x" * 41) == "x" * 39 + "…"
    assert printable("x" * 40) == "x" * 40


def test_escaped() -> None:
    assert escaped("plain, [b]éß[/b] 日本") == "plain, [b]éß[/b] 日本"
    assert escaped("a\x1b[31mb\x07\u202e\udce9") == "a\\x1b[31mb\\x07\\u202e\\xe9"
    assert escaped("a\nb\tc") == "a\nb\tc"


def test_csv_cells_are_no_formulas_and_come_back() -> None:
    for text in ("=1+1", "+x", "-rm", "@sum", "\t=1", "'=1", "''-x"):
        assert csv_cell(text) == f"'{text}"
        assert from_csv_cell(csv_cell(text)) == text
    for harmless in ("get", "-0.5", "+3", "'quoted'", "", 0.5, -2, None):
        assert csv_cell(harmless) == harmless
    assert from_csv_cell("'quoted'") == "'quoted'"
