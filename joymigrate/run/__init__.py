"""What executes workloads: the rehearsal device, kernels, training, serving, clusters."""
