"""What a prediction costs on a GPU, in plain passes of the same network: with the joint belief, and without it.

The paper's CIFAR-10 network, trained for a moment on random images (costs do not depend on what is learned) and asked
for 10,000 of them. The plain pass is that of `to_torch`'s module in large batches, without gradients. All take turns,
and medians are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

import bayesmp as bmp
from benchmarks.cpu import alternating_medians
from benchmarks.networks import cifar10_cnn
from benchmarks.options import begin, new_parser

SHAPE = (3, 32, 32)
TRAINED, ASKED, ROWS = 8_192, 10_000, 2_048  # images; rows of a plain pass at once


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser("prediction", __doc__)
    parser.add_argument("--repeats", type=int, default=5, help="timings of each call, of which the median counts")
    parser.add_argument("--images", type=int, default=ASKED, help="to predict")
    options = parser.parse_args(argv)
    device, report = begin("prediction", options)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(TRAINED, *SHAPE, generator=generator), torch.randint(0, 10, (TRAINED,), generator=generator)
    asked = torch.randn(options.images, *SHAPE, generator=generator).to(device)
    network = bmp.Network(cifar10_cnn(), bmp.Argmax(), input_shape=SHAPE).to(device)
    bmp.Trainer(network, x, y, batch_size=128).run(1, progress=False)
    model = bmp.to_torch(network).to(device).eval()

    def timed(call: Callable[[], object]) -> Callable[[], object]:
        def finished() -> None:
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        return finished

    @torch.no_grad()
    def plain() -> None:
        for rows in asked.split(ROWS):
            model(rows)

    calls = [plain, lambda: network.predict(asked, joint=False), lambda: network.predict(asked)]
    passed, apart, joint = alternating_medians([timed(call) for call in calls], repeats=options.repeats)
    report.show(
        "costs",
        [
            {"prediction": "plain pass", "ms": 1e3 * passed, "plain passes": 1.0},
            {"prediction": "joint=False", "ms": 1e3 * apart, "plain passes": apart / passed},
            {"prediction": "joint belief", "ms": 1e3 * joint, "plain passes": joint / passed},
        ],
    )


if __name__ == "__main__":
    main()
