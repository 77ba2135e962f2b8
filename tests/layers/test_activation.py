"""LeakyReLU and ReLU as layers; their equations are tested in tests/messages/test_activation.py."""

import pytest
import torch

from bayesmp.layers import LeakyReLU, ReLU
from bayesmp.layers.base import NO_MEMORY, Memory
from bayesmp.messages.activation import leaky_relu_marginal_to_output, leaky_relu_to_output
from tests.layers.contract import random_message, random_moments


def test_relu_is_leaky_relu_with_leak_0():
    generator = torch.Generator().manual_seed(0)
    m_in, m_back = random_moments((3, 4), generator), random_message((3, 4), generator)
    for memory in (NO_MEMORY, Memory(at_output=m_back)):
        relu, leaky = (layer.sweep([m_in], {}, memory=memory).m_out for layer in (ReLU(), LeakyReLU(0.0)))
        assert torch.equal(relu.mean, leaky.mean) and torch.equal(relu.var, leaky.var)
    x = torch.tensor([[-1.0, 2.0]])
    assert torch.equal(ReLU().sweep([x], {}).m_out, torch.tensor([[0.0, 2.0]]))


def test_a_known_message_switches_to_the_marginal_form():
    generator = torch.Generator().manual_seed(0)
    m_in, m_back = random_moments((3, 50), generator), random_message((3, 50), generator)
    memories = (NO_MEMORY, Memory(at_output=m_back))
    direct, renewed = (LeakyReLU(0.1).sweep([m_in], {}, memory=memory).m_out for memory in memories)
    torch.testing.assert_close(direct.mean, leaky_relu_to_output(m_in, 0.1).mean)
    torch.testing.assert_close(renewed.mean, leaky_relu_marginal_to_output(m_in, m_back, 0.1).mean)
    assert not torch.allclose(direct.mean, renewed.mean)


@pytest.mark.parametrize("leak", [-0.1, 1.0, 2.0])
def test_a_leak_that_is_none_is_refused(leak):
    with pytest.raises(ValueError, match="leak"):
        LeakyReLU(leak)
