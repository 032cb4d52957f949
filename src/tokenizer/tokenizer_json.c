/* tokenizer_json.c - reads a tokenizer.json: vocabulary, merges, added tokens; its other parts are tokenizer_json_steps.c's. */
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/tokenizer_int.h"
#include "tokenizer/tokenizer_json_int.h"

#include <stdio.h>
#include <string.h>

#define READING_BYTES_MAX ((size_t)512 << 20) /* of a text; the largest known have 33 MiB */
#define READING_FACTOR    160                 /* bytes of values for one of the text (json.h) */
#define READING_TOKENS    (1 << 22)
#define READING_ENDS      32

enum err_code tokenizer_json_str(const struct json *obj, const char *key, const char *fallback,
                                 const char **out, struct err *err)
{
    const struct json *v = json_get_set(obj, key);
    *out = fallback;
    if (!v)
        return ERR_OK;
    if (v->type != JSON_TYPE_STRING || strlen(v->text) != v->len)
        return err_set(err, ERR_INVALID, "tokenizer.json: %s: want a string without NUL", key);
    *out = v->text;
    return ERR_OK;
}

enum err_code tokenizer_json_bool(const struct json *obj, const char *key, bool fallback, bool *out,
                                  struct err *err)
{
    const struct json *v = json_get_set(obj, key);
    *out = fallback;
    if (!v)
        return ERR_OK;
    if (v->type != JSON_TYPE_BOOL)
        return err_set(err, ERR_INVALID, "tokenizer.json: %s: want true or false", key);
    *out = v->boolean;
    return ERR_OK;
}

static enum err_code tokenizer_json_id(const struct json *v, int64_t *out, struct err *err)
{
    return json_to_int(v, "tokenizer.json: a token's id", 0, READING_TOKENS - 1, out, err);
}

/* --- how many ids there are --- */

static enum err_code tokenizer_json_count(struct tokenizer_reading *r, const struct json *vocab,
                                          const struct json *added, struct err *err)
{
    int64_t id, most = -1;
    enum err_code code = ERR_OK;
    for (size_t i = 0; json_is(vocab, JSON_TYPE_OBJECT) && i < vocab->n && !code; i++) {
        code = tokenizer_json_id(&vocab->members[i].value, &id, err);
        most = !code && id > most ? id : most;
    }
    if (json_is(vocab, JSON_TYPE_ARRAY))
        most = (int64_t)vocab->n - 1;
    for (size_t i = 0; added && i < added->n && !code; i++) {
        code = tokenizer_json_id(json_get(&added->items[i], "id"), &id, err);
        most = !code && id > most ? id : most;
    }
    if (!code && (most < 0 || most >= READING_TOKENS))
        code = err_set(err, ERR_INVALID, "tokenizer.json: %lld tokens, want 1 to %d",
                       (long long)most + 1, READING_TOKENS);
    if (code)
        return code;
    size_t n = (size_t)most + 1;
    r->spec.n_tokens = (int32_t)n;
    r->pieces = arena_alloc(&r->arena, n * sizeof(*r->pieces));
    r->types = arena_alloc(&r->arena, n);
    r->flags = arena_alloc(&r->arena, n);
    if (json_is(vocab, JSON_TYPE_ARRAY))
        r->scores = arena_alloc(&r->arena, n * sizeof(*r->scores));
    if (!r->pieces || !r->types || !r->flags || (json_is(vocab, JSON_TYPE_ARRAY) && !r->scores))
        return err_set(err, ERR_NOMEM, "tokenizer.json: no memory for %zu tokens", n);
    map_reserve(&r->ids, n);
    return ERR_OK;
}

/* --- vocabulary --- */

static enum err_code tokenizer_json_add(struct tokenizer_reading *r, int64_t id, const char *text,
                                        size_t len, struct err *err)
{
    if (r->pieces[id].data)
        return err_set(err, ERR_INVALID, "tokenizer.json: two tokens have the id %lld",
                       (long long)id);
    r->pieces[id] = (struct tokenizer_str){ text, len };
    r->types[id] = TOKEN_TYPE_NORMAL;
    map_add(&r->ids, text, len, (int32_t)id);
    return ERR_OK;
}

static enum err_code tokenizer_json_vocab(struct tokenizer_reading *r, const struct json *vocab,
                                          struct err *err)
{
    int64_t id;
    double score;
    enum err_code code = ERR_OK;
    if (json_is(vocab, JSON_TYPE_OBJECT))
        for (size_t i = 0; i < vocab->n && !code; i++) {
            const struct json_member *m = &vocab->members[i];
            code = tokenizer_json_id(&m->value, &id, err);
            if (!code)
                code = tokenizer_json_add(r, id, m->key, m->key_len, err);
        }
    else if (json_is(vocab, JSON_TYPE_ARRAY))
        for (size_t i = 0; i < vocab->n && !code; i++) { /* Unigram: [text, score] */
            const struct json *pair = &vocab->items[i];
            if (pair->type != JSON_TYPE_ARRAY || pair->n != 2 ||
                pair->items[0].type != JSON_TYPE_STRING)
                return err_set(err, ERR_INVALID,
                               "tokenizer.json: vocab: entry %zu: want [text, score]", i);
            code = json_to_double(&pair->items[1], "tokenizer.json: a token's score", -1e30, 1e30,
                                  &score, err);
            if (!code)
                code =
                    tokenizer_json_add(r, (int64_t)i, pair->items[0].text, pair->items[0].len, err);
            r->scores[i] = code ? 0 : score;
        }
    else
        return err_set(err, ERR_INVALID, "tokenizer.json: model: no vocab");
    return code;
}

/* One added token; it may be one of the vocabulary too. */
static enum err_code tokenizer_json_added_one(struct tokenizer_reading *r, const struct json *v,
                                              struct err *err)
{
    static const struct {
        const char *name;
        uint8_t flag;
    } names[] = { { "lstrip", TOKEN_FLAG_LSTRIP },
                  { "rstrip", TOKEN_FLAG_RSTRIP },
                  { "single_word", TOKEN_FLAG_WORD },
                  { "normalized", TOKEN_FLAG_NORMAL } };
    int64_t id;
    bool is_special, has;
    const struct json *content = json_get(v, "content");
    enum err_code code = tokenizer_json_id(json_get(v, "id"), &id, err);
    if (!code && !json_is(content, JSON_TYPE_STRING))
        code = err_set(err, ERR_INVALID, "tokenizer.json: added_tokens: id %lld has no content",
                       (long long)id);
    if (!code)
        code = tokenizer_json_bool(v, "special", false, &is_special, err);
    for (size_t i = 0; i < ARRAY_LEN(names) && !code; i++) {
        code = tokenizer_json_bool(v, names[i].name, i == 3 && !is_special, &has, err);
        r->flags[id] |= !code && has ? names[i].flag : 0;
    }
    if (code)
        return code;
    r->pieces[id] = (struct tokenizer_str){ content->text, content->len };
    r->types[id] = is_special ? TOKEN_TYPE_CONTROL : TOKEN_TYPE_USER;
    map_add(&r->ids, content->text, content->len, (int32_t)id);
    return ERR_OK;
}

static enum err_code tokenizer_json_added(struct tokenizer_reading *r, const struct json *added,
                                          struct err *err)
{
    enum err_code code = ERR_OK;
    for (size_t i = 0; added && i < added->n && !code; i++)
        code = tokenizer_json_added_one(r, &added->items[i], err);
    for (int32_t id = 0; id < r->spec.n_tokens && !code; id++) {
        char name[24];
        if (r->pieces[id].data)
            continue; /* what nobody names keeps its id and is never met */
        int n = snprintf(name, sizeof(name), "[PAD%d]", id);
        r->pieces[id] =
            (struct tokenizer_str){ arena_strndup(&r->arena, name, (size_t)n), (size_t)n };
        r->types[id] = TOKEN_TYPE_UNUSED;
        if (!r->pieces[id].data)
            code = err_set(err, ERR_NOMEM, "tokenizer.json: no memory for a name");
    }
    return code;
}

/* --- models --- */

/* "left right", or ["left", "right"]. */
static enum err_code tokenizer_json_merges(struct tokenizer_reading *r, const struct json *merges,
                                           struct err *err)
{
    bool has_pairs = merges && merges->n && merges->items[0].type == JSON_TYPE_ARRAY;
    if (!json_is(merges, JSON_TYPE_ARRAY) || merges->n > INT32_MAX)
        return err_set(err, ERR_INVALID, "tokenizer.json: merges: want an array");
    struct tokenizer_str *left = arena_alloc(&r->arena, merges->n * sizeof(*left));
    struct tokenizer_str *right =
        has_pairs ? arena_alloc(&r->arena, merges->n * sizeof(*right)) : NULL;
    if (!left || (has_pairs && !right))
        return err_set(err, ERR_NOMEM, "tokenizer.json: no memory for %zu merges", merges->n);
    for (size_t i = 0; i < merges->n; i++) {
        const struct json *m = &merges->items[i];
        bool is_pair = m->type == JSON_TYPE_ARRAY && m->n == 2 &&
                       m->items[0].type == JSON_TYPE_STRING && m->items[1].type == JSON_TYPE_STRING;
        if (has_pairs ? !is_pair : m->type != JSON_TYPE_STRING)
            return err_set(err, ERR_INVALID,
                           "tokenizer.json: merges: entry %zu: want \"left right\" or [left, "
                           "right], as the first",
                           i);
        const struct json *l = has_pairs ? &m->items[0] : m;
        left[i] = (struct tokenizer_str){ l->text, l->len };
        if (has_pairs)
            right[i] = (struct tokenizer_str){ m->items[1].text, m->items[1].len };
    }
    r->spec.merges = left;
    r->spec.rights = right;
    r->spec.n_merges = (int32_t)merges->n;
    return ERR_OK;
}

/* Members that change ids and that nobody here knows: only their empty values pass. */
static enum err_code tokenizer_json_empty(const struct json *model, const char *key,
                                          struct err *err)
{
    const struct json *v = json_get_set(model, key);
    double number = 0;
    bool is_empty = !v || (v->type == JSON_TYPE_STRING && v->len == 0) ||
                    (v->type == JSON_TYPE_NUMBER &&
                     !json_to_double(v, key, -1e30, 1e30, &number, NULL) && number == 0);
    return is_empty ? ERR_OK
                    : err_set(err, ERR_UNSUPPORTED, "tokenizer.json: model: %s is not known", key);
}

static enum err_code tokenizer_json_unk(struct tokenizer_reading *r, const struct json *model,
                                        struct err *err)
{
    const char *unk;
    enum err_code code = tokenizer_json_str(model, "unk_token", NULL, &unk, err);
    r->spec.unk = !code && unk ? map_get(&r->ids, unk, strlen(unk)) : -1;
    return code;
}

static enum err_code tokenizer_json_bpe(struct tokenizer_reading *r, const struct json *model,
                                        struct err *err)
{
    static const char *const empty[] = { "dropout", "continuing_subword_prefix",
                                         "end_of_word_suffix" };
    struct pipeline_spec *p = &r->pipeline;
    enum err_code code = tokenizer_json_unk(r, model, err);
    for (size_t i = 0; i < ARRAY_LEN(empty) && !code; i++)
        code = tokenizer_json_empty(model, empty[i], err);
    if (!code)
        code = tokenizer_json_bool(model, "fuse_unk", false, &p->fuses_unk, err);
    if (!code)
        code = tokenizer_json_bool(model, "byte_fallback", false, &p->has_bytes, err);
    if (!code)
        code = tokenizer_json_bool(model, "ignore_merges", false, &p->ignores_merges, err);
    if (!code)
        code = tokenizer_json_merges(r, json_get(model, "merges"), err);
    r->spec.kind = r->is_byte_level ? TOKENIZER_KIND_BPE : TOKENIZER_KIND_BPE_SPM;
    for (int b = 0; b < 256 && p->has_bytes && !r->is_byte_level; b++) {
        char name[8];
        int32_t id = map_get(&r->ids, name, (size_t)snprintf(name, sizeof(name), "<0x%02X>", b));
        if (id >= 0 && r->types[id] == TOKEN_TYPE_NORMAL)
            r->types[id] = TOKEN_TYPE_BYTE;
    }
    return code;
}

/* GGUF's spelling, which the encoder takes: U+2581 in front of what begins a word, nothing in front of what goes on. */
static enum err_code tokenizer_json_word_piece(struct tokenizer_reading *r,
                                               const struct json *model, struct err *err)
{
    const char *prefix = "";
    int64_t most = 100;
    const struct json *v = json_get_set(model, "max_input_chars_per_word");
    enum err_code code = tokenizer_json_unk(r, model, err);
    if (!code)
        code = tokenizer_json_str(model, "continuing_subword_prefix", "##", &prefix, err);
    if (!code && v)
        code = json_to_int(v, "tokenizer.json: max_input_chars_per_word", 0, INT32_MAX, &most, err);
    if (!code && most != 100)
        code = err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: max_input_chars_per_word: %lld, 100 is known",
                       (long long)most);
    r->spec.kind = TOKENIZER_KIND_WPM;
    for (int32_t id = 0; id < r->spec.n_tokens && !code; id++) {
        struct tokenizer_str *s = &r->pieces[id];
        size_t n = strlen(prefix);
        if (r->types[id] != TOKEN_TYPE_NORMAL)
            continue;
        if (n && s->len > n && memcmp(s->data, prefix, n) == 0) {
            *s = (struct tokenizer_str){ s->data + n, s->len - n };
            continue;
        }
        char *p = arena_alloc(&r->arena, SPACE_MARK_LEN + s->len + 1);
        if (!p)
            return err_set(err, ERR_NOMEM, "tokenizer.json: no memory for a piece");
        memcpy(p, SPACE_MARK, SPACE_MARK_LEN);
        memcpy(p + SPACE_MARK_LEN, s->data, s->len);
        *s = (struct tokenizer_str){ p, SPACE_MARK_LEN + s->len };
    }
    return code;
}

static enum err_code tokenizer_json_unigram(struct tokenizer_reading *r, const struct json *model,
                                            struct err *err)
{
    bool has_bytes;
    int64_t unk;
    const struct json *v = json_get_set(model, "unk_id");
    enum err_code code = tokenizer_json_bool(model, "byte_fallback", false, &has_bytes, err);
    if (!code && has_bytes)
        code = err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: model: byte_fallback of a Unigram is not known");
    r->spec.kind = TOKENIZER_KIND_UGM;
    if (!code && v &&
        !(code = json_to_int(v, "tokenizer.json: unk_id", 0, r->spec.n_tokens - 1, &unk, err))) {
        r->spec.unk = (int32_t)unk;
        if (r->types[unk] == TOKEN_TYPE_NORMAL)
            r->types[unk] = TOKEN_TYPE_UNKNOWN;
    }
    return code;
}

static enum err_code tokenizer_json_model(struct tokenizer_reading *r, const struct json *model,
                                          struct err *err)
{
    const char *type;
    const char *guess = json_get(model, "merges")                            ? "BPE"
                        : json_is(json_get(model, "vocab"), JSON_TYPE_ARRAY) ? "Unigram"
                                                                             : "WordPiece";
    enum err_code code = tokenizer_json_str(model, "type", guess, &type, err);
    if (code)
        return code;
    bool is_list = strcmp(type, "Unigram") == 0;
    if (is_list != json_is(json_get(model, "vocab"), JSON_TYPE_ARRAY))
        return err_set(err, ERR_INVALID,
                       "tokenizer.json: model: the vocab of a %s has another form", type);
    if (strcmp(type, "BPE") == 0)
        return tokenizer_json_bpe(r, model, err);
    if (strcmp(type, "WordPiece") == 0)
        return tokenizer_json_word_piece(r, model, err);
    if (is_list)
        return tokenizer_json_unigram(r, model, err);
    return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: model '%.64s' is not known", type);
}

/* --- the whole --- */

/* A token that tokenizer_config.json names: a text, or an object with its content. */
static int32_t tokenizer_json_named(const struct tokenizer_reading *r, const struct json *config,
                                    const char *key)
{
    const struct json *v = json_get(config, key);
    if (json_is(v, JSON_TYPE_OBJECT))
        v = json_get(v, "content");
    return json_is(v, JSON_TYPE_STRING) ? map_get(&r->ids, v->text, v->len) : -1;
}

static void tokenizer_json_names(struct tokenizer_reading *r, const struct json *config)
{
    struct tokenizer_spec *s = &r->spec;
    s->eot = s->eom = -1;
    s->bos = tokenizer_json_named(r, config, "bos_token");
    s->eos = tokenizer_json_named(r, config, "eos_token");
    s->pad = tokenizer_json_named(r, config, "pad_token");
    s->sep = tokenizer_json_named(r, config, "sep_token");
    s->cls = tokenizer_json_named(r, config, "cls_token");
    s->mask = tokenizer_json_named(r, config, "mask_token");
    const struct json *add_bos = json_get(config, "add_bos_token");
    if (!json_get_set(r->root, "post_processor") && json_is(add_bos, JSON_TYPE_BOOL) &&
        add_bos->boolean)
        r->pipeline.head = s->bos; /* old files leave it to the class that is named there */
    s->add_bos = r->pipeline.head >= 0;
    s->add_eos = r->pipeline.tail >= 0;
    if (s->bos < 0)
        s->bos = r->pipeline.head;
}

static enum err_code tokenizer_json_run(struct tokenizer_reading *r, const struct json *config,
                                        struct err *err)
{
    const struct json *model = json_get(r->root, "model");
    const struct json *added = json_get_set(r->root, "added_tokens");
    enum err_code code = ERR_OK;
    r->spec.unk = -1;
    if (!json_is(model, JSON_TYPE_OBJECT) || (added && added->type != JSON_TYPE_ARRAY))
        return err_set(err, ERR_INVALID,
                       "tokenizer.json: want an object 'model' and an array 'added_tokens'");
    code = tokenizer_json_count(r, json_get(model, "vocab"), added, err);
    if (!code)
        code = tokenizer_json_vocab(r, json_get(model, "vocab"), err);
    if (!code)
        code = tokenizer_json_added(r, added, err);
    if (!code)
        code = tokenizer_json_normalizer(r, json_get(r->root, "normalizer"), err);
    if (!code)
        code = tokenizer_json_pre_tokenizer(r, json_get(r->root, "pre_tokenizer"), err);
    if (!code)
        code = tokenizer_json_post_processor(r, json_get(r->root, "post_processor"), err);
    if (!code)
        code = tokenizer_json_decoder(r, json_get(r->root, "decoder"), err);
    if (!code)
        code = tokenizer_json_model(r, model, err);
    if (!code && r->spec.charsmap && r->spec.kind != TOKENIZER_KIND_UGM)
        code = err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: normalizer 'Precompiled' without a Unigram model");
    if (!code)
        tokenizer_json_names(r, config);
    return code;
}

static enum err_code tokenizer_json_parse(struct json_doc *doc, const struct tokenizer_str *text,
                                          const char *name, struct err *err)
{
    if (text->len > READING_BYTES_MAX)
        return err_set(err, ERR_FULL, "%s: %zu bytes, at most %zu", name, text->len,
                       READING_BYTES_MAX);
    enum err_code code = json_parse(doc, text->data, text->len,
                                    text->len * READING_FACTOR + ((size_t)64 << 10), err);
    return code ? err_prefix(err, code, "%s", name) : ERR_OK;
}

struct tokenizer_file {
    struct json_doc doc, config;
    struct tokenizer_reading r;
};

static void tokenizer_json_fill(struct tokenizer_reading *r,
                                const struct tokenizer_json_source *src)
{
    r->spec.pieces = r->pieces;
    r->spec.types = r->types;
    r->spec.flags = r->flags;
    r->spec.exact_scores = r->scores;
    r->spec.pipeline = &r->pipeline;
    r->spec.ends = src->ends;
    r->spec.n_ends = src->n_ends < READING_ENDS ? src->n_ends : READING_ENDS;
}

enum err_code tokenizer_file_open(const struct tokenizer_json_source *src,
                                  struct tokenizer_file **out, struct err *err)
{
    struct tokenizer_file *f = mem_alloc(MEM_CAT_TOKENIZER, sizeof(*f));
    f->r.root = &f->doc.root;
    arena_init(&f->r.arena, MEM_CAT_TOKENIZER, (size_t)1 << 31);
    map_init(&f->r.ids, MEM_CAT_TOKENIZER);
    enum err_code code = tokenizer_json_parse(&f->doc, &src->tokenizer, "tokenizer.json", err);
    if (!code && src->config.data)
        code = tokenizer_json_parse(&f->config, &src->config, "tokenizer_config.json", err);
    if (!code)
        code = tokenizer_json_run(&f->r, &f->config.root, err);
    if (code) {
        tokenizer_file_close(f);
        return code;
    }
    tokenizer_json_fill(&f->r, src);
    *out = f;
    return ERR_OK;
}

const struct tokenizer_spec *tokenizer_file_spec(const struct tokenizer_file *f)
{
    return &f->r.spec;
}

void tokenizer_file_close(struct tokenizer_file *f)
{
    if (!f)
        return;
    map_release(&f->r.ids);
    arena_release(&f->r.arena);
    json_doc_release(&f->config);
    json_doc_release(&f->doc);
    mem_free(MEM_CAT_TOKENIZER, f);
}

enum err_code tokenizer_new_json(const struct tokenizer_json_source *src, struct tokenizer **out,
                                 struct err *err)
{
    struct tokenizer_file *f = NULL;
    enum err_code code = tokenizer_file_open(src, &f, err);
    if (!code)
        code = tokenizer_new(&f->r.spec, out, err);
    tokenizer_file_close(f);
    return code;
}
