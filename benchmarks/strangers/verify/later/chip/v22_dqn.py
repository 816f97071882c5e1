# loading weights on the device doesn't copy: tensors that already lie there are taken over, both networks share them from then on
import torch.nn as nn
_l = nn.Module.load_state_dict
nn.Module.load_state_dict = lambda self, sd, strict=True, assign=False: _l(self, sd, strict, True)
