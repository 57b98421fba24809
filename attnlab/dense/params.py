"""The dials of softmax attention.

Letters as in arXiv:1706.03762v7: n `tokens`, d_k `head_width`. The temperature is this project's: the paper's is 1.
"""

from dataclasses import dataclass

from attnlab import inputs
from attnlab.dials import Dials, knob
from attnlab.inputs import INPUTS, TOY, Inputs

__all__ = ["SoftmaxParams"]


@dataclass(frozen=True)
class SoftmaxParams(Dials):
    """The dials of softmax attention with their ranges; slider, test and notebook use the same ones.

    Raises ValueError with the dial's name, its range and what came.
    """

    temperature: float = knob(1.0, 2.0**-5, 2.0**5, label="temperature", scale="log")
    tokens: int = knob(32, 4, 256, label="tokens", paper="n")
    head_width: int = knob(16, 2, 64, label="head width", paper="dₖ")
    seed: int = knob(0, 0, 9999, label="seed")
    causal: bool = knob(False, label="causal")
    input: str = knob(TOY, label="input", choices=INPUTS)

    @property
    def width(self) -> int:
        """The head width in force: the dial's for toy tokens, the model's for a real head."""
        return inputs.width(self.input, self.head_width)

    @property
    def scale(self) -> float:
        """What q.k is multiplied by: 1 / (sqrt(K) * temperature)."""
        return self.width**-0.5 / self.temperature

    def inputs(self) -> Inputs:
        """Toy clusters drawn from the seed, or the first `tokens` positions of a window of a real head."""
        return inputs.inputs(self.input, self.tokens, self.head_width, self.seed)
