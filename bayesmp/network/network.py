"""A Bayesian network: its layers and head, what it believes about all weights, and what it is for: predictions, draws,
slopes, files, a diagnosis.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic

import torch
from torch import Tensor

from bayesmp.basics import checks, persistence
from bayesmp.basics.arithmetic import few_threads, undisturbed
from bayesmp.belief import Belief, Layout, Past, Points
from bayesmp.diagnosis import Diagnosis, RunSummary, diagnose
from bayesmp.heads import Head
from bayesmp.heads.base import P
from bayesmp.layers.base import Gradient, Layer, Weights
from bayesmp.layers.priors import RULES
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.regime import MOMENTS
from bayesmp.network.compact import compacted
from bayesmp.network.fitted import Fitted
from bayesmp.network.flat_weights import FlatWeights, Slot
from bayesmp.network.graph import Graph
from bayesmp.network.learned import LEARNED, Learned
from bayesmp.network.linearised import Linearised
from bayesmp.network.old_data import Yesterday, check_belief
from bayesmp.network.parts import ELSEWHERE, HEADS, LAYERS, check_head, check_layers, given_priors
from bayesmp.network.shapes import ImageSizeError, find_input_shape, shapes_along
from bayesmp.network.varying_noise import VaryingNoise

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

Factor = float  # inside the class the name is a method's, as PyTorch has it


class Network(Generic[P]):
    """A Bayesian network: layers, a head, and what is believed about all weights; P is the type of its predictions.

    All weights of all layers live in one flat vector (`flat`); `prior` and `marginal` are Gaussians of that shape, and
    the layers see views of it. `start` holds the means at which training starts (float64, on the CPU). What training
    learns, and `reset` takes back, is named in learned.py: the `marginal`, the joint `belief` that predictions are made
    with, and some numbers beside them. `yesterday` is what a network that `as_prior` made has learned of the past, else
    None.

    Attributes:
        layers, head: as given; the head as it suits these layers.
        input_shape: of one example.
        shapes: shapes[k] is that of the input of layer k, the last one that of the outputs.
        n_outputs: of the head.
        graph: nodes between edges (graph.py).
        flat: all weights as one vector (flat_weights.py).

    Args:
        layers: in order, e.g. [Linear(1, 16), LeakyReLU(), Linear(16, 1)].
        head: Regression(noise_var), Softmax() or Argmax().
        seed: draws the means at which training starts, which break the symmetry between units.
        input_shape: shape of one example. Needed only for networks that start with images and whose size cannot be
            found from a Linear layer behind a Flatten; where several sizes fit, the training data decide.
        prior: rule for the prior variances of layers that are given none, "narrow" or "paper" (priors.py).
    """

    @undisturbed()
    def __init__(
        self,
        layers: Sequence[Layer],
        head: Head[P],
        *,
        seed: int = 0,
        input_shape: Sequence[int] | None = None,
        prior: str = "narrow",
    ) -> None:
        self.layers = check_layers(layers)
        check_head(head)
        self.head = head.suited_to(self.layers)
        self._asks_data = input_shape is None  # for the size of images, where layers fit several
        self.input_shape = find_input_shape(self.layers, input_shape)
        self.shapes = shapes_along(self.layers, self.input_shape)
        self.n_outputs = head.n_outputs(self.shapes[-1])
        self.graph = Graph(self.layers)
        self.flat = FlatWeights(self.layers, self.graph)
        if prior not in RULES:
            raise ValueError(f"prior must be one of {RULES}, got {prior!r}")
        self.seed = seed
        self.prior_rule = prior
        belief, start, self.spread = self.flat.draw_prior(self.shapes[:-1], seed=seed, rule=prior)
        self.marginal = belief.map(lambda part: part.float())
        self.yesterday: Yesterday | None = None
        self.prior = belief
        self.has_given_prior = any(map(given_priors, self.layers))
        self.start = start
        self.sum_share = torch.ones(len(self.layers), dtype=torch.float32)
        self.regime = MOMENTS
        self._renew_belief: Callable[[], None] | None = None
        self.belief = None
        self.varying_noise: VaryingNoise | None = None
        self.fitted: Fitted | None = None
        self.belief_scale = 1.0
        self.flat_targets = False
        self.run_summary: RunSummary | None = None
        self.run: weakref.ref[Any] | None = None  # the Trainer that trains it
        self.head_log_weights = self.head.prior_log_weights().float()

    # --- layers and weights ------------------------------------------------------------------------------------------

    @property
    def n_weights(self) -> int:
        return len(self.flat)

    @property
    def products_per_example(self) -> int:
        """Multiplications of one sweep out for one example: every weight as often as it is used."""
        return sum((slot.stop - slot.start) * math.prod(self.shapes[slot.layer + 1][1:]) for slot in self.slots)

    @property
    def slots(self) -> list[Slot]:
        """Where each weight tensor lives in the flat vector."""
        return self.flat.slots

    def take_shape(self, shape: Sequence[int]) -> None:
        """Take the size of images from the training data, where it was not given and all layers fit it as well; if only
        a Linear behind them does not, a ValueError that says which one would."""
        if not self._asks_data or len(shape) == 0:
            return
        try:
            shapes = shapes_along(self.layers, tuple(shape))
        except ImageSizeError:
            raise
        except ValueError:
            return  # `checks.check_inputs` says what is wrong
        self.input_shape, self.shapes = shapes[0], shapes

    def unpack(self, flat: Tensor) -> list[dict[str, Tensor]]:
        """One dict of weight tensors per layer, as views of a flat vector."""
        return self.flat.unpack(flat)

    def pack(self, messages: Sequence[dict[str, Gaussian]]) -> Gaussian:
        """The flat Gaussian of per-layer messages to weights; inverse of unpacking."""
        return self.flat.pack_messages(messages)

    if not TYPE_CHECKING:  # type checkers say by themselves what is not there

        def __getattr__(self, name: str) -> Any:
            if name not in ELSEWHERE:
                return object.__getattribute__(self, name)  # raises, and says why where a property has failed
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}; {ELSEWHERE[name]}")

    def weights(self, belief: Gaussian | None = None, *, scale: Factor | Tensor = 1.0) -> list[Weights]:
        """Moments of all weights per layer, from a flat belief (the marginal if not given): variances as sums of
        these weights have them, with the layer's share, times `scale`, one for all or one per layer.
        """
        return self.flat.moments(self.marginal if belief is None else belief, scale * self.sum_share)

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def prior(self) -> Gaussian:
        """What is believed before any data, in the network's dtype and on its device; as wide as the data have chosen.

        A prior that is assigned is kept in float64, too, so that a later change of dtype starts from the full
        precision and a saved network has the same prior in any dtype. Assign it; changes in place would be lost.
        Training then starts at its means; assign `start` for other ones. A prior that is assigned takes the place of
        the past (`as_prior`), too, and stays as it is.
        """
        return self._prior

    @prior.setter
    def prior(self, belief: Gaussian) -> None:
        if hasattr(self, "_prior") and belief is self.marginal:
            raise ValueError(
                "net.prior = net.marginal would drop all correlations between weights, and be far too sure; "
                "net.as_prior() keeps them, or train on old and new data together"
            )
        self._exact_prior = belief.map(lambda part: part.to(device="cpu", dtype=torch.float64, copy=True))
        self._prior = self._exact_prior.map(lambda part: part.to(self.marginal.tau, copy=True))
        self.start = self._exact_prior.mean
        self.yesterday = None
        self.has_given_prior = True
        self._prior_width = 1.0
        self._relevance: tuple[Tensor, ...] = ()

    @property
    def exact_prior(self) -> Gaussian:
        """The prior in float64 on the CPU."""
        if self._prior_width == 1.0 and not self._relevance:
            return self._exact_prior
        factors = self._prior_factors()
        return Gaussian(self._exact_prior.tau / factors, self._exact_prior.rho / factors)

    def _prior_factors(self) -> Tensor:
        """On the variance of each weight, flat."""
        matrices = self.flat.to_matrices(torch.full_like(self._exact_prior.rho, self._prior_width))
        for layer, factors in zip(self._judged_layers, self._relevance, strict=False):
            matrices[layer][:, : len(factors)] *= factors
        return self.flat.from_matrices(matrices)

    @property
    def _judged_layers(self) -> list[int]:
        """Layers with weights of their own for each given input, counted among those with weights."""
        nodes = enumerate(self.graph.weight_nodes)
        return [k for k, node in nodes if node.layer.n_own_inputs and not self.graph.is_behind_weights(node)]

    @property
    def rule_prior(self) -> Gaussian:
        """The same before data have chosen how wide it is."""
        return self._exact_prior

    @property
    def prior_width(self) -> Factor:
        """Factor on all prior variances that the data have chosen (evidence/objective.py); 1 before training."""
        return self._prior_width

    @prior_width.setter
    def prior_width(self, width: Factor) -> None:
        raise AttributeError(
            "prior_width is what the data have chosen; for a prior that is as wide as you say, assign it: net.prior = "
            f"bayesmp.Gaussian.from_moments(net.prior.mean, {width!r} * net.prior.var)"
        )

    @property
    def judged_inputs(self) -> list[int]:
        """Numbers of given inputs whose relevance training may learn, layer by layer."""
        return [self.graph.weight_nodes[k].layer.n_own_inputs for k in self._judged_layers]

    @property
    def relevances(self) -> tuple[Tensor, ...]:
        """`relevance` of each layer whose inputs are given; none where nothing was chosen."""
        return self._relevance

    @property
    def relevance(self) -> Tensor | None:
        """How much each input matters: the factor (n_inputs,) that data have chosen on the prior variances of its
        weights, beside `prior_width`; near 0 for an input that tells nothing. None where nothing was chosen: before
        training, where a prior or the noise was given, where messages are passed.
        """
        return self._relevance[0].clone() if len(self._relevance) == 1 else None

    def widen_prior(self, width: Factor, relevance: Sequence[Tensor] = ()) -> None:
        """Let all prior variances be this many times those of the rule, and those of the weights of given inputs as
        many times more; relevance is in the order of the layers with given inputs, none: 1.
        """
        self._prior_width = width
        self._relevance = tuple(part.detach().to("cpu", torch.float64, copy=True) for part in relevance)
        self._prior = self.exact_prior.map(lambda part: part.to(self.marginal.tau, copy=True))

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
        return self.has_belief and (self.yesterday is None or self._belief is not self.yesterday.learned.belief)

    @property
    def device(self) -> torch.device:
        return self.marginal.tau.device

    @property
    def dtype(self) -> torch.dtype:
        return self.marginal.tau.dtype

    def to(self, device: str | torch.device | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move the beliefs to a device or a dtype (torch.float32 or torch.float64), in place."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        if dtype not in (None, torch.float32, torch.float64):
            raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        device = self.device if device is None else torch.device(device)
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"cannot move to {str(device)!r}: networks live on 'cpu' or 'cuda'")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                f"cannot move to {str(device)!r}: PyTorch sees no CUDA device here (torch.cuda.is_available() is "
                "False); stay on 'cpu', or install a CUDA build of PyTorch on a machine with a GPU"
            )
        has_learned, is_trained = self.has_learned, self.is_trained
        learned = self.learned().to(device, dtype or self.dtype)
        self._prior = self._exact_prior.map(lambda part: part.to(learned.marginal.tau, copy=True))
        self.learn(learned if has_learned else replace(learned, marginal=self.prior.map(torch.clone)))
        if self.yesterday is not None:
            self.remember(self.yesterday.learned.to(self.device, self.dtype))
            if self.has_belief and not is_trained:
                self.belief = self.yesterday.learned.belief
            self.renew_past()
        return self

    def cuda(self) -> Self:
        """`to("cuda")`."""
        return self.to("cuda")

    def cpu(self) -> Self:
        """`to("cpu")`."""
        return self.to("cpu")

    def float(self) -> Self:
        """`to(torch.float32)`."""
        return self.to(torch.float32)

    def double(self) -> Self:
        """`to(torch.float64)`."""
        return self.to(torch.float64)

    def reset(self) -> None:
        """Forget all data but those of the past: the marginal becomes the prior again."""
        if self.yesterday is not None:
            self.learn(self.yesterday.learned.copied())
            self.renew_past()
            return
        self.widen_prior(1.0)
        self.marginal = self.prior.map(torch.clone)
        self.head_log_weights = self.head_prior.to(self.head_log_weights)
        self.sum_share = torch.ones_like(self.sum_share)
        self.regime = MOMENTS
        self.belief = None
        self.varying_noise = self.fitted = None
        self.belief_scale = 1.0
        self.flat_targets = False
        self.run_summary = None

    def __getstate__(self) -> dict[str, Any]:
        belief = self.belief  # made now if it is due
        return {**self.__dict__, "_belief": belief, "run": None}  # a copy, or one in another process, has no run

    def learned(self) -> Learned:
        """What training has learned, and `reset` takes back."""
        belief = self.belief  # first: if it is due, making it changes others of these
        return Learned(**{**{name: getattr(self, name) for name in LEARNED}, "belief": belief})

    def learn(self, learned: Learned) -> None:
        """Take what a network of the same layers and head has learned."""
        for name in LEARNED:
            if name not in ("prior_width", "relevances"):
                setattr(self, name, getattr(learned, name))
        self.widen_prior(learned.prior_width, learned.relevances)

    # --- the past ----------------------------------------------------------------------------------------------------

    def as_prior(self) -> Self:
        r"""A new network whose prior is what this one has learned, with all correlations: the joint belief.

        Train it on new data alone (`bayesmp.fit`, `Trainer`; the parallel schedule); nothing of the old data is needed.
        Until then it predicts as this one does. With N(m_0, H^{-1}) the belief, H = D + K is split into a precision per
        weight, the new network's `prior` around m_0, and `past`, which is K. What was learned about the head's constant
        is its prior, too. `reset` goes back to here, and what the new network learns can be the prior of the next.

        For a linear network with known noise it is exactly as if old and new data were trained on together. In others K
        is about the network linearised around m_0, and moves far from there undo it. So the belief also keeps where its
        rows come from: inputs of up to 2,048 examples, without their targets, which are swept again in every epoch
        (belief/past.py). They go into files of this network, too. In large networks old and new data share the rows,
        as there are data behind them, so what is known of single days fades with their number.

        Only new data belong to it: data that this network has seen already would be counted twice, and nothing here
        can tell.
        """
        if self.belief is None:
            raise ValueError(
                "this network has no joint belief that could be a prior: train it first (bayesmp.fit), or let an "
                "interrupted run end (Trainer.run)"
            )
        check_belief(self.belief, self._belief_mean, self.layout, self.marginal.mean)
        new = copy.copy(self)
        new.head = self.head.suited_to(self.layers)
        new.learn(self.learned().copied())
        variances, _ = self.belief.as_past()
        var = self.flat.from_matrices([part.double() for part in variances])
        new.prior = Gaussian.from_moments(self.marginal.mean.double(), var)
        new.remember(replace(self.learned(), prior_width=1.0, relevances=()))  # which are in its variances
        return new

    @property
    def past(self) -> Past | None:
        """What data of the past say beside the prior, as the current means see it; None if there are none."""
        return None if self.yesterday is None else self.yesterday.past

    def remember(self, learned: Learned) -> None:
        """Let what was learned of the past, around the prior's means, hold beside the prior."""
        self.yesterday = Yesterday.of(learned, self.head, self._linearised(learned))

    def check_past(self) -> None:
        """Raise if the past is that of another head."""
        if self.yesterday is not None:
            self.yesterday.check_head(self.head)

    @property
    def head_prior(self) -> Tensor:
        """Log-prior over the grid of the head's constant: the head's own, or what the past says."""
        return self.head.prior_log_weights() if self.yesterday is None else self.yesterday.learned.head_log_weights

    def prior_at(self, mean: Tensor) -> Gaussian:
        """What prior and past say about each weight at these means: D and K as one message, in float64.

        Its slope at `mean` is that of N(m_0, (D + K)^{-1}); its precision D + diag K.
        """
        prior = self.prior.map(torch.Tensor.double)
        if self.yesterday is None:
            return prior
        return Gaussian(prior.tau + self.yesterday.message(mean.double()), prior.rho + self.yesterday.rho.double())

    def prior_pull(self, change: Tensor) -> Tensor:
        """D + K applied to a change of all weights: by how much prior and past then pull back."""
        pull = self.prior.rho * change
        return pull if self.yesterday is None else pull + self.yesterday.pull(change)

    @property
    def own_rho(self) -> Tensor:
        """The precision that prior and past alone give each weight, D + diag K."""
        return self.prior.rho if self.yesterday is None else self.prior.rho + self.yesterday.rho.to(self.prior.rho)

    def renew_past(self) -> None:
        """See the past from the current means, where it is known from which inputs it comes (belief/past.py)."""
        if self.yesterday is not None:
            self.yesterday = self.yesterday.seen_from(self.linearised, self.marginal.mean, self.layout)

    # --- the function around the means -------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """The weight layers as the joint belief sees them: prior variances and means as matrices (o, i)."""
        return Layout(self.flat.to_matrices(self.prior.var), self.flat.to_matrices(self.marginal.mean))

    @property
    def linearised(self) -> Linearised:
        """The network's function around the current means."""
        return self._linearised(self)

    @property
    def linearised_without_belief(self) -> Linearised:
        """The same with activations that do not ask the joint belief how wide their inputs are."""
        return self._linearised(replace(self.learned(), belief=None))

    def _linearised(self, learned: Learned | Network[P]) -> Linearised:
        weights, fitted = self.flat.moments(learned.marginal, learned.sum_share), learned.fitted
        belief = None if fitted is None else learned.belief
        adjust = None if fitted is None else fitted.smooth(self.graph.weight_nodes, belief)
        parts = learned.sum_share, learned.regime, self.shapes, self.n_outputs
        return Linearised(self.graph, self.flat, weights, *parts, adjust=adjust, scale=learned.belief_scale)

    def gradients(self, x: Tensor, slopes: Tensor | None = None) -> tuple[Moments, list[Gradient]]:
        """Outputs of a sweep at the marginals, and slopes of k mixtures of them in each layer's weights.

        Args:
            x: (b, *input_shape).
            slopes: (k, b, n_outputs), how the outputs are mixed; each output by itself if not given.
        """
        return self.linearised.gradients(x, slopes)

    def gradients_and_noise(self, x: Tensor, slopes: Tensor | None = None) -> tuple[Moments, list[Gradient], Tensor]:
        """`gradients`, and the part of the outputs' variance that messages to weights take for noise, (b, o)."""
        return self.linearised.gradients_and_noise(x, slopes)

    def mixed_gradients(self, points: Points) -> tuple[Tensor, list[Gradient]]:
        """One mixture of the outputs at each point, (m,), and its slopes in each layer's weights, (1, m, ...)."""
        return self.linearised.mixed_gradients(points)

    def rows_at_once(self, n_slopes: int) -> int:
        """Examples whose slopes in all edges fit into memory that is always there."""
        return self.linearised.rows_at_once(n_slopes)

    # --- prediction --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    @undisturbed()
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
            RegressionPrediction (.mean .epistemic_var .aleatoric_var .var .std .interval .quantile .cdf .log_prob
            .sample, and of all rows together .noise_var .noise_spread), of shape (n,) if the targets in training were;
            or ClassPrediction (.probs .label .entropy .epistemic .aleatoric .log_prob .sample); on its device.
        """
        x = checks.check_inputs(x, self.input_shape, self.dtype)
        if batch_size is not None:
            batch_size = checks.check_positive_int(batch_size, "batch_size")
        belief, n_products = self.belief if joint else None, self.n_weights
        if belief is not None:
            n_products = max(n_products, self.n_outputs * belief.rank**2)  # the largest product for one example
        with few_threads(self.device, n_products=n_products * len(x)):
            parts, end = [], 0
            for m_out, covariance in self.linearised.output_beliefs(x, belief, batch_size):
                rows, end = x[end : end + len(m_out.mean)], end + len(m_out.mean)
                parts.append(self.prediction_of(rows, m_out, covariance))
        prediction: Any = type(parts[0]).concatenate(parts)  # type: ignore[attr-defined]
        return prediction.flat() if self.flat_targets else prediction

    __call__ = predict

    def prediction_of(self, x: Tensor, m_out: Moments, covariance: Tensor | None = None) -> P:
        """The prediction at x, (b, *input_shape), from moments of the outputs there (b, o), and their covariances."""
        prediction: Any = self.head.predict(m_out, self.head_log_weights, covariance)
        if self.varying_noise is not None:
            prediction = self.varying_noise.around(prediction, self.linearised.last_inputs(x.to(m_out.mean)))
        return prediction

    @torch.no_grad()
    @undisturbed()
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
            return self.linearised.draws(x, self.belief, n, torch.Generator().manual_seed(seed))

    @torch.no_grad()
    @undisturbed()
    def covariance(self, x: Any) -> Tensor:
        """Covariances (n_outputs, n, n) of the network's function between the rows of x: for each output, how what is
        not known about it at one row belongs to what is not known at another. Their diagonals are `.epistemic_var` of
        `predict`.

        Args:
            x: (n, *input_shape), tensor or array; memory grows with n^2, and with n times the number of weights.
        """
        if self.belief is None:
            raise ValueError("there is no joint belief to take covariances from yet; train the network first")
        x = checks.check_inputs(x, self.input_shape, self.dtype)
        with few_threads(self.device, n_products=self.n_weights * len(x)):
            return self.linearised.covariance_between(x, self.belief)

    # --- looking at it -----------------------------------------------------------------------------------------------

    def diagnose(self, x: Any, y: Any = None) -> Diagnosis:
        """What looks wrong with this trained network, in words and figures, with what to do; `print` it.

        It looks at the scale of the data, at units and weights that have learned nothing, at the prior, the noise, the
        end of the training run, and at how well these rows are predicted. A network that was loaded from a file knows
        less about its training, and the answer says what was not judged.

        Args:
            x, y: rows that it was not trained on, as for `fit`: a torch Dataset or a tuple (x, y) may stand for both.
        """
        trainer = None if self.run is None else self.run()
        return diagnose(self, x, y, trainer=trainer)

    def __repr__(self) -> str:
        first = f"Network({self.n_weights:,} weights, head={self.head!r}, {self.dtype}, {self.device})"
        learned = [self.head.tell_learned(self.head_log_weights)] if self.is_trained else []
        if self.prior_width != 1.0:
            learned.append(f"prior variances are {self.prior_width:.2g} times those it began with")
        if self.belief_scale != 1.0:
            learned.append(f"variances of the function are {self.belief_scale:.2g} times those of first order")
        all_learned = "; ".join(part for part in learned if part)
        return "\n".join([first, *self._lines(), *([f"  learned: {all_learned}"] if all_learned else [])])

    def _lines(self) -> list[str]:
        """The input and each layer, one line each: what comes out, and how many weights it has."""
        lines = [f"  input {' x '.join(map(str, self.input_shape))}"]
        for index, layer in enumerate(self.layers):
            n_own, shape = self.flat.size_of(index), " x ".join(map(str, self.shapes[index + 1]))
            line = f"  {layer!r:<34} -> {shape:<16}" + (f"{n_own:>12,} weights" if n_own else "")
            lines.append(line.rstrip())
        return lines

    # --- saving ------------------------------------------------------------------------------------------------------

    def save(self, path: persistence.PathLike, *, compact: bool = False) -> None:
        """Write layers, head, prior and beliefs to a safetensors file; `bayesmp.load` reads it.

        The joint belief is about the slopes at up to 2,048 rows of the training data, so their inputs are in the file,
        without their targets; so they are in all files that hold a trained network. It takes most of the room.

        Args:
            path: the file.
            compact: leave out what can be computed again, and round where that changes no standard deviation at these
                rows by more than a thousandth: a fifth of the size or less. Loading computes it again, which takes
                about as long as the end of training.
        """
        described, state = compacted(self) if compact else (self.description(), self.state())
        persistence.write(path, kind="model", header={"network": described}, tensors=state)

    def description(self) -> dict[str, Any]:
        """What makes the network again but for its beliefs, as JSON holds it."""
        return {
            "layers": [self._describe_layer(layer) for layer in self.layers],
            "head": persistence.describe(self.head, HEADS),
            "input_shape": self.input_shape,
            "seed": self.seed,
            "prior": self.prior_rule,
            "has_given_prior": self.has_given_prior,
            "dtype": str(self.dtype).removeprefix("torch."),
            "is_compact": False,
            **self._own().description(),
            "past": None if self.yesterday is None else self._describe_past(self.yesterday),
        }

    def state(self) -> dict[str, Tensor]:
        """The tensors to save: the prior in full precision and where training starts, the beliefs, the values the
        head's constant may have.
        """
        own = self._own().state()
        own["head.log_weights"] = own.pop("head_log_weights")
        past = {} if self.yesterday is None else self.yesterday.learned.state()
        return {
            "prior.tau": self.rule_prior.tau,
            "prior.rho": self.rule_prior.rho,
            "start": self.start,
            "head.grid": self.head.grid,
            **own,
            **{f"past.{name}": part for name, part in past.items()},
        }

    def _own(self) -> Learned:
        """What was learned, without a belief that is yesterday's alone."""
        learned = self.learned()
        return learned if self.is_trained else replace(learned, belief=None)

    def _describe_layer(self, layer: Layer) -> dict[str, Any]:
        return {**persistence.describe(layer, LAYERS), "given_priors": given_priors(layer)}

    def _describe_past(self, yesterday: Yesterday) -> dict[str, Any]:
        return {**yesterday.learned.description(), "is_all": self.belief is yesterday.learned.belief}


def check_is_network(network: Any) -> None:
    """Raise unless it is a Network; people who know PyTorch bring a module."""
    if isinstance(network, Network):
        return
    remedy = "make one with bayesmp.Network(layers, head)"
    if isinstance(network, torch.nn.Module):
        remedy = "make one with bayesmp.from_torch(module, head=...)"
    raise TypeError(f"expected a bayesmp.Network to train, got {type(network).__name__}; {remedy}")
