"""`bayesmp fit`, `predict`, `evaluate` and `info` on three tables, called as a user would."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

pandas = pytest.importorskip("pandas")

import bayesmp as bmp  # noqa: E402
from bayesmp import tables  # noqa: E402
from bayesmp.tables.model import TableModel, tell_skew  # noqa: E402
from tests.cli.conftest import MAKERS, QUICK, flowers, houses, patients  # noqa: E402


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
    score = r"\S+ ± \S+ +\S+ +\S+\n"  # held out with its error, leave-one-out, always the mean
    assert re.search(rf"RMSE +{score}NLL +{score}", said)
    assert re.search(r"in 90 % interval +\S+( ± \S+)? %", said)
    assert said.index("better than the mean") < said.index("of the rows lie in their 90 % interval") < said.index("R2 ")
    assert re.search(r"column shuffled +rise of NLL +fall of R2\narea +\S+ ± \S+ +\S+ ± \S+\n", said)
    assert "2 different values, taken as classes; this is a classification" in made[1]["sick"]
    assert "12 different values, taken as classes" in made[1]["kind"]
    assert re.search(r"accuracy +\S+( ± \S+)? +\S+ +\S+\n", made[1]["kind"])
    assert re.search(r"called '(True|False)' from a probability of 0.5 on, \d+ of \d+ '\1' are missed", made[1]["sick"])


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
    encoder = bmp.TableEncoder()
    encoder.decide(columns)
    model = bmp.MPRegressor(hidden=(8,), epochs=12, random_state=0).fit(encoder.encode(columns).x, y[known])
    x = encoder.encode(tables.read_table(folder / "price-new.csv")).x
    mean, std = model.predict(x, return_std=True)
    low, high = model.predict_interval(x, level=0.5)
    for name, values in {"mean": mean, "std": std, "low": low, "high": high}.items():
        np.testing.assert_allclose(found[f"price_{name}"], values, rtol=1e-9)


@pytest.mark.parametrize("target", ["sick", "kind"])
@pytest.mark.slow
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


@pytest.mark.slow
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


def test_info_tells_what_a_model_is(made, call, monkeypatch):
    """Of labels that train by visits also how clean they are; the others' noise is that of a softmax."""
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
    assert re.search(r"classes +False \(\d+ %\), True", classes) and "labels" not in classes
    monkeypatch.setattr("bayesmp.estimators.base.has_objective", lambda *_: False)
    call("fit", folder / "sick.csv", "--target", "sick", "--out", folder / "visited.safetensors", *QUICK)
    classes = call("info", folder / "visited.safetensors")
    assert re.search(
        r"^labels +(clean|have a variance of \S+ around the outputs, clean ones 0.1)", classes, re.MULTILINE
    )


@pytest.mark.slow
def test_info_tells_how_the_noise_depends_on_the_input(call, tmp_path):
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(300, 2)), rng.normal(size=300)
    for name, size in (("same", 0.5), ("varies", 0.3 * np.exp(x[:, 1]))):
        table = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": 100.0 * (x[:, 0] + size * noise)})
        table.to_csv(tmp_path / f"{name}.csv", index=False)
        model = tmp_path / f"{name}.safetensors"
        call("fit", tmp_path / f"{name}.csv", "--target", "y", "--out", model, "--epochs", "30", "--hold-out", "0")
    same, varies = (call("info", tmp_path / f"{name}.safetensors") for name in ("same", "varies"))
    assert "depends on the input" not in same
    found = re.search(r"noise .*; depends on the input: (\S+) to (\S+) in 90 % of the rows", varies)
    assert found is not None
    low, high = float(found[1]), float(found[2])
    assert 3.0 < low < 15.0 and 80.0 < high < 300.0  # it goes from 6 to 155


def test_options_of_fit(made, call, tmp_path):
    folder, _ = made
    out = tmp_path / "m.safetensors"
    arguments = ("fit", folder / "price.csv", "--target", "price", "--out", out, "--drop", "town,id", *QUICK)
    said = call(*arguments, "--hold-out", "0.5", "--no-refit", "--categories", "rooms", "--seed", "3")
    assert "training on 75 rows, 74 held out" in said
    assert "training on all" not in said
    model = TableModel.load(out)
    assert [column.name for column in model.encoder.columns_] == ["area", "rooms"]
    assert model.encoder.columns_[1].kind == "category" and model.estimator.random_state == 3
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


@pytest.mark.parametrize("n, is_told", [(12, True), (40, False)])
def test_as_many_columns_as_rows_are_told(call, tmp_path, n, is_told):
    """Leave-one-out is the only score there, and says little."""
    table = pandas.DataFrame(np.random.default_rng(0).normal(size=(n, 6)), columns=list("abcdey"))
    table.to_csv(tmp_path / "wide.csv", index=False)
    said = call("fit", tmp_path / "wide.csv", "--target", "y", "--out", tmp_path / "wide.safetensors", *QUICK)
    assert ("rows for 5 columns" in said) == is_told


def test_one_row_has_no_r2(made, call, tmp_path):
    folder, _ = made
    pandas.read_csv(folder / "price-new.csv")[:1].to_csv(tmp_path / "one.csv.gz", index=False)
    said = call("evaluate", folder / "price.safetensors", tmp_path / "one.csv.gz")
    assert "nan" not in said and "R2 needs at least two rows, with different targets" in said
    assert re.search(r"R2 +– +–\n", said) and re.search(r"RMSE +\S+\d +\S+\d\n", said) and "1 row cannot tell" in said
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
    scatter more than the others, and the model has one noise for all rows: its intervals are too wide on the whole.
    Twelve classes have fewer units than usual: time goes with the square of the weights, times rows, times classes.
    """
    table, new, model = tmp_path / "table.csv", tmp_path / "new.csv", tmp_path / "model.safetensors"
    MAKERS[target](300, 0).to_csv(table, index=False)
    MAKERS[target](300, 1).to_csv(new, index=False)
    options = ("--hidden", "20") if target == "kind" else ()
    done = run("fit", table, "--target", target, "--out", model, *options)
    assert done.returncode == 0, done.stderr
    assert "at rest after" in done.stdout and model.exists()
    done = run("evaluate", model, new)
    assert done.returncode == 0, done.stderr
    name, least = {"price": ("R2", 0.7), "sick": ("accuracy", 0.75), "kind": ("accuracy", 0.95)}[target]
    (value,) = re.findall(rf"^{name} +(\S+)", done.stdout, flags=re.MULTILINE)
    assert float(value) > least
    use, verdict = done.stdout.splitlines()[:2]
    assert use.startswith("better than ")
    if target == "price":
        assert verdict.startswith(("well calibrated", "too cautious"))
    else:  # 300 rows tell shares to 2.3 points
        sure, right = (int(part) for part in re.findall(r"(\d+) %", verdict)[:2])
        assert abs(sure - right) <= 7
    assert run("predict", model, new, "--out", tmp_path / "out.csv").returncode == 0
    assert len(pandas.read_csv(tmp_path / "out.csv")) == 300


@pytest.mark.parametrize("target", ["price", "kind"])
@pytest.mark.slow
def test_several_networks_predict_together(made, call, target, tmp_path):
    """Fitted, saved, told of, and as the estimator in memory has them."""
    folder, _ = made
    model, out = tmp_path / "model.safetensors", tmp_path / "out.csv"
    said = call("fit", folder / f"{target}.csv", "--target", target, "--out", model, "--networks", 2, *QUICK)
    assert said.count("network 1: ran the 12") == said.count("network 2: ran the 12") == 2
    assert re.search(r"^by 2 networks +\d+ held out", said, flags=re.MULTILINE)
    assert model.with_suffix(".png").exists() or f"picture: {model.with_suffix('.png')}" not in said
    said = call("predict", model, folder / f"{target}-new.csv", "--out", out)
    assert "60 rows predicted by 2 networks, " in said
    assert "by 2 networks " in call("evaluate", model, folder / f"{target}-new.csv")
    said = call("info", model)
    assert re.search(r"networks +2, .* weights each", said) and "training of 2 " in said
    loaded = TableModel.load(model)
    assert loaded.n_networks == len(loaded.estimator.networks_) == 2
    x = loaded.encoder.encode(tables.read_table(folder / f"{target}-new.csv")).x
    each = [network.predict(loaded.estimator.x_scaling_.apply(x)) for network in loaded.estimator.networks_]
    mixed, found = bmp.mixture(each), pandas.read_csv(out)
    if target == "price":
        scaled = mixed.undo(loaded.estimator.y_scaling_).flat()
        np.testing.assert_allclose(found["price_mean"], scaled.mean, rtol=1e-9)
        np.testing.assert_allclose(found["price_high"], scaled.interval(0.9)[1], rtol=1e-9)
    else:
        probs = found[[f"kind_p_{label}" for label in loaded.classes]]
        np.testing.assert_allclose(probs, mixed.probs, rtol=1e-9, atol=1e-12)


def test_few_new_rows_are_unlike_the_training_data_of_several_networks(call, tmp_path):
    """What the networks do not agree on counts on both sides."""
    houses(150, 0).to_csv(tmp_path / "a.csv", index=False)
    houses(400, 1).assign(area=lambda table: table["area"] + 5_000.0).to_csv(tmp_path / "far.csv", index=False)
    houses(400, 1).to_csv(tmp_path / "b.csv", index=False)
    model = tmp_path / "model.safetensors"
    call("fit", tmp_path / "a.csv", "--target", "price", "--out", model, "--networks", 3, "--hold-out", 0, *QUICK)
    shares = {}
    for name in ("b", "far"):
        call("predict", model, tmp_path / f"{name}.csv", "--out", tmp_path / "out.csv")
        shares[name] = pandas.read_csv(tmp_path / "out.csv")["unlike_training"].mean()
    assert shares["b"] < 0.1 and shares["far"] > 0.8


def test_networks_are_counted(call, tmp_path):
    houses(60, 0).to_csv(tmp_path / "a.csv", index=False)
    out = tmp_path / "model.safetensors"
    said = call("fit", tmp_path / "a.csv", "--target", "price", "--out", out, "--networks", 0, code=2)
    assert "--networks" in said


def test_a_file_without_names_in_another_encoding_whose_target_has_a_unit(call, tmp_path):
    """The first row was taken for names; body mass in grams for 40 classes."""
    rng = np.random.default_rng(0)
    size, town = rng.uniform(1, 5, 40), rng.choice(["Köln", "Ulm"], 40)
    rows = [f"{s:.2f};{t};{3000 + 100 * s + 50 * (t == 'Ulm'):.0f} g" for s, t in zip(size, town, strict=True)]
    table, out = tmp_path / "t.csv", tmp_path / "m.safetensors"
    table.write_bytes("\n".join(rows).encode("latin-1"))
    fit = ("fit", table, "--target", "c3", "--out", out, "--hidden", "3", "--epochs", "2")
    assert "if the file has no line with names, give --no-header" in call(*fit, code=1)
    said = call(*fit, "--no-header")
    assert "note: t.csv is not UTF-8 text; read as cp1252" in said
    assert "this is a regression" in said and "40 numbers with the unit 'g', which is left out" in said
    assert "c3 (regression, in g)" in call("info", out)
    assert "c1,c2,c3,c3_mean" in call("predict", out, table, "--no-header")
    table.write_text("\n".join(f"{s:.2f};{3000 + 100 * s:.0f}" for s in size))
    assert "t.csv, line 1: there are numbers" in call(*fit, code=1)


def test_a_compact_model_is_small_and_predicts_the_same(call, tmp_path):
    from tests.cli.conftest import houses

    pandas = pytest.importorskip("pandas")
    table = tmp_path / "houses.csv"
    houses(60, 0).to_csv(table, index=False)
    options = ("--target", "price", "--epochs", "2", "--hidden", "8", "--hold-out", "0")
    found = {}
    for name, more in (("whole", ()), ("small", ("--compact",))):
        model = tmp_path / f"{name}.safetensors"
        call("fit", table, *options, "--out", model, *more)
        call("predict", model, table, "--out", tmp_path / f"{name}.csv")
        found[name] = pandas.read_csv(tmp_path / f"{name}.csv")
        said = next(line for line in call("info", model).splitlines() if line.startswith("file "))
        assert ("`bayesmp fit --compact` writes a smaller one" in said) == (name == "whole") and "MB, " in said
    pandas.testing.assert_frame_equal(found["small"], found["whole"], rtol=1e-5)
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("small", "whole")]
    assert sizes[0] < 0.7 * sizes[1]
