"""The page of worked numbers equals the library's results."""

from __future__ import annotations

from pathlib import Path

from heedful.lab.printed_examples import printed_examples, worked_numbers_page

PAGE = Path(__file__).parents[3] / "docs" / "worked-numbers.md"


def test_the_committed_page_equals_the_computed_one() -> None:
    """To regenerate it: heedful lab numbers > docs/worked-numbers.md"""
    assert PAGE.read_text(encoding="utf-8") == worked_numbers_page()


def test_correct_examples_agree_and_every_erratum_differs() -> None:
    agreeing = {
        f"{example.title.partition(':')[0]}, {number.quantity}": number.agrees
        for example in printed_examples()
        for number in example.numbers
    }
    wrong = {name for name, agrees in agreeing.items() if not agrees}
    assert wrong == {
        "Number 2, money + PE_3", "Number 3, weights of not", "Erratum 1, sin(1)", "Erratum 1, PE_1",
        "Erratum 1, PE_2", "Erratum 1, PE_3", "Erratum 3, weights of help",
        "Erratum 4, j = 0, from token 0 to 1 and from token 2 to 3",
        "Erratum 2, largest difference, scale 1/√64", "Erratum 2, largest difference, best scale", "Erratum 3, o_1",
        "Erratum 5, the same tensor",
    }  # fmt: skip
