/* The reference backend's device services: memory, weights, flags and the table of ops. */
#include "kernels/ref/ref_int.h"

#include <string.h>

static void *ref_alloc(struct backend *be, enum mem_cat cat, size_t bytes)
{
    return mem_try_big(cat, bytes);
}

static void ref_free(struct backend *be, enum mem_cat cat, void *p, size_t bytes)
{
    mem_free_big(cat, p, bytes);
}

static void ref_copy_in(struct backend *be, void *dst, const void *host, size_t bytes)
{
    memcpy(dst, host, bytes);
}

static void ref_copy_out(struct backend *be, void *host, const void *src, size_t bytes)
{
    memcpy(host, src, bytes);
}

static enum err_code ref_wait(struct backend *be, struct err *err)
{
    return ERR_OK;
}

static void ref_begin(struct backend *be, int n_rows)
{
    struct ref_state *st = ref_of(be);
    st->n_rows = n_rows;
    memset(st->flags, 0, (size_t)n_rows);
}

static void ref_failed(struct backend *be, uint8_t *flags)
{
    struct ref_state *st = ref_of(be);
    for (int t = 0; t < st->n_rows; t++)
        flags[t] |= st->flags[t];
}

static bool ref_supports(const struct backend *be, enum dtype type)
{
    return group_is_type(type) || source_is_f8(type) || type == DTYPE_F32 || type == DTYPE_F16 ||
           type == DTYPE_BF16;
}

/* Make the buffers of linear fit rows of `in` elements. On failure they are as before. */
static bool ref_reserve(struct ref_state *st, int64_t in)
{
    if (in <= st->max_in)
        return true;
    size_t n = (size_t)in, g = (n + GROUP - 1) / GROUP;
    struct ref_xgroup *x = mem_try_array(MEM_CAT_SCRATCH, REF_ROWS * g, sizeof(*x));
    float *xf = mem_try_array(MEM_CAT_SCRATCH, REF_ROWS * n, sizeof(*xf));
    struct group *w = mem_try_array(MEM_CAT_SCRATCH, g, sizeof(*w));
    float *wf = mem_try_array(MEM_CAT_SCRATCH, n, sizeof(*wf));
    bool ok = x && xf && w && wf;
    if (ok) {
        struct ref_state old = *st;
        st->x = x, st->xf = xf, st->w = w, st->wf = wf;
        st->max_in = in;
        x = old.x, xf = old.xf, w = old.w, wf = old.wf;
    }
    mem_free(MEM_CAT_SCRATCH, x);
    mem_free(MEM_CAT_SCRATCH, xf);
    mem_free(MEM_CAT_SCRATCH, w);
    mem_free(MEM_CAT_SCRATCH, wf);
    return ok;
}

static enum err_code ref_pack(struct backend *be, const struct weight_source *src,
                              struct weight **out, struct err *err)
{
    if (!ref_supports(be, src->type))
        return err_set(err, ERR_UNSUPPORTED, "%s: this build does not compute with type %s",
                       src->name, dtype_info(src->type)->name);
    enum err_code code = source_check(src, err);
    if (code)
        return code;
    const struct scales *sc = &src->scales;
    size_t row_bytes = dtype_row_bytes(src->type, src->in);
    size_t bytes = row_bytes * (size_t)src->out, scale_bytes = 0;
    if (sc->scales)
        scale_bytes = (size_t)((src->out + sc->rows - 1) / sc->rows) *
                      dtype_row_bytes(sc->type, (src->in + sc->cols - 1) / sc->cols);
    bytes += scale_bytes * (sc->biases ? 2 : 1);
    struct weight *w = mem_alloc(MEM_CAT_WEIGHTS, sizeof(*w));
    w->shape = (struct weight_shape){ src->type, src->out, src->in, bytes };
    w->row_bytes = row_bytes;
    w->data = mem_try_big(MEM_CAT_WEIGHTS, bytes);
    if (!w->data || !ref_reserve(ref_of(be), src->in)) {
        mem_free_big(MEM_CAT_WEIGHTS, w->data, bytes);
        mem_free(MEM_CAT_WEIGHTS, w);
        return err_set(err, ERR_NOMEM, "%s: no memory for %zu bytes", src->name, bytes);
    }
    uint8_t *at = w->data + row_bytes * (size_t)src->out;
    memcpy(w->data, src->data, row_bytes * (size_t)src->out);
    w->scales = *sc;
    if (sc->scales)
        w->scales.scales = memcpy(at, sc->scales, scale_bytes);
    if (sc->scales && sc->biases)
        w->scales.biases = memcpy(at + scale_bytes, sc->biases, scale_bytes);
    if (src->drop)
        src->drop(src->drop_ctx, src->data, row_bytes * (size_t)src->out);
    *out = w;
    return ERR_OK;
}

static void ref_unpack_free(struct backend *be, struct weight *w)
{
    if (!w)
        return;
    mem_free_big(MEM_CAT_WEIGHTS, w->data, w->shape.bytes);
    mem_free(MEM_CAT_WEIGHTS, w);
}

static const struct weight_shape *ref_shape(const struct weight *w)
{
    return &w->shape;
}

static void ref_close(struct backend *be)
{
    struct ref_state *st = ref_of(be);
    mem_free(MEM_CAT_SCRATCH, st->x);
    mem_free(MEM_CAT_SCRATCH, st->xf);
    mem_free(MEM_CAT_SCRATCH, st->w);
    mem_free(MEM_CAT_SCRATCH, st->wf);
    mem_free(MEM_CAT_BASE, st);
    mem_free(MEM_CAT_BASE, be);
}

static const struct backend_ops ref_ops = {
    .api_version = BACKEND_API,
    .name = "ref",
    .numerics = BACKEND_NUMERICS_CPU,
    .alloc = ref_alloc,
    .free = ref_free,
    .upload = ref_copy_in,
    .is_host = true,
    .download = ref_copy_out,
    .wait = ref_wait,
    .close = ref_close,
    .supports = ref_supports,
    .pack = ref_pack,
    .unpack_free = ref_unpack_free,
    .shape = ref_shape,
    .kv_page_bytes = ref_kv_page_bytes,
    .embed = ref_embed,
    .linear = ref_linear,
    .add_bias = ref_add_bias,
    .rms_norm = ref_rms_norm,
    .rope = ref_rope,
    .kv_store = ref_kv_store,
    .kv_copy_page = ref_kv_copy_page,
    .attention = ref_attention,
    .glu = ref_glu,
    .act = ref_act,
    .layer_norm = ref_layer_norm,
    .scatter_add = ref_scatter_add,
    .route = ref_route,
    .add = ref_add,
    .scale = ref_scale,
    .softcap = ref_softcap,
    .exp_scaled = ref_exp_scaled,
    .argmax = ref_argmax,
    .copy = ref_copy,
    .gate_rows = ref_gate_rows,
    .root_dots = ref_root_dots,
    .gather = ref_gather,
    .l2_norm = ref_l2_norm,
    .conv_silu = ref_conv_silu,
    .delta_gates = ref_delta_gates,
    .delta_rule = ref_delta_rule,
    .state_copy = ref_state_copy,
    .index_add = ref_index_add,
    .index_pick = ref_index_pick,
    .begin = ref_begin,
    .failed = ref_failed,
};

enum err_code ref_backend_open(struct backend **out, struct err *err)
{
    struct backend *be = mem_alloc(MEM_CAT_BASE, sizeof(*be));
    be->ops = &ref_ops;
    be->state = mem_alloc(MEM_CAT_BASE, sizeof(struct ref_state));
    *out = be;
    return ERR_OK;
}
