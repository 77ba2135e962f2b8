"""When training ends by itself, and that a run in parts is the same run."""

import itertools
import math
import warnings

import pytest
import torch
from sklearn.datasets import make_circles

import bayesmp as bmp
from bayesmp.basics.settings import SETTINGS, Settings
from bayesmp.evidence import FEWEST_OF_RESTED
from bayesmp.training.stopping import Progress, at_rest, refresh_due, tell_unrest
from bayesmp.training.trainer import MAX_EPOCHS
from tests.helpers import blobs, is_same, linear_data, mlp

torch.set_num_threads(1)

RULE = Settings(rest_gain=0.01, rest_refreshes=2, rest_visits=10, rest_move=1.0)


def passed(*scores, moved=0.0):
    return [Progress(k + 1, score, moved) for k, score in enumerate(scores)]


# --- the rules, as pure functions ------------------------------------------------------------------------------------


def test_what_still_moved_at_the_limit_is_told_calmly_where_it_was_little():
    """Small regressions that were fine ended with what read as an alarm."""
    passed = [Progress(520, 0.3, 2.0), Progress(676, 0.155, 3.9), Progress(879, 0.0886, 3.23)]
    assert tell_unrest(passed, "raise max_epochs") == (
        "from epoch 676 to 879 the leave-one-out NLL went from 0.155 to 0.0886, and the means moved by 3.2 of their "
        "std. That is slow progress and no fault: the network can be used; to let it go on, raise max_epochs"
    )
    assert tell_unrest(passed[:2], "go on").endswith("std, so there may be more to learn; go on")
    worse, early = [Progress(700, 0.1, 1.0), Progress(900, 0.9, 1.0)], [Progress(3, 0.1, 1.0), Progress(4, 0.1, 1.0)]
    assert "no fault" not in tell_unrest(worse, "go on") + tell_unrest(early, "go on")
    assert tell_unrest(passed[:1], "go on") == "the leave-one-out score or the means still moved; go on"


@pytest.mark.parametrize(
    "scores, expected",
    [
        ((), False),
        ((1.0, 1.0), False),  # no score from before the last two
        ((1.0, 1.0, 1.0), True),
        ((1.0, 0.995, 0.993), True),  # gains, but too small ones
        ((1.0, 0.9, 0.9), False),
        ((1.0, 0.9, 0.9, 0.9), True),
        ((0.9, 0.95, 1.1), True),  # a score that rises is no progress
        ((1.0, 1.2, 0.98), False),  # progress after a bad refresh is progress
        ((0.9, 0.9, 0.9, 1.1), False),  # a run does not end in a jump
        ((2.0, 0.5, 1.0, 0.6), True),  # against the best before, not the last
        ((1.0, 0.99 - 1e-9, 0.99 - 1e-9), False),
    ],
)
def test_at_rest_when_the_last_refreshes_brought_nothing(scores, expected):
    assert at_rest(passed(*scores), 100, RULE) is expected


def test_at_rest_only_after_enough_visits_and_when_means_are_still():
    scores = (1.0, 1.0, 1.0, 1.0)
    assert not at_rest(passed(*scores), RULE.rest_visits - 1, RULE) and at_rest(passed(*scores), RULE.rest_visits, RULE)
    assert not at_rest(passed(*scores, moved=1.0), 100, RULE) and at_rest(passed(*scores, moved=0.99), 100, RULE)
    still = [*passed(*scores, moved=5.0), Progress(5, 1.0, 0.1)]
    assert at_rest(still, 100, RULE), "only the last move counts"


def test_at_rest_after_much_longer_however_the_means_move():
    """Classifiers of two or three columns ran to the limit, with scores that had not changed for hundreds of epochs."""
    rule = Settings(rest_gain=0.01, rest_refreshes=2, rest_visits=10, rest_move=1.0, rest_anyway=(4, 50))
    assert not at_rest(passed(*[1.0] * 4, moved=5.0), 50, rule), "no score from before the last four"
    assert at_rest(passed(*[1.0] * 5, moved=5.0), 50, rule) and not at_rest(passed(*[1.0] * 5, moved=5.0), 49, rule)
    assert not at_rest(passed(1.0, 1.0, 0.98, 0.98, 0.98, moved=5.0), 50, rule), "progress"
    assert not at_rest(passed(1.0, 1.0, 1.0, 1.0, 1.0, 1.2, moved=5.0), 50, rule), "a jump"
    assert not at_rest(passed(*[math.nan] * 6, moved=5.0), 50, rule)


def test_a_classifier_of_two_columns_rests_though_its_means_move():
    """Circles, labels taken for clean: 981 epochs with 2,000 rows. It is as good as after five times as many epochs."""
    x, y = make_circles(1200, noise=0.15, factor=0.5, random_state=0)
    x = torch.tensor(x / x.std(0)).float()
    network = mlp([2, 50, 2], bmp.Argmax(target_var=0.1))
    trainer = bmp.Trainer(network, x[:600], y[:600], batch_size=30)
    history = trainer.run(progress=False)
    assert history.stopped.startswith("at rest") and len(history) < 100
    assert history[-1].loo["moved"] > SETTINGS.rest_move, "or this shows nothing"
    early = -float(network.predict(x[600:]).log_prob(torch.tensor(y[600:])).mean())
    trainer.run(4 * len(history), progress=False)
    assert early < -float(network.predict(x[600:]).log_prob(torch.tensor(y[600:])).mean()) + 0.01


def test_nothing_finite_is_not_at_rest():
    """A score that is not a number says nothing about progress."""
    assert not at_rest(passed(1.0, 1.0, math.nan, math.nan), 100, RULE)


def refreshes(until, settings=SETTINGS):
    last, found = 0, []
    for epoch in range(1, until + 1):
        if refresh_due(epoch, last, settings):
            found.append(epoch)
            last = epoch
    return found


def test_refreshes_lie_a_constant_factor_apart():
    found = refreshes(1000)
    assert found[:4] == [1, 2, 3, 4]
    later = [epoch for epoch in found if epoch > 20]
    for earlier, next_one in itertools.pairwise(later):
        assert next_one / earlier == pytest.approx(SETTINGS.refresh_growth, abs=0.05)
    assert len(found) < 30


def test_refreshes_do_not_depend_on_how_a_run_is_cut():
    """A function of the epoch and the last refresh alone."""
    whole = refreshes(200)
    last = 0
    for epoch in whole:
        assert refresh_due(epoch, last) and not any(refresh_due(between, last) for between in range(last + 1, epoch))
        last = epoch
    assert all(refresh_due(epoch, 0) for epoch in (1, 2, 50)), "never refreshed: always due"


# --- runs ------------------------------------------------------------------------------------------------------------


def regression(**options):
    x, y = linear_data(60, n_in=3)
    return mlp([3, 5, 1], bmp.Regression("learn")), x, y / y.std(), {"batch_size": 12, **options}


def classification(**options):
    x, y = blobs(60)
    return mlp([2, 5, 3], bmp.Softmax()), x, y, {"batch_size": 12, **options}


def visited(**options):
    """The same without an objective."""
    return classification(joint=True, **options)


PROBLEMS = {"regression": regression, "classification": classification}


@pytest.mark.parametrize("make", [*PROBLEMS.values(), visited], ids=[*PROBLEMS, "visits"])
def test_training_stops_by_itself_on_an_easy_problem(make):
    network, x, y, options = make()
    history = bmp.fit(network, x, y, **options)
    fewest = SETTINGS.rest_visits / 5 if "joint" in options else FEWEST_OF_RESTED
    assert fewest <= len(history) < MAX_EPOCHS / 5
    assert history.stopped == f"at rest after {len(history)} epochs" and history.stopped in repr(history)
    assert math.isfinite(history.loo_nll[-1]) and math.isfinite(history.loo_error[-1])
    assert network.belief is not None


def test_the_bound_on_epochs_is_told():
    network, x, y, options = regression()
    with pytest.warns(UserWarning, match=r"not at rest after 3 epochs, the limit.*raise max_epochs"):
        history = bmp.fit(network, x, y, max_epochs=3, **options)
    assert len(history) == 3 and history.stopped == "not at rest after 3 epochs, the limit"
    assert network.belief is not None


def test_the_bound_counts_all_epochs_of_a_run():
    network, x, y, options = regression()
    trainer = bmp.Trainer(network, x, y, **options)
    trainer.run(2)
    with pytest.warns(UserWarning, match="not at rest after 4 epochs"):
        trainer.run(max_epochs=4)
    assert trainer.n_epochs == 4


def test_a_number_of_epochs_is_kept_to():
    network, x, y, options = regression()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = bmp.fit(network, x, y, epochs=4, **options)
    assert len(history) == 4 and history.stopped == "ran the 4 epochs asked for; not at rest yet"


@pytest.mark.parametrize("epochs", ["automatic", 0, -1, 2.5, None])
def test_other_epochs_are_refused(epochs):
    network, x, y, options = regression()
    with pytest.raises(ValueError, match="epochs must be a positive integer"):
        bmp.fit(network, x, y, epochs=epochs, **options)


def test_no_further_epochs_change_nothing():
    """`run(30 - trainer.n_epochs)` may come to 0, which was an error."""
    network, x, y, options = regression()
    trainer = bmp.Trainer(network, x, y, **options)
    assert len(trainer.run(0)) == 0 and trainer.history.stopped == "" and network.belief is None
    first = trainer.run(3)
    before, std = network.marginal.tau.clone(), network.predict(x).std
    again = trainer.run(3 - trainer.n_epochs)
    assert again.records == first.records and again.stopped == first.stopped
    assert torch.equal(network.marginal.tau, before) and torch.equal(network.predict(x).std, std)
    with pytest.raises(ValueError, match=r"epochs must be 0, a positive integer or 'auto', got -2; it is"):
        trainer.run(-2)
    with pytest.raises(ValueError, match=r"must be a positive integer or 'auto', got 0; to look at .* predict"):
        bmp.fit(network, x, y, epochs=0)


def test_no_further_epochs_end_a_run_that_was_interrupted(monkeypatch):
    network, x, y, options = regression()
    trainer = bmp.Trainer(network, x, y, **options)
    monkeypatch.setattr(trainer, "_finish", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        trainer.run(3)
    monkeypatch.undo()
    assert network.belief is None and trainer.history.stopped == "interrupted"
    history = trainer.run(0)
    whole, _, _, _ = regression()
    bmp.fit(whole, x, y, epochs=3, **options)
    assert_same(network, whole, x)
    assert len(history) == 3 and history.stopped == "ran the 3 epochs asked for; not at rest yet"


@pytest.mark.parametrize("make", PROBLEMS.values(), ids=PROBLEMS)
def test_the_score_is_there_where_the_belief_was_refreshed(make):
    network, x, y, options = make()
    history = bmp.fit(network, x, y, epochs=7, **options)
    known = [epoch for epoch, score in enumerate(history.loo_nll, 1) if math.isfinite(score)]
    assert known == sorted({*refreshes(7), 7})
    assert history.column("loo_nll")[-1] == history.loo_nll[-1]
    assert all(score >= 0.0 for score in history.loo_error if math.isfinite(score))


# --- a run in parts --------------------------------------------------------------------------------------------------


def assert_same(found, truth, x):
    assert torch.equal(found.marginal.tau, truth.marginal.tau) and torch.equal(found.marginal.rho, truth.marginal.rho)
    assert torch.equal(found.head_log_weights, truth.head_log_weights)
    for name, part in truth.belief.state().items():
        assert torch.equal(found.belief.state()[name], part)
    a, b = found.predict(x), truth.predict(x)
    assert is_same(a, b)


@pytest.mark.parametrize("schedule, cut, n_epochs", [("parallel", 3, 7), ("parallel", 7, 9), ("sequential", 2, 4)])
@pytest.mark.parametrize("make", PROBLEMS.values(), ids=PROBLEMS)
def test_a_run_in_two_parts_is_the_same_run(make, schedule, cut, n_epochs, tmp_path):
    """Cut where a refresh was due and where none was; gone on with, saved and loaded, and looked at in between."""
    truth, x, y, options = make(schedule=schedule)
    if schedule == "sequential":
        x, y = x[:12], y[:12]
    whole = bmp.fit(truth, x, y, epochs=n_epochs, **options)
    parts, _, _, _ = make()
    trainer = bmp.Trainer(parts, x, y, **options)
    trainer.run(cut)
    parts.predict(x)
    trainer.save(tmp_path / "run.safetensors")
    loaded = bmp.Trainer.load(tmp_path / "run.safetensors", x, y)
    for run in (trainer, loaded):
        history = run.run(n_epochs - cut)
        assert_same(run.network, truth, x)
        assert len(history) == n_epochs and history.loo_nll[-1] == whole.loo_nll[-1]
        assert history.column("nll") == whole.column("nll")


@pytest.mark.parametrize("make", PROBLEMS.values(), ids=PROBLEMS)
def test_a_run_that_stops_by_itself_does_so_in_parts_too(make):
    network, x, y, options = make()
    whole = bmp.fit(network, x, y, **options)
    other, _, _, _ = make()
    trainer = bmp.Trainer(other, x, y, **options)
    trainer.run(4)
    history = trainer.run()
    assert len(history) == len(whole) and history.stopped == whole.stopped
    assert_same(other, network, x)
