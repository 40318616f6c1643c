"""What prefixes do, in numbers and pictures."""

from prefixprop.reporting.figures import plot_alpha, plot_prefix_share
from prefixprop.reporting.prefix_share import prefix_share

__all__ = ["plot_alpha", "plot_prefix_share", "prefix_share"]
