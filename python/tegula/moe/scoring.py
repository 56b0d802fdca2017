# SPDX-License-Identifier: MIT
"""How a gate turns logits into scores."""
import enum


class ScoringFunc(enum.IntEnum):
    SIGMOID = 0
    SQRTSOFTPLUS = 1
    SOFTMAX = 2
    IDENTITY = 3

    def __str__(self):
        return self.name.lower()

    @classmethod
    def from_str(cls, label):
        """Of a name in either case: 'sigmoid', 'SIGMOID'."""
        try:
            return cls[label.upper()]
        except (AttributeError, KeyError):
            labels = ", ".join(repr(str(f)) for f in cls)
            raise ValueError(f"label: is {label!r}, want one of {labels}") from None
