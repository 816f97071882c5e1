"""Masks: arrays of numpy are no sites; an edit is offered where shapes are sure to agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rewrite.projects import findings, rewritten

HEAD = "import numpy as np\nimport torch\n"
ARRAYS = {
    "goes into numpy": "def f(x):\n    torch.rand(1)\n    return np.mean(x[x > -1])\n",
    "comes from numpy": "def f():\n    torch.rand(1)\n    x = np.ones(3)\n    x[x > 2] = 0\n",
    "is annotated": "def f(x: np.ndarray):\n    torch.rand(1)\n    return x[x > 2]\n",
    "a function of numpy alone": "def f(a, mask):\n    k = np.ones(3)\n    return a['x'][mask]\n",
    "a mask of numpy": "def f(h):\n    h[h < np.finfo(h.dtype).eps * h.max()] = 0\n",
    "one of several": "import librosa\ndef f(y):\n    torch.rand(1)\n"
    "    p, v, q = librosa.pyin(y)\n    p[v == False] = 0\n",
    "a column": "import pandas as pd\ndef f(a, t):\n    torch.rand(1)\n"
    "    return a[a.obs['labels'] != 'x']\n",
    "a mask of a table": "import pandas as pd\ndef f(d, ignore):\n    torch.rand(1)\n"
    "    mask = d['label'].isin(ignore)\n    return d[~mask]\n",
    "a mask that goes into numpy": "def f(x, s):\n    torch.rand(1)\n    m = s > 0\n"
    "    xy = np.argwhere(m_mask := m)\n    m = np.asarray(m)\n    return x[m > 0]\n",
    "numpy() of a tensor": "def f(t):\n    a = torch.relu(t).cpu().numpy()\n    return a[a > 0]\n",
    "nonzero": "def f(x):\n    y = np.array(x)\n    torch.rand(1)\n    return y.nonzero()\n",
}


@pytest.mark.parametrize("text", ARRAYS.values(), ids=ARRAYS.keys())
def test_an_array_is_no_site(text: str, tmp_path: Path) -> None:
    assert findings(tmp_path, HEAD + text, "JM211") == []


def test_a_parameter_of_a_function_is_no_variable_of_the_module(tmp_path: Path) -> None:
    text = (
        'def score(out, batch):\n    return np.mean(out), batch["x"]\n'
        'out = net(torch.zeros(3, device="cuda"))\nout.nonzero()\nout[out > 0]\n'
        "q = batch[batch > 1]\n"
    )
    assert len(findings(tmp_path, HEAD + text, "JM211")) == 3


def test_a_tensor_in_a_file_with_numpy_is_one(tmp_path: Path) -> None:
    text = HEAD + "def f(x):\n    n = np.ones(3)\n    y = torch.relu(x)\n    return y[y > 0]\n"
    assert len(findings(tmp_path, text, "JM211")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "def f(a):\n    x = torch.from_numpy(np.asarray(a))\n    return x[x > 0]\n",
        "def f(a):\n    x = np.asarray(a)\n    x = torch.as_tensor(x)\n    x[x > 0] = 1\n",
        "def f(a):\n    x, m = a\n    x = torch.relu(x)\n    m = np.asarray(m)\n"
        "    return x[m > 0]\n",
        "def f(x, n):\n    np.ones(n)\n    torch.rand(1)\n    return x[x > n]\n",
    ],
)
def test_a_tensor_made_of_an_array_is_one(text: str, tmp_path: Path) -> None:
    assert len(findings(tmp_path, HEAD + text, "JM211")) == 1


def test_a_mask_of_another_tensor_is_reported_alone(tmp_path: Path) -> None:
    # masked_fill_ aligns the last dimensions, the subscript the first ones.
    text = "import torch\nfeatures[empty_mask] = 0\nweights[labels > 0] = 1.0\n"
    assert rewritten(tmp_path, text, unsafe=True) == text
    reasons = [f.reason or "" for f in findings(tmp_path, text, "JM211")]
    assert len(reasons) == 2
    assert all("shape of the tensor" in reason for reason in reasons)


def test_a_mask_of_the_tensor_itself_is_written(tmp_path: Path) -> None:
    new = rewritten(tmp_path, "import torch\nx[x < 0] = 0\n", unsafe=True)
    assert "x.masked_fill_(x < 0, 0)" in new
