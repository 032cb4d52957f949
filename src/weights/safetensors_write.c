#include "weights/safetensors_write.h"

#include <string.h>

#define SAFETENSORS_HEAD_MAX ((size_t)100000000)

void safetensors_writer_init(struct safetensors_writer *s)
{
    *s = (struct safetensors_writer){ .data_bytes = 0 };
    buf_init(&s->head, MEM_CAT_WEIGHTS, SAFETENSORS_HEAD_MAX);
    json_writer_init(&s->json, &s->head);
    json_begin_object(&s->json);
    /* transformers refuses files without it */
    json_field_object(&s->json, "__metadata__");
    json_field_str(&s->json, "format", "pt");
    json_end_object(&s->json);
}

void safetensors_writer_release(struct safetensors_writer *s)
{
    buf_release(&s->head);
}

void safetensors_write_tensor(struct safetensors_writer *s, const char *name, enum dtype type,
                              int n_dims, const int64_t *shape, size_t bytes)
{
    struct json_writer *j = &s->json;
    json_field_object(j, name);
    json_field_str(j, "dtype", safetensors_type_name(type));
    json_field_array(j, "shape");
    for (int i = n_dims - 1; i >= 0; i--)
        json_int(j, shape[i]);
    json_end_array(j);
    json_field_array(j, "data_offsets");
    json_uint(j, s->data_bytes);
    json_uint(j, s->data_bytes + bytes);
    json_end_array(j);
    json_end_object(j);
    s->data_bytes += bytes;
}

enum err_code safetensors_write_head(struct safetensors_writer *s, struct sink *to, struct err *err)
{
    json_end_object(&s->json);
    while (s->head.len % 8 != 0 && !s->head.failed)
        buf_add_char(&s->head, ' ');
    uint64_t n = s->head.len;
    enum err_code code = buf_check(&s->head, "the header of a safetensors file", err);
    if (!code)
        code = sink_write(to, &n, sizeof(n), err);
    return code ? code : sink_write(to, s->head.data, s->head.len, err);
}
