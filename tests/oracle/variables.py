"""The two kinds of variable: a scalar inside one example, and a weight that all examples share."""

from .messages import NOTHING, Message


class Variable:
    """A scalar of one example: the message from below, and the product of the messages from above.

    `backward` keeps its value from one sweep to the next; it is nothing at the start of a visit.
    """

    def __init__(self) -> None:
        self.forward: Message | None = None  # set by the factor below, in each forward sweep
        self.backward: Message = NOTHING

    @property
    def marginal(self) -> Message:
        return self.forward * self.backward

    def reset_backward(self) -> None:
        self.backward = NOTHING

    def collect(self, message: Message) -> None:
        """Multiply in the message of one of the factors above."""
        self.backward = self.backward * message


class Weight:
    """A weight or bias during one visit: batch cavity, marginal, and one message from each example.

    An example that uses the weight several times (convolution) collects its messages first, then replaces
    its old message by their product:
        marginal <- marginal / old * new.
    """

    def __init__(self, cavity: Message) -> None:
        self.cavity = cavity
        self.marginal = cavity
        self.messages: dict[int, Message] = {}
        self._collected = NOTHING

    def message_from(self, example: int) -> Message:
        return self.messages.get(example, NOTHING)

    def cavity_of(self, example: int) -> Message:
        """The marginal without this example's own message."""
        return self.marginal / self.message_from(example)

    def collect(self, message: Message) -> None:
        self._collected = self._collected * message

    def replace_message(self, example: int) -> None:
        """Old message of the example out, the product of the collected ones in."""
        self.marginal = self.cavity_of(example) * self._collected
        self.messages[example] = self._collected
        self._collected = NOTHING

    def product_of_messages(self) -> Message:
        product = NOTHING
        for example in sorted(self.messages):
            product = product * self.messages[example]
        return product

    def recompute_marginal(self) -> None:
        """Remove the rounding drift of the many replacements."""
        self.marginal = self.cavity * self.product_of_messages()
