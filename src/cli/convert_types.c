/* convert_types.c - which type each tensor gets.
 *
 * Vectors and what decides much with few numbers (norms, biases, routers, convolutions) are never quantised. Of the matrices, the head
 * (the embedding where it is the head too) gets Q6_K where the rest has fewer than 6 bits; the mixes q4_k_m and q5_k_m give Q6_K also to
 * attn_v and ffn_down of the first and last eighth of the layers and of every third between. A row that is no whole number of blocks
 * of 256 goes to the type of 32 with the next more bits: Q4_K to Q5_0, Q5_K to Q5_1, Q6_K to Q8_0; one that is none of 32, or none of MLX's groups, stays
 * plain. */
#include "cli/convert.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    enum dtype type;
    bool is_mix;
    uint32_t file_type; /* GGUF's number of what most tensors have */
} convert_names[] = {
    { "keep", DTYPE_COUNT, false, 0 },  { "f32", DTYPE_F32, false, 0 },
    { "f16", DTYPE_F16, false, 1 },     { "bf16", DTYPE_BF16, false, 32 },
    { "q8_0", DTYPE_Q8_0, false, 7 },   { "q4_0", DTYPE_Q4_0, false, 2 },
    { "q4_1", DTYPE_Q4_1, false, 3 },   { "q5_0", DTYPE_Q5_0, false, 8 },
    { "q5_1", DTYPE_Q5_1, false, 9 },   { "q4_k", DTYPE_Q4_K, false, 14 },
    { "q5_k", DTYPE_Q5_K, false, 16 },  { "q6_k", DTYPE_Q6_K, false, 18 },
    { "q4_k_m", DTYPE_Q4_K, true, 15 }, { "q5_k_m", DTYPE_Q5_K, true, 17 },
    { "mlx2", DTYPE_MLX2, false, 0 },   { "mlx3", DTYPE_MLX3, false, 0 },
    { "mlx4", DTYPE_MLX4, false, 0 },   { "mlx5", DTYPE_MLX5, false, 0 },
    { "mlx6", DTYPE_MLX6, false, 0 },   { "mlx8", DTYPE_MLX8, false, 0 },
};

static bool convert_is_plain(enum dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

/* Whether a destination of the kind can hold the type. */
static bool convert_holds(enum convert_kind kind, enum dtype type)
{
    bool is_mlx = type < DTYPE_COUNT && dtype_mlx_bits(type);
    if (type == DTYPE_COUNT || convert_is_plain(type))
        return true;
    return kind == CONVERT_MLX ? is_mlx : kind == CONVERT_GGUF && !is_mlx;
}

static enum err_code convert_parse(const struct convert *c, const char *flag, const char *name,
                                   struct convert_type *out, struct err *err)
{
    char known[256] = "";
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(convert_names); i++) {
        if (!convert_holds(c->kind, convert_names[i].type))
            continue;
        if (name && strcmp(name, convert_names[i].name) == 0) {
            *out = (struct convert_type){ convert_names[i].name, convert_names[i].type,
                                          convert_names[i].is_mix };
            return ERR_OK;
        }
        n += (size_t)snprintf(known + n, sizeof(known) - n, " %s", convert_names[i].name);
    }
    return err_set(err, ERR_INVALID, "--%s: '%.32s' is not a type of this destination; known are%s",
                   flag, name, known);
}

/* The widest plain type that the source's matrices ask for: of blocks and codes f16, or their scales' type. */
static enum dtype convert_plain_of(const struct convert *c)
{
    bool has_bf16 = false, has_half = false;
    for (int32_t i = 0; i < c->x.n_tensors; i++) {
        const struct weights_tensor *t = c->x.tensors[i].parts[0];
        enum dtype type = dtype_mlx_bits(t->type) ? t->scales.type : t->type;
        if (t->n_dims < 2)
            continue;
        has_bf16 |= type == DTYPE_BF16 || type == DTYPE_F8_E4M3 || type == DTYPE_F8_E5M2;
        has_half |= type != DTYPE_F32;
    }
    return has_bf16 ? DTYPE_BF16 : has_half ? DTYPE_F16 : DTYPE_F32;
}

enum err_code convert_types_init(struct convert *c, struct err *err)
{
    const struct convert_options *o = c->o;
    struct convert_type plain = { .name = NULL };
    const struct {
        const char *flag, *name;
        struct convert_type *out;
    } flags[] = { { "type",
                    o->type                  ? o->type
                    : c->kind == CONVERT_MLX ? "mlx4"
                                             : "keep",
                    &c->type },
                  { "embedding-type", o->embedding_type, &c->embedding },
                  { "head-type", o->head_type, &c->head },
                  { "plain-type", o->plain_type, &plain } };
    enum err_code code = ERR_OK;
    for (size_t i = 0; i < ARRAY_LEN(flags) && !code; i++)
        if (flags[i].name)
            code = convert_parse(c, flags[i].flag, flags[i].name, flags[i].out, err);
    if (!code && plain.name && (plain.type == DTYPE_COUNT || !convert_is_plain(plain.type)))
        code = err_set(err, ERR_INVALID, "--plain-type: '%s' is not f32, f16 or bf16", plain.name);
    if (!code && o->group_size && c->kind != CONVERT_MLX)
        code = err_set(err, ERR_INVALID, "--group-size is for --to mlx");
    if (!code && o->group_size && o->group_size != 32 && o->group_size != 64 &&
        o->group_size != 128)
        code = err_set(err, ERR_INVALID, "--group-size: %lld is not 32, 64 or 128",
                       (long long)o->group_size);
    c->plain = plain.name ? plain.type : DTYPE_COUNT;
    return code;
}

/* --- kinds of tensors, by the names of both sides --- */

static bool convert_ends(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

static bool convert_has_any(const char *s, const char *const *words)
{
    for (; *words; words++)
        if (strstr(s, *words))
            return true;
    return false;
}

/* A matrix of products, or the embedding. */
static bool convert_is_matrix(const struct recode *r)
{
    static const char *const never[] = { "norm",
                                         "conv1d",
                                         "ffn_gate_inp",
                                         "mlp.gate.weight",
                                         "router",
                                         "visual",
                                         "vision",
                                         "audio",
                                         "block_sparse_moe.gate.weight",
                                         "shared_expert_gate",
                                         NULL };
    return r->n_dims >= 2 && r->shape[0] > 1 && r->shape[1] > 1 &&
           convert_ends(r->name, "weight") && !convert_has_any(r->name, never) &&
           !convert_folder(r->name);
}

static bool convert_is_embedding(const struct recode *r)
{
    return convert_ends(r->name, "token_embd.weight") ||
           convert_ends(r->name, "embed_tokens.weight");
}

static bool convert_is_head(const struct recode *r)
{
    return strcmp(r->name, "output.weight") == 0 || convert_ends(r->name, "lm_head.weight");
}

/* The number after "blk." or "layers."; -1: there is none. */
static int64_t convert_layer(const char *name)
{
    int layer;
    const char *at = strstr(name, "layers.");
    return sscanf(name, "blk.%d.", &layer) == 1 || (at && sscanf(at, "layers.%d.", &layer) == 1)
               ? layer
               : -1;
}

/* Layers whose attn_v and ffn_down a mix gives more bits. */
static bool convert_is_rich(int64_t layer, int64_t n)
{
    return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
}

static enum dtype convert_mix(const struct convert *c, const struct recode *r)
{
    bool is_one = convert_ends(r->name, "attn_v.weight") || strstr(r->name, "ffn_down");
    int64_t layer = convert_layer(r->name);
    return is_one && layer >= 0 && convert_is_rich(layer, c->n_layers) ? DTYPE_Q6_K : c->type.type;
}

/* Types of under 6 bits, which a head does not get unasked. */
static bool convert_is_low(enum dtype type)
{
    return type == DTYPE_Q4_0 || type == DTYPE_Q4_1 || type == DTYPE_Q5_0 || type == DTYPE_Q5_1 ||
           type == DTYPE_Q4_K || type == DTYPE_Q5_K;
}

/* The same, or of blocks that fit rows of so many. */
static enum dtype convert_fit(enum dtype type, int64_t cols, enum dtype plain)
{
    static const struct {
        enum dtype from, to;
    } smaller[] = { { DTYPE_Q4_K, DTYPE_Q5_0 },
                    { DTYPE_Q5_K, DTYPE_Q5_1 },
                    { DTYPE_Q6_K, DTYPE_Q8_0 } };
    for (size_t i = 0; i < ARRAY_LEN(smaller); i++)
        if (type == smaller[i].from && cols % dtype_info(type)->block_elems != 0)
            type = smaller[i].to;
    return cols % dtype_info(type)->block_elems == 0 ? type : plain;
}

/* --- the rule --- */

/* What a matrix is wanted in; DTYPE_COUNT: its own. */
static enum dtype convert_wanted(const struct convert *c, const struct recode *r)
{
    bool is_embedding = convert_is_embedding(r), is_head = convert_is_head(r);
    if (is_embedding && c->embedding.name)
        return c->embedding.type;
    if (is_head && c->head.name)
        return c->head.type;
    if ((is_head || (is_embedding && !c->has_head)) && convert_is_low(c->type.type))
        return DTYPE_Q6_K;
    return c->type.is_mix ? convert_mix(c, r) : c->type.type;
}

/* Its own type, or the nearest that the destination knows. */
static enum dtype convert_own(const struct convert *c, const struct weights_tensor *t)
{
    if (c->kind == CONVERT_GGUF && !dtype_info(t->type)->has_scales)
        return t->type;
    if (convert_is_plain(t->type))
        return t->type;
    return c->kind == CONVERT_MLX && dtype_mlx_bits(t->type) ? t->type : c->plain;
}

static bool convert_is_number(const struct weights_tensor *t)
{
    const struct dtype_info *info = dtype_info(t->type);
    return info->has_scales || (info->can_decode && !(t->type >= DTYPE_I8 && t->type <= DTYPE_F64));
}

static void convert_set(const struct convert *c, struct recode *r)
{
    const struct weights_tensor *t = r->parts[0];
    int group = c->o->group_size ? (int)c->o->group_size : 64;
    if (r->form == RECODE_FORM_CODES || r->form == RECODE_FORM_EXPONENTS) {
        r->type = DTYPE_U8;
        return;
    }
    if (!convert_is_number(t)) { /* integers and what nobody decodes stay what they are */
        r->type = t->type;
        return;
    }
    if (!convert_is_matrix(r)) {
        r->type = c->kind == CONVERT_GGUF ? DTYPE_F32 : c->plain;
        return;
    }
    enum dtype type = convert_wanted(c, r);
    r->type = type == DTYPE_COUNT ? convert_own(c, t) : convert_fit(type, r->shape[0], c->plain);
    if (!dtype_mlx_bits(r->type))
        return;
    if (type == DTYPE_COUNT)
        group = (int)t->scales.cols;
    if (r->shape[0] % group != 0)
        r->type = c->plain;
    else
        r->mlx = (struct quantize_mlx){ dtype_mlx_bits(r->type), group, c->plain };
}

enum err_code convert_types_set(struct convert *c, struct err *err)
{
    enum err_code code = ERR_OK;
    if (c->plain == DTYPE_COUNT)
        c->plain = c->type.type < DTYPE_COUNT && convert_is_plain(c->type.type)
                       ? c->type.type
                       : convert_plain_of(c);
    for (int32_t i = 0; i < c->x.n_tensors; i++) {
        const struct recode *r = &c->x.tensors[i];
        int64_t layer = convert_layer(r->name);
        c->has_head |= convert_is_head(r);
        c->n_layers = layer >= c->n_layers ? layer + 1 : c->n_layers;
        c->is_source_quantised |= dtype_info(r->parts[0]->type)->block_elems > 1;
    }
    for (int32_t i = 0; i < c->x.n_tensors && !code; i++) {
        struct recode *r = &c->x.tensors[i];
        convert_set(c, r);
        if (r->parts[0]->is_merged)
            code = err_set(err, ERR_UNSUPPORTED,
                           "tensor %s: more than %d dimensions, which cannot be written yet",
                           r->name, WEIGHTS_DIMS_MAX);
        else
            code = recode_check(r, err);
    }
    return code;
}

uint32_t convert_file_type(const struct convert *c)
{
    uint64_t bytes[DTYPE_COUNT] = { 0 }, most = 0;
    enum dtype type = DTYPE_F32;
    uint32_t out = 0;
    for (int32_t i = 0; i < c->x.n_tensors; i++)
        bytes[c->x.tensors[i].type] += recode_bytes(&c->x.tensors[i]);
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (bytes[t] > most) {
            most = bytes[t];
            type = (enum dtype)t;
        }
    for (size_t i = 1; i < ARRAY_LEN(convert_names); i++) {
        if (c->type.is_mix && strcmp(convert_names[i].name, c->type.name) == 0)
            return convert_names[i].file_type;
        if (convert_names[i].type == type && !convert_names[i].is_mix)
            out = convert_names[i].file_type;
    }
    return out;
}
