"""Which images the quickstart's page shows, and how."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from enresnet.report.examples import Answer, Differing, Example
from enresnet.report.thumbnails import change_uri, image_uri

ONE, TWO = "one", "two"


def example(row, held):
    """Return an image of class 3 that the named networks hold, with no other right answer."""
    said = {n: Answer(3 if n in held else 8, 0.9) for n in (ONE, TWO)}
    blind = Answer(8, 0.6)
    return Example(
        row=row,
        seed=0,
        label=3,
        image=torch.zeros(1, 2, 2),
        attacked={n: torch.zeros(1, 2, 2) for n in (ONE, TWO)},
        clean_answers={n: Answer(8, 1.0) for n in (ONE, TWO)},
        answers={ONE: {ONE: said[ONE], TWO: blind}, TWO: {ONE: blind, TWO: said[TWO]}},
    )


def split(*held):
    return Differing.among([example(row, names) for row, names in enumerate(held)], (ONE, TWO))


def rows(examples):
    return [example.row for example in examples]


def test_a_network_holds_what_it_gets_right_under_the_attack_on_itself():
    """Answers on clean images, and on those made against the other network, do not count."""
    assert example(0, {ONE}).held_by(ONE)
    assert not example(0, {ONE}).held_by(TWO)


def test_both_directions_are_counted_and_keep_their_order():
    found = split({ONE}, {ONE, TWO}, {TWO}, set(), {ONE}, {ONE}, {ONE, TWO})
    assert (found.both, found.neither, found.total) == (2, 1, 4)
    assert found.counts() == {ONE: 3, TWO: 1}
    assert rows(found.only[ONE]) == [0, 4, 5]
    assert rows(found.only[TWO]) == [2]


@pytest.mark.parametrize(
    ("ones", "twos", "shown"),
    [
        (0, 0, (0, 0)),
        (5, 3, (5, 3)),  # all of them
        (40, 0, (8, 0)),
        (0, 40, (0, 8)),
        (30, 10, (6, 2)),
        (10, 30, (2, 6)),
        (300, 2, (7, 1)),  # rounding hides no direction
        (2, 300, (1, 7)),
        (20, 19, (4, 4)),
    ],
)
def test_what_is_shown_is_in_proportion(ones, twos, shown):
    found = split(*[{ONE}] * ones, *[{TWO}] * twos)
    first = found.first(8)
    assert tuple(map(len, first.values())) == shown
    assert rows(first[ONE]) == list(range(shown[0]))
    assert rows(first[TWO]) == list(range(ones, ones + shown[1]))


def pixels(uri):
    kind, _, data = uri.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_a_thumbnail_is_the_image():
    image = torch.tensor([[[0.0, 1.0], [0.2, 1.3]]])
    np.testing.assert_array_equal(pixels(image_uri(image)), [[0, 255], [51, 255]])
    assert pixels(image_uri(torch.rand(3, 4, 5))).shape == (4, 5, 3)


def test_a_change_is_red_where_lighter_and_blue_where_darker():
    (up, none, down, beyond) = pixels(change_uri(torch.tensor([[[0.2, 0.0, -0.2, 0.9]]]), 0.2))[0]
    red, blue = 0, 2
    assert int(up[red]) > int(up[blue]) + 80
    assert int(down[blue]) > int(down[red]) + 80
    assert none.min() > 230
    assert (beyond == up).all()
