"""The Kronecker-factored metric against the dense matrix it stands for."""

import pytest
import torch

from bayesmp.schedules.curvature import LayerCurvature

torch.set_num_threads(1)


def factors(n_rows, n_columns, *, rank=None, seed=0):
    """(A, G, rest) of rows that may be fewer than columns, so that A has zero eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rank or 2 * n_columns, n_columns, generator=generator, dtype=torch.float64)
    slopes = torch.randn(2 * n_rows, n_rows, generator=generator, dtype=torch.float64)
    return inputs.t() @ inputs / len(inputs), slopes.t() @ slopes / len(slopes), torch.tensor(0.7, dtype=torch.float64)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-3)])
@pytest.mark.parametrize("n_rows, n_columns, rank", [(1, 1, None), (3, 5, None), (4, 2, None), (3, 6, 2)])
def test_solve_is_a_dense_kronecker_solve(n_rows, n_columns, rank, dtype, tolerance):
    inputs, slopes, rest = factors(n_rows, n_columns, rank=rank)
    curvature = LayerCurvature(50, n_rows, n_columns, like=torch.zeros((), dtype=dtype))
    curvature.update(inputs.to(dtype), slopes.to(dtype), rest.to(dtype), torch.ones((), dtype=dtype))
    curvature.renew()
    slope = torch.randn(n_rows, n_columns, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    dense = 50 * torch.kron(slopes, inputs) + rest * torch.eye(n_rows * n_columns, dtype=torch.float64)
    truth = torch.linalg.solve(dense, slope.flatten()).view(n_rows, n_columns)
    found = curvature.solve(slope.to(dtype)).double()
    assert (found - truth).abs().max() < tolerance * truth.abs().max()


def test_update_is_a_running_average():
    curvature = LayerCurvature(10, 2, 3, like=torch.zeros((), dtype=torch.float64))
    first, second = factors(2, 3, seed=0), factors(2, 3, seed=1)
    curvature.update(*first, torch.tensor(1.0, dtype=torch.float64))
    curvature.update(*second, torch.tensor(0.25, dtype=torch.float64))
    torch.testing.assert_close(curvature.inputs, 0.75 * first[0] + 0.25 * second[0])
    torch.testing.assert_close(curvature.slopes, 0.75 * first[1] + 0.25 * second[1])


def test_before_the_first_renewal_nothing_moves():
    curvature = LayerCurvature(10, 2, 3, like=torch.zeros(()))
    assert torch.equal(curvature.solve(torch.ones(2, 3)), torch.zeros(2, 3))


def test_state_holds_every_tensor_in_place():
    """What a checkpoint or a CUDA graph keeps a hold of must be the tensors that renew() and update() write to."""
    curvature = LayerCurvature(10, 2, 3, like=torch.zeros((), dtype=torch.float64))
    before = {name: value.data_ptr() for name, value in curvature.state().items()}
    curvature.update(*factors(2, 3), torch.tensor(1.0, dtype=torch.float64))
    curvature.renew()
    assert {name: value.data_ptr() for name, value in curvature.state().items()} == before
    assert set(before) == {"inputs", "slopes", "rest", "input_vectors", "slope_vectors", "inverse"}
