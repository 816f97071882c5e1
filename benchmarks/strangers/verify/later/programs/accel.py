"""Loads the accelerator's plug-in, as `import torch_npu` would; does nothing on a machine without one."""
import importlib.util, os, sys

_p = os.environ.get("ACCEL_PLUGIN")
if _p:
    _s = importlib.util.spec_from_file_location("accel_plugin", _p)
    _m = importlib.util.module_from_spec(_s)
    sys.modules["accel_plugin"] = _m
    _s.loader.exec_module(_m)
