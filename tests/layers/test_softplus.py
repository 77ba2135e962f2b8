"""Softplus in networks; its equations are tested in tests/messages, the contract in test_contract.py."""

import pytest
import torch

import bayesmp as bmp

torch.set_num_threads(1)


@pytest.mark.parametrize("beta", [0.0, -1.0, float("inf"), float("nan")])
def test_a_bend_without_a_size_is_refused(beta):
    with pytest.raises(ValueError, match="beta must be positive and finite"):
        bmp.Softplus(beta)


def test_a_sharp_bend_is_that_of_a_relu():
    generator = torch.Generator().manual_seed(0)
    m_in = bmp.Moments(torch.randn(20, generator=generator), torch.rand(20, generator=generator))
    smooth, sharp = (layer.sweep([m_in], {}).m_out for layer in (bmp.Softplus(1e3), bmp.ReLU()))
    torch.testing.assert_close(smooth.mean, sharp.mean, rtol=0.0, atol=1e-4)
    torch.testing.assert_close(smooth.var, sharp.var, rtol=1e-3, atol=1e-4)


def test_an_objective_learns_a_curve():
    generator = torch.Generator().manual_seed(0)
    x = 4.0 * torch.rand(80, 1, generator=generator) - 2.0
    y = torch.sin(2.0 * x) + 0.1 * torch.randn(80, 1, generator=generator)
    network = bmp.Network([bmp.Linear(1, 12), bmp.Softplus(3.0), bmp.Linear(12, 1)], bmp.Regression(0.01))
    bmp.fit(network, x, y)
    rest = network.predict(x).mean - torch.sin(2.0 * x)
    assert float(rest.square().mean().sqrt()) < 0.1


def test_messages_learn_classes_that_no_line_parts():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(150, 2, generator=generator)
    y = (x.square().sum(1) > 1.4).long()
    network = bmp.Network([bmp.Linear(2, 12), bmp.Softplus(3.0), bmp.Linear(12, 2)], bmp.Argmax())
    bmp.fit(network, x, y, epochs=30, batch_size=50, debug=True)
    assert float((network.predict(x).probs.argmax(1) == y).double().mean()) > 0.9
