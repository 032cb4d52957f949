#include "weights/gguf_write.h"
#include "weights/weights_int.h"

#include <string.h>

#define GGUF_HEAD_MAX ((size_t)1 << 30) /* vocabularies of 2^20 tokens take some tens of MiB */

void gguf_writer_init(struct gguf_writer *g)
{
    *g = (struct gguf_writer){ .n_meta = 0 };
    buf_init(&g->meta, MEM_CAT_WEIGHTS, GGUF_HEAD_MAX);
    buf_init(&g->tensors, MEM_CAT_WEIGHTS, GGUF_HEAD_MAX);
}

void gguf_writer_release(struct gguf_writer *g)
{
    buf_release(&g->meta);
    buf_release(&g->tensors);
}

static void gguf_put_u32(struct buf *b, uint32_t v)
{
    buf_add(b, &v, sizeof(v));
}

static void gguf_put_u64(struct buf *b, uint64_t v)
{
    buf_add(b, &v, sizeof(v));
}

static void gguf_put_str(struct buf *b, const char *s, size_t n)
{
    gguf_put_u64(b, n);
    buf_add(b, s, n);
}

/* A scalar's bytes; integers are little-endian, so a prefix of the widest. */
static void gguf_put_scalar(struct buf *b, const struct meta_value *v)
{
    size_t n = meta_scalar_bytes(v->type);
    float f = (float)v->f;
    if (v->type == META_TYPE_F32)
        buf_add(b, &f, sizeof(f));
    else if (v->type == META_TYPE_F64)
        buf_add(b, &v->f, sizeof(v->f));
    else
        buf_add(b, &v->u, n);
}

static void gguf_put_value(struct buf *b, const struct meta_value *v)
{
    if (v->type == META_TYPE_STRING) {
        gguf_put_str(b, v->s.data, v->s.len);
        return;
    }
    if (v->type != META_TYPE_ARRAY) {
        gguf_put_scalar(b, v);
        return;
    }
    gguf_put_u32(b, (uint32_t)v->array.type);
    gguf_put_u64(b, v->array.n);
    if (meta_scalar_bytes(v->array.type)) {
        buf_add(b, v->array.data, meta_scalar_bytes(v->array.type) * (size_t)v->array.n);
        return;
    }
    for (uint64_t i = 0; i < v->array.n; i++) {
        struct meta_value item;
        meta_array_at(v, i, &item);
        gguf_put_value(b, &item); /* at most WEIGHTS_META_NESTING deep, as it was read */
    }
}

void gguf_write_meta(struct gguf_writer *g, const char *key, const struct meta_value *v)
{
    g->n_meta++;
    gguf_put_str(&g->meta, key, strlen(key));
    gguf_put_u32(&g->meta, (uint32_t)v->type);
    gguf_put_value(&g->meta, v);
}

void gguf_write_u32(struct gguf_writer *g, const char *key, uint32_t v)
{
    gguf_write_meta(g, key, &(struct meta_value){ .type = META_TYPE_U32, .u = v });
}

void gguf_write_f32(struct gguf_writer *g, const char *key, float v)
{
    gguf_write_meta(g, key, &(struct meta_value){ .type = META_TYPE_F32, .f = (double)v });
}

void gguf_write_bool(struct gguf_writer *g, const char *key, bool v)
{
    gguf_write_meta(g, key, &(struct meta_value){ .type = META_TYPE_BOOL, .u = v });
}

void gguf_write_str(struct gguf_writer *g, const char *key, const char *s, size_t n)
{
    gguf_write_meta(g, key, &(struct meta_value){ .type = META_TYPE_STRING, .s = { s, n } });
}

enum err_code gguf_write_tensor(struct gguf_writer *g, const char *name, enum dtype type,
                                int n_dims, const int64_t *shape, size_t bytes, struct err *err)
{
    int number = gguf_type_number(type);
    if (number < 0)
        return err_set(err, ERR_UNSUPPORTED, "tensor %s: GGUF has no type %s", name,
                       dtype_info(type)->name);
    g->n_tensors++;
    gguf_put_str(&g->tensors, name, strlen(name));
    gguf_put_u32(&g->tensors, (uint32_t)n_dims);
    for (int i = 0; i < n_dims; i++)
        gguf_put_u64(&g->tensors, (uint64_t)shape[i]);
    gguf_put_u32(&g->tensors, (uint32_t)number);
    gguf_put_u64(&g->tensors, g->data_bytes);
    g->data_bytes += (bytes + GGUF_WRITE_ALIGNMENT - 1) & ~(uint64_t)(GGUF_WRITE_ALIGNMENT - 1);
    return ERR_OK;
}

enum err_code gguf_write_head(const struct gguf_writer *g, struct sink *s, struct err *err)
{
    uint32_t start[2] = { 0x46554747, 3 }; /* "GGUF" */
    uint64_t counts[2] = { g->n_tensors, g->n_meta };
    enum err_code code = buf_check(&g->meta, "the file's metadata", err);
    if (!code)
        code = buf_check(&g->tensors, "the file's list of tensors", err);
    if (!code)
        code = sink_write(s, start, sizeof(start), err);
    if (!code)
        code = sink_write(s, counts, sizeof(counts), err);
    if (!code)
        code = sink_write(s, g->meta.data, g->meta.len, err);
    if (!code)
        code = sink_write(s, g->tensors.data, g->tensors.len, err);
    return code ? code : sink_pad(s, GGUF_WRITE_ALIGNMENT, err);
}
