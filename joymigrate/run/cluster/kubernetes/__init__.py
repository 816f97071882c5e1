"""Kubernetes: manifests from our jobs and queues, strict checks of manifests, applying them."""
