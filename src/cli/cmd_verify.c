/* cmd_verify.c - are a model's numbers right? Every op of the fast backend against the reference one, bit by bit, and the model's
 * distributions against those of a reference model. */
#include "base/file.h"
#include "base/log.h"
#include "cli/load.h"
#include "cli/verify.h"
#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

#define VERIFY_FILE_MAX  ((size_t)256 << 20)
#define VERIFY_TABLE_MAX ((size_t)1 << 20)

struct verify_flags {
    const char *model; /* positional; else --model's */
    struct load_options load;
    const char *file, *reference, *save;
    int64_t tokens, windows;
    bool trace, json;
};

struct verify {
    const struct verify_flags *o;
    struct buf text; /* to run through the model */
    struct buf out;  /* what is printed at the end */
    struct json_writer json;
    bool is_different;
};

static void verify_defaults(void *options)
{
    struct verify_flags *o = options;
    o->load.ctx = 128;
    o->tokens = 48;
    o->windows = INT32_MAX;
}

/* --- op by op --- */

/* FNV-1a of the bits, so that two traces can be compared line by line. */
static uint64_t bits_hash(struct tensor y)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t r = 0; r < y.rows; r++)
        for (int64_t c = 0; c < y.cols; c++) {
            uint32_t bits;
            memcpy(&bits, y.data + r * y.stride + c, sizeof(bits));
            h = (h ^ bits) * 0x100000001b3u;
        }
    return h;
}

static void verify_trace(void *ctx, const struct compare_event *e)
{
    const char *type = e->type == DTYPE_COUNT ? "" : dtype_info(e->type)->name;
    printf("%3d %-12s %-8s %-28s", e->layer, compare_op_name(e->op), type, e->name);
    if (e->y.data && e->y.rows > 0)
        printf(" [%lld][%lld] %016llx %.6g", (long long)e->y.rows, (long long)e->y.cols,
               (unsigned long long)bits_hash(e->y), (double)e->y.data[0]);
    printf("\n");
}

static void verify_tell_ops(struct verify *v, const struct load *l, const char *mask, int32_t n,
                            int32_t n_steps)
{
    int n_bad = verify_n_different(l->be);
    v->is_different = v->is_different || n_bad > 0;
    if (v->o->json) {
        json_begin_object(&v->json);
        json_field_str(&v->json, "cpu_mask", mask);
        json_field_int(&v->json, "tokens", n);
        json_field_int(&v->json, "steps", n_steps);
        verify_write_ops(l->be, &v->json);
        json_end_object(&v->json);
        return;
    }
    buf_printf(&v->out, "%s, %s: %d tokens in %d steps, every op against ref\n", l->id, mask, n,
               n_steps);
    verify_print_ops(l->be, &v->out);
    if (n_bad)
        buf_printf(&v->out, "DIFFERENT: %d ops\n\n", n_bad);
    else
        buf_printf(&v->out, "equal, bit by bit\n\n");
}

static enum err_code verify_encode(const struct load *l, const struct buf *text,
                                   struct token_list *ids, struct err *err)
{
    return tokenizer_encode(l->tokenizer, text->data, text->len, NULL, TOKENIZER_FLAG_BOS, ids,
                            err);
}

/* The first tokens of the text at one instruction level. */
static enum err_code verify_level(struct verify *v, const char *mask, struct err *err)
{
    const struct load_compare compare = { .is_trace = v->o->trace,
                                          .on_op = v->o->trace ? verify_trace : NULL };
    struct load_options lo = v->o->load;
    struct load l;
    struct token_list ids;
    int32_t n_steps = 0;
    enum cpu_level level = CPU_LEVEL_AUTO;
    lo.cpu_mask = mask;
    lo.compare = &compare;
    token_list_init(&ids, INT32_MAX);
    enum err_code code = load_open(&l, &lo, err);
    if (!code)
        code = verify_encode(&l, &v->text, &ids, err);
    int32_t n = ids.n < v->o->tokens ? ids.n : (int32_t)v->o->tokens;
    if (!code && n == 0)
        code = err_set(err, ERR_INVALID, "the text has no tokens");
    if (!code)
        code = verify_run_ops(l.model, l.cache_type, ids.ids, n, &n_steps, err);
    if (!code)
        code = cpu_level_parse(mask, &level, err);
    if (!code && !v->o->trace)
        verify_tell_ops(v, &l, cpu_level_name(cpu_level_resolve(level)), n, n_steps);
    token_list_release(&ids);
    load_close(&l);
    return code;
}

/* "all", or names with commas between them; NULL: what the machine has. */
static enum err_code verify_levels(struct verify *v, struct err *err)
{
    char name[16];
    const char *list = v->o->load.cpu_mask ? v->o->load.cpu_mask : "auto";
    enum err_code code = ERR_OK;
    if (strcmp(list, "all") == 0) {
        for (int level = CPU_LEVEL_GENERIC; level < CPU_LEVEL_COUNT && !code; level++)
            if (cpu_level_is_native((enum cpu_level)level) &&
                cpu_level_available((enum cpu_level)level))
                code = verify_level(v, cpu_level_name((enum cpu_level)level), err);
        return code;
    }
    while (*list && !code) {
        size_t n = strcspn(list, ",");
        snprintf(name, sizeof(name), "%.*s", (int)n, list);
        code = verify_level(v, name, err);
        list += n + (list[n] == ',');
    }
    return code;
}

/* --- distributions --- */

static enum err_code verify_runner(const struct load *l, int64_t window, struct runner **out,
                                   struct err *err)
{
    struct runner_options ro = { .model = l->model,
                                 .n_ctx = window,
                                 .kv_bytes = load_kv_default(),
                                 .max_seqs = 1,
                                 .max_rows = SCORE_ROWS,
                                 .max_out = SCORE_ROWS,
                                 .cache_type = l->cache_type };
    return runner_new(&ro, out, err);
}

/* Both models make the same ids of the text. */
static enum err_code verify_same_ids(const struct load *l, const struct buf *text,
                                     const struct token_list *ids, struct err *err)
{
    struct token_list theirs;
    token_list_init(&theirs, INT32_MAX);
    enum err_code code = verify_encode(l, text, &theirs, err);
    if (!code && (theirs.n != ids->n ||
                  memcmp(theirs.ids, ids->ids, (size_t)ids->n * sizeof(*ids->ids)) != 0))
        code = err_set(err, ERR_INVALID, "%s makes other tokens of the text: no reference for it",
                       l->id);
    token_list_release(&theirs);
    return code;
}

static void verify_tell_score(struct verify *v, const struct verify_divergence *d, int64_t window)
{
    const char *reference = v->o->reference;
    if (v->o->json) {
        struct json_writer *w = &v->json;
        json_field_int(w, "positions", d->n);
        json_field_int(w, "window", window);
        json_field_double(w, "perplexity", d->perplexity);
        if (!reference)
            return;
        json_field_double(w, "reference_perplexity", d->reference_perplexity);
        json_field_double(w, "kl_mean", d->kl_mean);
        json_field_double(w, "kl_standard_error", d->kl_error);
        json_field_double(w, "kl_median", d->kl_median);
        json_field_double(w, "kl_99", d->kl_99);
        json_field_double(w, "kl_max", d->kl_max);
        json_field_double(w, "same_top", d->same_top);
        return;
    }
    buf_printf(&v->out, "%lld positions, the second halves of windows of %lld tokens\n",
               (long long)d->n, (long long)window);
    if (!reference) {
        buf_printf(&v->out, "perplexity %.4f\n", d->perplexity);
        return;
    }
    buf_printf(&v->out,
               "perplexity        %.4f, of the reference %.4f\n"
               "KL(reference || model)  mean %.6f +/- %.6f  median %.6f  99 %% %.6f  max %.6f\n"
               "same top token    %.2f %%\n",
               d->perplexity, d->reference_perplexity, d->kl_mean, d->kl_error, d->kl_median,
               d->kl_99, d->kl_max, 100 * d->same_top);
}

/* Everything that a comparison of distributions holds. */
struct verify_run {
    struct load ours, theirs;
    struct load_options our_options, their_options;
    struct runner *runner, *reference;
    struct kld_file stored, saved;
    struct token_list ids;
};

static enum err_code verify_run_open(struct verify *v, struct verify_run *r, struct err *err)
{
    const char *reference = v->o->reference;
    bool is_file = reference && kld_file_is(reference);
    enum err_code code = load_open(&r->ours, &r->our_options, err);
    if (!code && is_file)
        code = kld_file_open(&r->stored, reference, err);
    if (!code && reference && !is_file)
        code = load_open(&r->theirs, &r->their_options, err);
    if (!code && !is_file)
        code = verify_encode(&r->ours, &v->text, &r->ids, err);
    if (!code && r->theirs.model)
        code = verify_same_ids(&r->theirs, &v->text, &r->ids, err);
    return code;
}

static enum err_code verify_run_score(struct verify *v, struct verify_run *r, struct err *err)
{
    const struct tokenizer *t = r->ours.tokenizer;
    bool is_file = r->stored.f;
    int64_t window = is_file ? r->stored.window : v->o->load.ctx;
    const int32_t *ids = is_file ? r->stored.ids : r->ids.ids;
    int64_t n = is_file ? r->stored.n_windows : r->ids.n / window;
    struct verify_divergence d;
    n = n < v->o->windows ? n : v->o->windows;
    if (n == 0)
        return err_set(err, ERR_INVALID,
                       "%d tokens, one window needs %lld: ask for a smaller --ctx", r->ids.n,
                       (long long)window);
    enum err_code code = verify_runner(&r->ours, window, &r->runner, err);
    if (!code && r->theirs.model)
        code = verify_runner(&r->theirs, window, &r->reference, err);
    if (!code && v->o->save)
        code = kld_file_create(&r->saved, v->o->save, (int32_t)r->ours.model->n_vocab,
                               (int32_t)window, (int32_t)n, ids, err);
    struct verify_options vo = { .runner = r->runner,
                                 .reference = r->reference,
                                 .reference_file = is_file ? &r->stored : NULL,
                                 .save = v->o->save ? &r->saved : NULL,
                                 .bos = tokenizer_adds_bos(t) ? tokenizer_bos(t) : -1 };
    if (!code)
        code = verify_score(&vo, ids, (int32_t)window, (int32_t)n, &d, err);
    if (!code)
        code = kld_file_close(&r->saved, err);
    if (!code)
        verify_tell_score(v, &d, window);
    return code;
}

static enum err_code verify_distributions(struct verify *v, struct err *err)
{
    struct verify_run r = { .our_options = v->o->load };
    if (r.our_options.cpu_mask &&
        (strcmp(r.our_options.cpu_mask, "all") == 0 || strchr(r.our_options.cpu_mask, ',')))
        r.our_options.cpu_mask = NULL; /* any gives the same numbers */
    r.their_options = r.our_options;
    r.their_options.model = v->o->reference;
    token_list_init(&r.ids, INT32_MAX);
    enum err_code code = verify_run_open(v, &r, err);
    if (!code)
        code = verify_run_score(v, &r, err);
    runner_free(r.runner);
    runner_free(r.reference);
    token_list_release(&r.ids);
    if (kld_file_close(&r.stored, NULL) || kld_file_close(&r.saved, NULL))
        log_warn("verify", "a file could not be closed");
    load_close(&r.ours);
    load_close(&r.theirs);
    return code;
}

/* --- the verb --- */

static enum err_code verify_all(struct verify *v, struct err *err)
{
    const struct verify_flags *o = v->o;
    enum err_code code = o->file ? file_read(o->file, &v->text, err) : ERR_OK;
    if (!o->file)
        buf_add(&v->text, verify_text, strlen(verify_text));
    if (o->json) {
        json_begin_object(&v->json);
        json_field_str(&v->json, "model", o->load.model ? o->load.model : "smollm2");
        json_field_array(&v->json, "levels");
    }
    if (!code && o->tokens > 0)
        code = verify_levels(v, err);
    if (o->json)
        json_end_array(&v->json);
    if (!code && !o->trace && (o->reference || o->save || o->tokens == 0))
        code = verify_distributions(v, err);
    if (o->json)
        json_end_object(&v->json);
    return code;
}

static int verify_run(void *options)
{
    struct verify_flags *o = options;
    struct verify v = { .o = o };
    struct err err;
    if (o->model)
        o->load.model = o->model;
    log_set_level(LOG_LEVEL_WARN);
    buf_init(&v.text, MEM_CAT_BASE, VERIFY_FILE_MAX);
    buf_init(&v.out, MEM_CAT_BASE, VERIFY_TABLE_MAX);
    json_writer_init(&v.json, &v.out);
    enum err_code code = verify_all(&v, &err);
    if (!code && v.out.len > 0)
        printf("%s%s", v.out.data, o->json ? "\n" : "");
    buf_release(&v.text);
    buf_release(&v.out);
    if (code)
        return cli_fail("verify", &err);
    return v.is_different ? 1 : 0;
}

const struct cli_verb cmd_verify = {
    .name = "verify",
    .summary = "check a model's numbers: op by op against ref, or against a reference",
    .usage = "[MODEL] [--file F] [--tokens N] [--cpu-mask LEVELS] [--reference FILE] [--json]",
    .positional = "MODEL",
    .positional_offset = offsetof(struct verify_flags, model),
    .flags =
        (const struct cli_flag[]){
            LOAD_FLAGS(struct verify_flags, load),
            { "file", "F", "text to use; - is stdin; default a built-in one of 700 tokens",
              CLI_FLAG_STRING, offsetof(struct verify_flags, file), 0, 0 },
            { "tokens", "N", "run so many of its tokens op by op; default 48, 0 = none",
              CLI_FLAG_INT, offsetof(struct verify_flags, tokens), 0, 8192 },
            { "reference", "R",
              "a model, or log probabilities of one that --save or llama-perplexity wrote",
              CLI_FLAG_STRING, offsetof(struct verify_flags, reference), 0, 0 },
            { "save", "FILE", "write this model's log probabilities for a later --reference",
              CLI_FLAG_STRING, offsetof(struct verify_flags, save), 0, 0 },
            { "windows", "N", "windows of --ctx tokens (default 128) at most; default all",
              CLI_FLAG_INT, offsetof(struct verify_flags, windows), 1, INT32_MAX },
            { "trace", NULL, "compare nothing: print every op with a hash of its result",
              CLI_FLAG_BOOL, offsetof(struct verify_flags, trace), 0, 0 },
            { "json", NULL, "print one JSON object", CLI_FLAG_BOOL,
              offsetof(struct verify_flags, json), 0, 0 },
            { 0 },
        },
    .options_bytes = sizeof(struct verify_flags),
    .defaults = verify_defaults,
    .run = verify_run,
};
