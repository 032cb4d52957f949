#!/usr/bin/env python3
"""Write the seed inputs of fuzz_gguf into tests/fuzz/corpus/gguf: small files that use every part of the format."""
import pathlib
import struct

OUT = pathlib.Path(__file__).parent / "corpus" / "gguf"
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}
# type number: (elements, bytes) of a block
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36), 10: (256, 84),
          11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74),
          18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2),
          26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
          40: (64, 36), 41: (128, 18), 42: (64, 18)}


def string(s):
    s = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(s)) + s


def value(kind, v):
    if kind == STRING:
        return string(v)
    if kind == ARRAY:
        inner, items = v
        return struct.pack("<IQ", inner, len(items)) + b"".join(value(inner, i) for i in items)
    return struct.pack("<" + CODES[kind], v)


def gguf(keys, tensors, version=3, alignment=32):
    """tensors: (name, type, shape); data is a counting pattern."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    for key, kind, v in keys:
        out += string(key) + struct.pack("<I", kind) + value(kind, v)
    data = b""
    for name, kind, shape in tensors:
        elems, size = BLOCKS[kind]
        n = shape[0] // elems * size
        for d in shape[1:]:
            n *= d
        out += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(data))
        data += bytes(i & 255 for i in range(n))
        data += bytes(-len(data) % alignment)
    return out + bytes(-len(out) % alignment) + data


def split(a, b):
    return b"SPLT" + struct.pack("<I", len(a)) + a + b


def part(no, count, total, tensors):
    return gguf([("split.no", U16, no), ("split.count", U16, count), ("split.tensors.count", I32, total)], tensors)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    scalars = [("u8", U8, 255), ("i8", I8, -1), ("u16", U16, 65535), ("i16", I16, -2), ("u32", U32, 7), ("i32", I32, -3),
               ("f32", F32, 0.1), ("bool", BOOL, 1), ("u64", U64, 2**64 - 1), ("i64", I64, -2**63), ("f64", F64, 1e300)]
    arrays = [("strings", ARRAY, (STRING, ["a", "", b"\xff\xfe"])), ("numbers", ARRAY, (F32, [1.0, -0.0, float("inf")])),
              ("bools", ARRAY, (BOOL, [0, 1])), ("empty", ARRAY, (U64, [])),
              ("nested", ARRAY, (ARRAY, [(U8, [1, 2]), (ARRAY, [(STRING, ["x"])])]))]
    model = [("general.architecture", STRING, "llama"), ("general.alignment", U32, 32), ("llama.block_count", U32, 1),
             ("tokenizer.ggml.tokens", ARRAY, (STRING, ["<s>", "</s>", "a"])),
             ("tokenizer.ggml.token_type", ARRAY, (I32, [3, 3, 1]))]
    files = {
        "empty": b"",
        "no_tensors": gguf([("k", U32, 1)], []),
        "version_2": gguf(scalars, [("t", 0, [3])], version=2),
        "scalars": gguf(scalars, []),
        "arrays": gguf(arrays, []),
        "model": gguf(model, [("token_embd.weight", 8, [32, 3]), ("blk.0.attn_norm.weight", 0, [32]),
                              ("blk.0.ffn_up.weight", 3, [32, 2]), ("four", 1, [2, 2, 2, 2])]),
        "align_8": gguf([("general.alignment", U32, 8)], [("a", 0, [1]), ("b", 0, [1])], alignment=8),
        "types": gguf([], [(f"t{k}", k, [BLOCKS[k][0]]) for k in BLOCKS]),
        "big_endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        "split": split(part(0, 2, 2, [("a", 0, [2])]), part(1, 2, 2, [("b", 8, [32])])),
    }
    for name, data in files.items():
        (OUT / name).write_bytes(data)


if __name__ == "__main__":
    main()
