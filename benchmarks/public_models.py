"""Training steps of public models, small and with random weights: which, and how each is built.

    DEVICE=cpu python -m benchmarks.public_models NAME

Libraries: transformers, timm, torchvision, torch_geometric, deepctr_torch, diffusers, torchaudio. A
builder returns a model and a function that makes one step's loss on a device.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Built = tuple[nn.Module, Callable[[nn.Module, str], torch.Tensor]]
MODELS: dict[str, Callable[[], Built]] = {}
STEPS = 3


def model(builder: Callable[[], Built]) -> Callable[[], Built]:
    """List a builder under its name, `library_model`."""
    MODELS[builder.__name__] = builder
    return builder


def total(value: Any) -> torch.Tensor:
    """A loss out of whatever a model returns: its own, else the mean square of its tensors."""
    if hasattr(value, "loss") and value.loss is not None:
        return value.loss
    if hasattr(value, "to_tuple"):
        value = value.to_tuple()
    parts = [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
    learns = torch.is_grad_enabled()
    parts = [t for t in parts if t.is_floating_point() and (t.requires_grad or not learns)]
    return torch.stack([t.float().square().mean() for t in parts]).sum()


def words(device: str, count: int = 96, shape: tuple[int, ...] = (2, 16)) -> torch.Tensor:
    """Drawn token ids."""
    return torch.randint(3, count, shape, device=device)


def language(kind: str, head: str, **settings: Any) -> Built:
    """A language model of transformers that takes its inputs as labels."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(**settings)

    def loss(net: nn.Module, device: str) -> torch.Tensor:
        ids = words(device)
        return net(input_ids=ids, labels=ids).loss

    return getattr(transformers, f"{kind}{head}")(config), loss


SMALL = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 64}  # fmt: skip


@model
def transformers_bert() -> Built:
    return language("Bert", "ForMaskedLM", **SMALL)


@model
def transformers_llama() -> Built:
    return language("Llama", "ForCausalLM", **SMALL, num_key_value_heads=2)


@model
def transformers_mixtral() -> Built:
    return language("Mixtral", "ForCausalLM", **SMALL, num_key_value_heads=2,
                    num_local_experts=4)  # fmt: skip


@model
def transformers_t5() -> Built:
    return language("T5", "ForConditionalGeneration", vocab_size=96, d_model=32, d_ff=64, d_kv=8,
                    num_layers=2, num_heads=4, decoder_start_token_id=0)  # fmt: skip


@model
def transformers_fnet() -> Built:
    sizes = {k: v for k, v in SMALL.items() if k != "num_attention_heads"}
    return language("FNet", "ForMaskedLM", **sizes)


@model
def transformers_deberta() -> Built:
    return language("DebertaV2", "ForMaskedLM", **SMALL, relative_attention=True,
                    pos_att_type=["p2c", "c2p"])  # fmt: skip


@model
def transformers_mamba() -> Built:
    return language("Mamba", "ForCausalLM", vocab_size=96, hidden_size=32, num_hidden_layers=2,
                    state_size=8)  # fmt: skip


@model
def transformers_longformer() -> Built:
    return language("Longformer", "ForMaskedLM", **SMALL, attention_window=8,
                    max_position_embeddings=64, pad_token_id=1)  # fmt: skip


def forecast(kind: str, **settings: Any) -> Built:
    """A forecaster of transformers with a distribution of outputs."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        prediction_length=6, context_length=12, lags_sequence=[1, 2, 3], num_time_features=2,
        d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, **settings,
    )  # fmt: skip

    def loss(net: nn.Module, device: str) -> torch.Tensor:
        past = config.context_length + max(config.lags_sequence)
        return net(
            past_values=torch.rand(4, past, device=device),
            past_time_features=torch.rand(4, past, 2, device=device),
            past_observed_mask=torch.ones(4, past, device=device),
            future_values=torch.rand(4, 6, device=device),
            future_time_features=torch.rand(4, 6, 2, device=device),
        ).loss

    return getattr(transformers, f"{kind}ForPrediction")(config), loss


@model
def transformers_time_series() -> Built:
    return forecast("TimeSeriesTransformer")


@model
def transformers_autoformer() -> Built:
    return forecast("Autoformer", moving_average=3)


@model
def transformers_clip() -> Built:
    import transformers

    text = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 64, "max_position_embeddings": 32, "eos_token_id": 2}  # fmt: skip
    vision = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
              "intermediate_size": 64, "image_size": 32, "patch_size": 8}  # fmt: skip
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)

    def loss(net: nn.Module, device: str) -> torch.Tensor:
        pixels = torch.rand(2, 3, 32, 32, device=device)
        return net(input_ids=words(device), pixel_values=pixels, return_loss=True).loss

    return transformers.CLIPModel(config), loss


@model
def transformers_segformer() -> Built:
    import transformers

    config = transformers.SegformerConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32], decoder_hidden_size=16, num_labels=5
    )

    def loss(net: nn.Module, device: str) -> torch.Tensor:
        labels = torch.randint(0, 5, (2, 64, 64), device=device)
        return net(pixel_values=torch.rand(2, 3, 64, 64, device=device), labels=labels).loss

    return transformers.SegformerForSemanticSegmentation(config), loss


@model
def transformers_deformable_detr() -> Built:
    import transformers

    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1],
        out_features=["stage2", "stage3", "stage4"], layer_type="basic",
    )  # fmt: skip
    config = transformers.DeformableDetrConfig(
        backbone_config=backbone, use_timm_backbone=False, use_pretrained_backbone=False,
        backbone=None, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=32,
        decoder_ffn_dim=32, encoder_attention_heads=4, decoder_attention_heads=4, num_queries=10,
    )  # fmt: skip

    def loss(net: nn.Module, device: str) -> torch.Tensor:
        found = net(pixel_values=torch.rand(2, 3, 64, 64, device=device))
        return total((found.logits, found.pred_boxes))

    return transformers.DeformableDetrForObjectDetection(config), loss


SPEECH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32,
          "intermediate_size": 64, "conv_dim": [16, 16, 16], "conv_stride": [5, 2, 2],
          "conv_kernel": [10, 3, 3], "num_feat_extract_layers": 3, "pad_token_id": 0,
          "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
          "mask_time_prob": 0.0}  # fmt: skip


def recognition(kind: str, **settings: Any) -> Built:
    """A recogniser of speech of transformers, trained by CTC."""
    import transformers

    net = getattr(transformers, f"{kind}ForCTC")(
        getattr(transformers, f"{kind}Config")(**SPEECH, **settings)
    )

    def loss(net: nn.Module, device: str) -> torch.Tensor:
        labels = torch.randint(1, 32, (2, 6), device=device)
        return net(input_values=torch.rand(2, 1600, device=device), labels=labels).loss

    return net, loss


@model
def speech_wav2vec2() -> Built:
    return recognition("Wav2Vec2")


@model
def speech_hubert() -> Built:
    return recognition("Hubert")


@model
def speech_wav2vec2_conformer() -> Built:
    return recognition("Wav2Vec2Conformer", position_embeddings_type="rotary")


@model
def speech_whisper() -> Built:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=96, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=16,
        max_source_positions=32, max_target_positions=32, decoder_start_token_id=1, pad_token_id=0,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip

    def loss(net: nn.Module, device: str) -> torch.Tensor:
        return net(input_features=torch.rand(2, 16, 64, device=device), labels=words(device)).loss

    return transformers.WhisperForConditionalGeneration(config), loss


@model
def speech_encodec() -> Built:
    import transformers

    config = transformers.EncodecConfig(
        num_filters=4, hidden_size=16, codebook_size=32, codebook_dim=16,
        upsampling_ratios=[4, 2], num_lstm_layers=1, target_bandwidths=[6.0],
    )  # fmt: skip

    def loss(net: nn.Module, device: str) -> torch.Tensor:
        sound = torch.rand(2, 1, 480, device=device)
        encoded = net.encoder(sound)
        return total((net.decoder(encoded),))

    return transformers.EncodecModel(config), loss


def sound(device: str, length: int = 1600) -> torch.Tensor:
    """Drawn samples of sound."""
    return torch.rand(2, length, device=device)


@model
def torchaudio_conformer() -> Built:
    import torchaudio

    net = torchaudio.models.Conformer(16, 4, 32, 2, 7)

    def loss(net: nn.Module, device: str) -> torch.Tensor:
        lengths = torch.tensor([20, 15], device=device)
        return total(net(torch.rand(2, 20, 16, device=device), lengths))

    return net, loss


@model
def torchaudio_conv_tasnet() -> Built:
    import torchaudio

    net = torchaudio.models.ConvTasNet(2, 16, 16, msk_num_feats=8, msk_num_hidden_feats=16,
                                       msk_num_layers=2, msk_num_stacks=1)  # fmt: skip
    return net, lambda net, device: total(net(sound(device)[:, None]))


@model
def torchaudio_deep_speech() -> Built:
    import torchaudio

    net = torchaudio.models.DeepSpeech(16, n_hidden=32, n_class=20)

    def loss(net: nn.Module, device: str) -> torch.Tensor:
        log_probs = net(torch.rand(2, 1, 24, 16, device=device)).transpose(0, 1)
        targets = torch.randint(1, 20, (2, 5), device=device)
        return nn.functional.ctc_loss(log_probs, targets, torch.tensor([24, 24]),
                                      torch.tensor([5, 4]))  # fmt: skip

    return net, loss


def image(net: nn.Module, size: int = 64) -> Built:
    """A classifier of images."""

    def loss(net: nn.Module, device: str) -> torch.Tensor:
        found = net(torch.rand(2, 3, size, size, device=device))
        found = found["out"].mean((2, 3)) if isinstance(found, dict) else found
        target = torch.randint(0, found.shape[1], (2,), device=device)
        return nn.functional.cross_entropy(found, target, label_smoothing=0.1)

    return net, loss


def of_timm(name: str, size: int = 64, **settings: Any) -> Built:
    """A classifier of timm."""
    import timm

    return image(timm.create_model(name, pretrained=False, num_classes=7, **settings), size)


@model
def timm_vit() -> Built:
    return of_timm("vit_tiny_patch16_224", img_size=64, depth=2)


@model
def timm_swin() -> Built:
    return of_timm("swin_tiny_patch4_window7_224", img_size=56, size=56, depths=(1, 1, 1, 1))


@model
def timm_convnext() -> Built:
    return of_timm("convnext_atto")


@model
def timm_efficientnet() -> Built:
    return of_timm("efficientnet_lite0", drop_rate=0.1)


@model
def timm_coatnet() -> Built:
    return of_timm("coatnet_pico_rw_224", img_size=64)


@model
def timm_gernet() -> Built:
    return of_timm("halonet26t")


@model
def torchvision_mobilenet() -> Built:
    import torchvision

    return image(torchvision.models.mobilenet_v3_small(num_classes=7))


@model
def torchvision_deeplab() -> Built:
    import torchvision

    net = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=5
    )
    return image(net)


@model
def torchvision_video() -> Built:
    import torchvision

    net = torchvision.models.video.mc3_18(num_classes=5)
    return net, lambda net, device: total((net(torch.rand(1, 3, 4, 32, 32, device=device)),))


@model
def torchvision_raft() -> Built:
    import torchvision

    net = torchvision.models.optical_flow.raft_small(weights=None)

    def loss(net: nn.Module, device: str) -> torch.Tensor:
        first, second = (torch.rand(1, 3, 128, 128, device=device) for _ in range(2))
        return total(net(first, second, num_flow_updates=2))

    return net, loss


def graph(device: str, nodes: int = 24, width: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Drawn nodes and edges."""
    return (torch.rand(nodes, width, device=device),
            torch.randint(0, nodes, (2, 80), device=device))  # fmt: skip


def of_geometric(kind: str, **settings: Any) -> Built:
    """A basic graph network of torch_geometric."""
    from torch_geometric.nn import models

    net = getattr(models, kind)(16, 32, num_layers=2, out_channels=5, **settings)

    def loss(net: nn.Module, device: str) -> torch.Tensor:
        nodes, edges = graph(device)
        target = torch.randint(0, 5, (24,), device=device)
        return nn.functional.cross_entropy(net(nodes, edges), target)

    return net, loss


@model
def geometric_gcn() -> Built:
    return of_geometric("GCN")


@model
def geometric_gat() -> Built:
    return of_geometric("GAT", heads=2, v2=True)


@model
def geometric_sage_lstm() -> Built:
    return of_geometric("GraphSAGE", aggr="max")


@model
def geometric_pna() -> Built:
    degrees = torch.bincount(torch.randint(0, 6, (24,)))
    return of_geometric("PNA", aggregators=["mean", "min", "max", "std"],
                        scalers=["identity", "amplification"], deg=degrees)  # fmt: skip


@model
def geometric_sag_pool() -> Built:
    from torch_geometric.nn import GCNConv, SAGPooling, Set2Set

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.pool = GCNConv(16, 16), SAGPooling(16, 0.5)
            self.read = Set2Set(16, 2)

        def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            hidden = self.conv(nodes, edges).relu()
            hidden, edges, _, batch, *_ = self.pool(hidden, edges)
            return self.read(hidden, batch)

    return Net(), lambda net, device: total((net(*graph(device)),))


def click(name: str, **settings: Any) -> Built:
    """A model of click rates of deepctr_torch."""
    import deepctr_torch.models as listed
    from deepctr_torch.inputs import DenseFeat, SparseFeat

    columns: list[Any] = [SparseFeat(f"c{n}", 50, embedding_dim=8) for n in range(4)]
    columns += [DenseFeat(f"d{n}", 1) for n in range(3)]
    device = os.environ.get("DEVICE", "cpu")
    net = getattr(listed, name)(columns, columns, device=device, **settings)

    def loss(net: nn.Module, device: str) -> torch.Tensor:
        ids = torch.randint(0, 50, (16, 4), device=device).float()
        found = net(torch.cat((ids, torch.rand(16, 3, device=device)), 1))
        target = torch.randint(0, 2, found.shape, device=device).float()
        return nn.functional.binary_cross_entropy(found, target)

    return net, loss


@model
def ctr_deepfm() -> Built:
    return click("DeepFM")


@model
def ctr_xdeepfm() -> Built:
    return click("xDeepFM", cin_layer_size=(16, 16))


@model
def ctr_autoint() -> Built:
    return click("AutoInt")


@model
def ctr_dcn() -> Built:
    return click("DCN")


@model
def diffusers_unet() -> Built:
    import diffusers

    net = diffusers.UNet2DConditionModel(
        sample_size=16, block_out_channels=(16, 32), layers_per_block=1, cross_attention_dim=16,
        attention_head_dim=8, norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip

    def loss(net: nn.Module, device: str) -> torch.Tensor:
        noise = torch.randn(2, 4, 16, 16, device=device)
        times = torch.randint(0, 1000, (2,), device=device)
        text = torch.rand(2, 8, 16, device=device)
        return nn.functional.mse_loss(net(noise, times, text).sample, noise)

    return net, loss


@model
def diffusers_vae() -> Built:
    import diffusers

    net = diffusers.AutoencoderKL(
        block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip

    def loss(net: nn.Module, device: str) -> torch.Tensor:
        pixels = torch.rand(2, 3, 32, 32, device=device)
        spread = net.encode(pixels).latent_dist
        return (
            nn.functional.mse_loss(net.decode(spread.sample()).sample, pixels) + spread.kl().mean()
        )

    return net, loss


@model
def diffusers_dit() -> Built:
    import diffusers

    net = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=8,
        patch_size=2, num_embeds_ada_norm=1000,
    )  # fmt: skip

    def loss(net: nn.Module, device: str) -> torch.Tensor:
        noise = torch.randn(2, 4, 8, 8, device=device)
        times = torch.randint(0, 1000, (2,), device=device)
        return total((net(noise, times, torch.randint(0, 10, (2,), device=device)).sample,))

    return net, loss


@model
def diffusers_flux() -> Built:
    import diffusers

    net = diffusers.FluxTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )  # fmt: skip

    def loss(net: nn.Module, device: str) -> torch.Tensor:
        found = net(
            hidden_states=torch.rand(2, 16, 16, device=device),
            encoder_hidden_states=torch.rand(2, 8, 32, device=device),
            pooled_projections=torch.rand(2, 32, device=device),
            timestep=torch.rand(2, device=device),
            img_ids=torch.zeros(16, 3, device=device), txt_ids=torch.zeros(8, 3, device=device),
        )  # fmt: skip
        return total((found.sample,))

    return net, loss


def define_vision_operators() -> None:
    """Torchvision's package registers a meta function for this one even without its binary."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    globals()["_LIBRARY"] = library


def main(name: str) -> None:
    """Train a model for some steps on `DEVICE`, then evaluate it once."""
    device = os.environ.get("DEVICE", "cpu")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if device == "cpu":
        sys.modules["torch_npu"] = None  # type: ignore[assignment]  # its import needs a driver
    else:
        __import__(f"torch_{device}")
    define_vision_operators()
    net, loss = MODELS[name]()
    net.to(device).train()
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-4)
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss(net, device).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
    net.eval()
    with torch.no_grad():
        print(name, loss(net, device).item())


if __name__ == "__main__":
    main(sys.argv[1])
