"""Small networks with random weights, of the architectures that games use, written as ONNX.

``python -m tests.onnx_torch_models FOLDER [NAME …]`` writes each by both of PyTorch's exporters,
with its inputs beside it. Needs torch, onnx and onnxscript, and nothing of the engine.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Made = tuple[nn.Module, dict[str, Tensor]]
NETWORKS: dict[str, Callable[[], Made]] = {}


def network(name: str) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    def declare(make: Callable[[], Made]) -> Callable[[], Made]:
        NETWORKS[name] = make
        return make

    return declare


def picture(channels: int = 3, height: int = 32, width: int = 32) -> dict[str, Tensor]:
    return {"image": torch.rand(1, channels, height, width)}


def conv_bn(inside: int, outside: int, size: int = 3, stride: int = 1, groups: int = 1,
            act: type[nn.Module] = nn.ReLU) -> nn.Sequential:  # fmt: skip
    conv = nn.Conv2d(inside, outside, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outside), act())


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


@network("ResNet: residuals, max pool, classes")
def resnet() -> Made:
    class Block(nn.Module):
        def __init__(self, inside: int, outside: int, stride: int) -> None:
            super().__init__()
            self.a = conv_bn(inside, outside, stride=stride)
            self.b = conv_bn(outside, outside, act=nn.Identity)
            self.skip = conv_bn(inside, outside, 1, stride, act=nn.Identity)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.b(self.a(x)) + self.skip(x))

    net = nn.Sequential(
        conv_bn(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1), Block(8, 8, 1), Block(8, 16, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10), nn.Softmax(-1),
    )  # fmt: skip
    return net, picture()


@network("MobileNet v2: inverted residuals, ReLU6")
def mobilenet_v2() -> Made:
    def block(channels: int) -> nn.Module:
        wide = 4 * channels
        return Residual(
            conv_bn(channels, wide, 1, act=nn.ReLU6), conv_bn(wide, wide, 3, 1, wide, nn.ReLU6),
            conv_bn(wide, channels, 1, act=nn.Identity),
        )  # fmt: skip

    return nn.Sequential(conv_bn(3, 8, 3, 2, act=nn.ReLU6), block(8), block(8)), picture()


@network("MobileNet v3: squeeze and excitation, hard swish")
def mobilenet_v3() -> Made:
    class Squeeze(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

        def forward(self, x: Tensor) -> Tensor:
            return x * F.hardsigmoid(self.b(F.relu(self.a(F.adaptive_avg_pool2d(x, 1)))))

    block = Residual(conv_bn(8, 24, 1, act=nn.Hardswish),
                     conv_bn(24, 24, 5, 1, 24, nn.Hardswish), Squeeze(24),
                     conv_bn(24, 8, 1, act=nn.Identity))  # fmt: skip
    return nn.Sequential(conv_bn(3, 8, 3, 2, act=nn.Hardswish), block), picture()


@network("U-Net: concat, transposed convolution")
def unet() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down1, self.down2 = conv_bn(3, 8), conv_bn(8, 16)
            self.up, self.join = nn.ConvTranspose2d(16, 8, 2, 2), conv_bn(16, 8)
            self.last = nn.Conv2d(8, 2, 1)

        def forward(self, image: Tensor) -> Tensor:
            a = self.down1(image)
            b = self.up(self.down2(F.max_pool2d(a, 2)))
            return torch.sigmoid(self.last(self.join(torch.cat([a, b], 1))))

    return Net(), picture()


@network("ESRGAN: dense residuals, nearest upsampling")
def esrgan() -> Made:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(8 + 4 * i, 4, 3, 1, 1) for i in range(3))
            self.last = nn.Conv2d(20, 8, 3, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            maps = [x]
            for conv in self.convs:
                maps.append(F.leaky_relu(conv(torch.cat(maps, 1)), 0.2))
            return x + 0.2 * self.last(torch.cat(maps, 1))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.body = nn.Conv2d(3, 8, 3, 1, 1), nn.Sequential(Dense(), Dense())
            self.up, self.last = nn.Conv2d(8, 8, 3, 1, 1), nn.Conv2d(8, 3, 3, 1, 1)

        def forward(self, image: Tensor) -> Tensor:
            x = self.body(self.first(image))
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            return self.last(F.leaky_relu(self.up(x), 0.2)).clamp(0, 1)

    return Net(), picture(3, 16, 16)


@network("Sub-pixel super resolution: PReLU, PixelShuffle, bicubic skip")
def subpixel() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(3, 8, 3, 1, 1), nn.PReLU(8), nn.Conv2d(8, 12, 3, 1, 1)
            )

        def forward(self, image: Tensor) -> Tensor:
            large = F.interpolate(image, scale_factor=2, mode="bicubic", align_corners=False)
            return large + F.pixel_shuffle(self.body(image), 2)

    return Net(), picture(3, 16, 16)


@network("Style transfer: InstanceNorm, reflection pads")
def style() -> Made:
    def conv(inside: int, outside: int, size: int, stride: int = 1) -> nn.Sequential:
        padded = nn.ReflectionPad2d(size // 2), nn.Conv2d(inside, outside, size, stride)
        return nn.Sequential(*padded, nn.InstanceNorm2d(outside, affine=True), nn.ReLU())

    net = nn.Sequential(conv(3, 8, 9), conv(8, 16, 3, 2), Residual(conv(16, 16, 3)),
                        nn.Upsample(scale_factor=2), conv(16, 8, 3), nn.Conv2d(8, 3, 9, 1, 4),
                        nn.Tanh())  # fmt: skip
    return net, picture()


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


def transformer(width: int, heads: int, causal: bool = False) -> nn.Sequential:
    attend = Residual(nn.LayerNorm(width), Attention(width, heads, causal))
    wide = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                         nn.Linear(4 * width, width))  # fmt: skip
    return nn.Sequential(attend, Residual(wide))


@network("ViT: patches, class token, attention")
def vit() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 32, 8, 8)
            self.token = nn.Parameter(torch.randn(1, 1, 32))
            self.places = nn.Parameter(torch.randn(1, 17, 32))
            self.body = nn.Sequential(transformer(32, 4), transformer(32, 4), nn.LayerNorm(32))
            self.head = nn.Linear(32, 10)

        def forward(self, image: Tensor) -> Tensor:
            x = self.patches(image).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
            return self.head(self.body(x)[:, 0])

    return Net(), picture()


@network("GPT: embedding, causal attention, tied head")
def gpt() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(50, 32), nn.Embedding(16, 32)
            self.body, self.norm = transformer(32, 4, causal=True), nn.LayerNorm(32)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
            return self.norm(self.body(x)) @ self.words.weight.T

    return Net(), {"tokens": torch.randint(0, 50, (1, 12))}


@network("Llama: RMSNorm, rotary places, shared keys, SwiGLU")
def llama() -> Made:
    class Rms(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight

    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.kv = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
            self.out, self.norm, self.norm2 = nn.Linear(32, 32, bias=False), Rms(32), Rms(32)
            self.gate, self.up = nn.Linear(32, 64, bias=False), nn.Linear(32, 64, bias=False)
            self.down = nn.Linear(64, 32, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            batch, length, _ = x.shape
            angle = torch.arange(length)[:, None] * 100 ** (-torch.arange(4) / 4)
            cos, sin = (f(torch.cat([angle, angle], -1)) for f in (torch.cos, torch.sin))
            h = self.norm(x)
            q = self.q(h).view(batch, length, 4, 8).transpose(1, 2)
            k, v = self.kv(h).view(batch, length, 2, 2, 8).permute(2, 0, 3, 1, 4)
            k, v = (t.repeat_interleave(2, 1) for t in (turned(k, cos, sin), v))
            y = F.scaled_dot_product_attention(turned(q, cos, sin), k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, length, 32))
            h = self.norm2(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    return Net(), {"x": torch.randn(1, 10, 32)}


@network("LSTM VAD: spectrum, two states")
def lstm() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.lstm = (
                nn.Conv1d(8, 16, 3, 1, 1),
                nn.LSTM(16, 12, 2, batch_first=True),
            )
            self.head = nn.Linear(12, 1)

        def forward(self, frames: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            x = F.relu(self.features(frames)).transpose(1, 2)
            y, (h, c) = self.lstm(x, (h, c))
            return torch.sigmoid(self.head(y)), h, c

    state = torch.zeros(2, 1, 12)
    return Net(), {"frames": torch.randn(1, 8, 9), "h": state, "c": state + 0.1}


@network("GRU in both directions")
def gru() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = (
                nn.GRU(8, 12, bidirectional=True, batch_first=True),
                nn.Linear(24, 5),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.gru(x)[0]).log_softmax(-1)

    return Net(), {"x": torch.randn(1, 7, 8)}


@network("Depth: bilinear upsampling of several scales")
def depth() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = conv_bn(3, 8, 3, 2), conv_bn(8, 16, 3, 2), conv_bn(16, 8)
            self.last = nn.Conv2d(8, 1, 3, 1, 1)

        def forward(self, image: Tensor) -> Tensor:
            a = self.a(image)
            b = F.interpolate(
                self.c(self.b(a)), size=a.shape[2:], mode="bilinear", align_corners=True
            )
            y = F.interpolate(
                self.last(a + b), scale_factor=2, mode="bilinear", align_corners=False
            )
            return F.softplus(y)

    return Net(), picture(3, 32, 48)


@network("Pose: deconvolutions, soft argmax")
def pose() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Sequential(conv_bn(3, 8, 3, 2), conv_bn(8, 16, 3, 2))
            self.up = nn.Sequential(
                nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.BatchNorm2d(8), nn.ReLU()
            )
            self.last = nn.Conv2d(8, 5, 1)

        def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
            heat = self.last(self.up(self.down(image)))
            flat = heat.flatten(2).softmax(-1).view_as(heat)
            x = (flat.sum(2) * torch.linspace(0, 1, heat.shape[3])).sum(-1)
            y = (flat.sum(3) * torch.linspace(0, 1, heat.shape[2])).sum(-1)
            return torch.stack([x, y], -1), heat.flatten(2).argmax(-1).float()

    return Net(), picture()


@network("Diffusion U-Net block: GroupNorm, time, attention")
def diffusion() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.time = nn.Conv2d(4, 16, 3, 1, 1), nn.Linear(8, 32)
            self.n1, self.c1 = nn.GroupNorm(4, 16), nn.Conv2d(16, 16, 3, 1, 1)
            self.n2, self.c2 = nn.GroupNorm(16, 16), nn.Conv2d(16, 16, 3, 1, 1)
            self.n3, self.qkv, self.out = (
                nn.GroupNorm(8, 16),
                nn.Conv1d(16, 48, 1),
                nn.Conv2d(16, 4, 1),
            )

        def forward(self, noisy: Tensor, step: Tensor) -> Tensor:
            angle = step[:, None] * torch.exp(-torch.arange(4) / 2)
            scale, shift = self.time(torch.cat([angle.sin(), angle.cos()], -1)).chunk(2, 1)
            x = self.first(noisy)
            h = self.n2(self.c1(F.silu(self.n1(x))))
            x = x + self.c2(F.silu(h * (1 + scale[..., None, None]) + shift[..., None, None]))
            q, k, v = self.qkv(self.n3(x).flatten(2)).chunk(3, 1)
            weights = torch.einsum("bct,bcs->bts", q, k * 0.25).softmax(-1)
            return self.out(x + torch.einsum("bts,bcs->bct", weights, v).view_as(x))

    return Net(), {"noisy": torch.randn(1, 4, 16, 16), "step": torch.tensor([3.0])}


@network("SqueezeNet: fire modules, ceil mode")
def squeezenet() -> Made:
    class Fire(nn.Module):
        def __init__(self, inside: int) -> None:
            super().__init__()
            self.s, self.a, self.b = (
                nn.Conv2d(inside, 4, 1),
                nn.Conv2d(4, 8, 1),
                nn.Conv2d(4, 8, 3, 1, 1),
            )

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.s(x))
            return torch.cat([F.relu(self.a(x)), F.relu(self.b(x))], 1)

    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    body = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), pool(), Fire(8), pool(), Fire(16))
    head = nn.Sequential(nn.Dropout(), nn.Conv2d(16, 10, 1), nn.AdaptiveAvgPool2d((1, 1)))
    net = nn.Sequential(body, head, nn.Flatten())
    return net, picture(3, 37, 41)


@network("DETR: encoder, decoder, queries")
def detr() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Conv2d(3, 16, 8, 8)
            self.places, self.queries = (nn.Parameter(torch.randn(1, n, 16)) for n in (16, 5))
            self.transformer = nn.Transformer(16, 2, 1, 1, 32, 0.0, batch_first=True)
            self.classes, self.boxes = nn.Linear(16, 4), nn.Linear(16, 4)

        def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
            x = self.body(image).flatten(2).transpose(1, 2) + self.places
            y = self.transformer(x, self.queries.expand(x.shape[0], -1, -1))
            return self.classes(y), self.boxes(y).sigmoid()

    return Net(), picture()


@network("ConvNeXt: depthwise 7x7, channels last LayerNorm, GELU")
def convnext() -> Made:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(16, 16, 7, 1, 3, groups=16), nn.LayerNorm(16)
            self.a, self.b = nn.Linear(16, 64), nn.Linear(64, 16)
            self.scale = nn.Parameter(torch.full((16,), 0.1))

        def forward(self, x: Tensor) -> Tensor:
            h = self.norm(self.conv(x).permute(0, 2, 3, 1))
            return x + (self.scale * self.b(F.gelu(self.a(h)))).permute(0, 3, 1, 2)

    return nn.Sequential(nn.Conv2d(3, 16, 4, 4), Block(), Block()), picture()


@network("Swin: shifted windows")
def swin() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.attend = nn.Conv2d(3, 16, 4, 4), Attention(16, 2)

        def forward(self, image: Tensor) -> Tensor:
            x = torch.roll(self.body(image), (-2, -2), (2, 3))
            batch, width, rows, columns = x.shape
            x = x.view(batch, width, rows // 4, 4, columns // 4, 4).permute(0, 2, 4, 3, 5, 1)
            x = self.attend(x.reshape(-1, 16, width))
            x = x.view(batch, rows // 4, columns // 4, 4, 4, width).permute(0, 5, 1, 3, 2, 4)
            return torch.roll(x.reshape(batch, width, rows, columns), (2, 2), (2, 3))

    return Net(), picture()


@network("Frame warp: GridSample by a flow")
def warp() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flow = nn.Sequential(nn.Conv2d(6, 8, 3, 1, 1), nn.ReLU(), nn.Conv2d(8, 2, 3, 1, 1))

        def forward(self, before: Tensor, now: Tensor) -> Tensor:
            flow = self.flow(torch.cat([before, now], 1)).permute(0, 2, 3, 1)
            y, x = torch.meshgrid(
                torch.linspace(-1, 1, 20), torch.linspace(-1, 1, 24), indexing="ij"
            )
            grid = torch.stack([x, y], -1)[None] + 0.1 * flow
            return F.grid_sample(before, grid, padding_mode="border", align_corners=True)

    return Net(), {name: torch.rand(1, 3, 20, 24) for name in ("before", "now")}


@network("Detector: anchors, top 20, box decoding")
def detector() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = conv_bn(3, 16, 3, 4, act=nn.SiLU), nn.Conv2d(16, 5, 1)

        def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
            y = self.head(self.body(image)).flatten(2).transpose(1, 2)
            scores, places = y[..., 0].sigmoid().topk(20, 1)
            boxes = y[..., 1:].gather(1, places[..., None].expand(-1, -1, 4))
            middle, half = boxes[..., :2], boxes[..., 2:].exp() / 2
            return scores, torch.cat([middle - half, middle + half], -1)

    return Net(), picture()


@network("Motion matching: distances, nearest pose, MLP")
def motion() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.poses = nn.Parameter(torch.randn(40, 12))
            self.mlp = nn.Sequential(nn.Linear(24, 32), nn.ELU(), nn.Linear(32, 12))

        def forward(self, query: Tensor) -> tuple[Tensor, Tensor]:
            apart = torch.cdist(query, self.poses)
            pose = self.poses[apart.argmin(-1)]
            return self.mlp(torch.cat([query, pose], -1)), apart

    return Net(), {"query": torch.randn(3, 12)}


# -- writing them --------------------------------------------------------------------------------


def write(name: str, exporter: str, folder: Path) -> str:
    """One network's file and inputs; why not, where PyTorch cannot."""
    torch.manual_seed(0)
    model, inputs = NETWORKS[name]()
    folder.mkdir(parents=True, exist_ok=True)
    _settle(model)
    quiet = io.StringIO()
    try:
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            torch.onnx.export(
                model.eval(), tuple(inputs.values()), str(folder / "m.onnx"),
                input_names=list(inputs), dynamo=exporter == "dynamo",
            )  # fmt: skip
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
    arrays = {n: t.numpy() for n, t in inputs.items()}
    np.savez(folder / "inputs.npz", **arrays)
    return ""


def _settle(model: nn.Module) -> None:
    """Batch normalizations that have seen something, so that folding them changes numbers."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 1.5)


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    folder, only = Path(sys.argv[1]), sys.argv[2:]
    found = {}
    for name in NETWORKS:
        if not only or any(word.lower() in name.lower() for word in only):
            for exporter in ("torchscript", "dynamo"):
                key = f"{name} {exporter}"
                found[key] = write(name, exporter, folder / key.replace(" ", "_"))
    (folder / "exports.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
