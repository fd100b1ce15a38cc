"""Words for messages."""

from fastget.common.text import and_more, close_matches, nearest


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
