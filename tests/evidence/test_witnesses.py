"""Some rows stand for many: which ones, and what the objective, scores and beliefs then say, against dense algebra."""

from __future__ import annotations

import math

import pytest
import torch

import bayesmp as bmp
from bayesmp.evidence import OverRows, OverWeights
from bayesmp.evidence.function import Held
from bayesmp.evidence.witnesses import draw_witnesses
from bayesmp.training.schedules import ObjectiveSchedule, has_objective
from tests.helpers import mlp
from tests.objective_cases import data_of, descent_of, network_of, random_variances

ROOM = 48


@pytest.fixture
def little_room(monkeypatch):
    """More rows than these need witnesses."""
    monkeypatch.setattr("bayesmp.evidence.objective.MAX_EXACT", ROOM)


def bent(n, *, seed=0, noise=0.3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator)
    y = (2 * x[:, :1]).sin() + x[:, 1:2] * x[:, 2:3]
    return x, y + noise * torch.randn(n, 1, generator=generator)


# --- which rows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n, room", [(1000, 100), (1001, 1000), (50, 1), (3000, 700)])
def test_about_as_many_as_there_is_room_for_and_never_more(n, room):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(1))
    found, again = draw_witnesses(x, room), draw_witnesses(x, room)
    assert room - 1 <= len(found.rows) <= room
    assert torch.equal(found.rows, again.rows) and torch.equal(found.weight, again.weight)
    assert bool((found.rows.diff() > 0).all()) and bool((found.weight >= 1.0 - 1e-9).all())
    if room > 1:
        assert float(found.weight.sum()) == pytest.approx(n, rel=0.2), "together they stand for all"


def test_they_tell_sums_without_bias():
    """Means over many tables of sums over all rows, told by a tenth of them."""
    ratios = []
    for seed in range(200):
        x = torch.randn(300, 3, generator=torch.Generator().manual_seed(seed)) ** 3
        found = draw_witnesses(x, 30)
        ratios.append(float((x[found.rows].square().sum(1) * found.weight).sum() / x.square().sum()))
    ratios = torch.tensor(ratios)
    assert float(ratios.mean()) == pytest.approx(1.0, abs=4 * float(ratios.std()) / math.sqrt(200))
    assert float(ratios.std()) < 0.25, "large rows are drawn more often"


def test_a_row_that_stands_alone_is_a_witness_of_its_own():
    """Drawn evenly, three rows of a rare category among 5,000 were there in one of ten tables."""
    for seed in range(10):
        x = torch.randn(5000, 6, generator=torch.Generator().manual_seed(seed))
        x[:, 5] = 0.0
        x[[17, 2000, 4999], 5] = 3.0
        found = draw_witnesses(x, 200)
        own = torch.isin(found.rows, torch.tensor([17, 2000, 4999]))
        assert int(own.sum()) == 3 and float(found.weight[own].max()) < 1.2


@pytest.mark.parametrize("x", [torch.zeros(100, 3), torch.ones(100, 400), torch.randn(100, 1, 2, 2)])
def test_odd_inputs_have_witnesses_too(x):
    found = draw_witnesses(x, 10)
    assert 9 <= len(found.rows) <= 10 and bool(found.weight.isfinite().all())


def test_those_of_a_part_are_counted_from_its_start():
    found = draw_witnesses(torch.randn(100, 2), 30)
    parts = [found.within(slice(start, start + 40), 100) for start in (0, 40, 80)]
    rows = torch.cat([rows + start for (rows, _), start in zip(parts, (0, 40, 80), strict=True)])
    assert torch.equal(rows, found.rows) and torch.equal(torch.cat([weight for _, weight in parts]), found.weight)


# --- what they say ---------------------------------------------------------------------------------------------------


def looked(objective, mean, variances):
    return objective.look(mean, 0.05, 1.3, variances)


@pytest.mark.usefixtures("little_room")
@pytest.mark.parametrize("sizes", [[3, 20, 1], [3, 20, 2]])
def test_the_curvature_is_that_of_the_weighted_witnesses(sizes, monkeypatch):
    """Over rows and over weights, in one part and in several, with and without a slope."""
    x, y = data_of(300, sizes[0], sizes[-1])
    descent = descent_of(network_of(sizes), x, y)
    objective, mean = descent.objective, descent.state.mean
    assert objective.is_over_rows and objective.witnesses is not None
    assert len(objective.witnesses.rows) <= ROOM
    variances = [random_variances(descent)[0] for _ in objective.parts()]
    look = looked(objective, mean, variances)
    rows, weight = objective.witnesses.rows, objective.witnesses.weight
    assert isinstance(look.curvature, OverRows)

    everything = objective.function.slopes(mean, x, variances[0])
    root = look.root.some(rows).times(weight)
    told = everything.some(rows).seen_through(root)
    dense = OverWeights(told.flat().T @ told.flat(), objective.prior_rho / 1.3, objective.function.shapes)
    assert look.curvature.half_log_det == pytest.approx(dense.half_log_det, rel=1e-9)
    assert look.curvature.degrees_of_freedom == pytest.approx(dense.degrees_of_freedom, rel=1e-8)
    torch.testing.assert_close(look.curvature.diagonal, dense.diagonal)
    torch.testing.assert_close(look.curvature.newton(look.slope, 0.7), dense.newton(look.slope, 0.7))
    torch.testing.assert_close(look.curvature.held_by_own, dense.held(told))
    others = everything.some(torch.arange(7)).seen_through(look.root.some(torch.arange(7)))
    torch.testing.assert_close(look.curvature.held(others), dense.held(others))
    pull = objective.function.slopes(mean, x, variances[0]).mixed((y - everything.outputs) / 0.05)
    torch.testing.assert_close(look.slope, pull - objective.prior_rho / 1.3 * (mean - objective.prior_mean))

    held = Held(known_of(variances[0], objective, mean, x))
    whole = objective.uncertainty_slope(mean, look, [held])
    monkeypatch.setattr("bayesmp.evidence.objective.ROWS_AT_ONCE", 2000)
    assert len(objective.parts()) > 2
    pieces = [held.some(torch.arange(300)[rows]) for rows in objective.parts()]
    for with_slope in (True, False):
        again = objective.look(mean, 0.05, 1.3, pieces, with_slope=with_slope)
        assert again.value == pytest.approx(look.value, rel=1e-10)
    torch.testing.assert_close(objective.uncertainty_slope(mean, look, pieces), whole)


def known_of(variances, objective, mean, x):
    """What a function of a node says, by node."""
    found = {}

    def told(node, local):
        found[node.index] = variances(node, local)
        return found[node.index]

    objective.function.values(mean, x, told)
    return found


@pytest.mark.usefixtures("little_room")
def test_the_slope_of_the_uncertainty_is_that_of_the_witnesses_log_determinant():
    x, y = data_of(200, 3, 1)
    descent = descent_of(network_of([3, 20, 1]), x, y)
    variances = random_variances(descent)
    objective, mean = descent.objective, descent.state.mean
    look = looked(objective, mean, variances)
    held = descent.variances()
    look = objective.look(mean, 0.05, 1.3, held)
    slope = objective.uncertainty_slope(mean, look, held)
    for seed in range(3):
        along = torch.randn(len(mean), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        ends = [
            objective.look(mean + sign * 1e-5 * along, 0.05, 1.3, held, with_slope=False).curvature.half_log_det
            for sign in (1, -1)
        ]
        assert float(slope @ along) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-6)


def test_draws_tell_the_variances_of_units():
    x, y = data_of(60, 4, 1)
    descent = descent_of(network_of([4, 30, 1]), x, y, over_rows=True)
    curvature = descent.look().curvature
    inputs = torch.cat([torch.randn(400, 4, dtype=torch.float64), torch.ones(400, 1, dtype=torch.float64)], 1)
    exact = torch.einsum("ni,oij,nj->no", inputs, curvature.unit_covariances(0), inputs)
    told = curvature.unit_variances(0, inputs)
    assert float((told / exact).log().mean().abs()) < 0.1 and float((told / exact).log().std()) < 0.4
    torch.testing.assert_close(curvature.unit_variances(0, inputs[:5]), told[:5])


# --- in a run --------------------------------------------------------------------------------------------------------


def trained(n, *, epochs="auto", width=30, noise="learn"):
    x, y = bent(n)
    head = bmp.Regression(noise, tails="gaussian", varies=False) if noise == "learn" else bmp.Regression(noise)
    network = mlp([3, width, 1], head).to(torch.float64)
    run = bmp.Trainer(network, x, y)
    run.run(epochs, progress=False)
    return run


@pytest.mark.usefixtures("little_room")
def test_left_out_outputs_and_beliefs_are_those_of_the_weighted_witnesses():
    run = trained(300, epochs=3, noise=0.09)
    schedule = run.schedule
    assert isinstance(schedule, ObjectiveSchedule)
    descent = schedule.descent(schedule._x, schedule._y)
    look, witnesses = descent.look(), descent.objective.witnesses
    alone = torch.arange(300)
    judged = schedule.judged_rows(descent, alone)
    assert bool(torch.isin(judged, witnesses.rows).all()) and 5 < len(judged) <= len(witnesses.rows)
    (found,) = schedule.left_out(descent, look, judged, alone)

    everything = descent.slopes_at(slice(0, 300))
    rows = everything.flat()
    noise, prior = descent.state.noise, descent.objective.rho_at(descent.state.width, descent.state.relevance)
    weight = torch.zeros(300, dtype=torch.float64).index_put((witnesses.rows,), witnesses.weight)
    hessian = (rows.T * weight / noise) @ rows + torch.diag(prior)
    for k, row in enumerate(judged.tolist()):
        own = rows[row]
        without = torch.linalg.inv(hessian - weight[row] / noise * torch.outer(own, own))
        var = float(own @ without @ own)
        miss = float(schedule._y[row, 0] - everything.outputs[row, 0])
        assert float(found.covariance[k]) == pytest.approx(var, rel=1e-5)
        assert float(found.mean[k]) == pytest.approx(float(everything.outputs[row, 0]) - var * miss / noise, rel=1e-5)

    x_new = bent(20, seed=1)[0].double()
    belief = run.network.belief
    assert "approximate, of 300 rows, over 48 rows" in repr(belief)
    slopes = run.network.linearised.gradients(x_new)[1]
    flat = torch.cat([part.flat() for part in slopes], 2)[0]
    expected = ((flat @ torch.linalg.inv(hessian)) * flat).sum(1)
    torch.testing.assert_close(belief.covariance(slopes)[:, 0, 0].double(), expected, rtol=2e-3, atol=1e-6)


@pytest.mark.usefixtures("little_room")
def test_members_of_a_group_stand_for_those_that_are_no_witnesses():
    """Of a group that was named, the whole pull goes out, also of rows that the curvature does not know."""
    run = trained(300, epochs=3, noise=0.09)
    schedule = run.schedule
    descent = schedule.descent(schedule._x, schedule._y)
    look, judged = descent.look(), schedule.judged_rows(descent, torch.arange(300))
    single, pairs = torch.arange(300), torch.arange(300) // 2
    one, two = schedule.left_out(descent, look, judged, single, pairs)
    alone = ~torch.isin(judged // 2, (judged // 2)[1:][(judged // 2).diff() == 0])
    mean = look.latent[judged]
    moved, twice = (part.mean[alone] - mean[alone] for part in (one, two))
    torch.testing.assert_close(twice, 2 * moved)


@pytest.mark.slow
def test_witnesses_fit_as_well_as_all_rows(monkeypatch):
    """A third of the rows tells the curvature, all of them the loss: new rows are predicted as well, and scores and
    intervals hold."""
    monkeypatch.setattr("bayesmp.evidence.objective.MAX_EXACT", 200)
    some = trained(600, width=50)
    assert some.schedule.descent(some.schedule._x, some.schedule._y).objective.witnesses is not None
    monkeypatch.undo()
    whole = trained(600, width=50)
    x, y = bent(3000, seed=1)
    nlls = [-float(run.network.predict(x).log_prob(y).mean()) for run in (some, whole)]
    assert nlls[0] < nlls[1] + 0.05
    assert some.history.loo_nll[-1] == pytest.approx(nlls[0], abs=0.1)
    low, high = some.network.predict(x).interval(0.9)
    assert 0.84 < float(((y >= low) & (y <= high)).double().mean()) < 0.95


@pytest.mark.slow
def test_one_row_more_than_there_is_room_for_changes_little(monkeypatch):
    x, y = bent(3000, seed=1)
    found = []
    for room in (201, 200):
        monkeypatch.setattr("bayesmp.evidence.objective.MAX_EXACT", room)
        run = trained(201, width=50)
        found.append(-float(run.network.predict(x).log_prob(y).mean()))
        assert (run.schedule.descent(run.schedule._x, run.schedule._y).objective.witnesses is None) == (room == 201)
    assert found[1] == pytest.approx(found[0], abs=0.06)


def test_a_regression_of_any_size_has_an_objective():
    wide = mlp([20, 120, 1], bmp.Regression("learn"))
    assert wide.n_weights > 2048 and has_objective(wide, 100_000)
    assert has_objective(mlp([20, 120, 2], bmp.Regression("learn")), 100_000)
    assert not has_objective(mlp([20, 120, 3], bmp.Regression("learn")), 100_000), "too much is settled for 1,024 rows"
    assert not has_objective(mlp([20, 120, 2], bmp.Softmax()), 100_000), "labels of many rows and weights pass messages"
    layers = [bmp.Conv2d(1, 60, (3, 3)), bmp.LeakyReLU(), bmp.Flatten(), bmp.Linear(60 * 36, 1)]
    assert not has_objective(bmp.Network(layers, bmp.Regression("learn"), input_shape=(1, 8, 8)), 100_000)


@pytest.mark.usefixtures("little_room")
def test_a_run_goes_on_from_a_file(tmp_path):
    run = trained(300, epochs=2, noise=0.09)
    run.save(tmp_path / "run")
    loaded = bmp.Trainer.load(tmp_path / "run", run.x, run.y)
    for each in (run, loaded):
        each.run(3, progress=False)
    assert torch.equal(run.network.marginal.tau, loaded.network.marginal.tau)
    assert run.history.loo_nll == loaded.history.loo_nll
