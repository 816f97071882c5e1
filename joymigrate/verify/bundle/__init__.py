"""`*.jmb`: a recording as a folder (or one tar) of JSON and safetensors, each file with its hash.

```
base.jmb/manifest.json        what was run, where, and the sha256 of every file below
         rank-0/manifest.json the same for what one process wrote; rewritten at every flush
         rank-0/program.json  modules, weights' hashes, optimisers, notes
         rank-0/step-0.safetensors   stats [N, 4], sketch [N, 64], index (what each row is)
         rank-0/step-0.json          losses, hyper-parameters, hashes of the batches
         rank-0/forced.json          the reference's table: one row per input and output of a module
         rank-0/forced-*.safetensors its tensors, each content once
         rank-0/weights-*.safetensors
```
Nothing in it is pickled. Reading needs numpy and safetensors, not torch.
"""

from __future__ import annotations

from joymigrate.verify.bundle.pack import pack
from joymigrate.verify.bundle.read import Bundle, NothingRecorded, Rank, open_bundle
from joymigrate.verify.bundle.table import RecordTable

__all__ = ["Bundle", "NothingRecorded", "Rank", "RecordTable", "open_bundle", "pack"]
