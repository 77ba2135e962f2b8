"""Warnings point at the line outside of the package that led to them, however deep they arise."""

import warnings

import pytest
import torch

import bayesmp as bmp
from bayesmp.basics.telling import warn_user
from tests.helpers import linear_data, mlp


def line_of(call) -> tuple[str, int]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    (warning,) = caught
    return warning.filename, warning.lineno


def test_a_call_from_outside_is_the_line():
    first = test_a_call_from_outside_is_the_line.__code__.co_firstlineno
    assert line_of(lambda: warn_user("seen")) == (__file__, first + 2)


@pytest.mark.parametrize("begin", [bmp.Trainer, bmp.fit])
def test_so_it_is_through_functions_of_the_package_and_decorators_of_torch(begin):
    x, y = linear_data(20)
    options = {"epochs": 1} if begin is bmp.fit else {}
    network = mlp([3, 4, 1], bmp.Regression(0.09))
    assert line_of(lambda: begin(network, 1e3 * x, y, **options))[0] == __file__
    trainer = bmp.Trainer(mlp([3, 4, 1], bmp.Regression(0.09)), x, y)
    assert line_of(lambda: torch.no_grad()(trainer.add)(1e3 * x, y))[0] == __file__
