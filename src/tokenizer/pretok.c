/* pretok.c - runs a pre-tokenizer: a list of stages, each of which cuts what the stage before left into matches and gaps.
 *
 * The patterns are in pretok_table.c. Both a match and the text between two matches go on to the next stage as pieces of their
 * own (Hugging Face: behaviour "isolated"), and a piece is all that a stage sees: lookarounds end at its borders. PCRE2 with
 * its JIT compiler; without one (some systems forbid executable memory) the interpreter gives the same pieces. */
#include "base/log.h"
#include "tokenizer/pretok_int.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* White space in a pattern means Unicode's White_Space, as in the published implementation; PCRE2's \s differs by U+180E. */
#define PRETOK_SPACES                                                                           \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{" \
    "205f}\\x{3000}"

/* The patterns are ours and linear; the limit is a belt for texts that are not. About 100 steps a byte of the longest text. */
#define PRETOK_MATCH_LIMIT 400000000u
#define PRETOK_STACK_MIN   (32u << 10)
#define PRETOK_STACK_MAX   (8u << 20)

struct pretok {
    pcre2_code *stages[PRETOK_STAGES_MAX];
    int cut[PRETOK_STAGES_MAX]; /* code points per group, see struct pretok_entry */
    int n_stages;
};

struct pretok_scratch { /* per encode */
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static const struct pretok_entry *pretok_find(const char *pre)
{
    for (const struct pretok_entry *e = pretok_table; e->ids; e++) {
        const char *id = e->ids;
        while (pre && *id) {
            size_t n = strcspn(id, " ");
            if (strlen(pre) == n && memcmp(id, pre, n) == 0)
                return e;
            id += n + strspn(id + n, " ");
        }
    }
    return NULL;
}

const struct pretok_info *pretok_info(const char *pre)
{
    const struct pretok_entry *e = pretok_find(pre);
    return e ? &e->info : NULL;
}

/* pattern with \s and \S written out; inside a class only the ranges. */
static void pretok_expand(const char *pattern, struct buf *out)
{
    bool in_class = false;
    for (const char *p = pattern; *p; p++) {
        if (*p == '\\' && (p[1] == 's' || p[1] == 'S')) {
            p++;
            if (in_class)
                buf_add_str(out, PRETOK_SPACES); /* the table has no \S inside a class */
            else
                buf_printf(out, *p == 's' ? "[%s]" : "[^%s]", PRETOK_SPACES);
            continue;
        }
        if (*p == '[' && !in_class)
            in_class = true;
        else if (*p == ']' && in_class)
            in_class = false;
        else if (*p == '\\' && p[1])
            buf_add_char(out, *p++);
        buf_add_char(out, *p);
    }
}

static enum err_code pretok_compile(const char *pattern, pcre2_code **out, struct err *err)
{
    struct buf text;
    int number;
    PCRE2_SIZE at;
    buf_init(&text, MEM_CAT_TOKENIZER, 1 << 16);
    pretok_expand(pattern, &text);
    enum err_code code = buf_check(&text, "a pre-tokenizer pattern", err);
    if (code) {
        buf_release(&text);
        return code;
    }
    /* MULTILINE: in the published dialect $ also stands before each line end */
    *out = pcre2_compile((PCRE2_SPTR)text.data, text.len,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK, &number, &at,
                         NULL);
    buf_release(&text);
    if (!*out) {
        char why[128] = "";
        pcre2_get_error_message(number, (PCRE2_UCHAR *)why, sizeof(why));
        return err_set(err, ERR_UNSUPPORTED, "pre-tokenizer pattern '%.100s': %s", pattern, why);
    }
    if (pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE) != 0)
        log_debug("tokenizer", "no JIT for pattern '%.60s'", pattern);
    return ERR_OK;
}

enum err_code pretok_new(const char *pre, struct pretok **out, struct err *err)
{
    const struct pretok_entry *e = pretok_find(pre);
    if (!e) {
        e = pretok_find("default");
        BUG_ON(!e);
        if (pre)
            log_warn("tokenizer",
                     "pre-tokenizer '%s' is not known: 'default' is used, ids may differ from the "
                     "published ones",
                     pre);
        else
            log_warn("tokenizer", "the model file names no pre-tokenizer (tokenizer.ggml.pre): "
                                  "'default' is used, ids may differ from the published ones");
    }
    struct pretok *p = mem_alloc(MEM_CAT_TOKENIZER, sizeof(*p));
    enum err_code code = ERR_OK;
    for (int i = 0; i < PRETOK_STAGES_MAX && e->stages[i].pattern && !code; i++) {
        code = pretok_compile(e->stages[i].pattern, &p->stages[i], err);
        p->cut[i] = e->stages[i].cut;
        p->n_stages = i + 1;
    }
    if (code) {
        pretok_free(p);
        return code;
    }
    *out = p;
    return ERR_OK;
}

void pretok_free(struct pretok *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n_stages; i++)
        pcre2_code_free(p->stages[i]);
    mem_free(MEM_CAT_TOKENIZER, p);
}

void pretok_scratch_free(void *scratch)
{
    struct pretok_scratch *s = scratch;
    if (!s)
        return;
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->stack);
    mem_free(MEM_CAT_TOKENIZER, s);
}

static enum err_code pretok_need_scratch(struct encoder *e)
{
    if (e->pretok)
        return ERR_OK;
    struct pretok_scratch *s = mem_alloc(MEM_CAT_TOKENIZER, sizeof(*s));
    e->pretok = s;
    s->match = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create(PRETOK_STACK_MIN, PRETOK_STACK_MAX, NULL);
    if (!s->match || !s->context || !s->stack)
        return err_set(e->err, ERR_NOMEM, "tokenizer: no memory for matching");
    pcre2_set_match_limit(s->context, PRETOK_MATCH_LIMIT);
    pcre2_jit_stack_assign(s->context, NULL, s->stack);
    return ERR_OK;
}

struct pretok_run {
    const struct pretok *p;
    struct encoder *e;
    pretok_piece_fn piece;
};

static enum err_code pretok_stage(const struct pretok_run *r, int stage, const char *text,
                                  size_t len);

static enum err_code pretok_next(const struct pretok_run *r, int stage, const char *text,
                                 size_t len)
{
    if (len == 0)
        return ERR_OK;
    if (stage == r->p->n_stages)
        return r->piece(r->e, text, len);
    return pretok_stage(r, stage, text, len);
}

/* A match of a stage with cut: groups of code points counted from the right, so that the first may be short. */
static enum err_code pretok_groups(const struct pretok_run *r, int stage, const char *text,
                                   size_t len, size_t cut)
{
    enum err_code code = ERR_OK;
    size_t left = utf8_count(text, len);
    while (left > 0 && !code) {
        size_t take = left % cut ? left % cut : cut;
        size_t k = 0;
        for (size_t i = 0; i < take; i++) {
            uint32_t cp;
            k += utf8_decode(text + k, len - k, &cp);
        }
        code = pretok_next(r, stage + 1, text, k);
        text += k;
        len -= k;
        left -= take;
    }
    return code;
}

static enum err_code pretok_stage(const struct pretok_run *r, int stage, const char *text,
                                  size_t len)
{
    struct pretok_scratch *s = r->e->pretok;
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(s->match);
    size_t done = 0;
    enum err_code code = ERR_OK;
    while (done < len && !code) {
        /* text.c made the text well-formed: no check per match */
        int rc = pcre2_match(r->p->stages[stage], (PCRE2_SPTR)text, len, done, PCRE2_NO_UTF_CHECK,
                             s->match, s->context);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0)
            return err_set(r->e->err, ERR_FULL,
                           "tokenizer: matching a stretch of %zu bytes took too many steps "
                           "(PCRE2 error %d)",
                           len, rc);
        size_t p0 = at[0];
        size_t p1 = at[1];
        BUG_ON(p1 <= p0 || p0 < done); /* the table has no pattern that matches nothing */
        code = pretok_next(r, stage + 1, text + done, p0 - done);
        if (!code)
            code = r->p->cut[stage] > 0
                       ? pretok_groups(r, stage, text + p0, p1 - p0, (size_t)r->p->cut[stage])
                       : pretok_next(r, stage + 1, text + p0, p1 - p0);
        done = p1;
    }
    return code ? code : pretok_next(r, stage + 1, text + done, len - done);
}

enum err_code pretok_run(const struct pretok *p, struct encoder *e, const char *text, size_t len,
                         pretok_piece_fn piece)
{
    struct pretok_run r = { .p = p, .e = e, .piece = piece };
    enum err_code code = pretok_need_scratch(e);
    return code ? code : pretok_next(&r, 0, text, len);
}
