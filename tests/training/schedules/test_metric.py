"""The Kronecker-factored metric against the dense matrix it stands for."""

import numpy as np
import pytest
import torch

from bayesmp import kernels
from bayesmp.kernels import build
from bayesmp.training.schedules.metric import LayerMetric
from tests.helpers import linear_posterior


def factors(n_rows, n_columns, *, rank=None, seed=0):
    """(A, G, rest) of rows that may be fewer than columns, so that A has zero eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rank or 2 * n_columns, n_columns, generator=generator, dtype=torch.float64)
    slopes = torch.randn(2 * n_rows, n_rows, generator=generator, dtype=torch.float64)
    return inputs.t() @ inputs / len(inputs), slopes.t() @ slopes / len(slopes), torch.tensor(0.7, dtype=torch.float64)


def renewed(inputs, slopes, rest, *, n_data=50, dtype=torch.float64):
    """The metric of one batch with these factors, ready to solve."""
    metric = LayerMetric(n_data, len(slopes), len(inputs), like=torch.zeros((), dtype=dtype))
    metric.update(inputs.to(dtype), slopes.to(dtype), rest.to(dtype), torch.ones((), dtype=dtype))
    metric.renew()
    return metric


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-3)])
@pytest.mark.parametrize("n_rows, n_columns, rank", [(1, 1, None), (3, 5, None), (4, 2, None), (3, 6, 2)])
def test_solve_is_a_dense_kronecker_solve(n_rows, n_columns, rank, dtype, tolerance):
    inputs, slopes, rest = factors(n_rows, n_columns, rank=rank)
    slope = torch.randn(n_rows, n_columns, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    dense = 50 * torch.kron(slopes, inputs) + rest * torch.eye(n_rows * n_columns, dtype=torch.float64)
    truth = torch.linalg.solve(dense, slope.flatten()).view(n_rows, n_columns)
    found = renewed(inputs, slopes, rest, dtype=dtype).solve(slope.to(dtype)).double()
    assert (found - truth).abs().max() < tolerance * truth.abs().max()


# --- share of sums ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@pytest.mark.parametrize("n_rows, n_columns, rank", [(1, 1, None), (3, 5, None), (4, 2, None), (3, 6, 2)])
def test_sum_share_is_a_ratio_of_dense_traces(n_rows, n_columns, rank, dtype, tolerance):
    inputs, slopes, rest = factors(n_rows, n_columns, rank=rank)
    both = torch.kron(slopes, inputs)
    dense = 50 * both + rest * torch.eye(len(both), dtype=torch.float64)
    var = 0.1 + torch.rand(n_rows, n_columns, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    truth = torch.trace(torch.linalg.solve(dense, both)) / (var.flatten() @ both.diagonal())
    assert truth < 0.9, "or the limit at 1 would hide it"
    found = renewed(inputs, slopes, rest, dtype=dtype).sum_share(var.to(dtype))
    assert found.item() == pytest.approx(truth.item(), rel=tolerance)


def test_sum_share_counts_correlations_only():
    """Diagonal factors: the weights are independent, and with the variances of H it is 1; with 1.25 of them 0.8."""
    inputs, slopes, rest = factors(3, 5)
    inputs, slopes = inputs.diagonal().diag(), slopes.diagonal().diag()
    var = 1.0 / (50 * torch.outer(slopes.diagonal(), inputs.diagonal()) + rest)
    metric = renewed(inputs, slopes, rest)
    assert metric.sum_share(var).item() == pytest.approx(1.0)
    assert metric.sum_share(1.25 * var).item() == pytest.approx(0.8)
    assert metric.sum_share(0.5 * var).item() == 1.0, "never more"
    assert metric.sum_share(torch.zeros_like(var)).item() == 1.0


@pytest.mark.parametrize("n_out", [1, 3])
def test_sum_share_turns_the_variance_of_independent_weights_into_that_of_the_exact_posterior(n_out):
    """Linear regression, y = w a + N(0, noise_var), with correlated inputs: mean variance of w a over the inputs a."""
    n, n_in, noise_var, prior_var = 50, 6, 0.2, 0.8
    generator = torch.Generator().manual_seed(0)
    latent, mixing = (torch.randn(rows, n_in, generator=generator, dtype=torch.float64) for rows in (n, n_in))
    x = latent @ mixing  # (n, i)
    _, covariance = linear_posterior(x.numpy(), np.zeros(n), np.zeros(n_in), np.full(n_in, prior_var), noise_var)
    rng = np.random.default_rng(0)
    sums = rng.multivariate_normal(np.zeros(n_in), covariance, 4000) @ x.numpy().T  # (s, n)
    metric = renewed(
        x.t() @ x / n, torch.eye(n_out, dtype=torch.float64) / noise_var, torch.tensor(1.0 / prior_var), n_data=n
    )
    var = torch.tensor(np.diag(covariance)).expand(n_out, n_in)  # the exact marginals, without their correlations
    independent = (x.square() @ var.t()).mean().item()
    share = metric.sum_share(var).item()
    assert share < 0.5, "correlations must matter here"
    assert share * independent == pytest.approx(np.einsum("bi,ij,bj->b", x, covariance, x).mean(), rel=1e-9)
    assert share * independent == pytest.approx(sums.var(0).mean(), rel=0.05)


# --- state -----------------------------------------------------------------------------------------------------------


def test_update_is_a_running_average():
    metric = LayerMetric(10, 2, 3, like=torch.zeros((), dtype=torch.float64))
    first, second = factors(2, 3, seed=0), factors(2, 3, seed=1)
    metric.update(*first, torch.tensor(1.0, dtype=torch.float64))
    metric.update(*second, torch.tensor(0.25, dtype=torch.float64))
    torch.testing.assert_close(metric.inputs, 0.75 * first[0] + 0.25 * second[0])
    torch.testing.assert_close(metric.slopes, 0.75 * first[1] + 0.25 * second[1])


def test_before_the_first_renewal_nothing_moves():
    metric = LayerMetric(10, 2, 3, like=torch.zeros(()))
    assert torch.equal(metric.solve(torch.ones(2, 3)), torch.zeros(2, 3))


def test_state_holds_every_tensor_in_place():
    """What a checkpoint or a CUDA graph keeps a hold of must be the tensors that renew() and update() write to."""
    metric = LayerMetric(10, 2, 3, like=torch.zeros((), dtype=torch.float64))
    before = {name: value.data_ptr() for name, value in metric.state().items()}
    metric.update(*factors(2, 3), torch.tensor(1.0, dtype=torch.float64))
    metric.renew()
    assert {name: value.data_ptr() for name, value in metric.state().items()} == before
    assert set(before) == {"inputs", "slopes", "rest", "input_vectors", "slope_vectors", "values", "inverse"}


def test_known_inputs_solve_as_averaged_ones_do_and_no_batch_changes_them():
    inputs, slopes, rest = factors(3, 5)
    one = torch.ones((), dtype=torch.float64)
    metric = LayerMetric(50, 3, 5, like=one)
    metric.know_inputs(inputs)
    metric.update(None, slopes, rest, one)
    metric.renew()
    slope = torch.randn(3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    truth = renewed(inputs, slopes, rest)
    torch.testing.assert_close(metric.solve(slope), truth.solve(slope))
    var = torch.rand(3, 5, dtype=torch.float64)
    torch.testing.assert_close(metric.sum_share(var), truth.sum_share(var))
    assert torch.equal(metric.inputs, inputs) and metric.knows_inputs and not truth.knows_inputs


def test_a_metric_filled_in_from_a_file_goes_on_with_its_own_eigenvalues():
    inputs, slopes, rest = factors(3, 5)
    one = torch.ones((), dtype=torch.float64)
    saved, loaded = LayerMetric(50, 3, 5, like=one), LayerMetric(50, 3, 5, like=one)
    saved.know_inputs(inputs)
    loaded.know_inputs(factors(3, 5, seed=1)[0])
    for name, part in loaded.state().items():
        part.copy_(saved.state()[name])
    loaded.resume()
    for metric in (saved, loaded):
        metric.update(None, slopes, rest, one)
        metric.renew()
    assert torch.equal(saved.values, loaded.values)


@pytest.mark.parametrize("backend", ["torch", "fused"])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-3)])
@pytest.mark.parametrize(
    "n_rows, widths", [(1, (1,)), (3, (5, 1)), (32, (31, 1)), (33, (4, 1)), (5, (40, 1)), (4, (2, 3, 1)), (257, (4, 1))]
)
def test_blocks_side_by_side_are_solved_as_the_whole(n_rows, widths, dtype, tolerance, backend):
    """Small layers in one compiled call, larger ones by products; what lies around the answers is not touched."""
    if backend == "fused" and build.find_compiler() is None:
        pytest.skip("needs a C++ compiler")
    inputs, slopes, rest = factors(n_rows, sum(widths))
    metric = renewed(inputs, slopes, rest, dtype=dtype)
    slope = torch.randn(n_rows, sum(widths), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    dense = torch.kron(50 * slopes, inputs) + rest * torch.eye(slope.numel(), dtype=torch.float64)
    truth = torch.linalg.solve(dense, slope.flatten()).view_as(slope)
    flat = torch.full((slope.numel() + 2,), 7.0, dtype=dtype)
    answers = [
        part.view(n_rows, width)
        for part, width in zip(flat[1:-1].split([n_rows * width for width in widths]), widths, strict=True)
    ]
    kernels.set_backend(backend)
    try:
        metric.solve_blocks([part.contiguous() for part in slope.to(dtype).split(list(widths), 1)], answers)
    finally:
        kernels.set_backend("auto")
    torch.testing.assert_close(torch.cat(answers, 1).double(), truth, rtol=tolerance, atol=tolerance)
    assert flat[0] == flat[-1] == 7.0
