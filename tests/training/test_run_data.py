"""The data of a run as a value: what changes of it make, and what has been heard of them."""

import torch

import bayesmp as bmp
from bayesmp.training.run_data import RunData
from tests.helpers import linear_data, mlp


def data_of(n=6, labels=None) -> RunData:
    """In batches of the even rows and of the odd ones."""
    x = torch.arange(float(n))[:, None]
    members = [torch.arange(start, n, 2) for start in (0, 1)]
    return RunData.of(x, 10.0 * x, None if labels is None else torch.tensor(labels), members)


def test_new_examples_have_batches_of_their_own_that_are_unheard_until_all_are():
    data = data_of(4, labels=[0, 0, 5, 5])
    x = torch.tensor([[7.0], [8.0], [9.0]])
    longer, kept = data.with_new(x, 10.0 * x, batch_size=2, generator=torch.Generator().manual_seed(0))
    assert longer.ids.tolist() == list(range(7)) and (longer.next_id, longer.next_batch_id) == (7, 4)
    assert longer.batch_ids == [0, 1, 2, 3] and [len(rows) for rows in longer.members] == [2, 2, 2, 1]
    assert sorted(torch.cat(longer.members[2:]).tolist()) == [4, 5, 6]
    assert [batch.row for batch in kept] == [0, 1] and all(batch.places.tolist() == [0, 1] for batch in kept)
    assert len(set(longer.labels[4:].tolist()) - {0, 5}) == 3, "they belong to none of the old ones"
    assert longer.unheard_batches == {2, 3} and longer.is_unheard.tolist() == [False] * 4 + [True] * 3
    assert not longer.all_heard().is_unheard.any() and len(data) == 4, "the former data are as they were"


def test_what_was_heard_is_that_of_the_batches_that_were_visited():
    """Examples that belong together by name were forgotten to do so while others had yet to be heard."""
    x = torch.full((1, 1), 7.0)
    longer, _ = data_of(4, labels=[0, 0, 5, 5]).with_new(x, x, batch_size=2, generator=torch.Generator())
    heard = longer.heard
    assert heard.x.flatten().tolist() == [0.0, 1.0, 2.0, 3.0] and heard.batch_ids == [0, 1]
    assert [rows.tolist() for rows in heard.members] == [[0, 2], [1, 3]]
    assert heard.groups.tolist() == [0, 0, 1, 1]
    assert data_of().heard.x is not None and longer.all_heard().heard.groups.tolist() == [0, 0, 1, 1, 2]


def test_examples_that_go_leave_the_places_of_the_others():
    left, kept = data_of(6).without(torch.tensor([0, 1, 3, 5]))
    assert left.ids.tolist() == [2, 4] and left.y.flatten().tolist() == [20.0, 40.0]
    assert [rows.tolist() for rows in left.members] == [[0, 1]] and left.batch_ids == [0]
    assert [(batch.row, batch.places.tolist()) for batch in kept] == [(0, [1, 2])]
    assert (left.next_id, left.next_batch_id) == (6, 2), "no id is used twice"
    assert left.rows_of([4]).tolist() == [1]


def test_new_values_are_unheard_where_they_stand():
    data = data_of(4)
    changed, kept = data.with_values(torch.tensor([1, 2]), data.x[[1, 2]], torch.tensor([[-1.0], [-2.0]]))
    assert changed.y.flatten().tolist() == [0.0, -1.0, -2.0, 30.0]
    assert changed.x is data.x, "a mended label needs no copy of all inputs"
    assert [batch.places.tolist() for batch in kept] == [[0, -1], [-1, 1]]
    assert changed.is_unheard.tolist() == [False, True, True, False]


def test_run_until_counts_the_epochs_that_were_run():
    x, y = linear_data(20)
    trainer = bmp.Trainer(mlp([3, 4, 1], bmp.Regression(0.09)), x, y, batch_size=10)
    trainer.run(2)
    history = trainer.run_until(5)
    assert len(history) == 5 and history.stopped.startswith("ran the 5 epochs asked for")
    assert len(trainer.run_until(5)) == 5, "nothing is left to do"
