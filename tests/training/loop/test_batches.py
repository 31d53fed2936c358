"""Batches: epoch after epoch, from any position."""

import itertools

from hypothesis import given, strategies as st

from plait.training import Batches


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    epochs=st.integers(1, 4),
    stop=st.integers(0, 25),
)
def test_from_any_position_the_rest_is_what_would_have_come(lengths, epochs, stop):
    def source(epoch):
        return ((epoch, i) for i in range(lengths[epoch % len(lengths)]))

    whole = list(Batches(source, epochs=epochs))
    assert whole == [(e, i) for e in range(epochs) for i in range(lengths[e % len(lengths)])]
    begun = Batches(source, epochs=epochs)
    first = list(itertools.islice(begun, stop))
    again = Batches(source, epochs=epochs)
    again.set_state(begun.get_state())
    assert first + list(again) == whole
    assert list(again) == []


def test_a_position_can_be_taken_back():
    batches = Batches([1, 2, 3])
    states = [(batches.get_state(), next(batches)) for _ in range(5)]
    for state, expected in reversed(states):
        batches.set_state(state)
        assert next(batches) == expected


def test_a_dataset_with_items_alone_is_a_source():
    class Items:
        def __getitem__(self, index):
            if index >= 2:
                raise IndexError
            return index

    assert list(Batches(Items(), epochs=2)) == [0, 1, 0, 1]


def test_after_an_error_the_epoch_goes_on_where_it_was():
    """A generator that has raised is at its end, which is not the end of the epoch."""
    failing = [True]

    def source(epoch):
        for number in range(6):
            if number == 3 and failing:
                failing.clear()
                raise OSError("the disk is busy")
            yield (epoch, number)

    batches, found = Batches(source, epochs=2), []
    while len(found) < 12:
        try:
            found.append(next(batches))
        except OSError:
            continue
    assert found == [(epoch, number) for epoch in range(2) for number in range(6)]
