#include "tensor/source.h"

#include "base/err.h"

static bool is_float(enum dtype type)
{
    return type == DTYPE_F16 || type == DTYPE_BF16 || type == DTYPE_F32;
}

static enum err_code check_mlx(const struct weight_source *src, struct err *err)
{
    const struct scales *s = &src->scales;
    bool has = s->scales && s->biases && is_float(s->type) && s->rows == 1;
    if (!has || (s->cols != 32 && s->cols != 64 && s->cols != 128) || src->in % s->cols != 0)
        return err_set(err, ERR_INVALID,
                       "%s: type %s needs scales and biases of f16, bf16 or f32 for each 32, 64 or "
                       "128 of %lld columns, it has %s of %lld x %lld",
                       src->name, dtype_info(src->type)->name, (long long)src->in,
                       s->scales && s->biases ? dtype_info(s->type)->name : "none",
                       (long long)s->rows, (long long)s->cols);
    return ERR_OK;
}

static enum err_code check_f8(const struct weight_source *src, struct err *err)
{
    const struct scales *s = &src->scales;
    const uint8_t first_bad = src->type == DTYPE_F8_E4M3 ? 0x7F : 0x7C;
    const size_t n = (size_t)src->out * (size_t)src->in;
    if (s->scales && (!is_float(s->type) || s->rows < 1 || s->cols < 1 || s->biases))
        return err_set(err, ERR_INVALID,
                       "%s: scales of %s for %lld x %lld elements do not go with type %s",
                       src->name, dtype_info(s->type)->name, (long long)s->rows, (long long)s->cols,
                       dtype_info(src->type)->name);
    for (size_t i = 0; i < n; i += 4096) {
        uint8_t bad = 0;
        for (size_t k = i; k < i + 4096 && k < n; k++)
            bad |= (src->data[k] & 0x7F) >= first_bad;
        if (bad)
            return err_set(err, ERR_INVALID,
                           "%s: a value among %zu..%zu is not finite; the file is damaged",
                           src->name, i, i + 4095);
    }
    return ERR_OK;
}

enum err_code source_check(const struct weight_source *src, struct err *err)
{
    const struct dtype_info *info = dtype_info(src->type);
    if (src->in <= 0 || src->out <= 0 || src->in % info->block_elems != 0)
        return err_set(err, ERR_INVALID, "%s: shape [%lld][%lld] does not fit type %s", src->name,
                       (long long)src->out, (long long)src->in, info->name);
    if (dtype_mlx_bits(src->type))
        return check_mlx(src, err);
    if (source_is_f8(src->type))
        return check_f8(src, err);
    return ERR_OK;
}
