"""What is computed, a family to a file; ALL maps the names of the rows, in order."""

from ..harness import Workload
from . import clients, curvature, dense, network, probability, scalar, sequence

ALL: dict[str, Workload] = {
    w.name: w
    for w in (
        scalar.W1, scalar.W2, network.W3, network.W3S, dense.W4, dense.W4S, sequence.W5, sequence.W6,
        probability.W8, dense.W9, scalar.W10, probability.W11, curvature.W12, dense.W13,
        network.W14, network.W15, clients.W16, clients.W17, clients.W18,
    )
}  # fmt: skip
