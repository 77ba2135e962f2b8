"""Fast roads of a refresh against slow ones: directions and anchors, Cholesky factors and eigenvectors."""

import dataclasses

import pytest
import torch

import bayesmp as bmp
from bayesmp.belief import Plan, directions, from_state
from bayesmp.belief.orthonormal import NEGLIGIBLE, orthonormal
from bayesmp.evidence import pass_over_data as evidence
from bayesmp.evidence.leave_one_out import MAX_SHARE, SHARE_BITS, outside_share, without_own
from tests.helpers import blobs, mlp

torch.set_num_threads(1)


def positive(n, size, seed, *, scale=1.0):
    root = torch.randn(n, size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scale * root @ root.transpose(1, 2) / size


@pytest.fixture(scope="module")
def seen():
    """A network of many outputs, trained a little, and its belief over 60 anchors, by both roads."""
    x, y = blobs(150, n_classes=8, n_in=6, seed=0)
    network = mlp((6, 20, 8), bmp.Argmax(), dtype=torch.float64)
    bmp.Trainer(network, x.double(), y, batch_size=50, seed=0).run(3, progress=False)
    plan, generator = Plan("anchored", 60, False, 0), torch.Generator().manual_seed(0)
    with torch.no_grad():
        prior_vars = network.layout.prior_vars
        basis = evidence.make_basis(network, x.double(), plan, prior_vars, generator, n_rows=8 * len(x))
        found = {}
        for is_formed in (False, True):
            own = dataclasses.replace(basis, is_formed=is_formed)
            examples = evidence.Examples(network, own, x.double(), y, 1.0, keeps=True)
            found[is_formed] = own, examples.accumulate(network.head_log_weights), examples.kept[0].features
        gradients = network.gradients(x.double())[1]
    return basis, found, gradients


def test_many_outputs_of_many_examples_make_directions_pay(seen):
    basis, _, _ = seen
    assert basis.is_formed == directions.pay([(20, 7), (8, 21)], 150, 8, 60)
    shapes = [(50, 9), (30, 51)]
    assert directions.pay(shapes, 600, 30, 512)
    assert not directions.pay(shapes, 2, 30, 512)  # forming them takes longer
    assert not directions.pay([(50, 785), (10, 51)], 10_000, 10, 1024)  # too many weights


def test_data_say_the_same_along_directions_and_along_anchors(seen):
    _, found, _ = seen
    (_, (precision, missed), features), (_, (as_formed, missed_formed), features_formed) = found[False], found[True]
    torch.testing.assert_close(features_formed, features, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(as_formed, precision, rtol=1e-8, atol=1e-8 * float(precision.abs().max()))
    for one, other in zip(missed, missed_formed, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-8, atol=1e-8 * float(one.abs().max()))


def test_beliefs_say_the_same_along_directions_and_along_anchors(seen):
    _, found, gradients = seen
    slow, fast = (found[is_formed][0].believe(*found[False][1]) for is_formed in (False, True))
    torch.testing.assert_close(fast.covariance(gradients), slow.covariance(gradients), rtol=1e-8, atol=1e-10)
    for one, other in zip(slow.split_covariance(gradients), fast.split_covariance(gradients), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-7, atol=1e-9)
    some = [None, gradients[1]]
    torch.testing.assert_close(fast.covariance(some), slow.covariance(some), rtol=1e-8, atol=1e-10)
    again = from_state(fast.description(), fast.state())
    assert torch.equal(again.covariance(gradients), fast.covariance(gradients))


def test_slopes_solved_for_all_examples_are_those_of_one_after_another(seen):
    _, found, gradients = seen
    belief = found[False][0].believe(*found[False][1])
    one = [dataclasses.replace(part, slopes=part.slopes[2:3], inputs=part.inputs) for part in gradients]
    together, apart = belief.solve_each(one), super(type(belief), belief).solve_each(one)
    for fast, slow in zip(together, apart, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-8, atol=1e-11)


def test_a_basis_spans_what_is_not_negligible():
    """By the Cholesky factor where all of it is, by eigenvectors where anchors depend on each other."""
    gram = positive(1, 40, 0)[0] + 0.1 * torch.eye(40, dtype=torch.float64)
    fast, slow = orthonormal(gram), orthonormal(gram, by_eigenvectors=True)
    assert torch.equal(fast, fast.triu()) and not torch.equal(slow, slow.triu())
    torch.testing.assert_close(fast @ fast.T, slow @ slow.T)
    values, vectors = torch.linalg.eigh(gram)
    values[:7] = NEGLIGIBLE * values[-1] * torch.tensor([0.0, 1e-9, 1e-3, 0.1, 0.5, 0.9, 1.1], dtype=torch.float64)
    rough = orthonormal((vectors * values) @ vectors.T)
    assert rough.shape == (40, 34)
    torch.testing.assert_close(rough.T @ (vectors * values) @ vectors.T @ rough, torch.eye(34, dtype=torch.float64))


@pytest.mark.parametrize("n_outputs", [1, 2, 6])
def test_examples_that_hold_too_much_are_cut_by_eigenvalues(n_outputs):
    """Some below the limit and some above: C + C R g(R C R) R C, with the cut of each eigenvalue by hand."""
    covariance = positive(30, n_outputs, 1) * torch.logspace(-2, 1, 30, dtype=torch.float64)[:, None, None]
    precision = torch.rand(30, n_outputs, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    precision[3] = 0.0
    limit, root = 0.6, precision.sqrt()
    without, n_clipped = without_own(covariance, precision, limit=limit)
    values, vectors = torch.linalg.eigh(root[:, :, None] * covariance * root[:, None, :])
    assert 0 < n_clipped == int((values > limit).any(1).sum()) < 30
    kept = values.clamp(0.0, limit)
    truth = torch.einsum("bij,bj,bkj->bik", vectors, kept / (1.0 - kept), vectors)  # R W R
    torch.testing.assert_close(root[:, :, None] * without * root[:, None, :], truth, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_shares_are_those_of_halving_a_bracket(n_outputs):
    inside, outside = positive(20, n_outputs, 3, scale=0.2), positive(20, n_outputs, 4)
    precision = 0.5 + torch.rand(20, n_outputs, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    eye = torch.eye(n_outputs, dtype=torch.float64)

    def held(share):
        found = torch.linalg.solve(eye + (inside + share * outside) * precision[:, None, :], inside + share * outside)
        return float((found.diagonal(dim1=1, dim2=2) * precision).sum())

    def halved(leverage):
        low, high = 0.0, 1.0
        while held(high) < leverage and high < MAX_SHARE:
            low, high = high, 2.0 * high
        for _ in range(SHARE_BITS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if held(middle) < leverage else (low, middle)
        return 0.5 * (low + high)

    for leverage in (0.0, held(0.0), held(0.3), held(0.999), held(1.7), held(3.3), held(5.0), 20.0 * n_outputs + 1.0):
        assert outside_share(inside, outside, precision, leverage) == pytest.approx(halved(leverage), abs=1e-12)
