"""A Bayesian network: a graph of layers, a head, and what is believed about all weights."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor

from bayesmp import checks, persistence
from bayesmp.arithmetic import few_threads
from bayesmp.belief import Belief, LayerAnchors, Layout, Past, Points
from bayesmp.diagnosis import Diagnosis, Told, diagnose
from bayesmp.gaussian import Gaussian, Moments
from bayesmp.graph import Graph
from bayesmp.heads import Argmax, Head, Regression, Softmax
from bayesmp.heads.base import P
from bayesmp.layers import AvgPool2d, Conv2d, Flatten, LeakyReLU, Linear, MaxPool2d, ReLU
from bayesmp.layers.base import Gradient, Layer, Shape, Weights
from bayesmp.priors import RULES
from bayesmp.regime import MOMENTS
from bayesmp.shapes import find_input_shape, shapes_along

PREDICT_BUDGET = {"cpu": 4_000_000, "cuda": 64_000_000}  # numbers in the widest layer of one prediction batch; times
# about 80 bytes at work in float32
LEARNED = (
    "marginal",
    "head_log_weights",
    "sum_share",
    "regime",
    "belief",
    "flat_targets",
    "told",
)  # training changes them
LAYERS = {cls.__name__: cls for cls in (AvgPool2d, Conv2d, Flatten, LeakyReLU, Linear, MaxPool2d, ReLU)}  # in files
HEADS = {cls.__name__: cls for cls in (Argmax, Regression, Softmax)}


@dataclass(frozen=True)
class Slot:
    """Where one weight tensor lives in the flat vector of all weights."""

    layer: int
    name: str
    shape: Shape
    start: int
    stop: int


class Network(Generic[P]):
    """A Bayesian network: layers, a head, and what is believed about all weights.

    All weights of all layers live in one flat vector; `prior` and `marginal` are Gaussians of that shape, and the
    layers see views of it. `start` holds the means at which training starts (float64, on the CPU).

    What training learns beside the marginal, and `reset` takes back: `regime`, how sweeps are done; `sum_share`, one
    number per layer, how much of the variance of its sums is left when the correlations between its weights are
    counted in sweeps (schedules/metric.py); and `belief`, the joint belief about all weights that predictions are made
    with (belief/), None before the first training; `flat_targets`, whether targets came as (n,), not (n, 1); and
    `told`, the run's history and moments of its data, for `diagnose`; files do not hold it.

    `past` is what data of the past say beside the prior, in a network that `as_prior` made, else None.

    Args:
        layers: in order, e.g. [Linear(1, 16), LeakyReLU(), Linear(16, 1)].
        head: Regression(noise_var), Softmax() or Argmax().
        seed: draws the means at which training starts, which break the symmetry between units.
        input_shape: shape of one example. Needed only for networks that start with images and whose size cannot be
            found from a Linear layer behind a Flatten; where several sizes fit, the training data decide.
        prior: rule for the prior variances of layers that are given none, "narrow" or "paper" (priors.py).
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        head: Head[P],
        *,
        seed: int = 0,
        input_shape: Sequence[int] | None = None,
        prior: str = "narrow",
    ) -> None:
        self.layers = list(layers)
        _check_parts(self.layers, head)
        if prior not in RULES:
            raise ValueError(f"prior must be one of {RULES}, got {prior!r}")
        self.head = head
        self.seed = seed
        self.prior_rule = prior
        self._asks_data = input_shape is None  # for the size of images, where layers fit several
        self.input_shape = find_input_shape(self.layers, input_shape)
        self.shapes = shapes_along(self.layers, self.input_shape)  # shapes[k]: input of layer k; last: output
        self.n_outputs = head.n_outputs(self.shapes[-1])
        self.slots = _slots(self.layers)
        self._sizes = [slot.stop - slot.start for slot in self.slots]
        self._layer_sizes = [sum(math.prod(shape) for shape in layer.weight_shapes().values()) for layer in self.layers]
        self.graph = Graph(self.layers)
        belief, start, self.spread = self._draw_prior()
        self.marginal = belief.map(lambda part: part.float())
        self.past: Past | None = None
        self._yesterday: dict[str, Any] | None = None  # what was learned of the past, and can be gone back to
        self.prior = belief
        self.start = start
        self.sum_share = torch.ones(len(self.layers))
        self.regime = MOMENTS
        self._renew_belief: Callable[[], None] | None = None
        self.belief = None
        self.flat_targets = False
        self.told: Told | None = None
        self.run: weakref.ref[Any] | None = None  # the Trainer that trains it
        self.head_log_weights = head.prior_log_weights().float()

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def prior(self) -> Gaussian:
        """What is believed before any data, in the network's dtype and on its device.

        A prior that is assigned is kept in float64, too, so that a later change of dtype starts from the full
        precision and a saved network has the same prior in any dtype. Assign it; changes in place would be lost.
        Training then starts at its means; assign `start` for other ones. A prior that is assigned takes the place of
        the past (`as_prior`), too.
        """
        return self._prior

    @prior.setter
    def prior(self, belief: Gaussian) -> None:
        if hasattr(self, "_prior") and belief is self.marginal:
            raise ValueError(
                "net.prior = net.marginal would take what was learned as the prior but drop all correlations between "
                "weights, which makes it far too sure; net.as_prior() keeps them, or train on old and new data together"
            )
        self._exact_prior = belief.map(lambda part: part.to(device="cpu", dtype=torch.float64, copy=True))
        self._prior = self._exact_prior.map(lambda part: part.to(self.marginal.tau, copy=True))
        self.start = self._exact_prior.mean
        self.past = self._yesterday = None

    @property
    def exact_prior(self) -> Gaussian:
        """The prior in float64 on the CPU, as it was assigned."""
        return self._exact_prior

    @property
    def belief(self) -> Belief | None:
        """The joint belief about all weights, None before the first training; made anew here if its data changed."""
        if self._renew_belief is not None:
            renew, self._renew_belief = self._renew_belief, None
            try:
                renew()
            except BaseException:
                self._renew_belief = renew
                raise
        return self._belief

    @belief.setter
    def belief(self, belief: Belief | None) -> None:
        self._belief, self._renew_belief = belief, None
        self._belief_mean = None if belief is None else self.marginal.mean  # which it is about

    @property
    def has_belief(self) -> bool:
        """Whether there is a joint belief, or will be when it is asked for."""
        return self._belief is not None or self._renew_belief is not None

    def renew_belief_with(self, renew: Callable[[], None]) -> None:
        """Have the joint belief made by this function, which assigns it, when it is next asked for: the data of a run
        were changed, and perhaps they will be again before anybody wants to know.
        """
        self._belief, self._renew_belief = None, renew

    @property
    def has_learned(self) -> bool:
        """Whether the marginal is another than the prior."""
        prior, marginal = self.prior, self.marginal
        return not (torch.equal(prior.tau, marginal.tau) and torch.equal(prior.rho, marginal.rho))

    @property
    def is_trained(self) -> bool:
        """Whether it has a joint belief, and that is not just the one it took over as its prior."""
        return self.has_belief and (self._yesterday is None or self._belief is not self._yesterday["belief"])

    @property
    def device(self) -> torch.device:
        return self.marginal.tau.device

    @property
    def dtype(self) -> torch.dtype:
        return self.marginal.tau.dtype

    @property
    def n_weights(self) -> int:
        return self.slots[-1].stop

    def to(
        self, device: str | torch.device | torch.dtype | None = None, dtype: torch.dtype | None = None
    ) -> Network[P]:
        """Move the beliefs to a device or a dtype (torch.float32 or torch.float64), in place."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        if dtype not in (None, torch.float32, torch.float64):
            raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        has_learned, is_trained, belief = self.has_learned, self.is_trained, self.belief
        dtype = dtype or self.dtype
        device = self.device if device is None else torch.device(device)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                f"cannot move to {str(device)!r}: PyTorch sees no CUDA device here (torch.cuda.is_available() is "
                "False); stay on 'cpu', or install a CUDA build of PyTorch on a machine with a GPU"
            )
        self.marginal = self.marginal.map(lambda part: part.to(device=device, dtype=dtype, copy=True))
        self._prior = self._exact_prior.map(lambda part: part.to(self.marginal.tau, copy=True))
        if not has_learned:
            self.marginal = self.prior.map(torch.clone)
        self.head_log_weights = self.head_log_weights.to(device=device, dtype=dtype)
        self.sum_share = self.sum_share.to(device=device, dtype=dtype)
        self.belief = None if belief is None else belief.to(device, dtype)
        if self._yesterday is not None:
            self._remember(_moved(self._yesterday, device, dtype))
            if belief is not None and not is_trained:
                self.belief = self._yesterday["belief"]
            self.renew_past()
        return self

    def take_shape(self, shape: Sequence[int]) -> None:
        """Take the size of images from the training data, where it was not given and all layers fit it as well."""
        if not self._asks_data or len(shape) != 3 or len(self.input_shape) != 3:
            return
        try:
            shapes = shapes_along(self.layers, tuple(shape))
        except ValueError:
            return
        self.input_shape, self.shapes = shapes[0], shapes

    def cuda(self) -> Network[P]:
        """`to("cuda")`."""
        return self.to("cuda")

    def cpu(self) -> Network[P]:
        """`to("cpu")`."""
        return self.to("cpu")

    def reset(self) -> None:
        """Forget all data but those of the past: the marginal becomes the prior again."""
        if self._yesterday is not None:
            self.learn(_copied(self._yesterday))
            self.renew_past()
            return
        self.marginal = self.prior.map(torch.clone)
        self.head_log_weights = self.head_prior.to(self.head_log_weights)
        self.sum_share = torch.ones_like(self.sum_share)
        self.regime = MOMENTS
        self.belief = None
        self.flat_targets = False
        self.told = None

    def __getstate__(self) -> dict[str, Any]:
        belief = self.belief  # made now if it is due
        return {**self.__dict__, "_belief": belief, "run": None}  # a copy, or one in another process, has no run

    def learned(self) -> dict[str, Any]:
        """What training has learned, and `reset` takes back, by name."""
        return {name: getattr(self, name) for name in LEARNED}

    def learn(self, learned: dict[str, Any]) -> None:
        """Take what a network of the same layers and head has learned."""
        for name in LEARNED:
            setattr(self, name, learned[name])

    # --- the past ----------------------------------------------------------------------------------------------------

    def as_prior(self) -> Network[P]:
        r"""A new network whose prior is what this one has learned, with all correlations: the joint belief.

        Train it on new data alone (`bayesmp.fit`, `Trainer`; the parallel schedule); nothing of the old data is needed.
        Until then it predicts as this one does. With N(m_0, H^{-1}) the belief, H = D + K is split into a precision per
        weight, the new network's `prior` around m_0, and `past`, which is K. What was learned about the head's constant
        is its prior, too. `reset` goes back to here, and what the new network learns can be the prior of the next.

        For a linear network with known noise it is exactly as if old and new data were trained on together. In others K
        is about the network linearised around m_0, and moves far from there undo it. So the belief also keeps where its
        rows come from: inputs of up to 1,024 examples, without their targets, which are swept again in every epoch
        (belief/past.py). They go into files of this network, too. In large networks old and new data share the rows,
        as there are data behind them, so what is known of single days fades with their number.

        Only new data belong to it: data that this network has seen already would be counted twice, and nothing here
        can tell.
        """
        if self.belief is None:
            raise ValueError(
                "this network has no joint belief that could be a prior: train it first (bayesmp.fit), or let an "
                "interrupted run end (Trainer.run); a network that has seen nothing is its own prior"
            )
        self._check_belief(self.belief)
        new = copy.copy(self)
        new.learn(_copied(self.learned()))
        variances, _ = self.belief.as_past()
        var = self._from_matrices([part.double() for part in variances])
        new.prior = Gaussian.from_moments(self.marginal.mean.double(), var)
        new._remember(self.learned())
        return new

    def _check_belief(self, belief: Belief) -> None:
        """Raise if the belief is not about these means and this prior."""
        if self._belief_mean is None or not torch.equal(self._belief_mean, self.marginal.mean):
            raise ValueError(
                "the joint belief is about other means than the network has now: they were changed after training "
                "(net.marginal); train it again, or call as_prior() before"
            )
        if not all(
            torch.allclose(own.double(), var.double(), rtol=1e-5, atol=0.0)
            for own, var in zip(belief.prior_vars, self.layout.prior_vars, strict=True)
        ):
            raise ValueError(
                "the joint belief was made with another prior than the network has now: net.prior was assigned after "
                "training; train it again, or call as_prior() before"
            )

    @torch.no_grad()
    def _remember(self, learned: dict[str, Any]) -> None:
        """Let what was learned of the past, around the prior's means, hold beside the prior."""
        self._yesterday = {**_copied(learned), "head": self.head}
        belief: Belief = learned["belief"]
        self._past_mean = learned["marginal"].mean
        variances, past = belief.as_past()
        points = belief.basis.points
        if points is not None:
            now = self.learned()
            self.learn(learned)
            self._past_outputs, gradients = self.mixed_gradients(points)
            self.learn(now)
            if past.points is None:
                past = past.over(points, _anchors(gradients, variances), variances)
        self.past = past
        self._past_rho = self._from_matrices(self.past.precisions).to(self.prior.rho)

    def check_past(self) -> None:
        """Raise if the past is that of another head."""
        if self._yesterday is not None and self.head is not self._yesterday["head"]:
            raise ValueError(
                f"this network's prior was learned with another head, {self._yesterday['head']!r}, and now it has "
                f"{self.head!r}: what the past says is about outputs of the former; keep the head that as_prior() gave"
            )

    @property
    def head_prior(self) -> Tensor:
        """Log-prior over the grid of the head's constant: the head's own, or what the past says."""
        return self.head.prior_log_weights() if self._yesterday is None else self._yesterday["head_log_weights"]

    def prior_at(self, mean: Tensor) -> Gaussian:
        """What prior and past say about each weight at these means: D and K as one message, in float64.

        Its slope at `mean` is that of N(m_0, (D + K)^{-1}); its precision D + diag K.
        """
        prior = self.prior.map(torch.Tensor.double)
        if self.past is None:
            return prior
        change = mean.double() - self._past_mean.double()
        slope = self._past_pull(change) + self._from_matrices(self.past.pull_at_last())
        rho = self._past_rho.double()
        return Gaussian(prior.tau + rho * mean.double() - slope, prior.rho + rho)

    def prior_pull(self, change: Tensor) -> Tensor:
        """D + K applied to a change of all weights: by how much prior and past then pull back."""
        pull = self.prior.rho * change
        return pull if self.past is None else pull + self._past_pull(change)

    @torch.no_grad()
    def renew_past(self) -> None:
        """See the past from the current means, where it is known from which inputs it comes (belief/past.py)."""
        if self.past is None or self.past.points is None:
            return
        outputs, gradients = self.mixed_gradients(self.past.points)
        anchors = _anchors(gradients, self.layout.prior_vars)
        self.past = self.past.renewed(anchors, outputs - self._past_outputs)
        self._past_mean = self.marginal.mean

    def _past_pull(self, change: Tensor) -> Tensor:
        assert self.past is not None
        parts = self.unpack(change)
        matrices = [node.layer.to_matrix(parts[node.index]) for node in self.graph.weight_nodes]
        return self._from_matrices(self.past.pull(matrices)).to(change)

    def _from_matrices(self, matrices: Sequence[Tensor]) -> Tensor:
        """The flat vector of one matrix (o, i) per layer with weights."""
        tensors: list[dict[str, Tensor]] = [{} for _ in self.layers]
        for node, matrix in zip(self.graph.weight_nodes, matrices, strict=True):
            tensors[node.index] = node.layer.from_matrix(matrix)
        return self.pack_tensors(tensors)

    # --- weights, flat and by layer ----------------------------------------------------------------------------------

    def unpack(self, flat: Tensor) -> list[dict[str, Tensor]]:
        """One dict of weight tensors per layer, as views of a flat vector."""
        tensors: list[dict[str, Tensor]] = [{} for _ in self.layers]
        for slot, part in zip(self.slots, flat.split(self._sizes), strict=True):
            tensors[slot.layer][slot.name] = part if len(slot.shape) == 1 else part.view(slot.shape)
        return tensors

    def pack(self, messages: Sequence[dict[str, Gaussian]]) -> Gaussian:
        """The flat Gaussian of per-layer messages to weights; inverse of unpacking."""
        return Gaussian(
            self.pack_tensors([{name: part.tau for name, part in layer.items()} for layer in messages]),
            self.pack_tensors([{name: part.rho for name, part in layer.items()} for layer in messages]),
        )

    def pack_tensors(self, tensors: Sequence[dict[str, Tensor]]) -> Tensor:
        """The flat vector of per-layer tensors."""
        return torch.cat([tensors[slot.layer][slot.name].reshape(-1) for slot in self.slots])

    def weights(self, belief: Gaussian | None = None) -> list[Weights]:
        """Moments of all weights per layer, from a flat belief (the marginal if not given): variances as sums of
        these weights have them, with the layer's share.
        """
        belief = self.marginal if belief is None else belief
        var = belief.rho.reciprocal()
        means = self.unpack(belief.tau * var)
        for part, share in zip(var.split(self._layer_sizes), self.sum_share.split(1), strict=True):
            part.mul_(share)
        variances = self.unpack(var)
        return [
            {name: Moments(mean[name], variance[name]) for name in mean}
            for mean, variance in zip(means, variances, strict=True)
        ]

    # --- saving ------------------------------------------------------------------------------------------------------

    def save(self, path: persistence.PathLike) -> None:
        """Write layers, head, prior and beliefs to a safetensors file; `bayesmp.load` reads it.

        The joint belief is about the slopes at up to 1,024 rows of the training data, so their inputs are in the file,
        without their targets; so they are in all files that hold a trained network.
        """
        persistence.write(path, kind="model", header={"network": self.description()}, tensors=self.state())

    def description(self) -> dict[str, Any]:
        """What makes the network again but for its beliefs, as JSON holds it."""
        parts = []
        for layer in self.layers:
            names = [name for name in layer.weight_shapes() if getattr(layer, f"{name}_prior", None) is not None]
            parts.append({**persistence.describe(layer, LAYERS), "given_priors": names})
        return {
            "layers": parts,
            "head": persistence.describe(self.head, HEADS),
            "seed": self.seed,
            "input_shape": self.input_shape,
            "prior": self.prior_rule,
            "flat_targets": self.flat_targets,
            "regime": self.regime.to_json(),
            "belief": self.belief.description() if self.belief is not None and self.is_trained else None,
            "past": self._describe_past(),
            "dtype": str(self.dtype).removeprefix("torch."),
        }

    def state(self) -> dict[str, Tensor]:
        """The tensors to save: the prior in full precision and where training starts, the beliefs, the values the
        head's constant may have.
        """
        return {
            "prior.tau": self._exact_prior.tau,
            "prior.rho": self._exact_prior.rho,
            "marginal.tau": self.marginal.tau,
            "marginal.rho": self.marginal.rho,
            "start": self.start,
            "sum_share": self.sum_share,
            "head.log_weights": self.head_log_weights,
            "head.grid": self.head.grid,
            **(_named("belief.", self.belief.state()) if self.belief is not None and self.is_trained else {}),
            **_named("past.", self._past_state()),
        }

    def _describe_past(self) -> dict[str, Any] | None:
        if self._yesterday is None:
            return None
        return {
            "belief": self._yesterday["belief"].description(),
            "regime": self._yesterday["regime"].to_json(),
            "flat_targets": self._yesterday["flat_targets"],
            "is_all": self.belief is self._yesterday["belief"],
        }

    def _past_state(self) -> dict[str, Tensor]:
        if self._yesterday is None:
            return {}
        learned = self._yesterday
        return {
            "marginal.tau": learned["marginal"].tau,
            "marginal.rho": learned["marginal"].rho,
            "sum_share": learned["sum_share"],
            "head_log_weights": learned["head_log_weights"],
            **_named("belief.", learned["belief"].state()),
        }

    # --- first order -------------------------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """The weight layers as the joint belief sees them: prior variances and means as matrices (o, i)."""
        var, mean = self.unpack(self.prior.var), self.unpack(self.marginal.mean)
        nodes = self.graph.weight_nodes
        return Layout(
            [node.layer.to_matrix(var[node.index]) for node in nodes],
            [node.layer.to_matrix(mean[node.index]) for node in nodes],
        )

    def gradients(self, x: Tensor, slopes: Tensor | None = None) -> tuple[Moments, list[Gradient]]:
        """Outputs of a sweep at the marginals, and slopes of k mixtures of them in each layer's weights.

        Args:
            x: (b, *input_shape).
            slopes: (k, b, n_outputs), how the outputs are mixed; each output by itself if not given.
        """
        return self.gradients_and_noise(x, slopes)[:2]

    def mixed_gradients(self, points: Points) -> tuple[Tensor, list[Gradient]]:
        """One mixture of the outputs at each point, (m,), and its slopes in each layer's weights, (1, m, ...)."""
        size = self.rows_at_once(2)
        parts = [
            (*self.gradients(x.to(self.device), mixes[None]), mixes)
            for x, mixes in zip(points.x.split(size), points.mixes.split(size), strict=True)
        ]
        found = [gradients for _, gradients, _ in parts]
        return torch.cat([(m_out.mean * mixes).sum(1) for m_out, _, mixes in parts]), [
            Gradient(torch.cat([part[k].inputs for part in found]), torch.cat([part[k].slopes for part in found], 1))
            for k in range(len(found[0]))
        ]

    def gradients_and_noise(self, x: Tensor, slopes: Tensor | None = None) -> tuple[Moments, list[Gradient], Tensor]:
        """`gradients`, and the part of the outputs' variance that messages to weights take for noise, (b, o)."""
        trace = self.graph.sweep_out(x, self.weights(), self.regime)
        if slopes is None:
            eye = torch.eye(self.n_outputs, dtype=x.dtype, device=x.device)
            slopes = eye[:, None, :].expand(-1, len(x), -1)
        found = [
            trace.locals[node.index].gradient(slope)
            for node, slope in self.graph.pull(trace, slopes)
            if node.has_weights
        ]
        noise = torch.zeros_like(trace.outputs.mean)
        if self.regime.input_noise and bool((self.sum_share == 1.0).all()):  # else too little is left to weaken a pull
            noise = self.graph.output_noise(trace)
        return trace.outputs, found[::-1], noise

    # --- prediction --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def predict(self, x: Any, *, batch_size: int | None = None, joint: bool = True) -> P:
        """Predictions for new inputs, deterministic: no sampling.

        Args:
            x: (n, *input_shape), tensor or array.
            batch_size: rows at a time; chosen so that memory stays bounded if not given.
            joint: take the variance of the outputs from the joint belief, by pulling each output's slopes back through
                the network: as many sweeps back as there are outputs. False takes it from one sweep with independent
                weights: cheaper, above all with many outputs, and good where the data are, but too sure elsewhere. A
                network that was never trained has no joint belief.

        Returns:
            RegressionPrediction (.mean .epistemic_var .noise_var .noise_spread .var .std .interval .quantile .cdf
            .log_prob .sample), of shape (n,) if the targets in training were; or ClassPrediction (.probs .label
            .entropy .epistemic .aleatoric .log_prob .sample); on the network's device.
        """
        x = checks.check_inputs(x, self.input_shape, self.dtype)
        with few_threads(self.device, n_products=self._products(joint=joint) * len(x)):
            parts = [
                self.head.predict(m_out, self.head_log_weights, covariance)
                for m_out, covariance in self._output_beliefs(x, batch_size, joint=joint)
            ]
        found: Any = type(parts[0]).concatenate(parts)  # type: ignore[attr-defined]
        return found.flat() if self.flat_targets else found

    __call__ = predict

    def _output_beliefs(
        self, x: Tensor, batch_size: int | None, *, joint: bool
    ) -> Iterator[tuple[Moments, Tensor | None]]:
        """Moments of the outputs, and their covariances (b, o, o) where the joint belief is asked, in slices."""
        belief = self.belief if joint else None
        if batch_size is None:
            batch_size = self.rows_at_once(1 if belief is None else self.n_outputs)
        batch_size = checks.check_positive_int(batch_size, "batch_size")
        weights = self.weights()
        for rows in x.split(batch_size):
            rows = rows.to(device=self.device, dtype=self.dtype)
            if belief is None:
                yield self.graph.outputs(rows, weights, self.regime), None
                continue
            m_out, gradients = self.gradients(rows)
            covariance = belief.covariance(gradients).to(self.dtype)
            yield Moments(m_out.mean, covariance.diagonal(dim1=1, dim2=2)), covariance

    def _products(self, *, joint: bool) -> int:
        """Multiplications of the largest product of matrices in the prediction of one example."""
        if joint and self.belief is not None:
            return max(self.n_weights, self.n_outputs * self.belief.rank**2)
        return self.n_weights

    def rows_at_once(self, n_slopes: int) -> int:
        """Examples whose slopes in all edges fit into memory that is always there."""
        widest = max(int(torch.Size(shape).numel()) for shape in self.shapes)
        if n_slopes > 1:  # rows of convolutions are formed, too
            widest = max(widest, *(slot.stop - slot.start for slot in self.slots if len(slot.shape) > 2), 0)
        budget = PREDICT_BUDGET.get(self.device.type, PREDICT_BUDGET["cpu"])
        return min(4096, max(1, budget // (widest * n_slopes)))

    @torch.no_grad()
    def sample_functions(self, x: Any, n: int = 1, *, seed: int = 0) -> Tensor:
        """Draws (n, len(x), n_outputs) of the network's function from the joint belief.

        Each draw is one function for all inputs. The belief is about the network linearised around its means, and so
        are the draws: their mean and variance are `.mean` and `.epistemic_var` of `predict`.

        Args:
            x: (b, *input_shape), tensor or array.
            n: number of draws.
            seed: of the draws; the same seed gives the same functions at other inputs.
        """
        if self.belief is None:
            raise ValueError("there is no joint belief to draw from yet; train the network first (bayesmp.fit)")
        x = checks.check_inputs(x, self.input_shape, self.dtype)
        n = checks.check_positive_int(n, "n")
        with few_threads(self.device, n_products=self.n_weights * len(x)):
            return self._sample_functions(self.belief, x, n, torch.Generator().manual_seed(seed))

    def _sample_functions(self, belief: Belief, x: Tensor, n: int, generator: torch.Generator) -> Tensor:
        nodes, weights = self.graph.weight_nodes, self.weights()
        draws = []
        for _ in range(n):
            drawn: list[dict[str, Tensor]] = [{} for _ in self.layers]
            for node, matrix in zip(nodes, belief.sample(generator), strict=True):
                drawn[node.index] = node.layer.from_matrix(matrix.to(self.marginal.tau))
            draws.append(drawn)
        found = []
        for rows in x.split(self.rows_at_once(1)):
            trace = self.graph.sweep_out(rows.to(device=self.device, dtype=self.dtype), weights, self.regime)
            changes = [list(self.graph.push(trace, drawn))[-1][1] for drawn in draws]
            found.append(trace.outputs.mean + torch.stack(changes))
        return torch.cat(found, 1)

    # --- looking at it -----------------------------------------------------------------------------------------------

    def diagnose(self, x: Any, y: Any) -> Diagnosis:
        """What looks wrong with this trained network, in words and figures, with what to do; `print` it.

        It looks at the scale of the data, at units and weights that have learned nothing, at the prior, the noise, the
        end of the training run, and at how well these rows are predicted. A network that was loaded from a file knows
        less about its training, and the answer says what was not judged.

        Args:
            x, y: rows that it was not trained on, as for `fit`.
        """
        trainer = None if self.run is None else self.run()
        return diagnose(self, x, y, trainer=trainer)

    def __repr__(self) -> str:
        lines = [f"Network({self.n_weights:,} weights, head={self.head!r}, {self.dtype}, {self.device})"]
        lines.append(f"  input {' x '.join(map(str, self.input_shape))}")
        for index, layer in enumerate(self.layers):
            n_own = sum(slot.stop - slot.start for slot in self.slots if slot.layer == index)
            shape = " x ".join(map(str, self.shapes[index + 1]))
            lines.append(f"  {layer!r:<34} -> {shape:<16}" + (f"{n_own:>12,} weights" if n_own else ""))
        return "\n".join(line.rstrip() for line in lines)

    def _draw_prior(self) -> tuple[Gaussian, Tensor, Tensor]:
        """The prior of all weights, where training starts, and on which scale (priors.py), in float64 on the CPU."""
        generator = torch.Generator().manual_seed(self.seed)
        first = self.slots[0].layer
        found = [
            layer.weight_priors(shape, is_first=index == first, generator=generator, rule=self.prior_rule)
            for index, (layer, shape) in enumerate(zip(self.layers, self.shapes[:-1], strict=True))
        ]
        belief = self.pack([{name: prior.belief for name, prior in layer.items()} for layer in found])
        start = torch.cat([found[slot.layer][slot.name].start.reshape(-1) for slot in self.slots])
        spread = belief.rho.rsqrt()
        for slot in self.slots:
            given = found[slot.layer][slot.name].spread
            if given is not None:
                spread[slot.start : slot.stop] = given
        return belief, start, spread


def _anchors(gradients: Sequence[Gradient], variances: Sequence[Tensor]) -> list[LayerAnchors]:
    return [LayerAnchors.of(part, var) for part, var in zip(gradients, variances, strict=True)]


def _named(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: part for name, part in tensors.items()}


def _copied(learned: dict[str, Any]) -> dict[str, Any]:
    """What was learned, in tensors that a training run may change."""
    marginal: Gaussian = learned["marginal"]
    clones = {name: learned[name].clone() for name in ("head_log_weights", "sum_share")}
    return {**learned, **clones, "marginal": marginal.map(torch.clone)}


def _moved(learned: dict[str, Any], device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """What was learned on another device, in another precision."""
    marginal: Gaussian = learned["marginal"]
    moved = {name: learned[name].to(device=device, dtype=dtype) for name in ("head_log_weights", "sum_share")}
    marginal = marginal.map(lambda part: part.to(device=device, dtype=dtype))
    return {**learned, **moved, "marginal": marginal, "belief": learned["belief"].to(device, dtype)}


def _check_parts(layers: list[Layer], head: Head) -> None:
    for index, layer in enumerate(layers):
        if not isinstance(layer, Layer):
            raise ValueError(f"layer {index} must be a bayesmp layer such as Linear(2, 3), got {layer!r}")
    if not any(layer.weight_shapes() for layer in layers):
        raise ValueError("a network needs at least one layer with weights (Linear or Conv2d)")
    if not isinstance(head, Head):
        raise ValueError(f"head must be Regression(noise_var), Softmax() or Argmax(), got {head!r}")


def _slots(layers: list[Layer]) -> list[Slot]:
    slots, start = [], 0
    for index, layer in enumerate(layers):
        for name, shape in layer.weight_shapes().items():
            stop = start + int(torch.Size(shape).numel())
            slots.append(Slot(index, name, shape, start, stop))
            start = stop
    return slots
