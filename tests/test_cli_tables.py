"""`bayesmp fit`, `predict`, `evaluate` and `info` on three tables, called as a user would."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

pandas = pytest.importorskip("pandas")

import bayesmp as bmp  # noqa: E402
from bayesmp import cli, tables  # noqa: E402
from bayesmp.table_model import TableModel, tell_skew  # noqa: E402

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
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, n))
    return pandas.DataFrame({"a": a, "b": b, "sick": 2 * a + rng.normal(size=n) > 0})


def flowers(n, seed):
    """Twelve classes with text labels; classes are places in the plane."""
    rng = np.random.default_rng(seed)
    k = rng.integers(0, 12, n)
    where = np.stack([k % 4, k // 4], axis=1) + rng.normal(0, 0.15, (n, 2))
    return pandas.DataFrame({"width": where[:, 0], "height": where[:, 1], "kind": [f"rose {i}" for i in k]})


MAKERS = {"price": houses, "sick": patients, "kind": flowers}


@pytest.fixture(scope="module")
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


# --- what works


def test_fit_tells_what_it_does(made):
    said = made[1]["price"]
    for text in (
        "price.csv: 150 rows, 5 columns",
        "taken as a quantity; this is a regression",
        "1 row without a target left out",
        "column 'id' left out: it numbers the rows",
        "column 'country' left out: all values are 'DE'",
        "missing numbers replaced by the median, and marked",
        "3 columns used, as 7 numbers per row",
        "training on 119 rows, 30 held out",
        "training on all 149 rows",
    ):
        assert text in said
    assert re.search(r"RMSE +\S+ +\S+ +\S+\nNLL +\S+ +\S+ +\S+\n", said)  # held out, leave-one-out, always the mean
    assert re.search(r"in 90 % interval +\d+\.\d %", said)
    assert "2 different values, taken as classes; this is a classification" in made[1]["sick"]
    assert "12 different values, taken as classes" in made[1]["kind"]
    assert re.search(r"accuracy +\S+ +\S+ +\S+\n", made[1]["kind"])


def test_fit_draws_what_was_held_out(made):
    pytest.importorskip("matplotlib")
    folder, said = made
    for target in MAKERS:
        assert (folder / f"{target}.png").read_bytes().startswith(b"\x89PNG")
        assert f"picture: {folder / target}.png" in said[target]


def test_predictions_of_a_quantity_are_those_of_the_model_in_memory(made, call):
    folder, _ = made
    out = folder / "new folder" / "out.csv"
    said = call("predict", folder / "price.safetensors", folder / "price-new.csv", "--out", out, "--level", "0.5")
    assert "60 rows predicted" in said
    found, given = pandas.read_csv(out), pandas.read_csv(folder / "price-new.csv")
    assert list(found.columns) == [
        *given.columns, "price_mean", "price_std", "price_low", "price_high", "unlike_training"
    ]  # fmt: skip
    pandas.testing.assert_frame_equal(found[given.columns], given)
    table = tables.read_table(folder / "price.csv")
    target, _ = tables.Target.decide(table["price"])
    y, known = target.read(table["price"])
    columns = table.drop(columns="price")[known]
    encoder = tables.TableEncoder().fit(columns)
    model = bmp.MPRegressor(hidden=(8,), epochs=12, random_state=0).fit(encoder.transform(columns).x, y[known])
    x = encoder.transform(tables.read_table(folder / "price-new.csv")).x
    mean, std = model.predict(x, return_std=True)
    low, high = model.predict_interval(x, level=0.5)
    for name, values in {"mean": mean, "std": std, "low": low, "high": high}.items():
        np.testing.assert_allclose(found[f"price_{name}"], values, rtol=1e-9)


@pytest.mark.parametrize("target", ["sick", "kind"])
def test_predictions_of_classes_are_those_of_the_model_in_memory(made, call, target):
    folder, _ = made
    out = folder / f"{target}-out.csv"
    call("predict", folder / f"{target}.safetensors", folder / f"{target}-new.csv", "--out", out, "--only")
    found = pandas.read_csv(out, dtype={f"{target}_predicted": str})
    table, new = (tables.read_table(folder / f"{target}{part}.csv") for part in ("", "-new"))
    y = table[target].to_numpy(dtype=str)
    columns = table.drop(columns=target)
    model = bmp.MPClassifier(hidden=(8,), epochs=12, random_state=0).fit(columns.astype(float), y)
    probs = model.predict_proba(new[columns.columns].astype(float))
    names = [f"{target}_p_{label}" for label in model.classes_]
    assert list(found.columns) == [f"{target}_predicted", *names, "unlike_training"]
    np.testing.assert_allclose(found[names], probs, rtol=1e-9, atol=1e-12)
    assert found[f"{target}_predicted"].tolist() == model.classes_[probs.argmax(1)].tolist()


def test_without_out_the_screen_gets_the_csv(made, call):
    folder, _ = made
    said = call("predict", folder / "sick.safetensors", folder / "sick-new.csv")
    assert said.startswith("a,b,sick,sick_predicted,sick_p_False,sick_p_True,unlike_training\n")
    assert len(said.splitlines()) == 61


def test_rows_unlike_the_training_data_are_flagged(made, call):
    folder, _ = made
    new = houses(60, 2)
    new["area"] = new["area"].fillna(100.0)
    new.loc[0, "area"], new.loc[1, "town"] = 5_000.0, "Trier"
    new.drop(columns=["price", "id", "country"]).assign(colour="red").to_csv(folder / "odd.csv", index=False)
    said = call("predict", folder / "price.safetensors", folder / "odd.csv", "--out", folder / "odd-out.csv")
    assert "note: columns that the model does not know ignored: 'colour'" in said
    assert "1 row with categories that training did not have ('Trier')" in said
    flags = pandas.read_csv(folder / "odd-out.csv")["unlike_training"]
    assert flags[:2].all() and flags[2:].mean() < 0.1
    for target in ("sick", "kind"):
        model = TableModel.load(folder / f"{target}.safetensors")
        usual = model.predict(MAKERS[target](200, 3)).is_unlike
        columns = MAKERS[target](200, 3).drop(columns=target) * 30.0 + 100.0
        assert usual.mean() < 0.1 and model.predict(columns).is_unlike.all()


def test_evaluate_scores_and_judges(made, call):
    folder, _ = made
    said = call("evaluate", folder / "price.safetensors", folder / "price-new.csv", "--picture", folder / "e.pdf")
    assert re.search(r"59 rows +always the mean\nR2 ", said) and "of the rows lie in their 90 % interval" in said
    assert "1 row without a target left out" in said and (folder / "e.pdf").exists()
    said = call("evaluate", folder / "kind.safetensors", folder / "kind.csv")
    assert "trained on these very rows" in said and "right in" in said
    flowers(40, 3).assign(kind=["tulip"] * 5 + ["rose 1"] * 35).to_csv(folder / "tulips.csv", index=False)
    said = call("evaluate", folder / "kind.safetensors", folder / "tulips.csv")
    assert "5 rows with classes unknown to the model left out: 'tulip'" in said and "35 rows" in said


def test_rows_seen_before_are_told(made, call, tmp_path):
    """Later exports often hold the old rows, too."""
    folder, _ = made
    both = pandas.concat([houses(150, 0)[:40], houses(60, 1)])
    both.to_csv(tmp_path / "both.csv", index=False)
    said = call("evaluate", folder / "price.safetensors", tmp_path / "both.csv")
    assert "note: 39 rows of these, or more, are rows that the model was trained on" in said  # one has no target
    said = call("evaluate", folder / "price.safetensors", folder / "price-new.csv")
    assert "trained on" not in said


def test_copies_of_rows_are_told(call, tmp_path):
    table, out = patients(60, 0), tmp_path / "m.safetensors"
    arguments = ("fit", tmp_path / "t.csv", "--target", "sick", "--out", out, *QUICK)
    pandas.concat([table, table[:25]]).to_csv(tmp_path / "t.csv", index=False)
    assert "note: 25 of the rows are copies of others, target included" in call(*arguments)
    coins = table.assign(a=table["a"] > 0, b=table["b"] > 0)  # equal by chance
    coins.to_csv(tmp_path / "t.csv", index=False)
    assert "copies of others" not in call(*arguments)


def test_info_lists_a_part_of_many_columns(call, tmp_path):
    rng = np.random.default_rng(0)
    wide = pandas.DataFrame(rng.normal(size=(20, 60)), columns=[f"g{k}" for k in range(60)])
    wide.assign(y=rng.normal(size=20)).to_csv(tmp_path / "w.csv", index=False)
    call("fit", tmp_path / "w.csv", "--target", "y", "--out", tmp_path / "m.safetensors", *QUICK)
    said = call("info", tmp_path / "m.safetensors")
    assert re.search(r"columns +60, as 60 numbers", said) and re.search(r"\.\.\. +and 20 more", said)
    assert "  g39 " in said and "  g40 " not in said


def test_info_tells_what_a_model_is(made, call):
    folder, _ = made
    said = call("info", folder / "price.safetensors")
    for line in (
        rf"made +\d{{4}}-\d\d-\d\d, bayesmp {re.escape(bmp.__version__)}",
        r"trained on +149 rows of price.csv",
        r"target +price \(regression\)",
        r"  area +number, may be missing",
        r"  town +category: Bonn, Kiel, Ulm, \(missing\)",
        r"  country +not used: all values are 'DE'",
        r"network +7-8-1, 73 weights",
        r"training +ran the 12 epochs",
        r"leave-one-out +R2 \S+, RMSE \S+, NLL \S+",
        r"noise +\S+ \(standard deviation\)",
    ):
        assert re.search(f"^{line}", said, flags=re.MULTILINE), line
    classes = call("info", folder / "sick.safetensors")
    assert re.search(r"classes +False \(\d+ %\), True", classes)
    assert re.search(
        r"^labels +(clean|have a variance of \S+ around the outputs, clean ones 0.1)", classes, re.MULTILINE
    )


def test_options_of_fit(made, call, tmp_path):
    folder, _ = made
    out = tmp_path / "m.safetensors"
    arguments = ("fit", folder / "price.csv", "--target", "price", "--out", out, "--drop", "town,id", *QUICK)
    said = call(*arguments, "--hold-out", "0.5", "--no-refit", "--categories", "rooms", "--seed", "3")
    assert "training on 75 rows, 74 held out" in said
    assert "training on all" not in said
    model = TableModel.load(out)
    assert [column.name for column in model.encoder.columns] == ["area", "rooms"]
    assert model.encoder.columns[1].kind == "category" and model.estimator.random_state == 3
    said = call(*arguments, "--hold-out", "0")
    assert "no rows are held out" in said and "leave-one-out: R2" in said
    out.with_suffix(".png").unlink()
    said = call("fit", folder / "kind.csv", "--target", "kind", "--out", out, "--epochs", "auto", "--max-epochs", "2",
                "--hidden", "")  # fmt: skip
    assert "raise --max-epochs" in said
    assert [type(layer).__name__ for layer in TableModel.load(out).estimator.network_.layers] == ["Linear"]


def test_few_rows_are_all_trained_on(call, tmp_path):
    patients(20, 0).astype({"sick": int}).to_csv(tmp_path / "t.csv", index=False)
    arguments = ("fit", tmp_path / "t.csv", "--target", "sick", "--out", tmp_path / "m.safetensors", *QUICK)
    said = call(*arguments)
    assert "2 different whole numbers, taken as classes (--task regression would change that)" in said
    assert "no rows are held out" in said
    assert "taken as a quantity (as asked); this is a regression" in call(*arguments, "--task", "regression")
    assert TableModel.load(tmp_path / "m.safetensors").target.task == "regression"


def test_one_row_has_no_r2(made, call, tmp_path):
    folder, _ = made
    pandas.read_csv(folder / "price-new.csv")[:1].to_csv(tmp_path / "one.csv.gz", index=False)
    said = call("evaluate", folder / "price.safetensors", tmp_path / "one.csv.gz")
    assert "nan" not in said and "R2 needs at least two rows, with different targets" in said
    assert re.search(r"R2 +– +–\n", said) and re.search(r"RMSE +\S+\d +\S+\d\n", said)
    assert "R2 needs" not in call("evaluate", folder / "price.safetensors", folder / "price-new.csv")


def test_a_very_skewed_target_is_told_once_with_the_report(call, tmp_path):
    table = patients(80, 0)
    y = np.exp(2 * table["a"] + table["b"])
    arguments = ("fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "m.safetensors", *QUICK)
    table[["a", "b"]].assign(y=y).to_csv(tmp_path / "t.csv", index=False)
    said = call(*arguments, "--no-refit")
    assert said.count("note: the target 'y' is positive and very skewed (half of it below") == 1
    assert f"the largest {y.max():.3g}): its logarithm is easier to learn" in said and "--drop y" in said


@pytest.mark.parametrize(
    "make, is_told",
    [
        (lambda z: np.exp(1.5 * z), True),
        (lambda z: np.exp(1.5 * z) - 0.01, False),  # not all positive
        (lambda z: 5 + z, False),
        (lambda z: np.where(np.arange(len(z)) < 3, 1e4, 1.0 + 0.01 * z), False),  # a few far out: no logarithm helps
    ],
)
def test_skew_is_told_where_logarithms_help(make, is_told):
    y = make(np.random.default_rng(0).normal(size=400))
    assert bool(tell_skew(tables.Target("y", "regression"), y)) == is_told
    assert not tell_skew(tables.Target("y", "classification"), np.array(["a", "b"]))


def run(*arguments):
    """The program in a process of its own."""
    command = [sys.executable, "-m", "bayesmp", *map(str, arguments)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def test_in_a_process_of_its_own_notes_and_results_are_kept_apart(made, tmp_path):
    folder, _ = made
    done = run("predict", folder / "sick.safetensors", folder / "sick-new.csv", "--only")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert len(done.stdout.splitlines()) == 61
    done = run("predict", folder / "sick.safetensors", tmp_path / "none.csv")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == f"bayesmp: there is no file '{tmp_path}/none.csv'\n"


@pytest.mark.slow
@pytest.mark.parametrize("target", MAKERS)
def test_from_a_table_to_good_predictions(target, tmp_path):
    """All defaults, from the shell; new rows must be predicted well and honestly. Prices of houses without an area
    scatter more than the others, and the model has one noise for all rows: its intervals are too wide on the whole."""
    table, new, model = tmp_path / "table.csv", tmp_path / "new.csv", tmp_path / "model.safetensors"
    MAKERS[target](300, 0).to_csv(table, index=False)
    MAKERS[target](300, 1).to_csv(new, index=False)
    done = run("fit", table, "--target", target, "--out", model)
    assert done.returncode == 0, done.stderr
    assert "at rest after" in done.stdout and model.exists()
    done = run("evaluate", model, new)
    assert done.returncode == 0, done.stderr
    name, least = {"price": ("R2", 0.7), "sick": ("accuracy", 0.75), "kind": ("accuracy", 0.95)}[target]
    (value,) = re.findall(rf"^{name} +(\S+)", done.stdout, flags=re.MULTILINE)
    assert float(value) > least
    verdict = done.stdout.splitlines()[-1]
    if target == "price":
        assert verdict.startswith(("well calibrated", "too cautious"))
    else:  # 300 rows tell shares to 2.3 points
        sure, right = (int(part) for part in re.findall(r"(\d+) %", verdict)[:2])
        assert abs(sure - right) <= 7
    assert run("predict", model, new, "--out", tmp_path / "out.csv").returncode == 0
    assert len(pandas.read_csv(tmp_path / "out.csv")) == 300


# --- what does not


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["none.csv", "--target", "price"], "there is no file"),
        (["price.csv", "--target", "prize"], "there is no column 'prize'; did you mean 'price'?"),
        (["price.csv", "--target", "country"], "is DE in all rows"),
        (["price.csv", "--target", "price", "--drop", "twon"], "no column 'twon'; did you mean 'town'"),
        (["price.csv", "--target", "town", "--task", "regression"], "a regression needs them"),
        (["empty.csv", "--target", "price"], "empty.csv is empty"),
        (["gaps.csv", "--target", "y"], "no column is left to learn from ('x': all values are missing)"),
        (["short.csv", "--target", "y"], "at least 5 are needed"),
    ],
)
def test_fit_refuses_with_a_sentence(made, call, tmp_path, arguments, message):
    folder, _ = made
    (folder / "empty.csv").touch()
    (folder / "gaps.csv").write_text("x,y\n" + ",1.5\n,2.5\n" * 5)
    (folder / "short.csv").write_text("x,y\n1,1.5\n2,2.5\n")
    said = call("fit", folder / arguments[0], *arguments[1:], "--out", tmp_path / "m.safetensors", code=1)
    assert message in said
    assert not (tmp_path / "m.safetensors").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        (["--out", "m.txt"], "must end in .safetensors"),
        (["--hidden", "5,x"], "must be whole numbers"),
        (["--epochs", "0"], "positive whole number or auto"),
        (["--picture", "p.gif"], "must end in .png"),
        (["--drop", "id,price"], "'price' is the target"),
        (["--task", "guessing"], "'regression', 'classification'"),
    ],
)
def test_wrong_usage_has_exit_status_2(made, call, tmp_path, options, message):
    out = [] if "--out" in options else ["--out", tmp_path / "m.safetensors"]
    said = call("fit", made[0] / "price.csv", "--target", "price", *out, *options, code=2)
    assert message in said.replace(" │ │ ", " ")


def test_predict_guards_what_it_reads(made, call, tmp_path):
    folder, _ = made
    model, new = folder / "price.safetensors", folder / "price-new.csv"
    before = new.read_bytes()
    assert "would overwrite" in call("predict", model, new, "--out", new, code=2)
    assert "between 0 and 1" in call("predict", model, new, "--level", "90", code=2)
    assert new.read_bytes() == before
    assert "must end in .csv, .tsv or .parquet" in call("predict", model, new, "--out", tmp_path / "o.xls", code=1)
    said = call("predict", model, folder / "kind.csv", code=1)
    assert "3 columns of the training table not found: 'area', 'rooms', 'town'" in said
    assert "no column 'price'" in call("evaluate", model, folder / "kind.csv", code=1)


def test_an_output_that_cannot_be_written_is_told_before_training(made, call, tmp_path):
    folder, _ = made
    (tmp_path / "file").touch()
    said = call("fit", folder / "price.csv", "--target", "price", "--out", tmp_path / "file/m.safetensors", code=1)
    assert "cannot write" in said and "its folder is a file" in said and "training" not in said
    said = call(
        "predict", folder / "price.safetensors", folder / "price-new.csv", "--out", tmp_path / "file/o.csv", code=1
    )
    assert "cannot write" in said
    if os.geteuid() != 0:  # nothing is read-only for root
        (tmp_path / "locked").mkdir(mode=0o500)
        out = tmp_path / "locked/m.safetensors"
        assert "Permission denied" in call("fit", folder / "price.csv", "--target", "price", "--out", out, code=1)


def test_files_that_are_no_models_of_tables(made, call, tmp_path):
    folder, _ = made
    good = (folder / "price.safetensors").read_bytes()
    path = tmp_path / "m.safetensors"
    for content, message in (
        (good[:-10], "not a complete safetensors file"),
        (b"", "not a complete safetensors file"),
        (good[:-4] + b"\x00\x01\x02\x03", "is damaged"),
        (good.replace(b"median", b"midean", 1), "is damaged"),
    ):
        path.write_bytes(content)
        assert message in call("predict", path, folder / "price-new.csv", code=1)
    bmp.Network([bmp.Linear(2, 1)], bmp.Regression(1.0)).save(path)
    assert "holds a network that was saved from Python" in call("info", path, code=1)
    bmp.MPRegressor(epochs=1).fit(np.eye(5), np.arange(5.0)).save(path)
    assert "holds an estimator that was saved from Python" in call("evaluate", path, folder / "price.csv", code=1)
    swapped = call("predict", folder / "price-new.csv", folder / "price.safetensors", code=1)
    assert "is a table; the model comes first, then the table" in swapped
    assert "there is no file" in call("info", tmp_path / "none.safetensors", code=1)


def test_what_is_missing_is_named(made, call, tmp_path, monkeypatch):
    folder, _ = made
    out = tmp_path / "m.safetensors"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.pyplot", None)
        said = call("fit", folder / "sick.csv", "--target", "sick", "--out", out, *QUICK, "--no-refit")
    assert "no picture: plots need matplotlib: pip install 'bayesmp[plots]'" in said
    assert out.exists() and not out.with_suffix(".png").exists()
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert "pip install 'bayesmp[tables]'" in call("predict", out, folder / "sick.csv", code=1)


def test_debug_shows_where_an_error_came_from(made):
    result = CliRunner().invoke(cli.app, ["info", "none.safetensors", "--debug"])
    assert result.exit_code == 1 and "Traceback" in result.output and "bayesmp: there is no file" in result.output


def test_errors_nobody_thought_of_have_no_traceback_either(made, call, monkeypatch):
    monkeypatch.setattr(tables, "read_table", lambda path: 1 / 0)
    said = call("predict", made[0] / "sick.safetensors", made[0] / "sick.csv", code=1)
    assert "an error that should not happen, ZeroDivisionError" in said
