/* tokenizer_json_int.h - inside of reading a tokenizer.json. */
#ifndef PLUMB_TOKENIZER_TOKENIZER_JSON_INT_H
#define PLUMB_TOKENIZER_TOKENIZER_JSON_INT_H

#include "base/map.h"
#include "tokenizer/tokenizer_json.h"
#include "json/json.h"

struct tokenizer_reading {
    const struct json *root;
    struct arena arena; /* what spec points to */
    struct tokenizer_spec spec;
    struct pipeline_spec pipeline;
    struct tokenizer_str *pieces; /* [spec.n_tokens] */
    uint8_t *types, *flags;       /* idem */
    double *scores;               /* idem, or NULL */
    struct map ids;               /* spelling in the file -> id */
    bool is_byte_level;           /* some pre-tokenizer is ByteLevel */
};

/* A string member as C text (no NUL inside). *out is the fallback where it is absent or null. */
enum err_code tokenizer_json_str(const struct json *obj, const char *key, const char *fallback,
                                 const char **out, struct err *err) MUST_CHECK;
enum err_code tokenizer_json_bool(const struct json *obj, const char *key, bool fallback, bool *out,
                                  struct err *err) MUST_CHECK;

/* tokenizer_json_steps.c: normalizer and pre_tokenizer to steps, post_processor to head and tail, decoder. */
enum err_code tokenizer_json_normalizer(struct tokenizer_reading *r, const struct json *v,
                                        struct err *err) MUST_CHECK;
enum err_code tokenizer_json_pre_tokenizer(struct tokenizer_reading *r, const struct json *v,
                                           struct err *err) MUST_CHECK;
enum err_code tokenizer_json_post_processor(struct tokenizer_reading *r, const struct json *v,
                                            struct err *err) MUST_CHECK;
enum err_code tokenizer_json_decoder(struct tokenizer_reading *r, const struct json *v,
                                     struct err *err) MUST_CHECK;

#endif
