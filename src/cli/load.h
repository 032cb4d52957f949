/* load.h - what --model, --backend, --threads, --ctx and their like say, opened: the one way in which verbs get a model.
 *
 * Order of closing is load_close's business. Progress goes to stderr where it is a terminal. */
#ifndef PLUMB_CLI_LOAD_H
#define PLUMB_CLI_LOAD_H

#include "cli/cli.h"
#include "cli/load_draft.h"
#include "cli/load_rope.h"
#include "engine/engine_model.h"
#include "template/template.h"
#include "tensor/compare.h"
#include "tokenizer/tokenizer.h"
#include "json/json.h"

/* The backend wrapped by tensor/compare.h. */
struct load_compare {
    bool is_trace; /* every op is told, none is compared; else ref is the oracle */
    void (*on_op)(void *ctx, const struct compare_event *e); /* may be NULL */
    void *ctx;
};

/* Flags that every verb with a model has. Put it into the verb's options struct and LOAD_FLAGS into its table. */
struct load_options {
    const char *model;       /* NULL = the default model */
    const char *backend;     /* NULL = "cpu" */
    const char *device;      /* NULL = "auto": a GPU where there is one and room */
    const char *gpu_layers;  /* NULL = "auto": as many as fit */
    const char *cpu_experts; /* NULL = "auto" */
    const char *cpu_mask;    /* NULL = "auto" */
    const char *cache_type;  /* NULL = "f16" */
    int64_t threads;         /* 0 = physical cores that the process may use */
    int64_t ctx;             /* 0 = the model's, or what fits in half the cache memory */
    int64_t kv_memory;       /* bytes; 0 = a quarter of the memory that is available */
    bool takes_embedders;    /* a model that makes embeddings alone is fine */
    bool
        wants_head; /* the model's head for multi-token prediction is loaded, too, where it has one */
    struct load_rope rope;
    const struct load_compare *compare; /* no flag; NULL = the backend as it is */
};

/* Ids of a step on a GPU: its products are at their best with more rows than a host's. */
#define LOAD_STEP_ROWS_GPU 2048

#define LOAD_FLAGS(type, field)                                               \
    { "model",                                                                \
      "M",                                                                    \
      "path or name of a model; default smollm2",                             \
      CLI_FLAG_STRING,                                                        \
      offsetof(type, field.model),                                            \
      0,                                                                      \
      0 },                                                                    \
        { "backend",                                                          \
          "B",                                                                \
          "cpu, or ref (slow, the oracle); default cpu",                      \
          CLI_FLAG_STRING,                                                    \
          offsetof(type, field.backend),                                      \
          0,                                                                  \
          0 },                                                                \
        { "device",                                                           \
          "D",                                                                \
          "cpu, cuda or auto: a GPU where there is one; default auto",        \
          CLI_FLAG_STRING,                                                    \
          offsetof(type, field.device),                                       \
          0,                                                                  \
          0 },                                                                \
        { "gpu-layers",                                                       \
          "N|auto",                                                           \
          "layers that the GPU has, the last ones; default auto: what fits",  \
          CLI_FLAG_STRING,                                                    \
          offsetof(type, field.gpu_layers),                                   \
          0,                                                                  \
          0 },                                                                \
        { "cpu-experts",                                                      \
          "N|auto",                                                           \
          "first layers whose experts the CPU has; default auto: as need be", \
          CLI_FLAG_STRING,                                                    \
          offsetof(type, field.cpu_experts),                                  \
          0,                                                                  \
          0 },                                                                \
        { "threads",                                                          \
          "N",                                                                \
          "threads; default the physical cores that are allowed",             \
          CLI_FLAG_INT,                                                       \
          offsetof(type, field.threads),                                      \
          1,                                                                  \
          256 },                                                              \
        { "cpu-mask",                                                         \
          "LEVEL",                                                            \
          "at most these instructions: generic neon avx2 avxvnni avx512 amx", \
          CLI_FLAG_STRING,                                                    \
          offsetof(type, field.cpu_mask),                                     \
          0,                                                                  \
          0 },                                                                \
        { "ctx",                                                              \
          "N",                                                                \
          "longest sequence in tokens; default the model's, or what fits",    \
          CLI_FLAG_INT,                                                       \
          offsetof(type, field.ctx),                                          \
          16,                                                                 \
          1 << 28 },                                                          \
        { "kv-memory",                                                        \
          "SIZE",                                                             \
          "memory of the cache; default a quarter of what is available",      \
          CLI_FLAG_SIZE,                                                      \
          offsetof(type, field.kv_memory),                                    \
          1 << 20,                                                            \
          1e15 },                                                             \
        { "cache-type",                                                       \
          "T",                                                                \
          "type of the cache: f16, bf16, f32, q8 or q4; default f16",         \
          CLI_FLAG_STRING,                                                    \
          offsetof(type, field.cache_type),                                   \
          0,                                                                  \
          0 },                                                                \
        LOAD_ROPE_FLAGS(type, field.rope)

struct load {
    struct weights *weights;
    struct backend *be;
    struct backend *host; /* beside a GPU's: the CPU's, for sampling */
    struct model *model;
    struct tokenizer *tokenizer;
    struct engine_bytes *token_bytes; /* [n_vocab] */
    struct engine *engine;            /* NULL until load_engine */
    struct drafter *drafter;          /* of the engine; NULL = none */
    struct load_draft draft;          /* another one, which is a model or a head; zeroed = none */
    struct err no_head;               /* why the model has none, where one was wanted */
    char *id;                         /* name of the model in the API */
    struct template *chat_template;   /* NULL until load_chat, and where the file has none */
    struct json_doc template_own;     /* the template's variables that are the program's */
    enum dtype cache_type;
    int64_t load_us;                      /* time that load_open took, and of it: */
    int64_t file_us, text_us, weights_us; /* opening the file, the tokenizer, packing the weights */
    /* private to load.c */
    const struct load_options *o;
};

/* Weights, backend, model, tokenizer. o is borrowed until load_close. Errors: of each part; *l is closed then. */
enum err_code load_open(struct load *l, const struct load_options *o, struct err *err) MUST_CHECK;
struct load_engine_options {
    bool speculates;         /* next tokens are guessed (draft.h) */
    const char *draft_model; /* by this model, too; NULL = none */
    bool needs_head;         /* a model without a head for multi-token prediction is refused */
    /* Where it keeps histories: all zero, nowhere. */
    int64_t bytes;      /* of its cache (runner.h) */
    const char *dir;    /* on disk; NULL = not there */
    int64_t disk_bytes; /* of that directory's files, at most */
};
/* Then an engine with room for max_rows rows at a time. */
enum err_code load_engine(struct load *l, int32_t max_rows, const struct load_engine_options *keep,
                          struct err *err) MUST_CHECK;
/* The chat template, if the file has one. Errors: those of template_parse. */
enum err_code load_chat(struct load *l, struct err *err) MUST_CHECK;
/* Give the engine away: load_close leaves it alone. */
struct engine *load_take_engine(struct load *l);
void load_close(struct load *l); /* fine on a zeroed struct */

/* A quarter of the memory that the process may still take (mem_limit.h), at least 64 MiB. Logged. */
int64_t load_kv_default(void);

#endif
