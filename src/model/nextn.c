/* nextn.c - heads for multi-token prediction (DeepSeek-V3 technical report, 2024), as Qwen3-Next, Qwen3.5 and their mixtures of experts have them.
 *
 *   x = W [norm(embedding of id p + 1)  norm(state p)]      one layer with attention      logits of id p + 2 = head(norm(x))
 *
 * state p is the model's behind its final norm, which is what the published code (vLLM, SGLang, llama.cpp) gives the head; for the guess
 * after the first one it is the head's own behind its norm. GGUF numbers the head's layer behind the model's and calls its own
 * tensors nextn; embedding and vocabulary head are the model's where the file has none for it. */
#include "model/model_int.h"
#include "tensor/ops.h"

#include <stdio.h>
#include <string.h>

static const struct tensor_rule nextn_tensors[] = {
    { "blk.%d.nextn.eh_proj.weight", "[D][D+D]", TENSOR_KIND_MATRIX, 0,
      offsetof(struct model, w_join) },
    { "blk.%d.nextn.enorm.weight", "[D]", TENSOR_KIND_VECTOR, 0,
      offsetof(struct model, join_embed_norm) },
    { "blk.%d.nextn.hnorm.weight", "[D]", TENSOR_KIND_VECTOR, 0,
      offsetof(struct model, join_state_norm) },
    { "blk.%d.nextn.shared_head_norm.weight", "[D]", TENSOR_KIND_VECTOR, TENSOR_FLAG_OPTIONAL,
      offsetof(struct model, out_norm) },
    { "blk.%d.nextn.embed_tokens.weight", "[V][D]", TENSOR_KIND_MATRIX, TENSOR_FLAG_OPTIONAL,
      offsetof(struct model, embed) },
    { "blk.%d.nextn.shared_head_head.weight", "[V][D]", TENSOR_KIND_MATRIX, TENSOR_FLAG_OPTIONAL,
      offsetof(struct model, head) },
    { 0 },
};

void block_join(const struct model *m, struct model_step *st)
{
    struct tensor join = tensor_of(st->scratch->join, st->n_rows, 2 * m->width);
    st->x = tensor_of(st->scratch->x, st->n_rows, m->width);
    st->h = tensor_of(st->scratch->h, st->n_rows, m->width);
    ops_embed(m->be, st->x, m->embed, st->ids);
    ops_rms_norm(m->be, tensor_cols(join, 0, m->width), st->x, m->join_embed_norm, (int)m->width,
                 m->eps);
    ops_rms_norm(m->be, tensor_cols(join, m->width, m->width), st->inputs, m->join_state_norm,
                 (int)m->width, m->eps);
    ops_linear(m->be, st->x, join, m->w_join);
}

/* m->nextn: one without tensors, of the layer behind the model's. Errors: ERR_NOT_FOUND - the file has none; ERR_UNSUPPORTED - it has
 * several, or such as nobody here knows. */
static enum err_code nextn_new(struct model *m, const struct weights *w, struct err *err)
{
    char name[64];
    snprintf(name, sizeof(name), "blk.%d.nextn.eh_proj.weight", (int)m->n_layers);
    if (m->n_layers_ignored == 0 || !weights_find(w, name))
        return err_set(err, ERR_NOT_FOUND, "the model has no head for multi-token prediction");
    if (m->n_layers_ignored > 1)
        return err_set(err, ERR_UNSUPPORTED,
                       "its head for multi-token prediction has %d layers; one is known",
                       (int)m->n_layers_ignored);
    if (m->family->step != block_step_hybrid)
        return err_set(err, ERR_UNSUPPORTED, "heads for multi-token prediction of %s are not known",
                       m->arch);
    if (m->n_host_layers > 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "its head for multi-token prediction needs all layers on the GPU "
                       "(--gpu-layers), where it finds the embedding");
    struct model *head = mem_alloc(MEM_CAT_WEIGHTS, sizeof(*head));
    *head = *m;
    head->nextn = NULL;
    head->host = NULL;
    head->n_host_experts = 0;
    head->is_head_tied = false;
    head->n_layers = 1;
    head->n_layers_ignored = 0;
    head->layers = mem_alloc(MEM_CAT_WEIGHTS, sizeof(*head->layers));
    head->layers[0] = (struct model_layer){ .group = MODEL_GROUP_FULL };
    for (int64_t i = 0; i < m->n_layers; i++) /* sizes and attention are those of such layers */
        if (m->layers[i].group == MODEL_GROUP_FULL) {
            const struct model_layer *l = &m->layers[i];
            head->layers[0] = (struct model_layer){ .group = MODEL_GROUP_FULL,
                                                    .n_heads = l->n_heads,
                                                    .n_kv_heads = l->n_kv_heads,
                                                    .head_dim = l->head_dim,
                                                    .n_ff = l->n_ff,
                                                    .rope_i = l->rope_i,
                                                    .attn = l->attn };
        }
    head->state = (struct model_state){ 0 };
    head->embed = head->head = NULL;
    head->out_norm = NULL;
    head->blocks = NULL;
    head->weight_bytes = 0;
    m->nextn = head;
    return ERR_OK;
}

void model_nextn_borrow(struct model *m)
{
    struct model *head = m->nextn;
    for (int g = 0; g < MODEL_GROUP_COUNT; g++)
        head->has_group[g] = g == MODEL_GROUP_FULL;
    head->n_embd = m->n_embd;
    head->n_params = 0;
    if (!head->embed)
        head->embed = m->embed;
    if (!head->head)
        head->head = m->head;
    if (!head->out_norm)
        head->out_norm = m->out_norm;
}

static enum err_code nextn_load_rule(struct model *m, struct model_loading *ld,
                                     const struct tensor_rule *rule, struct model_layer *layer,
                                     struct err *err)
{
    char name[96];
    snprintf(name, sizeof(name), "blk.%d%s", (int)m->n_layers, strstr(rule->name, "%d") + 2);
    return model_load_beside(m->nextn, ld, rule, name, layer, err);
}

void model_load_nextn(struct model *m, struct model_loading *ld, const struct model_load_options *o)
{
    const unsigned others = TENSOR_FLAG_STATE | TENSOR_FLAG_NGRAMS | TENSOR_FLAG_INDEX;
    enum err_code code = nextn_new(m, o->weights, o->nextn_err);
    if (code)
        return;
    for (const struct tensor_rule *r = m->family->tensors; r->name && !code; r++)
        if (r->flags & TENSOR_FLAG_LAYER && !(r->flags & others))
            code = nextn_load_rule(m, ld, r, &m->nextn->layers[0], o->nextn_err);
    for (const struct tensor_rule *r = nextn_tensors; r->name && !code; r++)
        code = nextn_load_rule(m, ld, r, NULL, o->nextn_err);
    m->weight_bytes += code ? 0 : m->nextn->weight_bytes;
    if (code)
        model_free_nextn(m);
}

void model_free_nextn(struct model *m)
{
    struct model *head = m->nextn;
    if (!head)
        return;
    if (head->embed == m->embed)
        head->embed = NULL;
    if (head->head == m->head)
        head->head = NULL;
    for (const struct tensor_rule *r = m->family->tensors; r->name; r++)
        if (r->flags & TENSOR_FLAG_LAYER)
            model_free_field(head, r, 0);
    for (const struct tensor_rule *r = nextn_tensors; r->name; r++)
        model_free_field(head, r, -1);
    model_free_blocks(head);
    mem_free(MEM_CAT_WEIGHTS, head->layers);
    mem_free(MEM_CAT_WEIGHTS, head);
    m->nextn = NULL;
}
