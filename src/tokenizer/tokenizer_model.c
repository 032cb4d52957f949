/* tokenizer_model.c - reads sentencepiece_model.proto's ModelProto (github.com/google/sentencepiece) in the protocol buffers' wire
 * format. A message is a row of fields: a varint (number << 3 | wire type), then a varint (0), 8 bytes (1), a varint n and n bytes (2)
 * or 4 bytes (5). What is looked at:
 *
 *     ModelProto      1 pieces (each a message), 2 trainer_spec, 3 normalizer_spec
 *     SentencePiece   1 piece (text), 2 score (float), 3 type (numbers as in enum token_type; 1 where it is not there)
 *     TrainerSpec     3 model_type (1 unigram, 2 BPE, 3 word, 4 char), 24 treat_whitespace_as_suffix, 35 byte_fallback,
 *                     40 unk_id (0), 41 bos_id (1), 42 eos_id (2), 43 pad_id (-1)
 *     NormalizerSpec  1 name, 2 precompiled_charsmap, 3 add_dummy_prefix (true), 4 remove_extra_whitespaces (true),
 *                     5 escape_whitespaces (true) */
#include "tokenizer/tokenizer_model.h"
#include "base/map.h"
#include "tokenizer/tokenizer_int.h"
#include "json/json.h"

#include <stdio.h>
#include <string.h>

#define MODEL_TOKENS_MAX (1 << 22)
#define MODEL_JSON_MAX   ((size_t)64 << 20)
#define MODEL_FACTOR     160 /* bytes of values for one of the text (json.h) */
#define MODEL_ENDS       32

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct proto {
    const uint8_t *at, *end;
};

struct proto_field {
    uint64_t number;
    int wire;
    uint64_t value;     /* varints and numbers of fixed size */
    struct proto bytes; /* WIRE_BYTES */
};

struct model_reading {
    struct arena arena;
    struct tokenizer_spec spec;
    struct tokenizer_str *pieces; /* [spec.n_tokens] */
    float *scores;                /* idem */
    uint8_t *types;               /* idem */
    int32_t n_pieces;             /* of the file; the others are added */
    struct map ids;
    struct proto trainer, normalizer;
    struct json_doc config, added;
};

static bool proto_varint(struct proto *p, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; shift < 64 && p->at < p->end; shift += 7) {
        uint8_t b = *p->at++;
        *out |= (uint64_t)(b & 0x7F) << shift;
        if (!(b & 0x80))
            return true;
    }
    return false;
}

static bool proto_fixed(struct proto *p, size_t n, uint64_t *out)
{
    if ((size_t)(p->end - p->at) < n)
        return false;
    *out = 0;
    memcpy(out, p->at, n); /* little-endian, as the machine */
    p->at += n;
    return true;
}

/* The next field. False: the message ends, or (*is_bad) is none. */
static bool proto_next(struct proto *p, struct proto_field *f, bool *is_bad)
{
    uint64_t tag;
    if (p->at == p->end)
        return false;
    bool ok = proto_varint(p, &tag);
    f->number = tag >> 3;
    f->wire = (int)(tag & 7);
    f->bytes = (struct proto){ NULL, NULL };
    if (ok && f->wire == WIRE_VARINT)
        ok = proto_varint(p, &f->value);
    else if (ok && f->wire == WIRE_BYTES)
        ok = proto_varint(p, &f->value) && f->value <= (uint64_t)(p->end - p->at);
    else if (ok && (f->wire == WIRE_64 || f->wire == WIRE_32))
        ok = proto_fixed(p, f->wire == WIRE_64 ? 8 : 4, &f->value);
    else
        ok = false;
    if (ok && f->wire == WIRE_BYTES) {
        f->bytes = (struct proto){ p->at, p->at + f->value };
        p->at += f->value;
    }
    *is_bad = *is_bad || !ok;
    return ok;
}

/* The last value of a field of a message, or the fallback. */
static int64_t proto_int(struct proto p, uint64_t number, int64_t fallback)
{
    struct proto_field f;
    bool is_bad = false;
    while (proto_next(&p, &f, &is_bad))
        if (f.number == number && f.wire == WIRE_VARINT)
            fallback = (int64_t)f.value;
    return fallback;
}

static struct tokenizer_str proto_text(struct proto p, uint64_t number)
{
    struct proto_field f;
    bool is_bad = false;
    struct tokenizer_str s = { NULL, 0 };
    while (proto_next(&p, &f, &is_bad))
        if (f.number == number && f.wire == WIRE_BYTES)
            s = (struct tokenizer_str){ (const char *)f.bytes.at, f.value };
    return s;
}

/* --- pieces --- */

/* Pieces that users define match in the text, where U+2581 is a space still. SentencePiece looks behind its normaliser, which leaves
 * no space: a piece that is spelled with one is never met. */
static enum err_code model_unmark(struct model_reading *r, int32_t id, struct err *err)
{
    struct tokenizer_str *s = &r->pieces[id];
    char *to = arena_alloc(&r->arena, s->len + 1);
    size_t n = 0;
    if (!to)
        return err_set(err, ERR_NOMEM, "tokenizer.model: no memory for a piece");
    for (size_t i = 0; i < s->len;) {
        bool is_mark =
            s->len - i >= SPACE_MARK_LEN && memcmp(s->data + i, SPACE_MARK, SPACE_MARK_LEN) == 0;
        if (s->data[i] == ' ')
            r->types[id] = TOKEN_TYPE_UNUSED;
        to[n++] = is_mark ? ' ' : s->data[i];
        i += is_mark ? SPACE_MARK_LEN : 1;
    }
    *s = (struct tokenizer_str){ to, n };
    return ERR_OK;
}

static enum err_code model_piece(struct model_reading *r, int32_t id, struct proto p,
                                 struct err *err)
{
    struct proto_field f;
    bool is_bad = false;
    r->types[id] = TOKEN_TYPE_NORMAL;
    while (proto_next(&p, &f, &is_bad)) {
        uint32_t bits = (uint32_t)f.value;
        if (f.number == 1 && f.wire == WIRE_BYTES)
            r->pieces[id] = (struct tokenizer_str){ (const char *)f.bytes.at, f.value };
        else if (f.number == 2 && f.wire == WIRE_32)
            memcpy(&r->scores[id], &bits, sizeof(bits));
        else if (f.number == 3 && f.wire == WIRE_VARINT)
            r->types[id] =
                f.value >= TOKEN_TYPE_NORMAL && f.value <= TOKEN_TYPE_BYTE ? (uint8_t)f.value : 0;
    }
    if (is_bad || !r->pieces[id].data || !r->types[id] || r->scores[id] != r->scores[id])
        return err_set(err, ERR_INVALID, "tokenizer.model: piece %d is damaged", id);
    enum err_code code = r->types[id] == TOKEN_TYPE_USER ? model_unmark(r, id, err) : ERR_OK;
    map_add(&r->ids, r->pieces[id].data, r->pieces[id].len, id);
    return code;
}

static enum err_code model_damaged(struct err *err)
{
    return err_set(err, ERR_INVALID,
                   "tokenizer.model: not a SentencePiece model, or a damaged one");
}

/* How many pieces there are, and where the specs stand. */
static enum err_code model_count(struct model_reading *r, struct proto p, struct err *err)
{
    struct proto_field f;
    bool is_bad = false;
    while (proto_next(&p, &f, &is_bad)) {
        if (f.wire != WIRE_BYTES)
            continue;
        if (f.number == 1 && ++r->n_pieces > MODEL_TOKENS_MAX)
            return err_set(err, ERR_INVALID, "tokenizer.model: over %d pieces", MODEL_TOKENS_MAX);
        if (f.number == 2)
            r->trainer = f.bytes;
        else if (f.number == 3)
            r->normalizer = f.bytes;
    }
    return is_bad || r->n_pieces == 0 ? model_damaged(err) : ERR_OK;
}

static enum err_code model_pieces(struct model_reading *r, struct proto p, struct err *err)
{
    struct proto_field f;
    bool is_bad = false;
    enum err_code code = ERR_OK;
    int32_t id = 0;
    size_t n = (size_t)r->spec.n_tokens;
    r->pieces = arena_alloc(&r->arena, n * sizeof(*r->pieces));
    r->scores = arena_alloc(&r->arena, n * sizeof(*r->scores));
    r->types = arena_alloc(&r->arena, n);
    if (!r->pieces || !r->scores || !r->types)
        return err_set(err, ERR_NOMEM, "tokenizer.model: no memory for %zu tokens", n);
    map_reserve(&r->ids, n);
    while (!code && proto_next(&p, &f, &is_bad))
        if (f.number == 1 && f.wire == WIRE_BYTES)
            code = model_piece(r, id++, f.bytes, err);
    return code;
}

/* --- added tokens --- */

static enum err_code model_id(const struct json *v, int64_t *id, struct err *err)
{
    return json_to_int(v, "added token's id", 0, MODEL_TOKENS_MAX - 1, id, err);
}

/* The id that a key of added_tokens_decoder spells. */
static enum err_code model_key_id(const struct json_member *m, int64_t *id, struct err *err)
{
    *id = 0;
    for (size_t i = 0; i < m->key_len && *id < MODEL_TOKENS_MAX; i++)
        *id = m->key[i] >= '0' && m->key[i] <= '9' ? *id * 10 + m->key[i] - '0' : MODEL_TOKENS_MAX;
    return m->key_len && *id < MODEL_TOKENS_MAX
               ? ERR_OK
               : err_set(err, ERR_INVALID,
                         "tokenizer_config.json: added_tokens_decoder: '%.20s' is no id", m->key);
}

static bool model_is_tag(const char *s, size_t n)
{
    return n > 2 && ((s[0] == '<' && s[n - 1] == '>') || (s[0] == '[' && s[n - 1] == ']'));
}

/* One added token; those that the file has too keep its id and may change their kind. */
static enum err_code model_add(struct model_reading *r, int64_t id, const struct json *content,
                               bool is_special, struct err *err)
{
    if (!json_is(content, JSON_TYPE_STRING) || content->len == 0)
        return err_set(err, ERR_INVALID, "added token %lld has no text", (long long)id);
    bool is_new = id >= r->n_pieces;
    if (is_special)
        r->types[id] = TOKEN_TYPE_CONTROL;
    else if (is_new || r->types[id] == TOKEN_TYPE_NORMAL)
        r->types[id] = TOKEN_TYPE_USER;
    r->pieces[id] = (struct tokenizer_str){ content->text, content->len };
    map_add(&r->ids, content->text, content->len, (int32_t)id);
    return ERR_OK;
}

/* Both lists. counts: only n_tokens grows. */
static enum err_code model_added(struct model_reading *r, bool counts, struct err *err)
{
    const struct json *list = json_get(&r->config.root, "added_tokens_decoder");
    const struct json *texts = &r->added.root;
    enum err_code code = ERR_OK;
    int64_t id;
    for (size_t i = 0; json_is(list, JSON_TYPE_OBJECT) && i < list->n && !code; i++) {
        const struct json *v = &list->members[i].value, *special = json_get(v, "special");
        code = model_key_id(&list->members[i], &id, err);
        if (!code && counts)
            r->spec.n_tokens = id >= r->spec.n_tokens ? (int32_t)id + 1 : r->spec.n_tokens;
        else if (!code)
            code = model_add(r, id, json_get(v, "content"),
                             json_is(special, JSON_TYPE_BOOL) && special->boolean, err);
    }
    for (size_t i = 0; json_is(texts, JSON_TYPE_OBJECT) && i < texts->n && !code; i++) {
        struct json_member *m = &texts->members[i];
        struct json text = { .type = JSON_TYPE_STRING, .text = m->key, .len = m->key_len };
        code = model_id(&m->value, &id, err);
        if (!code && counts)
            r->spec.n_tokens = id >= r->spec.n_tokens ? (int32_t)id + 1 : r->spec.n_tokens;
        else if (!code && map_get(&r->ids, m->key, m->key_len) < 0)
            /* the list does not say which are special: what looks like a tag is */
            code = model_add(r, id, &text, model_is_tag(m->key, m->key_len), err);
    }
    return code;
}

/* Ids between that nobody names are never met. */
static enum err_code model_fill(struct model_reading *r, struct err *err)
{
    for (int32_t id = r->n_pieces; id < r->spec.n_tokens; id++) {
        char name[24];
        if (r->pieces[id].data)
            continue;
        int n = snprintf(name, sizeof(name), "[PAD%d]", id);
        r->pieces[id] =
            (struct tokenizer_str){ arena_strndup(&r->arena, name, (size_t)n), (size_t)n };
        r->types[id] = TOKEN_TYPE_UNUSED;
        if (!r->pieces[id].data)
            return err_set(err, ERR_NOMEM, "tokenizer.model: no memory for a name");
    }
    return ERR_OK;
}

/* --- specs --- */

static enum err_code model_unknown(const char *what, struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED,
                   "tokenizer.model: %s is not known; save the tokenizer "
                   "with transformers' fast class",
                   what);
}

static enum err_code model_specs(struct model_reading *r, struct err *err)
{
    struct tokenizer_spec *s = &r->spec;
    int64_t type = proto_int(r->trainer, 3, 1);
    struct tokenizer_str charsmap = proto_text(r->normalizer, 2);
    if (type != 1 && type != 2)
        return model_unknown("a model of words or characters", err);
    s->kind = type == 2 ? TOKENIZER_KIND_SPM : TOKENIZER_KIND_UGM;
    if (proto_int(r->trainer, 24, 0))
        return model_unknown("treat_whitespace_as_suffix", err);
    if (!proto_int(r->normalizer, 5, 1))
        return model_unknown("escape_whitespaces off", err);
    if (type == 1 && proto_int(r->trainer, 35, 0))
        return model_unknown("byte_fallback of a unigram model", err);
    if (type == 2 && charsmap.len > 0)
        return model_unknown("a normalizer with rules on a BPE model", err);
    s->charsmap = (const uint8_t *)charsmap.data;
    s->charsmap_bytes = charsmap.len;
    s->add_space_prefix = proto_int(r->normalizer, 3, 1);
    s->remove_extra_spaces = proto_int(r->normalizer, 4, 1);
    return ERR_OK;
}

/* An id of the trainer's, or -1. */
static int32_t model_spec_id(const struct model_reading *r, uint64_t number, int64_t fallback)
{
    int64_t id = (int32_t)proto_int(r->trainer, number, fallback);
    return id >= 0 && id < r->n_pieces ? (int32_t)id : -1;
}

/* A token that tokenizer_config.json names: a text, or an object with its content. */
static int32_t model_named(const struct model_reading *r, const char *key, int32_t fallback)
{
    const struct json *v = json_get(&r->config.root, key);
    if (json_is(v, JSON_TYPE_OBJECT))
        v = json_get(v, "content");
    int32_t id = json_is(v, JSON_TYPE_STRING) ? map_get(&r->ids, v->text, v->len) : -1;
    return id >= 0 ? id : fallback;
}

static bool model_flag(const struct model_reading *r, const char *key, bool fallback)
{
    const struct json *v = json_get(&r->config.root, key);
    return json_is(v, JSON_TYPE_BOOL) ? v->boolean : fallback;
}

static void model_names(struct model_reading *r)
{
    struct tokenizer_spec *s = &r->spec;
    bool is_bpe = s->kind == TOKENIZER_KIND_SPM;
    s->unk = model_spec_id(r, 40, 0);
    s->bos = model_named(r, "bos_token", model_spec_id(r, 41, 1));
    s->eos = model_named(r, "eos_token", model_spec_id(r, 42, 2));
    s->pad = model_named(r, "pad_token", model_spec_id(r, 43, -1));
    s->sep = model_named(r, "sep_token", -1);
    s->cls = model_named(r, "cls_token", -1);
    s->mask = model_named(r, "mask_token", -1);
    s->eot = s->eom = -1;
    s->add_bos = model_flag(r, "add_bos_token", is_bpe) && s->bos >= 0;
    s->add_eos = model_flag(r, "add_eos_token", !is_bpe) && s->eos >= 0;
    s->space_at_start = is_bpe && !model_flag(r, "legacy", true);
}

/* --- the whole --- */

static enum err_code model_json(struct json_doc *doc, const struct tokenizer_str *text,
                                const char *name, struct err *err)
{
    if (!text->data)
        return ERR_OK;
    if (text->len > MODEL_JSON_MAX)
        return err_set(err, ERR_FULL, "%s: %zu bytes, at most %zu", name, text->len,
                       MODEL_JSON_MAX);
    enum err_code code =
        json_parse(doc, text->data, text->len, text->len * MODEL_FACTOR + ((size_t)64 << 10), err);
    return code ? err_prefix(err, code, "%s", name) : ERR_OK;
}

static enum err_code model_run(struct model_reading *r, const struct tokenizer_model_source *src,
                               struct err *err)
{
    const uint8_t *data = (const uint8_t *)src->model.data;
    struct proto whole = { data, data + src->model.len };
    enum err_code code = model_json(&r->config, &src->config, "tokenizer_config.json", err);
    if (!code)
        code = model_json(&r->added, &src->added, "added_tokens.json", err);
    if (!code)
        code = model_count(r, whole, err);
    r->spec.n_tokens = r->n_pieces;
    if (!code)
        code = model_added(r, true, err);
    if (!code)
        code = model_specs(r, err);
    if (!code)
        code = model_pieces(r, whole, err);
    if (!code)
        code = model_added(r, false, err);
    if (!code)
        code = model_fill(r, err);
    if (!code)
        model_names(r);
    return code;
}

struct tokenizer_model_file {
    struct model_reading r;
};

enum err_code tokenizer_model_open(const struct tokenizer_model_source *src,
                                   struct tokenizer_model_file **out, struct err *err)
{
    struct tokenizer_model_file *f = mem_alloc(MEM_CAT_TOKENIZER, sizeof(*f));
    struct model_reading *r = &f->r;
    arena_init(&r->arena, MEM_CAT_TOKENIZER, (size_t)1 << 31);
    map_init(&r->ids, MEM_CAT_TOKENIZER);
    enum err_code code = model_run(r, src, err);
    if (code) {
        tokenizer_model_close(f);
        return code;
    }
    r->spec.pieces = r->pieces;
    r->spec.scores = r->scores;
    r->spec.types = r->types;
    r->spec.ends = src->ends;
    r->spec.n_ends = src->n_ends < MODEL_ENDS ? src->n_ends : MODEL_ENDS;
    *out = f;
    return ERR_OK;
}

const struct tokenizer_spec *tokenizer_model_spec(const struct tokenizer_model_file *f)
{
    return &f->r.spec;
}

void tokenizer_model_close(struct tokenizer_model_file *f)
{
    if (!f)
        return;
    map_release(&f->r.ids);
    arena_release(&f->r.arena);
    json_doc_release(&f->r.config);
    json_doc_release(&f->r.added);
    mem_free(MEM_CAT_TOKENIZER, f);
}

enum err_code tokenizer_new_model(const struct tokenizer_model_source *src, struct tokenizer **out,
                                  struct err *err)
{
    struct tokenizer_model_file *f = NULL;
    enum err_code code = tokenizer_model_open(src, &f, err);
    if (!code)
        code = tokenizer_new(&f->r.spec, out, err);
    tokenizer_model_close(f);
    return code;
}
