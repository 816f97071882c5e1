"""Placing jobs on a mixed cluster: inventory, placement, queues, simulation, Ray, Kubernetes."""
