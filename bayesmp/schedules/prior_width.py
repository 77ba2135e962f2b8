r"""How wide the prior should be: one factor s on all its variances, which the data choose.

With v the variances that the prior's rule gives, m_0 its means and m those of the belief, the evidence for s in the
linearised network has the slope

    d log p(y | s) / d log s = (q / s - gamma) / 2,    q = sum (m - m_0)^2 / v,

where gamma is the belief's degrees of freedom, the number of directions in weight space that data have settled (MacKay,
1992). An inverse-gamma prior for s counts as nu further directions, which say that s = 1. Both together are at rest at

    s = (nu + q) / (nu + gamma)

which is asked anew at every refresh of the belief. Weights that data say nothing about change neither side.

One factor for all layers: leaky activations let layers trade their scales, evidence along this direction is about
features that were made for these very data, and a factor for each layer follows it away (docs/lab-notes.md).
"""

from __future__ import annotations

import warnings

from bayesmp.belief import Belief
from bayesmp.evidence import plan_belief
from bayesmp.network import Network
from bayesmp.settings import Settings


def learns_width(network: Network) -> bool:
    """Whether data choose the width where nobody says: the noise is learned, too, and nobody has given a prior.

    Who knows the noise states a model, and gets the posterior of just this one. Labels are judged by a link that knows
    no scale, and gain nothing.
    """
    head = network.head
    return head.has_noise and head.is_learned and not network.has_given_prior and network.past is None


def warn_if_untold(network: Network, n_examples: int) -> None:
    """Warn who asks for a width that no exact belief will tell."""
    if not plan_belief(network, n_examples).is_exact:
        warnings.warn(
            "learn_prior=True has no effect: how wide the prior should be is told by an exact joint belief, of up to "
            "2,048 weights or training outputs (1,024 where targets are labels), and here are more of both",
            stacklevel=5,
        )


def best_width(network: Network, belief: Belief, settings: Settings) -> float:
    """s as above, within what is considered at all.

    Args:
        network: at the means of the belief.
        belief: about all weights, exact, under the prior as wide as it is now.
    """
    rule = network.rule_prior
    mean = network.marginal.mean.to(rule.rho)
    moved = float(((mean - rule.mean).square() * rule.rho).sum())
    nu, (least, most) = settings.width_counts, settings.width_range
    return min(most, max(least, (nu + moved) / (nu + belief.degrees_of_freedom)))
