"""DARA: density-aware reward aggregation for multi-reward reinforcement learning, from rewards to figures."""

__version__ = "0.1.0"
