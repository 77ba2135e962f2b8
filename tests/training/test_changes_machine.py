"""Random sequences of add, remove, replace, run, save and load against a plain dictionary of examples."""

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import bayesmp as bmp
from tests.basics.test_persistence import assert_same_run
from tests.changed_runs import assert_holds
from tests.helpers import mlp

SIZES = st.integers(1, 9)


class Changes(RuleBasedStateMachine):
    """A run, and what it should hold: {id: (x, y)}."""

    @initialize(
        n=st.integers(1, 12),
        schedule=st.sampled_from(["parallel", "parallel", "sequential"]),
        store=st.sampled_from(["device", "host", "disk"]),
        site_dtype=st.sampled_from([None, "float64", "bfloat16"]),
        head=st.sampled_from([bmp.Regression("learn"), bmp.Regression(0.1), bmp.Softmax()]),
        wide=st.booleans(),
    )
    def start(self, n, schedule, store, site_dtype, head, wide):
        self.generator = torch.Generator().manual_seed(n)
        self.n_in = 12 if wide else 2  # wide layers remember what each example sent
        self.is_classifier = isinstance(head, bmp.Softmax)
        network = mlp([self.n_in, 3, 2 if self.is_classifier else 1], head)
        x, y = self.draw(n)
        self.trainer = bmp.Trainer(
            network, x, y, batch_size=4, schedule=schedule, site_store=store, site_dtype=site_dtype, debug=True
        )
        self.model = dict(enumerate(zip(x, y, strict=True)))
        self.n_ids = n

    def draw(self, n):
        """Examples of order one, so that no few of them are warned of as not scaled."""
        numbers = torch.randn(n, self.n_in + 1, generator=self.generator)
        numbers += 0.5 * numbers.sign()
        x, y = numbers[:, :-1], numbers[:, -1:]
        return x, (y[:, 0] > 0).long() if self.is_classifier else y

    @rule(n=SIZES)
    def add(self, n):
        x, y = self.draw(n)
        ids = self.trainer.add(x, y)
        assert ids.tolist() == list(range(self.n_ids, self.n_ids + n))
        self.n_ids += n
        self.model |= dict(zip(ids.tolist(), zip(x, y, strict=True), strict=True))

    def choose(self, data, most):
        return data.draw(st.lists(st.sampled_from(list(self.model)), min_size=1, max_size=most, unique=True))

    @precondition(lambda self: len(self.model) > 1)
    @rule(data=st.data())
    def remove(self, data):
        ids = self.choose(data, len(self.model) - 1)
        self.trainer.remove(ids)
        for k in ids:
            del self.model[k]

    @precondition(lambda self: len(self.trainer.members) > 1)
    @rule(data=st.data())
    def remove_a_batch(self, data):
        rows = data.draw(st.sampled_from(self.trainer.members))
        ids = self.trainer.ids[rows]
        self.trainer.remove(ids)
        for k in ids.tolist():
            del self.model[k]

    @rule(data=st.data())
    def replace(self, data):
        ids = self.choose(data, 5)
        x, y = self.draw(len(ids))
        self.trainer.replace(ids, x, y)
        self.model |= dict(zip(ids, zip(x, y, strict=True), strict=True))

    @rule()
    def run(self):
        self.trainer.run(1)

    @rule()
    def save_and_load(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            self.trainer.save(path)
            loaded = bmp.Trainer.load(path, self.trainer.x, self.trainer.y)
        assert_same_run(loaded, self.trainer)
        self.trainer = loaded

    @rule()
    def predict(self):
        assert self.trainer.network.predict(self.trainer.x).mean.isfinite().all()

    @invariant()
    def nothing_is_lost(self):
        if hasattr(self, "trainer"):
            assert_holds(self.trainer, self.model)


TestChanges = pytest.mark.filterwarnings("ignore:training ended worse than a constant")(
    Changes.TestCase
)  # runs are short
TestChanges.settings = settings(
    max_examples=20,
    stateful_step_count=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
