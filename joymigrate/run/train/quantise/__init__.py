"""Quantise a model folder: W8A8 by SmoothQuant, W4A16 by AWQ, and a verdict on the result.

    made = quantise(model, out, samples, Options(scheme="w8a8"))
    verdict, document = judge(model, out, samples)

Layer by layer: memory holds one layer's weights and the samples' states, whatever the model's
size. The model's code is transformers'; it is built empty and filled one layer at a time.
"""
