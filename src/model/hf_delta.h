/* hf_delta.h - what the maps of hybrids share (hf_delta.c). */
#ifndef PLUMB_MODEL_HF_DELTA_H
#define PLUMB_MODEL_HF_DELTA_H

#include "model/hf.h"

extern const struct hf_name hf_delta_names[];
enum err_code hf_delta_more(struct hf *h, struct err *err);
/* For `take`: value heads stay by key heads (Qwen3-Next), or are dealt out to them in turn (Qwen3.5). */
enum err_code hf_delta_take(struct hf *h, const struct weights_tensor *t, const char *name,
                            bool *is_done, struct err *err);
enum err_code hf_delta_take_tiled(struct hf *h, const struct weights_tensor *t, const char *name,
                                  bool *is_done, struct err *err);

#endif
