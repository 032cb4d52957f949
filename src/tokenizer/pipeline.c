/* pipeline.c - the way of a text through the steps that a tokenizer.json lists: normalise, find added tokens in what came of it, cut,
 * encode the pieces. The steps are those of the `tokenizers` library; tokenizer_json.c reads them. */
#include "tokenizer/pretok_int.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

struct pipeline_norm {
    enum norm_kind kind;
    pcre2_code *pattern;
    char *content;
    size_t len; /* of content */
    bool left, right;
};

struct pipeline {
    struct pipeline_norm norms[PIPELINE_STEPS_MAX];
    int n_norms;
    struct pretok *pretok;
    struct special_set specials; /* of the normalised text */
};

/* --- building --- */

enum err_code pipeline_new(struct tokenizer *t, const struct tokenizer_spec *spec, struct err *err)
{
    const struct pipeline_spec *from = spec->pipeline;
    struct pipeline *p = mem_alloc(MEM_CAT_TOKENIZER, sizeof(*p));
    enum err_code code = ERR_OK;
    t->pipeline = p;
    for (int i = 0; i < from->n_norms && !code; i++) {
        const struct norm_step *s = &from->norms[i];
        struct pipeline_norm *n = &p->norms[i];
        *n = (struct pipeline_norm){ .kind = s->kind, .left = s->left, .right = s->right };
        n->content = mem_strdup(MEM_CAT_TOKENIZER, s->content ? s->content : "");
        n->len = strlen(n->content);
        p->n_norms = i + 1;
        if (s->kind == NORM_KIND_REPLACE)
            code = pretok_compile(s->pattern, (void **)&n->pattern, err);
    }
    if (!code)
        code = pretok_new_steps(from->splits, from->n_splits, &p->pretok, err);
    return code ? code : special_set_init_normal(&p->specials, t, spec->flags, err);
}

void pipeline_free(struct pipeline *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n_norms; i++) {
        pcre2_code_free(p->norms[i].pattern);
        mem_free(MEM_CAT_TOKENIZER, p->norms[i].content);
    }
    pretok_free(p->pretok);
    special_set_release(&p->specials);
    mem_free(MEM_CAT_TOKENIZER, p);
}

/* --- normalising: each step reads text[0..len) and appends to out --- */

static enum err_code norm_unicode(enum norm_kind kind, const char *text, size_t len,
                                  struct buf *out, struct err *err)
{
    static const utf8proc_option_t options[] = {
        [NORM_KIND_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [NORM_KIND_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [NORM_KIND_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [NORM_KIND_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    bool is_ascii = true;
    for (size_t i = 0; i < len; i++)
        is_ascii &= (unsigned char)text[i] < 0x80;
    if (is_ascii) { /* the usual text stays */
        buf_add(out, text, len);
        return ERR_OK;
    }
    const utf8proc_uint8_t *in = (const utf8proc_uint8_t *)text;
    utf8proc_ssize_t n = utf8proc_decompose(in, (utf8proc_ssize_t)len, NULL, 0, options[kind]);
    utf8proc_int32_t *cps =
        n < 0 ? NULL : mem_try_array(MEM_CAT_TOKENIZER, (size_t)n + 1, sizeof(*cps));
    if (!cps)
        return err_set(err, ERR_NOMEM, "tokenizer: no memory for normalising %zu bytes", len);
    n = utf8proc_decompose(in, (utf8proc_ssize_t)len, cps, n, options[kind]);
    n = utf8proc_reencode(cps, n, options[kind]); /* in place */
    buf_add(out, cps, (size_t)n);
    mem_free(MEM_CAT_TOKENIZER, cps);
    return ERR_OK;
}

static enum err_code norm_replace(const struct pipeline_norm *s, const char *text, size_t len,
                                  struct buf *out, struct err *err)
{
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    size_t done = 0;
    int rc = 0;
    if (!match)
        return err_set(err, ERR_NOMEM, "tokenizer: no memory for matching");
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(match);
    while (done < len && rc >= 0) {
        rc = pcre2_match(s->pattern, (PCRE2_SPTR)text, len, done,
                         PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match, NULL);
        if (rc < 0)
            break;
        buf_add(out, text + done, at[0] - done);
        buf_add(out, s->content, s->len);
        done = at[1];
    }
    pcre2_match_data_free(match);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
        return err_set(err, ERR_FULL, "tokenizer: normalising %zu bytes took too many steps", len);
    buf_add(out, text + done, len - done);
    return ERR_OK;
}

static void norm_strip(const struct pipeline_norm *s, const char *text, size_t len, struct buf *out)
{
    size_t p0 = len, p1 = 0;
    for (size_t i = 0; i < len;) {
        uint32_t c;
        size_t k = utf8_decode(text + i, len - i, &c);
        BUG_ON(k == 0);
        if (!text_is_space(c)) {
            p0 = p0 == len ? i : p0;
            p1 = i + k;
        }
        i += k;
    }
    if (p1 == 0) {
        p0 = s->left ? len : 0;
        p1 = s->right ? p0 : len;
    }
    p0 = s->left ? p0 : 0;
    p1 = s->right ? p1 : len;
    buf_add(out, text + p0, p1 > p0 ? p1 - p0 : 0);
}

/* Steps that look at one code point at a time. */
static void norm_code_points(enum norm_kind kind, const char *text, size_t len, struct buf *out)
{
    for (size_t i = 0; i < len;) {
        uint32_t c;
        size_t k = utf8_decode(text + i, len - i, &c);
        BUG_ON(k == 0);
        if (kind == NORM_KIND_LOWERCASE) {
            wpm_add_lower(c, out);
        } else if (kind == NORM_KIND_STRIP_ACCENTS) {
            if (utf8proc_category((utf8proc_int32_t)c) != UTF8PROC_CATEGORY_MN)
                buf_add(out, text + i, k);
        } else if (kind == NORM_KIND_BERT_CLEAN) {
            if (!wpm_is_dropped(c) && text_is_space(c))
                buf_add_char(out, ' ');
            else if (!wpm_is_dropped(c))
                buf_add(out, text + i, k);
        } else {
            buf_add(out, " ", wpm_is_han(c));
            buf_add(out, text + i, k);
            buf_add(out, " ", wpm_is_han(c));
        }
        i += k;
    }
}

static void norm_charsmap(const struct ugm *u, const char *text, size_t len, struct buf *out)
{
    const char *r;
    size_t n;
    for (size_t i = 0; i < len;) {
        i += ugm_next(u, text + i, len - i, &r, &n);
        buf_add(out, r, n);
    }
}

static enum err_code norm_step_run(const struct pipeline_norm *s, const struct tokenizer *t,
                                   const char *text, size_t len, struct buf *out, struct err *err)
{
    switch (s->kind) {
    case NORM_KIND_NFC:
    case NORM_KIND_NFD:
    case NORM_KIND_NFKC:
    case NORM_KIND_NFKD:
        return norm_unicode(s->kind, text, len, out, err);
    case NORM_KIND_REPLACE:
        return norm_replace(s, text, len, out, err);
    case NORM_KIND_PREPEND:
        buf_add(out, s->content, len ? s->len : 0);
        buf_add(out, text, len);
        return ERR_OK;
    case NORM_KIND_STRIP:
        norm_strip(s, text, len, out);
        return ERR_OK;
    case NORM_KIND_CHARSMAP:
        norm_charsmap(t->ugm, text, len, out);
        return ERR_OK;
    default:
        norm_code_points(s->kind, text, len, out);
        return ERR_OK;
    }
}

enum err_code pipeline_normalise(const struct pipeline *p, const struct tokenizer *t,
                                 const char *text, size_t len, struct buf *out, struct err *err)
{
    struct buf other;
    enum err_code code = ERR_OK;
    buf_init(&other, MEM_CAT_TOKENIZER, SIZE_MAX);
    buf_reset(out);
    buf_add(out, text, len);
    for (int i = 0; i < p->n_norms && !code; i++) {
        buf_reset(&other);
        code = norm_step_run(&p->norms[i], t, out->data, out->len, &other, err);
        if (!code)
            code = buf_check(&other, "normalised text", err);
        struct buf swap = *out;
        *out = other;
        other = swap;
    }
    buf_release(&other);
    return code ? code : buf_check(out, "normalised text", err);
}

/* --- encoding --- */

static enum err_code pipeline_piece(struct encoder *e, const char *text, size_t len)
{
    switch (e->t->kind) {
    case TOKENIZER_KIND_BPE:
        return bpe_encode_piece(e, text, len);
    case TOKENIZER_KIND_WPM:
        return wpm_word(e, text, len);
    case TOKENIZER_KIND_UGM:
        return ugm_encode_piece(e, text, len);
    default:
        return e->t->ignores_merges ? bpe_spm_encode_whole(e, text, len)
                                    : bpe_spm_encode(e, text, len);
    }
}

enum err_code pipeline_encode(struct encoder *e, const char *text, size_t len)
{
    const struct pipeline *p = e->t->pipeline;
    bool is_start = e->is_start;
    struct buf norm;
    buf_init(&norm, MEM_CAT_TOKENIZER, SIZE_MAX);
    enum err_code code = pipeline_normalise(p, e->t, text, len, &norm, e->err);
    for (size_t at = 0; at < norm.len && !code;) {
        struct special_match m = special_find(&p->specials, norm.data, norm.len, at, NULL, true);
        size_t p0 = m.takes_left ? text_trim_spaces(norm.data, at, m.p0) : m.p0;
        e->is_start = is_start && at == 0;
        if (p0 > at)
            code = pretok_run(p->pretok, e, norm.data + at, p0 - at, pipeline_piece);
        at = m.p1;
        if (m.id < 0 || code)
            continue;
        code = encoder_push(e, m.id);
        if (m.takes_space)
            at += text_skip_spaces(norm.data + at, norm.len - at, false);
    }
    buf_release(&norm);
    return code;
}
