"""Networks with beliefs about their weights, and the same by dense linear algebra in plain PyTorch."""

import copy

import torch
from torch.nn import functional

import bayesmp as bmp
from bayesmp.belief import AnchoredBasis, Belief, FullBasis
from bayesmp.messages.gaussian import Gaussian

torch.set_num_threads(1)

DTYPES = [(torch.float64, 1e-6), (torch.float32, 2e-3)]
NOISE_VAR = 0.3


# --- networks, and the same functions in plain PyTorch ---------------------------------------------------------------


def dense(n_out=2, dtype=torch.float64, **priors):
    layers = [bmp.Linear(3, 5, **priors), bmp.LeakyReLU(), bmp.Linear(5, n_out)]
    return ready(bmp.Network(layers, bmp.Regression(NOISE_VAR), seed=1), dtype)


def convolutional(n_out=2, dtype=torch.float64):
    layers = [
        bmp.Conv2d(2, 3, 3, padding=1),
        bmp.LeakyReLU(),
        bmp.AvgPool2d(2),
        bmp.Conv2d(3, 2, 2, bias=False),
        bmp.Flatten(),
        bmp.Linear(2, n_out),
    ]
    return ready(bmp.Network(layers, bmp.Regression(NOISE_VAR), seed=1, input_shape=(2, 4, 4)), dtype)


def ready(network, dtype):
    """At random means, as if trained; sums see nothing of the variance, so that slopes are those of the plain function
    at the means.
    """
    network.to(dtype)
    generator = torch.Generator().manual_seed(3)
    mean = 0.7 * torch.randn(network.n_weights, generator=generator, dtype=torch.float64).to(dtype)
    network.marginal = Gaussian.from_moments(mean, torch.full_like(mean, 0.01))
    network.sum_share.zero_()
    return network


def plain(network, flat, x):
    """The network as a deterministic function of all weights in one flat vector."""
    for layer, weights in zip(network.layers, network.unpack(flat), strict=True):
        match layer:
            case bmp.Linear():
                x = functional.linear(x, weights["weight"], weights.get("bias"))
            case bmp.Conv2d():
                options = {"stride": layer.stride, "padding": layer.padding}
                x = functional.conv2d(x, weights["weight"], weights.get("bias"), **options)
            case bmp.LeakyReLU():
                x = functional.leaky_relu(x, layer.leak)
            case bmp.AvgPool2d():
                x = functional.avg_pool2d(x, layer.kernel, layer.stride)
            case bmp.Flatten():
                x = x.flatten(1)
            case _:
                raise AssertionError(f"no plain form of {layer!r}")
    return x


def jacobian(network, x):
    """(b, o, w) in float64, by reverse-mode autograd."""
    exact = copy.deepcopy(network).to(torch.float64)
    mean = network.marginal.mean.double()
    return torch.func.jacrev(lambda flat: plain(exact, flat, x.double()))(mean)


def precision_matrix(network, x, rho):
    """H = diag(1 / prior var) + sum_n J_n^T diag(rho_n) J_n, for rho (b, o)."""
    rows = jacobian(network, x).flatten(0, 1)
    return torch.diag(network._exact_prior.rho) + rows.T @ (rho.double().flatten()[:, None] * rows)


def true_covariance(network, h, x):
    rows = jacobian(network, x)
    return rows @ torch.linalg.inv(h) @ rows.transpose(1, 2)


def inputs(network, n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, *network.input_shape, generator=generator, dtype=torch.float64).to(network.dtype)


def precisions(n, n_out, dtype=torch.float64):
    """Different for every example and output, as a classifier's are."""
    generator = torch.Generator().manual_seed(7)
    return (0.2 + 5.0 * torch.rand(n, n_out, generator=generator, dtype=torch.float64)).to(dtype)


# --- beliefs ---------------------------------------------------------------------------------------------------------


def collect(basis, gradients, rho) -> Belief:
    """The belief of these data in a basis, as a pass over them makes it."""
    features = basis.features(gradients)
    rows = (features * rho.to(features).sqrt()[..., None]).flatten(0, 1).double()
    missed = basis.missed_by(gradients, features, rho.to(features)) if isinstance(basis, AnchoredBasis) else None
    return basis.believe(rows.T @ rows, missed)


def full(network, x, rho) -> Belief:
    basis = FullBasis([var.double().sqrt() for var in network.layout.prior_vars])
    return collect(basis, network.gradients(x)[1], rho)


def anchored(network, x, rho, n_anchors=None) -> Belief:
    """Every row of the data as an anchor, or random mixtures of the outputs of some examples."""
    if n_anchors is None:
        rows = torch.arange(len(x)).repeat_interleave(network.n_outputs)
        mixes = torch.eye(network.n_outputs, dtype=x.dtype).repeat(len(x), 1)
    else:
        generator = torch.Generator().manual_seed(5)
        rows = torch.randperm(len(x), generator=generator)[:n_anchors]
        mixes = torch.randn(n_anchors, network.n_outputs, generator=generator, dtype=torch.float64).to(x)
    anchors = network.gradients(x[rows], mixes[None])[1]
    basis = AnchoredBasis.of(anchors, network.layout.prior_vars, is_exact=n_anchors is None)
    return collect(basis, network.gradients(x)[1], rho)


FORMS = {"full": full, "anchored": anchored}
NETWORKS = {"dense": dense, "convolutional": convolutional}


def flat_of(network, matrices):
    """Matrices (o, i) per layer as the flat vector of all weights."""
    parts = [{} for _ in network.layers]
    for node, matrix in zip(network.graph.weight_nodes, matrices, strict=True):
        parts[node.index] = node.layer.from_matrix(matrix)
    return torch.cat([parts[slot.layer][slot.name].reshape(-1) for slot in network.slots])


def matrices_of(network, flat):
    parts = network.unpack(flat)
    return [node.layer.to_matrix(parts[node.index]) for node in network.graph.weight_nodes]


def assert_near(found, truth, tolerance):
    """In units of the largest true value: what is left over from larger numbers has their rounding."""
    assert found.isfinite().all()
    assert float((found.double() - truth).abs().max()) <= tolerance * float(truth.abs().max())
