"""Small runs of the parallel schedule, and what to compare them with."""

import torch

import bayesmp as bmp
from bayesmp.messages.gaussian import Gaussian
from bayesmp.sites.sites import SiteIndex
from bayesmp.training.schedules import Batch
from tests.helpers import blobs, linear_data, mlp

HEADS = {
    "regression": lambda: bmp.Regression(0.09),
    "learned noise": lambda: bmp.Regression("learn"),
    "softmax": lambda: bmp.Softmax(gain=1.0),
    "sharp softmax": bmp.Softmax,
    "argmax": bmp.Argmax,
}


def problem(name="regression", *, dtype=torch.float32, n=37, n_in=3, batch_size=8, seed=0, **options):
    """A Trainer of a small nonlinear network, 37 examples in batches of 8, 8, 7, 7 and 7."""
    is_regression = name in ("regression", "learned noise")
    x, y = linear_data(n, n_in=n_in) if is_regression else blobs(n, n_in=n_in)
    network = mlp([n_in, 6, 6, 1 if is_regression else 3], HEADS[name](), seed=seed, dtype=dtype)
    return bmp.Trainer(network, x, y, batch_size=batch_size, **options)


def product_by_hand(trainer):
    """prior times the site of every batch, in float64, multiplied one by one."""
    total = trainer.network.prior.map(torch.Tensor.double)
    for row in range(len(trainer.sites)):
        total = total * trainer.sites.site(row).map(torch.Tensor.double)
    return total


def visit(trainer, row):
    rows = trainer.members[row]
    batch = Batch(SiteIndex(row, torch.tensor([row])), trainer.x[rows], trainer.y[rows])
    with torch.inference_mode():
        return trainer.schedule.visit(batch, 1)


def assert_same_posterior(found: Gaussian, truth: Gaussian, tolerance: float):
    """Precisions to a relative tolerance, means to a share of the posterior std (or of themselves)."""
    truth, found = truth.map(torch.Tensor.double), found.map(torch.Tensor.double)
    assert ((found.rho - truth.rho).abs() / truth.rho).max() < tolerance
    scale = truth.rho.rsqrt() + truth.mean.abs()
    assert ((found.mean - truth.mean).abs() / scale).max() < tolerance
