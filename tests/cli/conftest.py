"""Three tables, models that the command line has made of them, and a way to call it."""

import numpy as np
import pytest
from typer.testing import CliRunner

from bayesmp import cli

QUICK = ("--epochs", "12", "--hidden", "8")


@pytest.fixture
def call():
    runner = CliRunner()

    def run(*arguments, code=0):
        result = runner.invoke(cli.app, [str(argument) for argument in arguments])
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return " ".join(result.output.split()) if code else result.output

    return run


def houses(n, seed):
    """A regression with categories, missing values, and columns that are of no use."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(seed)
    area, rooms, town = rng.uniform(40, 200, n), rng.integers(1, 7, n), rng.choice(["Bonn", "Kiel", "Ulm"], n)
    price = 2000 * area + 50_000 * (town == "Bonn") + rng.normal(0, 10_000, n)
    table = pandas.DataFrame({"id": range(n), "area": area, "rooms": rooms, "town": town, "country": "DE"})
    table.loc[rng.random(n) < 0.1, "area"] = np.nan
    table.loc[rng.random(n) < 0.1, "town"] = None
    table["price"] = price
    table.loc[3, "price"] = np.nan
    return table


def patients(n, seed):
    """Two classes, as booleans."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, n))
    return pandas.DataFrame({"a": a, "b": b, "sick": 2 * a + rng.normal(size=n) > 0})


def flowers(n, seed):
    """Twelve classes with text labels; classes are places in the plane."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(seed)
    k = rng.integers(0, 12, n)
    where = np.stack([k % 4, k // 4], axis=1) + rng.normal(0, 0.15, (n, 2))
    return pandas.DataFrame({"width": where[:, 0], "height": where[:, 1], "kind": [f"rose {i}" for i in k]})


MAKERS = {"price": houses, "sick": patients, "kind": flowers}


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """The folder with tables and models of all three targets, and what `fit` printed."""
    folder, said = tmp_path_factory.mktemp("tables"), {}
    for target, make in MAKERS.items():
        make(150, 0).to_csv(folder / f"{target}.csv", index=False)
        make(60, 1).to_csv(folder / f"{target}-new.csv", index=False)
        arguments = [folder / f"{target}.csv", "--target", target, "--out", folder / f"{target}.safetensors", *QUICK]
        result = CliRunner().invoke(cli.app, ["fit", *map(str, arguments)])
        assert result.exit_code == 0, result.output
        said[target] = result.output
    return folder, said
