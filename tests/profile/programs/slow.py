"""For each rule of advice a program that it is about (`slow`), and its twin that it is not.

Each function returns one step, a function without arguments.
"""

import gc
import math
import time

import torch
import torch.nn.functional as F
from torch import nn

PROGRAMS = {}


def slow(rule):
    def keep(make):
        PROGRAMS.setdefault(rule, {})["slow"] = make
        return make

    return keep


def clean(rule):
    def keep(make):
        PROGRAMS.setdefault(rule, {})["clean"] = make
        return make

    return keep


def trained(model, x, optimiser=None, loss=lambda y: y.square().mean()):
    """A training step of a model."""
    optimiser = optimiser or torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimiser.zero_grad()
        loss(model(x)).backward()
        optimiser.step()

    return step


class Function(nn.Module):
    """A module out of a function, with parameters of its own."""

    def __init__(self, function, *parameters):
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(nn.Parameter(p) for p in parameters)

    def forward(self, *inputs):
        return self.function(*inputs, *self.weights)


# Operators and types.


@slow("OP-FALLBACK")
def fallback():
    x = torch.rand(8) + 1
    return lambda: torch.lgamma(x)


@clean("OP-FALLBACK")
def no_fallback():
    x = torch.rand(8) + 1
    return lambda: torch.log(x)


@slow("OP-DTYPE")
def wrong_type():
    x = torch.rand(4, 4, dtype=torch.float64)
    return lambda: x @ x


@clean("OP-DTYPE")
def right_type():
    x = torch.rand(4, 4)
    return lambda: x @ x


@slow("DOUBLE")
def double():
    x = torch.rand(4, 4, dtype=torch.float64)
    return lambda: x * 2


@clean("DOUBLE")
def single():
    x = torch.rand(4, 4)
    return lambda: x * 2


@slow("CUSTOM-OP")
def custom():
    library = torch.library.Library("joytest_vision", "FRAGMENT")
    library.define("roi_pool(Tensor x) -> Tensor")
    library.impl("roi_pool", lambda x: x + 1, "CPU")
    x = torch.rand(4)
    keep = [library]

    def step():
        assert keep
        torch.ops.joytest_vision.roi_pool(x)

    return step


@clean("CUSTOM-OP")
def plain():
    x = torch.rand(4)
    return lambda: x + 1


# Indexing and shapes.


@slow("IDX-PUT")
def mask_put():
    x, mask = torch.rand(16, 16), torch.rand(16, 16) > 0.5

    def step():
        x[mask] = 0.0

    return step


@clean("IDX-PUT")
def masked_fill():
    x, mask = torch.rand(16, 16), torch.rand(16, 16) > 0.5
    return lambda: x.masked_fill_(mask, 0.0)


@slow("IDX-GET")
def mask_get():
    x, mask = torch.rand(16, 16), torch.rand(16, 16) > 0.5
    return lambda: x[mask].mean()


@clean("IDX-GET")
def mask_where():
    x, mask = torch.rand(16, 16), torch.rand(16, 16) > 0.5
    return lambda: torch.where(mask, x, 0.0).sum() / mask.sum()


@slow("IDX-GATHER")
def gather_by_two():
    z = torch.rand(4, 8, 8)
    rows, columns = torch.arange(8), torch.arange(8)
    return lambda: z[:, rows, columns]


@clean("IDX-GATHER")
def select_by_one():
    z, places = torch.rand(4, 64), torch.arange(8)
    return lambda: z.index_select(1, places)


@slow("DYN-SHAPE")
def nonzero():
    x = torch.rand(16)
    return lambda: torch.nonzero(x > 0.5)


@clean("DYN-SHAPE")
def topk():
    x = torch.rand(16)
    return lambda: x.topk(4)


@slow("INT64")
def long_indices():
    table, rows = torch.rand(64, 4), torch.randint(0, 64, (512, 256))
    return lambda: F.embedding(rows, table)


@clean("INT64")
def int_indices():
    table, rows = torch.rand(64, 4), torch.randint(0, 64, (512, 256), dtype=torch.int32)
    return lambda: F.embedding(rows, table)


@slow("LOOP-INDEX")
def loop():
    x, w = torch.rand(32, 4, 4), torch.rand(4, 4)

    def step():
        for i in range(32):
            x[i] * w

    return step


@clean("LOOP-INDEX")
def whole():
    x, w = torch.rand(32, 4, 4), torch.rand(4, 4)
    return lambda: x * w


# The host.


@slow("SYNC")
def reads():
    x = torch.rand(8)

    def step():
        total = 0.0
        for scale in (1, 2, 3):
            total += (x * scale).sum().item()

    return step


@clean("SYNC")
def one_read():
    x = torch.rand(8)

    def step():
        total = torch.zeros(())
        for scale in (1, 2, 3):
            total = total + (x * scale).sum()
        total.item()

    return step


@slow("EMPTY-CACHE")
def emptied():
    x = torch.rand(8)

    def step():
        x + 1
        torch.cuda.empty_cache()

    return step


@clean("EMPTY-CACHE")
def kept():
    x = torch.rand(8)
    return lambda: x + 1


@slow("OPT-FORLOOP")
def single_tensor():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    optimiser = torch.optim.AdamW(model.parameters(), foreach=False)
    return trained(model, torch.rand(2, 4), optimiser)


@clean("OPT-FORLOOP")
def multi_tensor():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    return trained(model, torch.rand(2, 4), torch.optim.AdamW(model.parameters(), fused=True))


@slow("FUSE-OPTIMISER")
def unfused():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    return trained(model, torch.rand(2, 4), torch.optim.Adam(model.parameters()))


@clean("FUSE-OPTIMISER")
def fused():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    return trained(model, torch.rand(2, 4), torch.optim.Adam(model.parameters(), fused=True))


@slow("GRAD-ZERO")
def zeroed():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.rand(2, 4)

    def step():
        model(x).sum().backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=False)

    return step


@clean("GRAD-ZERO")
def dropped():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    return trained(model, torch.rand(2, 4))


@slow("DATALOADER")
def slow_loader():
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 20

        def __getitem__(self, index):
            for _ in range(30):
                x = torch.rand(8, 8) @ torch.rand(8, 8)
            return x

    batches = iter(torch.utils.data.DataLoader(Data(), batch_size=4))
    model = nn.Linear(8, 8)
    return lambda: model(next(batches))


@clean("DATALOADER")
def ready_data():
    x, model = torch.rand(256, 512), nn.Linear(512, 512)

    def step():
        for _ in range(20):
            model(x)

    return step


@slow("DATA-SUPPLY")
def loader_that_keeps_up():
    batches = iter(torch.utils.data.DataLoader(torch.rand(1 << 16, 8), batch_size=4))
    x, model = torch.rand(256, 512), nn.Linear(512, 512)

    def step():
        next(batches)
        for _ in range(30):
            model(x)

    return step


@clean("DATA-SUPPLY")
def loader_that_starves():
    return slow_loader()


@slow("GC")
def collected():
    x = torch.rand(8)
    kept = [[number] for number in range(200_000)]  # what a collection looks at takes its time

    def step():
        gc.collect()
        kept[0][0] += 1
        return x + 1

    return step


@clean("GC")
def frozen():
    x = torch.rand(8)
    return lambda: x + 1


@slow("SMALL-OPS")
def many_small():
    x = torch.rand(8)

    def step():
        y = x
        for _ in range(300):
            y = y + 1

    return step


@clean("SMALL-OPS")
def few_large():
    x = torch.rand(1024, 1024)
    return lambda: (x * 2).relu()


@slow("LAUNCH")
def host_bound():
    x = torch.rand(8)

    def step():
        y = x
        for _ in range(600):
            y = y + 1
            sum(range(2000))

    return step


@clean("LAUNCH")
def device_bound():
    x = torch.rand(256, 256)

    def step():
        for _ in range(20):
            x @ x

    return step


# Layout and precision.


@slow("LAYOUT-COPY")
def copied():
    x = torch.rand(16, 64, 32, 64)
    return lambda: x.transpose(1, 2).contiguous()


@clean("LAYOUT-COPY")
def uncopied():
    x = torch.rand(16, 64, 32, 64)
    return lambda: x.flatten(2)


@slow("NONCONTIG")
def loose():
    x, places, added = torch.zeros(8, 4), torch.zeros(8, 4).long(), torch.rand(4, 8).t()
    return lambda: x.scatter_add(0, places, added)


@clean("NONCONTIG")
def dense():
    x, places, added = torch.zeros(8, 4), torch.zeros(8, 4).long(), torch.rand(8, 4)
    return lambda: x.scatter_add(0, places, added)


@slow("ALIGN")
def odd():
    x, w = torch.rand(256, 203).bfloat16(), torch.rand(203, 128).bfloat16()
    return lambda: x @ w


@clean("ALIGN")
def even():
    x, w = torch.rand(256, 208).bfloat16(), torch.rand(208, 128).bfloat16()
    return lambda: x @ w


@slow("ALIGN-LARGE")
def large_odd():
    x, w = torch.zeros(16384, 4112, dtype=torch.bfloat16), torch.zeros(4112, 16).bfloat16()
    return lambda: x @ w


@clean("ALIGN-LARGE")
def large_even():
    x, w = torch.zeros(16384, 4096, dtype=torch.bfloat16), torch.zeros(4096, 256).bfloat16()
    return lambda: x @ w


@slow("ALIGN-VOCAB")
def odd_words():
    embed, head = nn.Embedding(1003, 8), nn.Linear(8, 1003)
    rows = torch.randint(0, 1003, (4,))
    return lambda: head(embed(rows))


@clean("ALIGN-VOCAB")
def padded_words():
    embed, head = nn.Embedding(1024, 8), nn.Linear(8, 1024)
    rows = torch.randint(0, 1003, (4,))
    return lambda: head(embed(rows))


@slow("FP32-MM")
def single_precision():
    x, w = torch.rand(1024, 512), torch.rand(512, 256)
    return lambda: x @ w


@clean("FP32-MM")
def mixed_precision():
    x, w = torch.rand(1024, 512), torch.rand(512, 256)

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x @ w

    return step


@slow("CONV-BIAS")
def biased():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    return trained(model, torch.rand(2, 3, 8, 8))


@clean("CONV-BIAS")
def unbiased():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))
    learnt = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    x = torch.rand(2, 3, 8, 8)
    step = trained(model, x)

    def both():
        step()
        with torch.no_grad():
            learnt(x)  # its mean was learnt: the bias must stay

    return both


@slow("CONV-BN")
def norm_at_inference():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)).eval()
    x = torch.rand(2, 3, 8, 8)

    @torch.no_grad()
    def step():
        model(x)

    return step


@clean("CONV-BN")
def fused_norm():
    convolution, norm = nn.Conv2d(3, 4, 3).eval(), nn.BatchNorm2d(4).eval()
    model = torch.nn.utils.fusion.fuse_conv_bn_eval(convolution, norm)
    x = torch.rand(2, 3, 8, 8)

    @torch.no_grad()
    def step():
        model(x)

    return step


@slow("USE-ADDMM")
def product_and_sum():
    x, w, b = torch.rand(4, 8), torch.rand(8, 4), torch.rand(4)
    return lambda: x @ w + b


@clean("USE-ADDMM")
def addmm():
    x, w, b = torch.rand(4, 8), torch.rand(8, 4), torch.rand(4)
    return lambda: torch.addmm(b, x, w)


# Fusions.


def heads(requires_grad=True):
    return [torch.rand(2, 4, 128, 128, requires_grad=requires_grad) for _ in range(3)]


@slow("FUSE-ATTENTION")
def written_attention():
    q, k, v = heads()
    mask = torch.zeros(128, 128).masked_fill_(torch.ones(128, 128).triu(1) > 0, -1e9)

    def step():
        p = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(128) + mask, -1)
        (F.dropout(p, 0.1) @ v).sum().backward()

    return step


@clean("FUSE-ATTENTION")
def called_attention():
    q, k, v = heads()
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()


@slow("FUSE-ATTENTION-INFER")
def attention_at_inference():
    q, k, v = heads(requires_grad=False)
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)


@clean("FUSE-ATTENTION-INFER")
def attention_in_training():
    q, k, v = heads()
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()


@slow("FA-HEAD-SIZE")
def odd_heads():
    q, k, v = (torch.rand(2, 4, 100, 40, requires_grad=True) for _ in range(3))
    return lambda: F.scaled_dot_product_attention(q, k, v).sum().backward()


@clean("FA-HEAD-SIZE")
def even_heads():
    q, k, v = heads()
    return lambda: F.scaled_dot_product_attention(q, k, v).sum().backward()


def rms(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


@slow("FUSE-RMSNORM")
def written_norm():
    return trained(Function(rms, torch.ones(32)), torch.rand(4, 32))


@clean("FUSE-RMSNORM")
def called_norm():
    return trained(nn.RMSNorm(32), torch.rand(4, 32))


@slow("FUSE-ADD-RMSNORM")
def residual_norm():
    return trained(Function(lambda x, w: rms(x + x.sin(), w), torch.ones(32)), torch.rand(4, 32))


@clean("FUSE-ADD-RMSNORM")
def norm_alone():
    return trained(Function(lambda x, w: rms(x.sin(), w), torch.ones(32)), torch.rand(4, 32))


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


@slow("FUSE-ROTARY")
def written_rotary():
    q, cos, sin = torch.rand(2, 4, 8, 16), torch.rand(8, 16), torch.rand(8, 16)
    return lambda: q * cos + rotate_half(q) * sin


@clean("FUSE-ROTARY")
def no_rotary():
    q, cos, sin = torch.rand(2, 4, 8, 16), torch.rand(8, 16), torch.rand(8, 16)
    return lambda: q * cos + q.flip(-1) * sin


@slow("FUSE-SWIGLU")
def written_swiglu():
    gate, up = nn.Linear(8, 16), nn.Linear(8, 16)
    x = torch.rand(4, 8)
    return lambda: F.silu(gate(x)) * up(x)


@clean("FUSE-SWIGLU")
def no_gate():
    layer, x = nn.Linear(8, 16), torch.rand(4, 8)
    return lambda: F.silu(layer(x)) + 1


@slow("FUSE-GEGLU")
def written_geglu():
    layer, x = nn.Linear(8, 16), torch.rand(4, 8)

    def step():
        a, b = layer(x).chunk(2, -1)
        return a * F.gelu(b)

    return step


@clean("FUSE-GEGLU")
def gelu_alone():
    layer, x = nn.Linear(8, 16), torch.rand(4, 8)
    return lambda: F.gelu(layer(x)) + 1


@slow("GELU-EXACT")
def exact_gelu():
    x = torch.rand(8)
    return lambda: F.gelu(x)


@clean("GELU-EXACT")
def tanh_gelu():
    x = torch.rand(8)
    return lambda: F.gelu(x, approximate="tanh")


@slow("FUSE-ADD-LAYERNORM")
def residual_layer_norm():
    norm, x, y = nn.LayerNorm(8), torch.rand(4, 8), torch.rand(4, 8)
    return lambda: norm(x + y)


@clean("FUSE-ADD-LAYERNORM")
def layer_norm():
    norm, x = nn.LayerNorm(8), torch.rand(4, 8)
    return lambda: norm(x * 2)


@slow("FUSE-GROUPNORM-SILU")
def group_norm_silu():
    norm, x = nn.GroupNorm(2, 4), torch.rand(2, 4, 8, 8)
    return lambda: F.silu(norm(x))


@clean("FUSE-GROUPNORM-SILU")
def group_norm_relu():
    norm, x = nn.GroupNorm(2, 4), torch.rand(2, 4, 8, 8)
    return lambda: F.relu(norm(x))


@slow("FUSE-MASKED-SOFTMAX")
def masked_softmax():
    x, mask = torch.rand(4, 64), torch.rand(4, 64) > 0.9
    return lambda: torch.softmax(x.masked_fill(mask, -10000.0), -1)


@clean("FUSE-MASKED-SOFTMAX")
def softmax():
    x = torch.rand(4, 64)
    return lambda: torch.softmax(x * 2, -1)


@slow("FUSE-TRANSPOSE")
def transposed():
    x = torch.rand(2, 4, 8, 16)
    return lambda: x.permute(0, 2, 1, 3).contiguous().view(2, 8, 64)


@clean("FUSE-TRANSPOSE")
def viewed():
    x = torch.rand(2, 8, 4, 16)
    return lambda: x.reshape(2, 8, 64)


@slow("FUSE-BMM-TRANSPOSE")
def product_transposed():
    a, b = torch.rand(4, 8, 16), torch.rand(4, 16, 8)
    return lambda: torch.bmm(a, b).transpose(0, 1).contiguous()


@clean("FUSE-BMM-TRANSPOSE")
def product():
    a, b = torch.rand(4, 8, 16), torch.rand(4, 16, 8)
    return lambda: torch.bmm(a, b).relu()


@slow("FUSE-CLIP")
def clipped():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.rand(2, 4)

    def step():
        optimiser.zero_grad()
        model(x).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    return step


@clean("FUSE-CLIP")
def unclipped():
    return trained(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), torch.rand(2, 4))


@slow("FUSE-GRAD-ACCUMULATION")
def accumulated():
    x, g = torch.rand(16, 32).bfloat16(), torch.rand(16, 8).bfloat16()
    main_grad = torch.zeros(8, 32)
    return lambda: main_grad.add_((g.t() @ x).float())


@clean("FUSE-GRAD-ACCUMULATION")
def not_accumulated():
    x, g = torch.rand(16, 32).bfloat16(), torch.rand(16, 8).bfloat16()
    return lambda: (g.t() @ x).float()


@slow("FUSE-MOE-GATE")
def router():
    x = torch.rand(16, 8)
    return lambda: torch.softmax(x, -1).topk(2, -1)


@clean("FUSE-MOE-GATE")
def no_router():
    x = torch.rand(16, 8)
    return lambda: torch.softmax(x, -1).sum(-1)


@slow("FUSE-MOE-PERMUTE")
def sorted_tokens():
    x, experts = torch.rand(16, 8), torch.randint(0, 4, (16,))

    def step():
        order = experts.argsort()
        return x.index_select(0, order), order.argsort()

    return step


@clean("FUSE-MOE-PERMUTE")
def unsorted_tokens():
    x, order = torch.rand(16, 8), torch.randperm(16)
    boxes, scores = torch.rand(16, 4), torch.rand(16)
    return lambda: (x.index_select(0, order), boxes[scores.argsort(descending=True)])


@slow("FUSE-MOE-UNPERMUTE")
def weighted_experts():
    x, order, weights = torch.rand(32, 8), torch.randperm(32), torch.rand(16, 2)
    return lambda: (x.index_select(0, order).view(16, 2, 8) * weights[..., None]).sum(1)


@clean("FUSE-MOE-UNPERMUTE")
def unweighted_rows():
    x, order = torch.rand(32, 8), torch.randperm(32)
    return lambda: x.index_select(0, order).relu()


@slow("FUSE-GROUPED-MATMUL")
def loop_over_experts():
    experts = [torch.rand(8, 8) for _ in range(4)]
    tokens, order = torch.rand(24, 8), torch.randperm(24).split((3, 5, 7, 9))

    def step():
        for rows, w in zip(order, experts, strict=True):
            tokens[rows] @ w

    return step


@clean("FUSE-GROUPED-MATMUL")
def one_layer_and_texts_of_several_lengths():
    layer = nn.Linear(8, 8)
    texts = [torch.rand(n, 8) for n in (3, 5, 7, 9)]
    return lambda: [layer(text) for text in texts]


@slow("FUSE-FFN")
def feed_forward():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).eval()
    x = torch.rand(4, 8)

    @torch.no_grad()
    def step():
        model(x)

    return step


@clean("FUSE-FFN")
def feed_forward_in_training():
    return trained(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)), torch.rand(4, 8))


@slow("FUSE-CROSS-ENTROPY")
def large_vocabulary():
    logits, labels = torch.rand(2, 8192, requires_grad=True), torch.randint(0, 8192, (2,))
    return lambda: F.cross_entropy(logits, labels).backward()


@clean("FUSE-CROSS-ENTROPY")
def few_classes():
    logits, labels = torch.rand(2, 10, requires_grad=True), torch.randint(0, 10, (2,))
    return lambda: F.cross_entropy(logits, labels).backward()


@slow("FUSE-WEIGHT-QUANT")
def unpacked():
    x, w = torch.rand(4, 16), torch.randint(-128, 127, (16, 8), dtype=torch.int8)
    scale = torch.rand(8)
    return lambda: x @ (w.to(torch.float32) * scale)


@clean("FUSE-WEIGHT-QUANT")
def plain_weights():
    x, w, scale = torch.rand(4, 16), torch.rand(16, 8), torch.rand(8)
    return lambda: x @ (w * scale)


@slow("FUSE-QUANT-MM")
def integer_product():
    a = torch.randint(-128, 127, (32, 32), dtype=torch.int8)
    return lambda: torch._int_mm(a, a)


@clean("FUSE-QUANT-MM")
def float_product():
    a = torch.rand(32, 32)
    return lambda: a @ a


@slow("FUSE-SAMPLING")
def sampling():
    logits = torch.rand(2, 100)

    def step():
        ordered, index = logits.sort(descending=True)
        keep = ordered.softmax(-1).cumsum(-1) <= 0.9
        return index, keep

    return step


@clean("FUSE-SAMPLING")
def greedy():
    logits = torch.rand(2, 100)
    return lambda: logits.argmax(-1)


@slow("FUSE-KV-WRITE")
def cache_by_index():
    cache, slots, keys = torch.zeros(64, 8), torch.tensor([3, 4]), torch.rand(2, 8)
    return lambda: cache.index_copy_(0, slots, keys)


@clean("FUSE-KV-WRITE")
def cache_by_slice():
    cache, keys = torch.zeros(64, 8), torch.rand(2, 8)

    def step():
        cache[3:5] = keys

    return step


# Collectives of one process.


def alone():
    import torch.distributed as dist

    if not dist.is_initialized():
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    return dist


@slow("FUSE-MM-ALLREDUCE")
def product_reduced():
    dist, x, w = alone(), torch.rand(4, 8), torch.rand(8, 4)
    return lambda: dist.all_reduce(x @ w)


@clean("FUSE-MM-ALLREDUCE")
def sum_reduced():
    dist, x = alone(), torch.rand(4, 8)
    return lambda: dist.all_reduce(x + 1)


@slow("FUSE-ALLGATHER-MM")
def gathered_product():
    dist, x, w, full = alone(), torch.rand(4, 8), torch.rand(8, 4), torch.empty(4, 8)

    def step():
        dist.all_gather_into_tensor(full, x)
        return full @ w

    return step


@clean("FUSE-ALLGATHER-MM")
def gathered_sum():
    dist, x, full = alone(), torch.rand(4, 8), torch.empty(4, 8)

    def step():
        dist.all_gather_into_tensor(full, x)
        return full + 1

    return step


@slow("FUSE-MM-REDUCE-SCATTER")
def product_scattered():
    dist, x, w, part = alone(), torch.rand(4, 8), torch.rand(8, 4), torch.empty(4, 4)
    return lambda: dist.reduce_scatter_tensor(part, x @ w)


@clean("FUSE-MM-REDUCE-SCATTER")
def sum_scattered():
    dist, x, part = alone(), torch.rand(4, 8), torch.empty(4, 8)
    return lambda: dist.reduce_scatter_tensor(part, x + 1)


@slow("CHANNELS-LAST")
def channels_last():
    layer = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    return trained(layer, torch.rand(2, 4, 8, 8).to(memory_format=torch.channels_last))


@clean("CHANNELS-LAST")
def channels_first():
    return trained(nn.Conv2d(4, 8, 3), torch.rand(2, 4, 8, 8))


@slow("HOST-GAP")
def host_gap():
    step = trained(nn.Linear(8, 8), torch.rand(4, 8))

    def slow_step():
        time.sleep(0.2)
        step()

    return slow_step


@clean("HOST-GAP")
def no_host_gap():
    return trained(nn.Linear(512, 512), torch.rand(4096, 512))
