/* convert_gguf.c - the plan as a GGUF file. */
#include "cli/convert.h"
#include "cli/convert_vocab.h"
#include "cli/model_path.h"
#include "model/model.h"
#include "weights/gguf_write.h"

#include <stdio.h>
#include <string.h>

#define CONVERT_QUANT_VERSION 2 /* GGUF: of the block formats, which have not changed since */

/* --- keys --- */

/* A list of config.json's numbers in the width that readers of GGUF expect. */
static enum err_code convert_put_array(struct gguf_writer *g, const char *key,
                                       const struct meta_value *v, struct err *err)
{
    struct meta_value item, out = *v;
    bool is_pattern = strstr(key, "sliding_window_pattern") || strstr(key, "recurrent_layers");
    uint64_t n = v->array.n;
    union {
        int32_t i;
        float f;
        uint8_t b;
    } x;
    if (v->array.type != META_TYPE_I64 && v->array.type != META_TYPE_F64) {
        gguf_write_meta(g, key, v);
        return ERR_OK;
    }
    uint8_t *data = mem_try_array(MEM_CAT_WEIGHTS, n + 1, sizeof(x));
    if (!data)
        return err_set(err, ERR_NOMEM, "key %s: no memory", key);
    out.array.type = v->array.type == META_TYPE_F64 ? META_TYPE_F32
                     : is_pattern                   ? META_TYPE_BOOL
                                                    : META_TYPE_I32;
    size_t width = is_pattern ? 1 : 4;
    for (uint64_t i = 0; i < n; i++) {
        meta_array_at(v, i, &item);
        if (out.array.type == META_TYPE_F32)
            x.f = (float)item.f;
        else if (is_pattern)
            x.b = item.i != 0;
        else
            x.i = (int32_t)item.i;
        memcpy(data + i * width, &x, width);
    }
    out.array.data = data;
    gguf_write_meta(g, key, &out);
    mem_free(MEM_CAT_WEIGHTS, data);
    return ERR_OK;
}

/* config.json's numbers are of 64 bits; readers of GGUF want u32 and f32. */
static enum err_code convert_put_narrow(struct gguf_writer *g, const char *key,
                                        const struct meta_value *v, struct err *err)
{
    if (v->type == META_TYPE_ARRAY)
        return convert_put_array(g, key, v, err);
    if (v->type == META_TYPE_F64)
        gguf_write_f32(g, key, (float)v->f);
    else if (v->type == META_TYPE_I64 && v->i >= 0 && v->i <= UINT32_MAX)
        gguf_write_u32(g, key, (uint32_t)v->i);
    else
        gguf_write_meta(g, key, v);
    return ERR_OK;
}

/* Keys that are floats even where config.json has a whole number ("rope_theta": 10000). */
static bool convert_is_float_key(const char *key)
{
    static const char *const tails[] = { "rope.freq_base",  "rope.freq_base_swa",
                                         "scaling.factor",  "scaling.attn_factor",
                                         "yarn_beta_fast",  "yarn_beta_slow",
                                         "_epsilon",        "softcapping",
                                         "attention.scale", "_scale",
                                         "yarn_ext_factor" };
    for (size_t i = 0; i < ARRAY_LEN(tails); i++) {
        size_t n = strlen(key), k = strlen(tails[i]);
        if (n > k && strcmp(key + n - k, tails[i]) == 0)
            return true;
    }
    return false;
}

static enum err_code convert_put_family(const struct convert *c, struct gguf_writer *g,
                                        const char *arch, struct err *err)
{
    size_t n = strlen(arch);
    const char *key;
    enum err_code code = ERR_OK;
    for (int32_t i = 0; i < weights_n_meta(c->w) && !code; i++) {
        const struct meta_value *v = weights_meta_at(c->w, i, &key);
        if (strncmp(key, arch, n) != 0 || key[n] != '.')
            continue;
        if (v->type == META_TYPE_I64 && convert_is_float_key(key))
            gguf_write_f32(g, key, (float)v->i);
        else
            code = convert_put_narrow(g, key, v, err);
    }
    return code;
}

/* generation_config.json as llama.cpp's keys. */
static void convert_put_sampling(const struct convert *c, struct gguf_writer *g)
{
    static const struct {
        const char *dir, *gguf;
    } floats[] = { { "generation_config.temperature", "general.sampling.temp" },
                   { "generation_config.top_p", "general.sampling.top_p" },
                   { "generation_config.min_p", "general.sampling.min_p" },
                   { "generation_config.repetition_penalty", "general.sampling.penalty_repeat" } };
    bool samples = true;
    int64_t top_k;
    double v;
    if (weights_bool_or(c->w, "generation_config.do_sample", true, &samples, NULL) || !samples)
        return;
    for (size_t i = 0; i < ARRAY_LEN(floats); i++)
        if (weights_meta(c->w, floats[i].dir) &&
            !weights_float_or(c->w, floats[i].dir, 0, &v, NULL))
            gguf_write_f32(g, floats[i].gguf, (float)v);
    if (!weights_int(c->w, "generation_config.top_k", 0, INT32_MAX, &top_k, NULL))
        gguf_write_meta(g, "general.sampling.top_k",
                        &(struct meta_value){ .type = META_TYPE_I32, .i = top_k });
}

/* The keys of a GGUF file, but for what is new or of a split set. With --type keep the file is what it was. */
static void convert_copy_keys(const struct convert *c, struct gguf_writer *g)
{
    static const char type_key[] = "general.file_type", name_key[] = "general.name";
    bool keeps = c->type.type == DTYPE_COUNT && !c->embedding.name && !c->head.name;
    const char *key, *name = c->o->name;
    for (int32_t i = 0; i < weights_n_meta(c->w); i++) {
        const struct meta_value *v = weights_meta_at(c->w, i, &key);
        if (strncmp(key, "split.", 6) == 0 || strcmp(key, "general.alignment") == 0)
            continue;
        if (strcmp(key, type_key) == 0 && !keeps)
            gguf_write_u32(g, key, convert_file_type(c));
        else if (strcmp(key, name_key) == 0 && name)
            gguf_write_str(g, key, name, strlen(name));
        else
            gguf_write_meta(g, key, v);
    }
    if (!weights_meta(c->w, type_key) && !keeps)
        gguf_write_u32(g, type_key, convert_file_type(c));
    if (!weights_meta(c->w, name_key) && name)
        gguf_write_str(g, name_key, name, strlen(name));
}

/* The last part of the source's path: the name where none is given. */
static void convert_put_name(const struct convert *c, struct gguf_writer *g)
{
    struct buf id;
    buf_init(&id, MEM_CAT_BASE, 4096);
    if (c->o->name)
        buf_add_str(&id, c->o->name);
    else
        model_path_id(c->o->src, &id);
    gguf_write_str(g, "general.name", id.data, id.len);
    buf_release(&id);
}

static enum err_code convert_put_keys(const struct convert *c, struct gguf_writer *g,
                                      struct err *err)
{
    const char *arch;
    if (!weights_is_dir(c->w)) {
        convert_copy_keys(c, g);
        return ERR_OK;
    }
    enum err_code code = weights_str(c->w, "general.architecture", &arch, err);
    if (code)
        return code;
    gguf_write_str(g, "general.architecture", arch, strlen(arch));
    convert_put_name(c, g);
    gguf_write_u32(g, "general.file_type", convert_file_type(c));
    gguf_write_u32(g, "general.quantization_version", CONVERT_QUANT_VERSION);
    convert_put_sampling(c, g);
    code = convert_put_family(c, g, arch, err);
    const struct weights_tensor *embed = weights_find(c->w, "token_embd.weight");
    if (!code && !embed)
        code = err_set(err, ERR_INVALID, "tensor token_embd.weight: missing");
    return code ? code : convert_write_vocab(c, g, embed->shape[1], err);
}

/* --- the file --- */

static enum err_code convert_put_data(struct convert *c, struct sink *s, struct err *err)
{
    const struct recode_out out = {
        .write = convert_sink, .ctx = s, .threads = (int)c->o->threads, .stop = c->stop
    };
    enum err_code code = ERR_OK;
    for (int32_t i = 0; i < c->x.n_tensors && !code; i++) {
        convert_progress(c, i);
        code = recode_run(&c->x.tensors[i], c->w, &out, err);
        if (!code)
            code = sink_pad(s, GGUF_WRITE_ALIGNMENT, err);
    }
    c->bytes = s->n;
    return code;
}

/* The new file opens, and says what the directory said. */
static enum err_code convert_check_file(const struct convert *c, const char *path, struct err *err)
{
    struct weights *w = NULL;
    enum err_code code = weights_open(path, &w, err);
    if (!code && weights_is_dir(c->w))
        code = export_check(w, c->w, err);
    if (!code && weights_is_dir(c->w))
        code = convert_vocab_same(c->w, w, err);
    weights_close(w);
    return code ? err_prefix(err, code, "what was written does not read back") : ERR_OK;
}

enum err_code convert_write_gguf(struct convert *c, struct err *err)
{
    struct gguf_writer g;
    struct sink s = { .fd = -1 };
    gguf_writer_init(&g);
    enum err_code code = convert_put_keys(c, &g, err);
    for (int32_t i = 0; i < c->x.n_tensors && !code; i++) {
        const struct recode *r = &c->x.tensors[i];
        code = gguf_write_tensor(&g, r->name, r->type, r->n_dims, r->shape, recode_bytes(r), err);
    }
    if (!code)
        code = sink_open(&s, c->o->dst, err);
    if (!code)
        code = gguf_write_head(&g, &s, err);
    if (!code)
        code = convert_put_data(c, &s, err);
    if (!code)
        code = sink_sync(&s, err);
    if (!code)
        code = convert_check_file(c, s.part, err);
    if (!code)
        code = sink_commit(&s, err);
    sink_abort(&s);
    gguf_writer_release(&g);
    return code;
}
