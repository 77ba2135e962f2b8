"""The layer that CONTRIBUTING.md shows keeps the contract, trains, is saved, and is named by its own tables."""

import re
from pathlib import Path

import pytest
import torch

import bayesmp as bmp
from bayesmp.layers.base import Layer, Local
from bayesmp.messages.gaussian import Gaussian, Moments
from tests.helpers import linear_data
from tests.layers.contract import check_layer

torch.set_num_threads(1)

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.fixture(scope="module")
def shown():
    """The names that the blocks leave behind, one after the other."""
    names = {"__name__": "contributing"}
    for block in BLOCKS:
        exec(compile(block, "CONTRIBUTING.md", "exec"), names)
    return names


def layers(*between):
    return [bmp.Linear(3, 8), bmp.LeakyReLU(), *between, bmp.Linear(8, 1)]


def test_equations_are_those_of_a_scaled_gaussian(shown):
    """Forward against samples, backward against the density as a function of x."""
    x = 0.3 + 0.5 * torch.randn(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    m_out = shown["times_to_output"](Moments(torch.tensor(0.3), torch.tensor(0.25)), -2.0)
    assert float(m_out.mean) == pytest.approx(float((-2.0 * x).mean()), abs=0.02)
    assert float(m_out.var) == pytest.approx(float((-2.0 * x).var()), rel=0.02)
    m_in = shown["times_to_input"](Gaussian(torch.tensor(0.7), torch.tensor(1.5)), -2.0)
    y = -2.0 * x
    torch.testing.assert_close(m_in.tau * x - m_in.rho * x**2 / 2, 0.7 * y - 1.5 * y**2 / 2, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("factor", [2.0, -0.5])
def test_the_layer_keeps_the_contract(shown, factor):
    check_layer(shown["Times"](factor), (4,))


def test_the_layer_refuses_a_factor_that_says_nothing(shown):
    with pytest.raises(ValueError, match="must not be 0"):
        shown["Times"](0.0)


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_a_network_with_the_layer_trains_and_is_saved(shown, tmp_path, schedule):
    x, y = linear_data(40, n_in=3)
    network = bmp.Network(layers(shown["Times"](2.0)), bmp.Regression(0.1))
    history = bmp.fit(network, x, y, epochs=5, batch_size=10, schedule=schedule, debug=True)
    prediction = network.predict(x.float())
    assert float((prediction.mean - y).square().mean().sqrt()) < 0.8 * float(y.std())
    assert prediction.std.isfinite().all() and history.loo_nll[-1] < history.loo_nll[0]
    network.save(tmp_path / "network.safetensors")
    again = bmp.load(tmp_path / "network.safetensors", classes=[shown["Times"]])
    assert torch.equal(again.predict(x.float()).std, prediction.std)


def test_two_factors_that_cancel_change_nothing(shown):
    x, y = linear_data(40, n_in=3)
    plain, scaled = (
        bmp.Network(layers(*between), bmp.Regression("learn"))
        for between in ([], [shown["Times"](-4.0), shown["Times"](-0.25)])
    )
    for network in (plain, scaled):
        bmp.fit(network, x, y, epochs=5, batch_size=10)
    torch.testing.assert_close(plain.predict(x.float()).std, scaled.predict(x.float()).std, rtol=1e-4, atol=0.0)


def test_the_tables_name_the_whole_contract():
    """Every method of a layer and of what a sweep leaves, and nothing that is not there."""
    cells = re.findall(r"^\| (`[^|]+) \|", TEXT, flags=re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}
    methods = {name for name, part in vars(Layer).items() if callable(part) and not name.startswith("_")}
    methods |= {f"Local.{name}" for name, part in vars(Local).items() if callable(part) and not name.startswith("_")}
    assert named == methods


def test_local_links_lead_somewhere():
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in target]
    assert targets and [target for target in targets if not (ROOT / target).exists()] == []
