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

struct pretok_step {
    enum split_kind kind;
    pcre2_code *pattern; /* PATTERN */
    int cut;             /* code points per group, see struct pretok_entry */
    enum split_behavior behavior;
    bool is_inverted;
    enum split_prepend prepend; /* METASPACE */
};

struct pretok {
    struct pretok_step steps[PIPELINE_STEPS_MAX];
    int n_stages;
};

struct pretok_scratch { /* per encode */
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

const struct pretok_entry *pretok_entry_of(const char *pre)
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
    const struct pretok_entry *e = pretok_entry_of(pre);
    return e ? &e->info : NULL;
}

/* \s, \w and their like mean other characters to PCRE2. Inside a class there is no way to write \S or \W out: there \S differs by U+180E
 * alone. */
static bool pretok_expand_escape(char c, bool in_class, struct buf *out)
{
    const char *set = c == 's' || c == 'S' ? PRETOK_SPACES : PRETOK_WORD;
    switch (c) {
    case 's':
    case 'w':
        buf_printf(out, in_class ? "%s" : "[%s]", set);
        return true;
    case 'S':
    case 'W':
        if (!in_class)
            buf_printf(out, "[^%s]", set);
        return !in_class;
    case 'b':
        if (!in_class)
            buf_printf(out, "(?:(?<=[%s])(?![%s])|(?<![%s])(?=[%s]))", set, set, set, set);
        return !in_class;
    default:
        return false;
    }
}

/* pattern in PCRE2's dialect */
static void pretok_expand(const char *pattern, struct buf *out)
{
    bool in_class = false;
    for (const char *p = pattern; *p; p++) {
        if (*p == '\\' && p[1] && pretok_expand_escape(p[1], in_class, out)) {
            p++;
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

enum err_code pretok_compile(const char *pattern, void **out_code, struct err *err)
{
    pcre2_code **out = (pcre2_code **)out_code;
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
    const struct pretok_entry *e = pretok_entry_of(pre);
    if (!e) {
        e = pretok_entry_of("default");
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
        code = pretok_compile(e->stages[i].pattern, (void **)&p->steps[i].pattern, err);
        p->steps[i].cut = e->stages[i].cut;
        p->n_stages = i + 1;
    }
    if (code) {
        pretok_free(p);
        return code;
    }
    *out = p;
    return ERR_OK;
}

enum err_code pretok_new_steps(const struct split_step *steps, int n, struct pretok **out,
                               struct err *err)
{
    struct pretok *p = mem_alloc(MEM_CAT_TOKENIZER, sizeof(*p));
    enum err_code code = ERR_OK;
    BUG_ON(n > PIPELINE_STEPS_MAX);
    for (int i = 0; i < n && !code; i++) {
        p->steps[i] = (struct pretok_step){ .kind = steps[i].kind,
                                            .behavior = steps[i].behavior,
                                            .is_inverted = steps[i].is_inverted,
                                            .prepend = steps[i].prepend };
        if (steps[i].kind == SPLIT_KIND_PATTERN)
            code = pretok_compile(steps[i].pattern, (void **)&p->steps[i].pattern, err);
        p->n_stages = i + 1;
    }
    if (code)
        pretok_free(p);
    else
        *out = p;
    return code;
}

void pretok_free(struct pretok *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n_stages; i++)
        pcre2_code_free(p->steps[i].pattern);
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
    const char *start; /* of the stretch */
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

/* Segments of a stage, match and gap in turn, on their way to pieces: one may wait for what follows. */
struct pretok_join {
    const struct pretok_run *r;
    int stage;
    const char *text;
    size_t p0, p1;  /* the piece that waits; empty = none */
    bool was_match; /* the last segment was one */
};

static enum err_code pretok_flush(struct pretok_join *j)
{
    size_t p0 = j->p0, p1 = j->p1;
    int cut = j->r->p->steps[j->stage].cut;
    j->p0 = j->p1;
    if (cut > 0 && j->was_match)
        return pretok_groups(j->r, j->stage, j->text + p0, p1 - p0, (size_t)cut);
    return pretok_next(j->r, j->stage + 1, j->text + p0, p1 - p0);
}

/* The segment [p0, p1). A join with the neighbour takes place once: of two matches in a row one stays alone. */
static enum err_code pretok_segment(struct pretok_join *j, size_t p0, size_t p1, bool is_match)
{
    const struct pretok_step *s = &j->r->p->steps[j->stage];
    enum err_code code = ERR_OK;
    if (p0 == p1)
        return ERR_OK;
    is_match ^= s->is_inverted;
    bool is_waiting = j->p1 > j->p0, joins = false;
    if (s->behavior == SPLIT_MERGED_WITH_PREVIOUS)
        joins = is_match && !j->was_match;
    else if (s->behavior == SPLIT_MERGED_WITH_NEXT)
        joins = !is_match && j->was_match;
    else if (s->behavior == SPLIT_CONTIGUOUS)
        joins = is_match == j->was_match;
    if (is_waiting && !joins)
        code = pretok_flush(j);
    if (!is_waiting || !joins)
        j->p0 = p0;
    j->p1 = p1;
    j->was_match = is_match;
    if (is_match && s->behavior == SPLIT_REMOVED)
        j->p0 = p1;
    return code;
}

static enum err_code pretok_pattern(const struct pretok_run *r, int stage, const char *text,
                                    size_t len)
{
    struct pretok_scratch *s = r->e->pretok;
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(s->match);
    struct pretok_join j = { .r = r, .stage = stage, .text = text };
    size_t done = 0;
    enum err_code code = ERR_OK;
    while (done < len && !code) {
        /* text.c made the text well-formed: no check per match. Matches of nothing are none. */
        int rc = pcre2_match(r->p->steps[stage].pattern, (PCRE2_SPTR)text, len, done,
                             PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, s->match, s->context);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0)
            return err_set(r->e->err, ERR_FULL,
                           "tokenizer: matching a stretch of %zu bytes took too many steps "
                           "(PCRE2 error %d)",
                           len, rc);
        size_t p0 = at[0], p1 = at[1];
        BUG_ON(p1 <= p0 || p0 < done);
        code = pretok_segment(&j, done, p0, false);
        if (!code)
            code = pretok_segment(&j, p0, p1, true);
        done = p1;
    }
    if (!code)
        code = pretok_segment(&j, done, len, false);
    return code ? code : pretok_flush(&j);
}

/* A stage that writes the piece anew. */
static enum err_code pretok_rewrite(const struct pretok_run *r, int stage, const char *text,
                                    size_t len)
{
    const struct pretok_step *s = &r->p->steps[stage];
    bool is_meta = s->kind == SPLIT_KIND_METASPACE;
    bool is_first = r->e->is_start && text == r->start;
    bool has_mark = len >= SPACE_MARK_LEN && memcmp(text, SPACE_MARK, SPACE_MARK_LEN) == 0;
    struct buf out;
    buf_init(&out, MEM_CAT_TOKENIZER, SIZE_MAX);
    if (!is_meta && text[0] != ' ')
        buf_add_char(&out, ' ');
    if (is_meta && text[0] != ' ' && !has_mark &&
        (s->prepend == SPLIT_PREPEND_ALWAYS || (s->prepend == SPLIT_PREPEND_FIRST && is_first)))
        buf_add(&out, SPACE_MARK, SPACE_MARK_LEN);
    for (size_t i = 0; i < len; i++) {
        if (is_meta && text[i] == ' ')
            buf_add(&out, SPACE_MARK, SPACE_MARK_LEN);
        else
            buf_add_char(&out, text[i]);
    }
    enum err_code code = buf_check(&out, "a piece of text", r->e->err);
    if (!code)
        code = pretok_next(r, stage + 1, out.data, out.len);
    buf_release(&out);
    return code;
}

static enum err_code pretok_stage(const struct pretok_run *r, int stage, const char *text,
                                  size_t len)
{
    return r->p->steps[stage].kind == SPLIT_KIND_PATTERN ? pretok_pattern(r, stage, text, len)
                                                         : pretok_rewrite(r, stage, text, len);
}

enum err_code pretok_run(const struct pretok *p, struct encoder *e, const char *text, size_t len,
                         pretok_piece_fn piece)
{
    struct pretok_run r = { .p = p, .e = e, .piece = piece, .start = text };
    enum err_code code = pretok_need_scratch(e);
    return code ? code : pretok_next(&r, 0, text, len);
}
