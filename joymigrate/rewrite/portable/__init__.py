"""The style `accelerator`: torch's own portable names, with no vendor's word and no new module.

On the origin's cards a rewritten program does what it did; without an accelerator it uses the host
where the program chose the host, and `torch.device("cpu")` where it would have failed.
"""
