"""A decode step for a batch that was padded up, with the lengths of only the requests that are alive."""
import torch
import torch_npu

BATCH, HEADS, DIM, CACHE = 16, 8, 128, 512


def decode(query, key, value, lengths):
    out, _ = torch_npu.npu_fused_infer_attention_score(
        query,
        key,
        value,
        actual_seq_lengths_kv=lengths,
        num_heads=HEADS,
        num_key_value_heads=HEADS,
        input_layout="BNSD",
        scale=DIM**-0.5,
    )
    return out


torch.manual_seed(0)
query = torch.randn(BATCH, HEADS, 1, DIM, dtype=torch.float16).npu()
key = torch.randn(BATCH, HEADS, CACHE, DIM, dtype=torch.float16).npu()
value = torch.randn(BATCH, HEADS, CACHE, DIM, dtype=torch.float16).npu()
alive = [37, 120, 256, 300, 18, 411, 512, 64, 90]  # nine requests; the batch is padded to 16
lengths = alive + [1] * (BATCH - len(alive))  # one length for each row of the batch
out = decode(query, key, value, lengths)
torch.npu.synchronize()
print("decoded", tuple(out.shape))
