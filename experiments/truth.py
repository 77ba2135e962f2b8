"""Our bands against the true posterior: long runs of NUTS on three small networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.references import CASES, FOLDER
from benchmarks.truth import Answer, Reference, draw, region_rows, train_case
from experiments.base import Experiment, Options, Picture, Piece, Record, Result, Table, select

EPOCHS, QUICK_EPOCHS = 400, 5


class Truth(Experiment):
    name = "truth"
    title = "Bands against the true posterior"
    about = (
        "Three small networks on one-dimensional data with known noise, whose true posteriors are known from long runs "
        "of NUTS (benchmarks/references). Epistemic standard deviations over NUTS's: the median over the points of a "
        "region, then over seeds. NUTS had the prior of seed 0; the other seeds draw other prior means."
    )
    parts = tuple(CASES)
    seeds = 5
    quick_seeds = 1

    def pieces(self, options: Options) -> list[Piece]:
        epochs = QUICK_EPOCHS if options.quick else EPOCHS
        return [
            Piece(f"{case}, seed {seed}", {"case": case, "seed": seed, "epochs": epochs})
            for case in self.chosen_parts(options)
            for seed in range(self.n_seeds(options))
        ]

    def compute(self, parameters: Mapping[str, Any], options: Options) -> Record:
        reference = _reference(parameters["case"])
        device = torch.device(options.device)
        answer = train_case(reference, epochs=parameters["epochs"], seed=parameters["seed"], device=device)
        inside = reference.regions["inside"]
        rmse = float(np.sqrt(np.mean((answer.mean - reference.f_mean)[inside] ** 2)))
        found = {"ratios": reference.ratios(answer.std), "rmse_to_nuts": rmse, "train_seconds": answer.seconds}
        return found | {"mean": answer.mean.astype(np.float32), "std": answer.std.astype(np.float32)}

    def summarise(self, results: Sequence[Result]) -> list[Table]:
        rows: list[dict[str, Any]] = []
        for case in dict.fromkeys(result["case"] for result in results):
            own = select(results, case=case)
            rmse = float(np.median([result["rmse_to_nuts"] for result in own]))
            for row in region_rows(case, _reference(case), [result["ratios"] for result in own]):
                shown = {"case": case, "region": row["region"], "n": len(own), "std / NUTS's": row["std / NUTS's"]}
                shown |= {"range over seeds": row["seeds"], "range over NUTS's chains": row["chains"]}
                rows.append(shown | {"RMSE to NUTS's mean, inside": rmse if row["region"] == "inside" else None})
        note = (
            "1 is right. Inside: between the data; near: up to half their range away; far: the rest of the grid; gap: "
            "between two groups of data. Single chains of NUTS differ, so no ratio is known better than their range."
        )
        return [Table(self.title, rows, note)]

    def draw(self, results: Sequence[Result], folder: Path) -> list[Picture]:
        answers = {
            result["case"]: Answer(result["mean"].astype(float), result["std"].astype(float), 0.0)
            for result in reversed(results)  # so that the first seed stays
        }
        answers = {case: answers[case] for case in CASES if case in answers}
        draw(answers, {case: _reference(case) for case in answers}, folder / "bands.png")
        return [Picture("bands.png", "Mean and two standard deviations of the function, without noise; seed 0.")]


def _reference(case: str) -> Reference:
    return Reference.load(FOLDER / f"{case}.npz", CASES[case])
