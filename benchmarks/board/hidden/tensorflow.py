"""Before TensorFlow on the path: it and Triton bring an LLVM each, and one process takes one.

TensorBoard's writer and others look for TensorFlow and do without.
"""

raise ImportError("the board runs without TensorFlow")
