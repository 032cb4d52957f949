#include "tokenizer/pretok_match.h"
#include "tokenizer/pretok_int.h"

#define MATCH_TEXTS     3000
#define MATCH_ATOMS_MAX 24

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
