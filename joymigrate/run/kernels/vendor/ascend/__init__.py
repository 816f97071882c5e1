"""torch_npu's fused operators behind the signatures of our operators."""
