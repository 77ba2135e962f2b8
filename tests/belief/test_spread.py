"""Covariances of a layer's weights: each form against dense matrices over all weights."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

import bayesmp as bmp
from bayesmp.belief import Spread, from_state
from tests.beliefs import anchored, dense, full, precisions, ready

UNITS, INPUTS = 3, 4
FORMS = ["per input", "per weight", "coupled"]


def a_spread(form: str, dtype: torch.dtype = torch.float64) -> tuple[Spread, torch.Tensor]:
    """A spread, and the covariance of all weights, row by row, as a matrix."""
    generator = torch.Generator().manual_seed(0)
    if form == "coupled":
        root = torch.randn(INPUTS, INPUTS, generator=generator, dtype=torch.float64)
        matrix = root @ root.T + 0.1 * torch.eye(INPUTS, dtype=torch.float64)
        return Spread(matrix.to(dtype), couples=True), torch.block_diag(*[matrix] * UNITS)
    shape = (INPUTS,) if form == "per input" else (UNITS, INPUTS)
    values = 0.1 + torch.rand(shape, generator=generator, dtype=torch.float64)
    return Spread(values.to(dtype)), torch.diag(values.expand(UNITS, INPUTS).flatten())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("form", FORMS)
def test_products_are_those_of_the_matrix(form, dtype):
    spread, whole = a_spread(form, dtype)
    rows = torch.randn(5, UNITS * INPUTS, dtype=dtype, generator=torch.Generator().manual_seed(1))
    expected = (rows.double() @ whole).to(dtype)
    torch.testing.assert_close(spread.rows(rows), expected)
    torch.testing.assert_close(spread.weights(rows[0].view(UNITS, INPUTS)).flatten(), expected[0])
    if spread.is_even:
        one_unit = whole[:INPUTS, :INPUTS]
        torch.testing.assert_close(spread.inputs(rows[:, :INPUTS]), (rows[:, :INPUTS].double() @ one_unit).to(dtype))
    torch.testing.assert_close(spread.variances(torch.Size((UNITS, INPUTS))).flatten(), whole.diagonal().to(dtype))
    given = 1.0 / torch.linalg.inv(whole).diagonal()
    torch.testing.assert_close(spread.variances_given_others(torch.Size((UNITS, INPUTS))).flatten(), given.to(dtype))


@pytest.mark.parametrize("precision_is", ["per input", "coupled"])
def test_what_data_leave_of_a_prior(precision_is):
    prior, whole = a_spread("per input")
    brought = a_spread(precision_is)[0].values * 30.0
    left = prior.less(brought, rounding=0.0)
    assert left.couples == (precision_is == "coupled")
    dense_brought = brought if brought.ndim == 2 else torch.diag(brought)
    expected = torch.linalg.inv(torch.linalg.inv(whole) + torch.block_diag(*[dense_brought] * UNITS))
    found = left.rows(torch.eye(UNITS * INPUTS, dtype=torch.float64))
    torch.testing.assert_close(found, expected)
    twice = left.twice_over(prior).rows(torch.eye(UNITS * INPUTS, dtype=torch.float64))
    torch.testing.assert_close(twice, expected @ torch.linalg.inv(whole) @ expected)


@pytest.mark.parametrize("rounding", [0.0, 2.5])
def test_rounding_does_not_make_a_precision_negative(rounding):
    """Data that seem to take something away from three of four directions: these are left as they were."""
    almost = 1e6 * torch.ones(INPUTS, INPUTS, dtype=torch.float64) - 2.0 * torch.eye(INPUTS, dtype=torch.float64)
    left = Spread(torch.ones(INPUTS)).less(almost, rounding=rounding)
    values = torch.linalg.eigvalsh(left.values.double())
    assert bool((values[1:] > 0.6).all()) and bool((values < 1.0 + 1e-6).all())
    slopes = left.draw_slopes(torch.randn(2000, INPUTS, generator=torch.Generator().manual_seed(0)))
    assert bool(slopes.isfinite().all())
    assert bool((left.variances_given_others(torch.Size((1, INPUTS))) > 0.0).all())


def test_inputs_that_were_not_scaled_end_in_a_belief():
    """Offsets of 1e4 leave little of float32; training may be poor, but nothing fails."""
    generator = torch.Generator().manual_seed(0)
    x = 1e4 + torch.randn(600, 40, generator=generator)
    y = (x[:, 0] > 1e4).long() + 2 * (x[:, 1] > 1e4).long()
    network = bmp.Network([bmp.Linear(40, 40), bmp.LeakyReLU(), bmp.Linear(40, 4)], bmp.Argmax(), seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bmp.fit(network, x, y, epochs=2, progress=False)
    assert bool(network.predict(x[:20]).epistemic_var.isfinite().all())
    assert bool(network.sample_functions(x[:20], 3).isfinite().all())


@pytest.mark.parametrize("form", FORMS)
def test_drawn_slopes_have_the_precision_as_covariance(form):
    spread, whole = a_spread(form)
    generator = torch.Generator().manual_seed(2)
    draws = [
        spread.draw_slopes(torch.randn(UNITS, INPUTS, dtype=torch.float64, generator=generator)) for _ in range(20_000)
    ]
    found, expected = torch.stack(draws).flatten(1).T.cov(), torch.linalg.inv(whole)
    assert float((found - expected).norm() / expected.norm()) < 0.05


def test_what_the_span_misses_is_that_of_dense_algebra():
    """Rows less their projection on the anchors under the prior, squared, and averaged over the units of a layer."""
    with torch.no_grad():
        network = dense()
        x = torch.randn(40, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        rho = precisions(len(x), network.n_outputs)
        belief = anchored(network, x, rho, n_anchors=5)
        gradients = network.gradients(x)[1]
        prior = torch.cat([var.flatten() for var in network.layout.prior_vars])
        rows = torch.cat([part.flat() for part in gradients], 2).transpose(0, 1).flatten(0, 1)
        span = torch.cat([anchor.formed() for anchor in belief.basis.anchors], 1)
        inside = rows @ (prior[:, None] * span.T) @ torch.linalg.pinv(span @ (prior[:, None] * span.T)) @ span
        rest = (rows - inside) * rho.flatten().sqrt()[:, None]
        start = 0
        for base, var in zip(belief.bases, network.layout.prior_vars, strict=True):
            own = rest[:, start : start + var.numel()].view(-1, *var.shape)
            start += var.numel()
            missed = torch.einsum("noi,noj->ij", own, own) / len(var)
            expected = torch.linalg.inv(torch.diag(1.0 / var[0]) + missed)
            assert base.couples
            torch.testing.assert_close(base.values, expected, rtol=1e-3, atol=1e-6)


def test_few_anchors_are_near_the_exact_belief_far_away_too():
    """Where each input had what data bring to it, however inputs go together, far away was known far too well."""
    generator = torch.Generator().manual_seed(4)
    layers = [bmp.Linear(12, 8), bmp.LeakyReLU(), bmp.Linear(8, 2)]
    with torch.no_grad():
        network = ready(bmp.Network(layers, bmp.Regression(0.3), seed=1), torch.float64)
        x = torch.randn(400, 3, generator=generator, dtype=torch.float64)  # inputs of three dimensions only
        x = x @ torch.randn(3, 12, generator=generator, dtype=torch.float64)
        rho = precisions(len(x), network.n_outputs)
        far = network.gradients(3.0 * torch.randn(50, 12, generator=generator, dtype=torch.float64))[1]
        exact = full(network, x, rho).covariance(far).diagonal(dim1=1, dim2=2).mean()
        found = anchored(network, x, rho, n_anchors=12).covariance(far).diagonal(dim1=1, dim2=2).mean()
    assert 0.8 < float(found / exact) < 1.25


def test_files_keep_what_couples():
    with torch.no_grad():
        network = dense()
        x = torch.randn(40, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        belief = anchored(network, x, precisions(len(x), network.n_outputs), n_anchors=5)
        gradients = network.gradients(x)[1]
        first, second = belief.bases
        for bases in ([first, second], [first, Spread(second.values.diagonal())]):
            kept = replace(belief, bases=bases)
            again = from_state(kept.description(), kept.state())
            assert [base.couples for base in again.bases] == [True, bases[1] is second]
            assert torch.equal(again.covariance(gradients), kept.covariance(gradients))
