"""Images over HTTP: what a model sees is what transformers shows it; what a client may not ask."""

from __future__ import annotations

import base64
import io
import json
import socket
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from joymigrate.run.serve.engine.http.conversation import MAX_IMAGES
from tests.run.serve.engine.http.conftest import TEMPLATE, Running, make_tokenizer, serving
from tests.run.serve.engine.test_vision import make_vision, picture, wanted

MARKS = ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>"]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def seeing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Running, Any]]:
    """A server, and (folder, model, image processor)."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("seeing")
    make_tokenizer(folder)
    words = AutoTokenizer.from_pretrained(folder)
    words.add_special_tokens({"additional_special_tokens": MARKS})
    words.chat_template = TEMPLATE.replace("<image>", "".join((MARKS[1], MARKS[0], MARKS[2])))
    words.save_pretrained(folder)
    image, start, end = words.convert_tokens_to_ids(MARKS)
    made = make_vision(request.param, folder, len(words), (image, start, end))
    with serving(folder, max_model_len=200) as running:
        yield running, made


def data_url(image: Any, kind: str = "PNG") -> str:
    kept = io.BytesIO()
    image.save(kept, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(kept.getvalue()).decode()}"


def ask(*urls: Any, text: str = "Hello", **more: Any) -> dict[str, Any]:
    parts: list[Any] = [{"type": "text", "text": text}]
    parts += [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 8, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True, **more}  # fmt: skip


def test_a_model_sees_over_http_what_it_sees_in_transformers(seeing: Any) -> None:
    server, made = seeing
    image = int(made[1].config.image_token_id)
    for urls, images in (
        ([], []),
        ([data_url(picture(1, 90, 60))], [picture(1, 90, 60)]),
        ([data_url(picture(2, 40, 90)), data_url(picture(3, 110, 90), "WEBP")], None),
    ):
        status, _, raw = server.post(CHAT, ask(*urls))
        assert status == 200, raw
        said = json.loads(raw)
        shown = images if images is not None else [opened(url) for url in urls]
        ids = said["prompt_token_ids"]
        want = wanted(made, ids, shown, 8, image)
        assert said["choices"][0]["token_ids"] == want
        assert said["usage"]["prompt_tokens"] >= len(ids)


def opened(url: str) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")


def test_a_mark_of_images_in_words_is_text(seeing: Any) -> None:
    server, made = seeing
    asked = ask(data_url(picture(1, 60, 60)), text="see <|image_pad|> and <|vision_start|>")
    status, _, raw = server.post(CHAT, asked)
    assert status == 200, raw
    assert json.loads(raw)["prompt_token_ids"].count(made[1].config.image_token_id) == 1


def test_no_address_is_fetched(seeing: Any, tmp_path: Path) -> None:
    server, _ = seeing
    secret = tmp_path / "secret.png"
    picture(1, 60, 60).save(secret)
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.setblocking(False)
        port = trap.getsockname()[1]
        drawn = f"<svg xmlns='http://www.w3.org/2000/svg'><image href='http://127.0.0.1:{port}/'/>"
        packed = base64.b64encode(drawn.encode()).decode()
        for url in (
            f"http://127.0.0.1:{port}/a.png", f"https://127.0.0.1:{port}/a.png",
            f"ftp://127.0.0.1:{port}/a.png", f"//127.0.0.1:{port}/a.png",
            f"HTTP://localhost:{port}/", f"http://[::1]:{port}/", f"http://2130706433:{port}/",
            f"gopher://127.0.0.1:{port}/", f"data:@127.0.0.1:{port}/a.png",
            f"data:,http://127.0.0.1:{port}/a.png", f"data:image/svg+xml;base64,{packed}",
            "http://169.254.169.254/latest/meta-data/", secret.as_uri(), str(secret), "", None, 7,
            ["data:image/png;base64,"], {"url": "x"},
        ):  # fmt: skip
            status, error = server.refused(CHAT, ask(url))
            assert (status, error["param"]) == (400, "messages[0].content[1]"), (url, error)
        with pytest.raises(BlockingIOError):
            trap.accept()


def png(width: int, height: int, rows: bytes = b"") -> str:
    """A PNG that says how large it is; its pixels are `rows`, packed."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9))
    return f"data:image/png;base64,{base64.b64encode(whole + chunk(b'IEND', b'')).decode()}"


def test_images_have_limits(seeing: Any) -> None:
    server, _ = seeing
    half = png(8192, 6144, bytes(8193 * 6144))  # 48 Mi pixels in 50 KB
    script = base64.b64encode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n").decode()
    small = data_url(picture(1, 60, 60))
    said = {}
    for name, urls in {
        "bomb": [png(60000, 60000)],
        "together": [half, half],
        "many": [small] * (MAX_IMAGES + 1),
        "cut": [small[:200]],
        "narrow": [png(4000, 2, bytes(8002))],
        "script": [f"data:image/png;base64,{script}"],
        "picture": [data_url(picture(1, 9, 9), "BMP")],
        "empty": ["data:image/png;base64,"],
        "letters": ["data:image/png;base64,!!!!"],
        "plain": ["data:image/png,abc"],
        "nothing": [png(0, 0)],
    }.items():
        status, error = server.refused(CHAT, ask(*urls))
        said[name] = error["code"]
        assert status == 400, (name, error)
    assert said["bomb"] == said["together"] == "image_too_large"
    assert said["script"] == said["picture"] == "invalid_image"
    assert server.post(CHAT, ask(png(1, 1, b"\0\7")))[0] == 200
    status, error = server.refused(CHAT, ask(*[data_url(picture(n, 120, 120)) for n in range(16)]))
    assert status == 400, "more tokens than the model takes"
    assert "its images" in error["message"]
    server.idle()
