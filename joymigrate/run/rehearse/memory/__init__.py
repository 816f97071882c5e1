"""What a program's device memory holds: weights, gradients, optimiser states, activations."""
