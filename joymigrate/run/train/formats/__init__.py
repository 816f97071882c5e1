"""Quantised weights on disk: compressed-tensors and msmodelslim, read and written.

    reader = open_quantised(folder)          # None where the weights are plain
    reader.linear("model.layers.0.mlp.up_proj")   # Int8Linear, Int4Linear or None

Tensors are mapped safetensors, read one by one; foreign formats are refused with the reason.
"""
