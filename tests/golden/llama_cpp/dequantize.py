#!/usr/bin/env python3
"""Copy a GGUF file with every quantised tensor decoded to F32: dequantize.py IN.gguf OUT.gguf

llama.cpp rounds activations to the type that a weight's dot product takes, but not for F32 weights. On such a copy its logits are
those of the file's weights and nothing else."""

import sys

import gguf
import numpy as np


def main():
    src, out = sys.argv[1:]
    r = gguf.GGUFReader(src)
    w = gguf.GGUFWriter(out, r.fields["general.architecture"].contents())
    for key, field in r.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        w.add_key_value(key, field.contents(), kind, sub_type=sub)
    for t in r.tensors:
        data = t.data
        if t.tensor_type != gguf.GGMLQuantizationType.F32:
            data = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        w.add_tensor(t.name, data)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
