#include "tokenizer/pretok_match.h"
#include "tokenizer/pretok_int.h"

#define MATCH_TEXTS     3000
#define MATCH_ATOMS_MAX 24
#define MATCH_TIE       1e-5 /* f32 loses so much at each of its sums of some hundreds */
#define MATCH_SHOWN     60   /* bytes of a text in a message */

/* What patterns treat differently. */
static const char *const match_atoms[] = {
    " ",
    "  ",
    "    ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\xC2\xA0",
    "\xE3\x80\x80",
    "a",
    "B",
    "word",
    "Word",
    "WORD",
    "aB",
    "'s",
    "'S",
    "'ll",
    "'LL",
    "'re",
    "'d",
    "'",
    "1",
    "12",
    "123",
    "1234",
    "12345678",
    "\xD9\xA3",  /* an Arabic digit */
    "\xC2\xBD",  /* a half: a number that is no digit */
    "\xC3\xA9",  /* e with an accent */
    "e\xCC\x81", /* and with the accent apart */
    "\xE4\xB8\xAD\xE6\x96\x87",
    "\xE3\x81\x8B\xE3\x81\xAA",
    "\xE3\x82\xAB",
    "\xED\x95\x9C\xEA\xB8\x80",
    "\xE0\xA4\xB9\xE0\xA4\xBF",
    "\xE0\xB9\x84\xE0\xB8\x97\xE0\xB8\xA2",
    "\xD0\x9F\xD1\x80",
    "\xD7\xA9",
    "\xC7\x85",         /* a titlecase letter */
    "\xCA\xB0",         /* a modifier letter */
    "\xF0\x9F\x98\x80", /* an emoji */
    ".",
    ",",
    "!",
    "?",
    "/",
    "//",
    "-",
    "_",
    "$",
    "+",
    "=",
    "<",
    "|",
    "`",
    "(",
    ")",
    "\"",
    "#",
    "\xE3\x80\x82",
    "\xEF\xBC\x8C",
    "\xE2\x80\xA6",
    "\xC2\xAB",
    "...",
};

/* The ends of the pieces. The encoder is the first member: pieces come with a pointer to it. */
struct match_cuts {
    struct encoder e;
    struct buf ends;
    const char *text;
};

static enum err_code match_piece(struct encoder *e, const char *text, size_t len)
{
    struct match_cuts *c = (struct match_cuts *)(void *)e;
    uint32_t end = (uint32_t)(text - c->text + (ptrdiff_t)len);
    buf_add(&c->ends, &end, sizeof(end));
    return ERR_OK;
}

static void match_init(struct match_cuts *c, struct err *err)
{
    *c = (struct match_cuts){ .e = { .err = err } };
    buf_init(&c->ends, MEM_CAT_TOKENIZER, (size_t)1 << 20);
}

static void match_release(struct match_cuts *c)
{
    pretok_scratch_free(c->e.pretok);
    buf_release(&c->ends);
}

static enum err_code match_cut(const struct pretok *p, struct match_cuts *c, const struct buf *text)
{
    buf_reset(&c->ends);
    c->text = text->data;
    return pretok_run(p, &c->e, text->data, text->len, match_piece);
}

/* Text i of the probe: all atoms in their order, then random runs of them. */
static void match_text(int i, struct buf *out)
{
    buf_reset(out);
    if (i == 0) {
        for (size_t k = 0; k < ARRAY_LEN(match_atoms); k++)
            buf_printf(out, "%s%s x", match_atoms[k], match_atoms[ARRAY_LEN(match_atoms) - 1 - k]);
        for (int n = 1; n < 600; n = n * 2 + 1)
            buf_printf(out, "%*sx%*s\n", n, "", n, "");
        return;
    }
    uint32_t state = (uint32_t)i * 2654435761u;
    int n = 1 + i % MATCH_ATOMS_MAX;
    for (int k = 0; k < n; k++) {
        state = state * 1664525u + 1013904223u;
        buf_add_str(out, match_atoms[(state >> 8) % ARRAY_LEN(match_atoms)]);
    }
}

/* Whether both cut every text of the probe alike. */
static enum err_code match_same(const struct pretok *a, const struct pretok *b, bool *is_same,
                                struct err *err)
{
    struct match_cuts x, y;
    struct buf text;
    enum err_code code = ERR_OK;
    match_init(&x, err);
    match_init(&y, err);
    buf_init(&text, MEM_CAT_TOKENIZER, (size_t)1 << 16);
    *is_same = true;
    for (int i = 0; i < MATCH_TEXTS && *is_same && !code; i++) {
        match_text(i, &text);
        code = buf_check(&text, "a text of the probe", err);
        if (!code)
            code = match_cut(a, &x, &text);
        if (!code)
            code = match_cut(b, &y, &text);
        *is_same = !code && x.ends.len == y.ends.len &&
                   (x.ends.len == 0 || memcmp(x.ends.data, y.ends.data, x.ends.len) == 0);
    }
    buf_release(&text);
    match_release(&x);
    match_release(&y);
    return code;
}

static enum err_code match_unknown(const struct tokenizer_spec *spec, struct err *err)
{
    struct buf text;
    const struct pipeline_spec *p = spec->pipeline;
    buf_init(&text, MEM_CAT_TOKENIZER, (size_t)1 << 16);
    for (int i = 0; i < p->n_splits; i++)
        buf_printf(&text, "%s%s", i ? " then " : "",
                   p->splits[i].pattern ? p->splits[i].pattern : "a space in front");
    enum err_code code =
        err_set(err, ERR_UNSUPPORTED,
                "tokenizer.json: no published pre-tokenizer cuts texts as this one (%s): "
                "%.300s; name one with --pre if you know better",
                p->ignores_merges ? "ignore_merges" : "no ignore_merges", text.data);
    buf_release(&text);
    return code;
}

enum err_code pretok_match(const struct tokenizer_spec *spec, char out[PRETOK_NAME_MAX],
                           struct err *err)
{
    struct pretok *ours = NULL, *theirs = NULL;
    bool is_same = false;
    enum err_code code =
        pretok_new_steps(spec->pipeline->splits, spec->pipeline->n_splits, &ours, err);
    for (const struct pretok_entry *e = pretok_table; e->ids && !code && !is_same; e++) {
        if (e->info.is_spm || e->info.ignores_merges != spec->pipeline->ignores_merges)
            continue;
        size_t n = strcspn(e->ids, " ");
        BUG_ON(n >= PRETOK_NAME_MAX);
        memcpy(out, e->ids, n);
        out[n] = '\0';
        code = pretok_new(out, &theirs, err);
        if (!code)
            code = match_same(ours, theirs, &is_same, err);
        pretok_free(theirs);
        theirs = NULL;
    }
    pretok_free(ours);
    return code || is_same ? code : match_unknown(spec, err);
}

/* --- whole tokenizers --- */

/* The text as the message shows it: what has no face as its bytes. */
static void match_show(const struct buf *text, struct buf *out)
{
    for (size_t i = 0; i < text->len && i < MATCH_SHOWN; i++) {
        unsigned char c = (unsigned char)text->data[i];
        if (c >= ' ' && c < 127)
            buf_add_char(out, (char)c);
        else
            buf_printf(out, "\\x%02X", c);
    }
}

/* Whether two ways through a unigram vocabulary are equally good, so that rounding decides: f32 sums (SentencePiece), or f64 ones. */
static bool match_is_tie(const struct tokenizer *a, const struct token_list ids[2])
{
    if (!a->ugm)
        return false;
    double x = ugm_score(a, ids[0].ids, ids[0].n), y = ugm_score(a, ids[1].ids, ids[1].n);
    double d = x - y;
    return (d < 0 ? -d : d) <= MATCH_TIE * (double)(ids[0].n + 1);
}

static enum err_code match_ids(const struct tokenizer *a, const struct tokenizer *b,
                               const struct buf *text, struct token_list ids[2], struct err *err)
{
    static const unsigned flags = TOKENIZER_FLAG_SPECIAL | TOKENIZER_FLAG_BOS | TOKENIZER_FLAG_EOS;
    struct buf shown;
    ids[0].n = ids[1].n = 0;
    enum err_code code = tokenizer_encode(a, text->data, text->len, NULL, flags, &ids[0], err);
    if (!code)
        code = tokenizer_encode(b, text->data, text->len, NULL, flags, &ids[1], err);
    if (code ||
        (ids[0].n == ids[1].n &&
         (ids[0].n == 0 ||
          memcmp(ids[0].ids, ids[1].ids, (size_t)ids[0].n * sizeof(*ids[0].ids)) == 0)) ||
        match_is_tie(a, ids))
        return code;
    int32_t at = 0;
    while (at < ids[0].n && at < ids[1].n && ids[0].ids[at] == ids[1].ids[at])
        at++;
    buf_init(&shown, MEM_CAT_TOKENIZER, (size_t)1 << 12);
    match_show(text, &shown);
    code = err_set(err, ERR_UNSUPPORTED,
                   "token %d of the text '%s' is %d, and would be %d (-1: it has none)", at,
                   shown.len ? shown.data : "", at < ids[0].n ? ids[0].ids[at] : -1,
                   at < ids[1].n ? ids[1].ids[at] : -1);
    buf_release(&shown);
    return code;
}

enum err_code pretok_match_ids(const struct tokenizer *a, const struct tokenizer *b,
                               struct err *err)
{
    struct token_list ids[2];
    struct buf text;
    enum err_code code = ERR_OK;
    buf_init(&text, MEM_CAT_TOKENIZER, (size_t)1 << 16);
    for (int i = 0; i < 2; i++)
        token_list_init(&ids[i], INT32_MAX);
    for (int i = 0; i < MATCH_TEXTS && !code; i++) {
        match_text(i, &text);
        code = buf_check(&text, "a text of the probe", err);
        if (!code)
            code = match_ids(a, b, &text, ids, err);
    }
    for (int i = 0; i < 2; i++)
        token_list_release(&ids[i]);
    buf_release(&text);
    return code;
}
