/* hf_nextn.c - names of heads for multi-token prediction: in directories `mtp.` and numbers of their own, in GGUF layers behind the
 * model's whose other tensors are called nextn. */
#include "model/hf_nextn.h"

#include <stdio.h>
#include <string.h>

#define NEXTN_LAYERS_MAX 16

static const struct {
    const char *mtp, *nextn;
} nextn_parts[] = {
    { "mtp.fc.", "nextn.eh_proj." },
    { "mtp.pre_fc_norm_embedding.", "nextn.enorm." },
    { "mtp.pre_fc_norm_hidden.", "nextn.hnorm." },
    { "mtp.norm.", "nextn.shared_head_norm." },
    { "mtp.embed_tokens.", "nextn.embed_tokens." }, /* mtp_use_dedicated_embeddings */
};

static const char *nextn_bare(const char *name)
{
    return strncmp(name, "model.mtp.", 10) == 0 ? name + 6 : name;
}

enum err_code hf_nextn_more(struct hf *h, struct err *err)
{
    int64_t n = 0, first;
    for (int32_t i = 0; i < weights_n_tensors(h->w); i++) {
        long long at;
        const char *name = nextn_bare(weights_tensor_at(h->w, i)->name);
        if (sscanf(name, "mtp.layers.%lld.", &at) == 1 && at >= n && at < NEXTN_LAYERS_MAX)
            n = at + 1;
    }
    enum err_code code = hf_int(h, "num_hidden_layers", 1, 1024, 1, &first, err);
    if (code || n == 0)
        return code;
    h->n_nextn = n;
    h->nextn_first = first;
    code = hf_set_int(h, "nextn_predict_layers", n, err);
    return code ? code : hf_set_int(h, "block_count", first + n, err);
}

void hf_nextn_name(const struct hf *h, char name[HF_NAME_MAX])
{
    char from[HF_NAME_MAX];
    long long at;
    int skip = 0;
    if (h->n_nextn == 0)
        return;
    snprintf(from, sizeof(from), "%s", nextn_bare(name));
    if (sscanf(from, "mtp.layers.%lld.%n", &at, &skip) == 1 && skip > 0 && at < h->n_nextn)
        snprintf(name, HF_NAME_MAX, "model.layers.%lld.%.200s", (long long)h->nextn_first + at,
                 from + skip);
    for (size_t i = 0; i < ARRAY_LEN(nextn_parts); i++) {
        size_t n = strlen(nextn_parts[i].mtp);
        if (strncmp(from, nextn_parts[i].mtp, n) == 0)
            snprintf(name, HF_NAME_MAX, "model.layers.%lld.%s%.100s", (long long)h->nextn_first,
                     nextn_parts[i].nextn, from + n);
    }
}

void hf_nextn_undo(int64_t first, char name[HF_NAME_MAX])
{
    char rest[HF_NAME_MAX];
    long long at;
    int skip = 0;
    if (sscanf(name, "model.layers.%lld.%n", &at, &skip) != 1 || skip == 0 || at < first)
        return;
    snprintf(rest, sizeof(rest), "%s", name + skip);
    snprintf(name, HF_NAME_MAX, "mtp.layers.%lld.%.200s", at - (long long)first, rest);
    for (size_t i = 0; i < ARRAY_LEN(nextn_parts); i++) {
        size_t n = strlen(nextn_parts[i].nextn);
        if (strncmp(rest, nextn_parts[i].nextn, n) == 0)
            snprintf(name, HF_NAME_MAX, "%s%.200s", nextn_parts[i].mtp, rest + n);
    }
}

bool hf_nextn_is_of(const char *gguf, int64_t first)
{
    long long at;
    return sscanf(gguf, "blk.%lld.", &at) == 1 && at >= first;
}
