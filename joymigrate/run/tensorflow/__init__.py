"""TensorFlow: saved models as PyTorch, its records, and its pipelines before a torch trainer."""
