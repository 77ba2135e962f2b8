"""Classes of which some are rare: the argmax head knows their shares."""

from __future__ import annotations

import math

import pytest
import torch

import bayesmp as bmp
from bayesmp.heads import Argmax
from bayesmp.heads.argmax import spread_of_targets
from bayesmp.messages.gaussian import Moments
from bayesmp.messages.likelihood import centres_of_shares
from tests.helpers import mlp

SHARES = torch.tensor([0.40, 0.25, 0.15, 0.08, 0.05, 0.03, 0.02, 0.02], dtype=torch.float64)


def shares_of(network: bmp.Network) -> torch.Tensor | None:
    head = network.head
    assert isinstance(head, Argmax)
    return head.shares


def drawn(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three columns that say nothing about eight classes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator)
    return x, torch.multinomial(SHARES, n, replacement=True, generator=generator)


def test_outputs_that_know_nothing_rest_at_the_shares() -> None:
    """With labels that are all noise, the regulariser's pulls of all rows end where the link reads the shares."""
    head, y = Argmax(), torch.repeat_interleave(torch.arange(8), (1000 * SHARES).round().long() - 1)
    head.know_targets(y, 8)
    assert head.shares is not None
    torch.testing.assert_close(head.shares, SHARES, rtol=0.01, atol=0.0)
    v = head.largest_constant(y)
    centre = head.centre_of(torch.tensor(v, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    rest = centre + 2.0 * head.shares - 1.0
    link = head.natural_scale / math.sqrt(v / 0.1)
    torch.testing.assert_close(torch.softmax(link * rest, 0), head.shares, rtol=0.02, atol=0.0)


def test_clean_labels_have_targets_around_zero() -> None:
    """Those that tell nothing are known by their shares alone, rare ones, too."""
    head, y = Argmax(), torch.tensor([0] * 60 + [1] * 40 + [2] * 50)
    head.know_targets(y, 3)
    like = torch.zeros(1)
    clean, noisy = (head.centre_of(torch.tensor(v), like) for v in (0.1, 0.9))
    assert isinstance(clean, torch.Tensor) and isinstance(noisy, torch.Tensor)
    assert not clean.any() and float(noisy.abs().max()) > 0.02
    head.know_targets(None, 3)
    assert head.centre_of(torch.tensor(0.9), like) == 0.0
    head.know_targets(torch.arange(300) % 3, 3)
    even = head.centre_of(torch.tensor(0.9), like)
    assert isinstance(even, torch.Tensor) and float(even.abs().max()) < 1e-6
    head = Argmax()
    head.know_targets(torch.tensor([0] * 989 + [1] * 9), 2)
    rare = head.centre_of(torch.tensor(1.0), like)
    assert isinstance(rare, torch.Tensor)
    torch.testing.assert_close(rare, centres_of_shares(torch.tensor([0.99, 0.01]), noise=3.0, target=1.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_variance_is_judged_by_frequent_classes(dtype: torch.dtype) -> None:
    """The density of the targets around their centres, each class counted by its share."""
    head, y = Argmax(), torch.tensor([0, 0, 0, 2, 1, 0, 2])
    head.know_targets(y, 3)
    shares = torch.tensor([5, 2, 3], dtype=dtype) / 10
    torch.testing.assert_close(head.shares, shares.double())
    generator = torch.Generator().manual_seed(0)
    mean, var = (draw(7, 3, generator=generator, dtype=dtype) for draw in (torch.randn, torch.rand))
    found = head.to_heard(Moments(mean, var), y)
    for k, v in enumerate(head.grid[head.heard].tolist()):
        centre = head.centre_of(torch.tensor(v, dtype=dtype), mean)
        targets = centre + 2.0 * torch.nn.functional.one_hot(y, 3).to(dtype) - 1.0
        std = (var + v * spread_of_targets(shares)).sqrt()
        density = torch.distributions.Normal(mean, std).log_prob(targets) + 0.5 * math.log(2.0 * math.pi)
        torch.testing.assert_close(found[k], 3.0 * (shares * density).sum(), rtol=1e-4, atol=1e-4)


def test_rare_classes_that_overlap_get_their_shares() -> None:
    """Eight classes at random. Without their shares rare ones were said to be up to 2.8 times as frequent as they are,
    which cost .13 nats beside what the shares alone have.
    """
    (x, y), (x_new, y_new) = drawn(300, seed=5), drawn(3000, seed=1)
    network = mlp([3, 20, 8], Argmax(), seed=0)
    history = bmp.fit(network, x, y, epochs=150)
    found = network.predict(x_new)
    known = (torch.bincount(y, minlength=8) + 1.0) / (len(y) + 8)
    nll, of_shares = -float(found.log_prob(y_new).mean()), -float(known.log()[y_new].mean())
    assert nll < of_shares + 0.06 and abs(history.loo_nll[-1] - nll) < 0.1
    torch.testing.assert_close(found.probs.mean(0), known, rtol=0.15, atol=0.0)


def test_shares_follow_the_data_of_a_run() -> None:
    x, y = drawn(60, seed=2)
    network = mlp([3, 4, 8], Argmax())
    trainer = bmp.Trainer(network, x, y, batch_size=20)
    trainer.run(2)
    before = (torch.bincount(y, minlength=8) + 1.0).double() / 68
    torch.testing.assert_close(shares_of(network), before)
    trainer.add(x[:20], torch.full((20,), 7))
    counts = torch.bincount(y, minlength=8).double() + 1.0
    counts[7] += 20
    torch.testing.assert_close(shares_of(network), counts / 88)


def test_shares_are_those_of_the_network_not_of_the_head() -> None:
    """One head given to two networks, whose runs take turns; and rows that follow a past are not all there were."""
    head, (x, y) = Argmax(), drawn(60, seed=3)
    one, other = mlp([3, 4, 8], head), mlp([3, 4, 8], head)
    first = bmp.Trainer(one, x, y)
    first.run(2)
    seen = shares_of(one)
    bmp.Trainer(other, x, torch.zeros_like(y)).run(2)
    later = one.as_prior()
    bmp.Trainer(later, x, torch.zeros_like(y)).run(2)
    assert head.shares is None and shares_of(later) is None and seen is not None
    torch.testing.assert_close(shares_of(one), seen)
    assert shares_of(other) is not None and not torch.equal(shares_of(other), seen)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:training ended worse than a constant")  # after so few epochs it does
def test_a_resumed_run_goes_on_with_the_shares(tmp_path) -> None:
    x, y = drawn(60, seed=4)
    trainer = bmp.Trainer(mlp([3, 4, 8], Argmax()), x, y, batch_size=20)
    trainer.run(3)
    trainer.save(tmp_path / "run.safetensors")
    again = bmp.Trainer.load(tmp_path / "run.safetensors", x, y)
    torch.testing.assert_close(shares_of(again.network), shares_of(trainer.network))
    trainer.run(2)
    again.run(2)
    torch.testing.assert_close(again.network.marginal.mean, trainer.network.marginal.mean)
