"""Variances of the linearised network against all its slopes and the dense covariance."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from experiments.linearised import output_moments, probit_probabilities


def network():
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(2, 3, 3, stride=2, padding=1),
        nn.LeakyReLU(0.1),
        nn.Conv2d(3, 4, 2, bias=False),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.LeakyReLU(0.1),
        nn.Linear(5, 3),
    ]
    return nn.Sequential(*layers).double()


def covariance_factor(n):
    root = torch.randn(n, n + 2, dtype=torch.float64)
    return root @ root.T


def random_precision(model):
    """As laplace-torch keeps it, with a prior precision of each block's own; and the same as one dense matrix."""
    vectors, values, deltas, blocks = [], [], [], []
    for k, parameter in enumerate(model.parameters()):
        sizes = [len(parameter)] + ([parameter[0].numel()] if parameter.ndim > 1 else [])
        factors = [covariance_factor(size) for size in sizes]
        found = [torch.linalg.eigh(factor) for factor in factors]
        values.append([each.eigenvalues for each in found])
        vectors.append([each.eigenvectors for each in found])
        deltas.append(0.5 + 0.3 * k)
        dense = torch.kron(*factors) if len(factors) == 2 else factors[0]
        blocks.append(dense + deltas[-1] * torch.eye(len(dense)))
    packed = SimpleNamespace(
        eigenvectors=vectors, eigenvalues=values, deltas=torch.tensor(deltas).double(), damping=False
    )
    return packed, torch.block_diag(*blocks)


def test_variances_are_those_of_all_slopes_and_the_dense_covariance():
    """Strides, padding, pooling and a layer without biases; slopes by torch.func, one image at a time."""
    model, x = network(), torch.randn(4, 2, 9, 9, dtype=torch.float64)
    precision, dense = random_precision(model)
    mean, var = output_moments(model, precision, x)
    parameters = dict(model.named_parameters())
    for k, image in enumerate(x):
        slopes = torch.func.jacrev(lambda own, row=image[None]: torch.func.functional_call(model, own, row)[0])(
            parameters
        )
        jacobian = torch.cat([slope.flatten(1) for slope in slopes.values()], dim=1).detach()
        expected = torch.einsum("cp,cp->c", jacobian, torch.linalg.solve(dense, jacobian.T).T)
        torch.testing.assert_close(var[k], expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(mean, model(x).detach())
    shrunk = (mean / torch.sqrt(1 + math.pi / 8 * var)).softmax(1)
    torch.testing.assert_close(probit_probabilities(model, precision, x), shrunk)


def test_layers_that_are_not_known_are_told():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    precision, _ = random_precision(model)
    with pytest.raises(ValueError, match="6 blocks of precision for 4 weights and biases of known layers"):
        output_moments(model, precision, torch.zeros(2, 3, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore")  # of laplace-torch and of packages that it needs
def test_probabilities_are_those_of_the_package():
    laplace = pytest.importorskip("laplace")
    pytest.importorskip("curvlinops")
    model, x, y = network(), torch.randn(12, 2, 9, 9, dtype=torch.float64), torch.arange(12) % 3
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=6)
    fitted = laplace.Laplace(model, "classification", subset_of_weights="all", hessian_structure="kron")
    fitted.fit(loader)
    fitted.optimize_prior_precision(method="marglik")
    with torch.no_grad():
        found = probit_probabilities(model, fitted.posterior_precision, x)
        torch.testing.assert_close(found, fitted(x, link_approx="probit"), rtol=1e-6, atol=1e-9)
    assert (found - model(x).softmax(1)).abs().max() > 1e-3, "the variances must say something"
