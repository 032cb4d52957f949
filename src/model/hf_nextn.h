/* hf_nextn.h - heads for multi-token prediction in directories (hf_nextn.c). For the maps of families that know such heads. */
#ifndef PLUMB_MODEL_HF_NEXTN_H
#define PLUMB_MODEL_HF_NEXTN_H

#include "model/hf.h"

/* For `more`, after the keys: where the directory has a head, nextn_predict_layers and a block_count that has its layers, too. */
enum err_code hf_nextn_more(struct hf *h, struct err *err) MUST_CHECK;
/* Of a head's tensor the name that it would have as a layer behind the model's: "mtp.fc.weight" is "model.layers.24.nextn.eh_proj.weight".
 * Other names stay. */
void hf_nextn_name(const struct hf *h, char name[HF_NAME_MAX]);
/* The other way: first is the layer behind the model's. */
void hf_nextn_undo(int64_t first, char name[HF_NAME_MAX]);
/* Is the tensor (GGUF's name) of such a layer? */
bool hf_nextn_is_of(const char *gguf, int64_t first);

/* Rows of a family's table that knows heads. */
#define HF_NEXTN_ROWS                                                       \
    HF_LAYER("nextn.eh_proj.weight", "nextn.eh_proj.weight"),               \
        HF_LAYER("nextn.embed_tokens.weight", "nextn.embed_tokens.weight"), \
        HF_LAYER("nextn.shared_head_head.weight", "nextn.shared_head_head.weight")
/* Norms, which some families store otherwise than others. */
#define HF_NEXTN_NORMS                                        \
    HF_LAYER("nextn.enorm.weight", "nextn.enorm.weight"),     \
        HF_LAYER("nextn.hnorm.weight", "nextn.hnorm.weight"), \
        HF_LAYER("nextn.shared_head_norm.weight", "nextn.shared_head_norm.weight")

#endif
