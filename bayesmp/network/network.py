"""A Bayesian network, and what it is for: predictions, draws, slopes, files, a diagnosis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bayesmp.basics import checks, persistence
from bayesmp.basics.arithmetic import few_threads, undisturbed
from bayesmp.belief import Points
from bayesmp.diagnosis import Diagnosis, diagnose
from bayesmp.heads.base import P
from bayesmp.layers.base import Gradient
from bayesmp.messages.gaussian import Moments
from bayesmp.network.beliefs import NetworkBeliefs
from bayesmp.network.compact import compacted
from bayesmp.network.learned import Learned
from bayesmp.network.old_data import Yesterday


class Network(NetworkBeliefs[P]):
    """A Bayesian network: layers, a head, and what is believed about all weights.

    All weights of all layers live in one flat vector (`flat`); `prior` and `marginal` are Gaussians of that shape, and
    the layers see views of it. `start` holds the means at which training starts (float64, on the CPU). What training
    learns, and `reset` takes back, is named in learned.py: the `marginal`, the joint `belief` that predictions are made
    with, and some numbers beside them. `yesterday` is what a network that `as_prior` made has learned of the past, else
    None.

    Args:
        layers: in order, e.g. [Linear(1, 16), LeakyReLU(), Linear(16, 1)].
        head: Regression(noise_var), Softmax() or Argmax().
        seed: draws the means at which training starts, which break the symmetry between units.
        input_shape: shape of one example. Needed only for networks that start with images and whose size cannot be
            found from a Linear layer behind a Flatten; where several sizes fit, the training data decide.
        prior: rule for the prior variances of layers that are given none, "narrow" or "paper" (priors.py).
    """

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
            **self.parts(),
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

    def _describe_past(self, yesterday: Yesterday) -> dict[str, Any]:
        return {**yesterday.learned.description(), "is_all": self.belief is yesterday.learned.belief}

    # --- first order -------------------------------------------------------------------------------------------------

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
        found: Any = type(parts[0]).concatenate(parts)  # type: ignore[attr-defined]
        return found.flat() if self.flat_targets else found

    __call__ = predict

    def prediction_of(self, x: Tensor, m_out: Moments, covariance: Tensor | None = None) -> P:
        """The prediction at x, (b, *input_shape), from moments of the outputs there (b, o), and their covariances."""
        found: Any = self.head.predict(m_out, self.head_log_weights, covariance)
        if self.varying_noise is not None:
            found = self.varying_noise.around(found, self.linearised.last_inputs(x.to(m_out.mean)))
        return found

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
        told = "; ".join(part for part in learned if part)
        return "\n".join([first, *self.lines(), *([f"  learned: {told}"] if told else [])])


def check_is_network(network: Any) -> None:
    """Raise unless it is a Network; people who know PyTorch bring a module."""
    if isinstance(network, Network):
        return
    remedy = "make one with bayesmp.Network(layers, head)"
    if isinstance(network, torch.nn.Module):
        remedy = "make one with bayesmp.from_torch(module, head=...)"
    raise TypeError(f"expected a bayesmp.Network to train, got {type(network).__name__}; {remedy}")
