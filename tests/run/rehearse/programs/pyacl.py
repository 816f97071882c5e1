"""What engines ask pyACL, before and beside torch."""

import acl
import acl.rt

assert acl.init() == 0
assert acl.rt.set_device(0) == 0
print(acl.get_soc_name(), acl.rt.get_device(), acl.rt.get_device_count())
there, code = acl.rt.malloc(16, 0)
text = bytearray(b"sixteen bytes up")
import ctypes  # noqa: E402

here = (ctypes.c_char * 16).from_buffer(text)
assert acl.rt.memcpy(there, 16, ctypes.addressof(here), 16, 1) == 0
back = ctypes.create_string_buffer(16)
assert acl.rt.memcpy(ctypes.addressof(back), 16, there, 16, 2) == 0
print(back.raw.decode(), acl.rt.free(there))
free, total, code = acl.rt.get_mem_info(1)
assert 0 < free <= total and code == 0
nowhere, code = acl.rt.malloc(1 << 50, 0)  # more than the device has
assert nowhere == 0 and code != 0
import torch  # noqa: E402
import torch_npu  # noqa: E402, F401

print(torch.ones(2).npu().sum().item())
try:
    acl.rt.launch_kernel()
except AttributeError as error:
    print(error)
