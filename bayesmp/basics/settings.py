"""The tuned constants of training and of the joint belief, in one place; one setting for all data sets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Numbers that were chosen, not derived (docs/decisions.md says on what); `repr` shows them all.

    Attributes:
        tightness: training starts with weights held at their starting means to this share of their spread.
        least_memory: visits that the metric's running averages cover at least; else they cover an epoch.
        max_reach: no layer's outputs may move further than this in a visit, in units of their spread over the batch.
        stretch: steps may be this many times as long as the metric says, but a visit not more than this share of a
            Newton step for all data.
        eigh_cost: multiplications of an eigendecomposition over n^3, at the speed of a matrix product.
        visit_products: products per weight, position and example in one visit.
        moment_rows: inputs or patches of a batch from which the metric's input moments are estimated.
        known_rows: inputs or patches of all data from which those of the first weights, which never change, are.
        heard_visits: to about so many of the visits that its memory covers the metric listens, once that is full,
        heard_gap: but at least to one of so many.
        share_memory: visits over which shares of sums follow those of a renewed metric.
        full_inputs: inputs of a dense layer up to which sweeps see all of its share of the weights' variance; with more
            of them they see this number over theirs (docs/lab-notes.md, "one rule for messages").
        trust: training starts with at most this share of all y as noise, and lets it grow by this factor per visit.
        label_trust: the same for how far labels may be from what the network says.
        most_clipped: share of examples with a leverage that was cut, beyond which a score tells nothing: it is far too
            good where examples hold their own outputs.
        precision_factor: no weight's precision may grow or shrink by more than this in one visit.
        refresh_growth: the belief is refreshed in training whenever the number of epochs has grown by this factor, if
            the visits pay for it (budget.py).
        refresh_start: multiplications that refreshes may cost before there were visits.
        refresh_examples: examples that a refresh in training looks at, at most.
        least_rank: anchors of a belief about labels that is not exact, at least: in training, and at the end of a run.
        least_rank_of_noise: the same where targets are noisy, because the noise is judged by that belief.
        least_steps: of conjugate gradients, at least, where visits do not pay for balance_steps.
        final_examples: examples that the refresh at the end of a run looks at, at most.
        judged_examples: examples whose leave-one-out outputs are computed in a refresh, at most.
        noise_rounds: how often a refresh goes between the noise and the belief that follows from it, at most.
        varying_rounds: how often it goes between the noise of all and how it depends on the input (varying_noise.py).
        noise_spans: prior stds, over the training data, of the logarithm of the noise's variance as it depends on them.
        noise_own_pulls: how much outputs may change without their row, next to how much they vary, for noise to depend
            on the inputs of the last weights, and on the output's mean: fully up to the first number, not at all from
            the second on.
        noise_directions: directions of the inputs of the last weights that it may depend on, at most.
        rest_gain: nats by which the leave-one-out score must improve between two refreshes to count as progress.
        rest_refreshes: refreshes without progress after which training is at rest.
        rest_visits: visits before which it is not.
        rest_move: root mean square move of the means between two refreshes, in posterior std, below which they rest.
        rest_anyway: refreshes without progress, and visits, after which training is at rest however the means move.
        balance_steps: products with the curvature of all data, at most, that find the posterior mean.
        balance_tolerance: share of what is found that a further one must add.
        leverage_draws: random signs from which leverages are estimated where the belief is not exact.
        leverage_groups: groups of examples whose leverages shall add up.
        fitting_steps: first steps on the objective, which fit the data and count no uncertainty.
        less_smoothing: factor on the share of the belief's variance that activations are averaged over, tried at each
            rest.
        first_noise: share of the variance of y that is taken for noise in these steps.
        first_spread: share of the prior's variance that weights are believed to have before the first step.
        first_damping: of the first step, in units of the prior's precision. Careful first steps find better minima
            (docs/lab-notes.md, "relevance of inputs, careful first steps").
        spread_pace: which part of the way the variances that activations are averaged over go at each step.
        covariance_pace: the same of the outputs' covariances that losses of labels are averaged over. A label says less
            the surer its outputs are; half of the way at a time they swung to and fro without end (docs/lab-notes.md).
        damping_factors: by which the damping of a step falls when it lowers the objective, and rises when it does not.
        least_left: share of all targets that noise is told from, at least, however many weights there are.
        first_rows: examples on which many begin, at least.
        late_share: share of all rows that join late, at least, and judge what was learned without them (unseen.py).
        rehearsed_numbers: rows times classes up to which training by messages is rehearsed (rehearsal.py).
        judging_rows: rows that join late, over all rehearsals, after which no further one is made, and
        most_rehearsals: how many there are at most.
        expected_scale: how much wider than first order the belief about noisy targets is expected to be,
        expected_scale_of_labels: and that about labels, whose bound has averaged over it.
        belief_scale_precision: of the logarithm of that.
        miss_scale_precision: of the logarithm of how much farther off unseen targets lie than left-out ones, around 0.
        rest_fall: nats, of all data and for each target, that the last half of all steps must bring for a descent to go
            on.
        least_miss: by how much one more target is said to be off, in units of the targets' std.
        worse_end: nats by which the end of a run must be worse than its best state, left out and in training, for it to
            go back to that (best_state.py).
        trusted_visits: visits before which leave-one-out scores do not tell which state is the best.
        kept_numbers: of a run's state that is kept to go back to, at most.
        turning: how much of what an example holds of its own output is lost besides when it is left out, because the
            network would be another one; for noise and scores of regressions with hidden layers, and for labels behind
            shared weights.
        width_counts: directions of the weights that say that the prior is as wide as its rule has it.
        width_range: least and largest factor on its variances.
        relevance_counts: directions that say the same of the weights of one input.
        relevance_range: least and largest factor on their variances. Far above 1 a single input may learn noise by
            heart (docs/lab-notes.md, "relevance of inputs, careful first steps").
        most_stood_for: so many of the data may an example stand for whose leverage conjugate gradients tell.
        max_leverage: largest share of an output that its own example may be said to hold, by an exact belief and by one
            that is not.
    """

    tightness: float = 0.1
    least_memory: int = 5
    max_reach: float = 0.3
    stretch: tuple[float, float] = (4.0, 0.0625)
    eigh_cost: int = 40
    visit_products: int = 12
    moment_rows: int = 4096
    known_rows: int = 16_384
    heard_visits: int = 25
    heard_gap: int = 4
    share_memory: int = 25
    full_inputs: int = 16
    trust: tuple[float, float] = (0.01, 1.02)
    label_trust: tuple[float, float] = (0.1, 1.02)
    most_clipped: float = 0.5
    precision_factor: float = 2.0
    refresh_growth: float = 1.3
    refresh_start: float = 4e10
    refresh_examples: int = 1024
    least_rank: tuple[int, int] = (128, 256)
    least_rank_of_noise: tuple[int, int] = (256, 512)
    least_steps: int = 16
    final_examples: int = 20_000
    judged_examples: int = 5_000
    noise_rounds: int = 12
    varying_rounds: int = 2
    noise_spans: tuple[float, ...] = (0.01, 0.1, 0.2, 0.4, 0.8, 1.6)
    noise_own_pulls: tuple[tuple[float, float], tuple[float, float]] = ((0.5, 1.0), (0.1, 0.25))
    noise_directions: int = 64
    rest_gain: float = 0.02
    rest_refreshes: int = 3
    rest_visits: int = 250
    rest_move: float = 3.0
    rest_anyway: tuple[int, int] = (6, 500)
    balance_steps: int = 32
    balance_tolerance: float = 0.0005
    leverage_draws: int = 2
    leverage_groups: int = 8
    fitting_steps: int = 40
    less_smoothing: float = 0.3
    first_noise: float = 0.01
    first_spread: float = 0.1
    first_damping: float = 1e4
    spread_pace: float = 0.5
    covariance_pace: float = 0.25
    damping_factors: tuple[float, float] = (3.0, 4.0)
    least_left: float = 0.05
    first_rows: int = 1024
    late_share: float = 0.2
    rehearsed_numbers: int = 100_000
    judging_rows: int = 200
    most_rehearsals: int = 5
    expected_scale: float = 2.0
    expected_scale_of_labels: float = 1.0
    belief_scale_precision: float = 5.0
    miss_scale_precision: float = 25.0
    rest_fall: tuple[float, float] = (1.0, 0.002)
    least_miss: float = 0.01
    worse_end: float = 0.25
    trusted_visits: int = 500
    kept_numbers: int = 20_000_000
    turning: float = 0.4
    width_counts: float = 20.0
    width_range: tuple[float, float] = (1 / 64, 64.0)
    relevance_counts: float = 1.0
    relevance_range: tuple[float, float] = (1e-4, 4.0)
    most_stood_for: float = 4.0
    max_leverage: tuple[float, float] = (0.95, 0.5)


SETTINGS = Settings()
