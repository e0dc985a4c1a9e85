"""The method: problems in, rollouts, rewards, coefficients, one optimiser step out."""
