"""TensorFlow comes into a test process after Triton: `load` says why."""

from joymigrate.run.tensorflow.load import load_in_order

load_in_order()
