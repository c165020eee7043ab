"""The order of a line: in the schema where it is not the usual one, and compared where lines are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparsefleet.core.inputs import READY, Inputs
from sparsefleet.core.layout import default_layout, with_layout
from sparsefleet.core.schema import CsvDialect, DenseFeature, Schema, Slot
from sparsefleet.data.dataset_factory import inputs_of

SCHEMA = Schema((DenseFeature("price"), DenseFeature("age")), (Slot("user", keys=True), Slot("ad", keys=True)))
USUAL = [("dense_input", "dense"), ("user", "sparse"), ("ad", "sparse"), ("label", "label")]


def test_the_usual_order_is_left_out():
    assert with_layout(SCHEMA, USUAL) is SCHEMA
    assert with_layout(SCHEMA, USUAL[:-1]) is SCHEMA
    assert with_layout(SCHEMA, default_layout(SCHEMA)) is SCHEMA
    assert inputs_of([("x", 13), "a", "label"])[0].multislot is None
    assert inputs_of([("x", 1), "a"])[0].multislot is None


@pytest.mark.parametrize(
    ("inputs", "multislot"),
    [
        (["label", ("x", 2), "a"], ("label", "x", "a")),
        (["a", ("x", 2), "label"], ("a", "x", "label")),
        ([("x", 1), ("y", 1), "a", "label"], ("x", "y", "a", "label")),
        (["a", ("x", 1)], ("a", "x", "label")),  # no label: who reads such lines leaves it out
    ],
)
def test_any_other_order_is_in_the_schema(inputs, multislot):
    schema, layout = inputs_of(inputs)
    assert schema.multislot == multislot
    assert Schema.from_dict(schema.to_dict()) == schema
    labelled = "label" in inputs
    assert default_layout(schema, labelled) == list(layout)
    assert with_layout(schema, USUAL) is schema, "it says an order"


def test_an_order_that_a_schema_cannot_say_is_left_out():
    moved = [USUAL[-1], *USUAL[:-1]]
    assert with_layout(SCHEMA, moved).multislot == ("label", "dense_input", "user", "ad")
    for layout in (
        [*moved, ("user", "sparse")],
        [("label", "label"), ("dense_input", "dense"), ("user", "sparse")],
        [("label", "label"), ("user", "dense"), ("user", "sparse"), ("ad", "sparse")],
        [("user", "label"), ("ad", "dense"), ("user", "sparse")],
    ):
        assert with_layout(SCHEMA, layout) is SCHEMA
    first = Schema((), (Slot("user"),), version=1)
    assert with_layout(first, [("label", "label"), ("user", "sparse")]) is first
    table = replace(SCHEMA, csv=CsvDialect())
    assert with_layout(table, moved) is table


def lines(layout, dense=("price", "age"), slots=("user", "ad")) -> Inputs:
    return Inputs("multislot", dict.fromkeys(slots, READY), dict.fromkeys(dense, READY), layout=tuple(layout))


def test_orders_of_lines_are_compared():
    usual, first = lines(USUAL), lines([USUAL[-1], *USUAL[:-1]])
    assert usual.other_order(usual) is None
    assert first.other_order(usual) == (
        "a line is (label, dense_input, user, ad) in training, (dense_input, user, ad, label) here"
    )
    assert usual.differences(first) == [], "requests are by name"
    assert usual.other_order(lines([("all", "dense"), *USUAL[1:]])) is None, "what a slot is called does not count"
    assert usual.other_order(lines(USUAL, dense=("age", "price"))) is None, "as a document has them"
    assert first.other_order(lines(USUAL[:-1])) is None, "without a label"
    assert usual.other_order(first.vouched()) is None
    assert usual.other_order(replace(first, layout=None)) is None
    apart = lines([("price", "dense"), ("age", "dense"), *USUAL[1:]])
    swapped = lines([("age", "dense"), ("price", "dense"), *USUAL[1:]])
    assert apart.other_order(usual) == (
        "a line is (price, age, user, ad, label) in training, (dense_input, user, ad, label) here"
    )
    assert apart.other_order(swapped) == (
        "a line is (price, age, user, ad, label) in training, (age, price, user, ad, label) here"
    )
    more = lines([("user", "sparse"), ("device", "sparse"), ("ad", "sparse")], (), ("user", "device", "ad"))
    assert lines([("user", "sparse"), ("ad", "sparse")], ()).other_order(more) is None, "a slot more"
    twice = lines([("user", "sparse"), ("ad", "sparse"), ("user", "sparse")], ())  # a document may say anything
    assert twice.other_order(lines([("ad", "sparse"), ("user", "sparse")], ())) is not None


def test_long_orders_are_told_from_where_they_part():
    names = [f"C{number}" for number in range(1, 27)]
    layout = [(name, "sparse") for name in names]
    one, other = lines(layout, (), names), lines([*layout[:20], layout[21], layout[20], *layout[22:]], (), names)
    assert one.other_order(other) == (
        "a line is (…, C21, C22, C23, C24, C25, C26) in training, (…, C22, C21, C23, C24, C25, C26) here"
    )
