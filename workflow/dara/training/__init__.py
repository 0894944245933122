"""Training: the warm start of the laptop models and the engines that train with the aggregated rewards."""
