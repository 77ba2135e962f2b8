"""Flatten moves numbers and nothing else."""

import torch

from bayesmp.layers import Flatten
from tests.layers.contract import random_message, random_moments


def test_flatten_goes_there_and_back():
    generator = torch.Generator().manual_seed(0)
    m_in, m_back = random_moments((2, 3, 4, 5), generator), random_message((2, 60), generator)
    local = Flatten().sweep([m_in], {})
    m_out = local.m_out
    assert torch.equal(m_out.mean, m_in.mean.reshape(2, 60)) and torch.equal(m_out.var, m_in.var.reshape(2, 60))
    assert torch.equal(Flatten().sweep([m_in.mean], {}).m_out, m_out.mean)
    (to_input,), _ = local.back(m_back)
    assert torch.equal(to_input.tau.reshape(2, 60), m_back.tau) and to_input.shape == m_in.shape
    assert Flatten().output_shape((3, 4, 5)) == (60,)


def test_flatten_takes_messages_that_are_not_contiguous():
    m_in = random_moments((2, 3, 4), torch.Generator().manual_seed(0))
    m_back = random_message((12, 2), torch.Generator().manual_seed(1)).map(lambda part: part.t())
    (to_input,), _ = Flatten().sweep([m_in], {}).back(m_back)
    assert torch.equal(to_input.tau.reshape(2, 12), m_back.tau)
