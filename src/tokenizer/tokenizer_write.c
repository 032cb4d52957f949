#include "tokenizer/tokenizer_write.h"
#include "tokenizer/pretok_int.h"
#include "tokenizer/tokenizer_write_int.h"

#include <stdlib.h>

#define WRITE_PIECE_MAX 1024 /* bytes of a piece whose splits are looked at */

struct tokenizer_str tokenizer_write_piece(const struct tokenizer_spec *spec, int32_t id)
{
    return id >= 0 && id < spec->n_tokens ? spec->pieces[id] : (struct tokenizer_str){ NULL, 0 };
}

static enum token_type write_type(const struct tokenizer_spec *s, int32_t id)
{
    return s->types ? (enum token_type)s->types[id] : TOKEN_TYPE_NORMAL;
}

void tokenizer_write_typed(struct json_writer *j, const char *key, const char *type)
{
    json_field_object(j, key);
    json_field_str(j, "type", type);
}

/* --- added tokens and vocabulary --- */

static bool write_is_special(const struct tokenizer_spec *s, int32_t id)
{
    enum token_type type = write_type(s, id);
    return type == TOKEN_TYPE_CONTROL || type == TOKEN_TYPE_UNKNOWN;
}

/* Spelled with U+2581, a token is met in the text that has it in the place of spaces. */
static bool write_has_mark(const struct tokenizer_spec *s, const struct tokenizer_str *p)
{
    return s->kind == TOKENIZER_KIND_SPM && memmem(p->data, p->len, SPACE_MARK, SPACE_MARK_LEN);
}

static void write_added(struct json_writer *j, const struct tokenizer_spec *s)
{
    json_field_array(j, "added_tokens");
    for (int32_t id = 0; id < s->n_tokens; id++) {
        enum token_type type = write_type(s, id);
        bool is_special = write_is_special(s, id);
        if (!is_special && type != TOKEN_TYPE_USER)
            continue;
        json_begin_object(j);
        json_field_int(j, "id", id);
        json_field_strn(j, "content", s->pieces[id].data, s->pieces[id].len);
        json_field_bool(j, "single_word", false);
        json_field_bool(j, "lstrip", false);
        json_field_bool(j, "rstrip", is_special && s->strip_after_special);
        json_field_bool(j, "normalized", write_has_mark(s, &s->pieces[id]));
        json_field_bool(j, "special", is_special);
        json_end_object(j);
    }
    json_end_array(j);
}

/* Added tokens stand here too, so that the library gives them the ids that the file says. */
static enum err_code write_vocab(struct json_writer *j, const struct tokenizer_spec *s,
                                 const struct map *ids, struct err *err)
{
    json_field_object(j, "vocab");
    for (int32_t id = 0; id < s->n_tokens; id++) {
        const struct tokenizer_str *p = &s->pieces[id];
        char *key = mem_strndup(MEM_CAT_TOKENIZER, p->data, p->len);
        bool is_clean = strlen(key) == p->len, is_first = map_get(ids, p->data, p->len) == id;
        if (is_clean && is_first)
            json_field_int(j, key, id);
        mem_free(MEM_CAT_TOKENIZER, key);
        if (!is_clean || !is_first)
            return err_set(err, ERR_UNSUPPORTED,
                           "the vocabulary's token %d cannot be written to tokenizer.json: its "
                           "text %s",
                           id, is_clean ? "is another token's too" : "holds a NUL");
    }
    json_end_object(j);
    return ERR_OK;
}

/* --- merges --- */

/* A piece of SentencePiece's and one way to make it of two others. */
struct write_merge {
    float score;
    int32_t id;
    uint32_t left_len;
};

static int write_by_score(const void *a, const void *b)
{
    const struct write_merge *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return x->left_len < y->left_len ? -1 : x->left_len > y->left_len;
}

static bool write_merges_into(const struct tokenizer_spec *s, int32_t id)
{
    return write_type(s, id) == TOKEN_TYPE_NORMAL || write_type(s, id) == TOKEN_TYPE_UNUSED;
}

/* Every way in which two pieces join to a third, best score first: what SentencePiece's search does, as a list. */
static enum err_code write_find_merges(const struct tokenizer_spec *s, const struct map *ids,
                                       struct write_merge **out, size_t *n, struct err *err)
{
    size_t cap = 0;
    *n = 0;
    for (int32_t id = 0; id < s->n_tokens; id++) {
        const struct tokenizer_str *p = &s->pieces[id];
        if (!write_merges_into(s, id) || p->len > WRITE_PIECE_MAX)
            continue;
        for (size_t k = 1; k < p->len; k++) {
            if (((uint8_t)p->data[k] & 0xC0) == 0x80) /* inside a character */
                continue;
            int32_t left = map_get(ids, p->data, k), right = map_get(ids, p->data + k, p->len - k);
            if (left < 0 || right < 0 || !write_merges_into(s, left) ||
                !write_merges_into(s, right))
                continue;
            enum err_code code = encoder_grow((void **)out, &cap, *n + 1, sizeof(**out), err);
            if (code)
                return code;
            (*out)[(*n)++] = (struct write_merge){ s->scores ? s->scores[id] : 0, id, (uint32_t)k };
        }
    }
    if (*n)
        qsort(*out, *n, sizeof(**out), write_by_score);
    return ERR_OK;
}

static enum err_code write_scored_merges(struct json_writer *j, const struct tokenizer_spec *s,
                                         const struct map *ids, struct err *err)
{
    struct write_merge *merges = NULL;
    size_t n = 0;
    enum err_code code = write_find_merges(s, ids, &merges, &n, err);
    for (size_t i = 0; i < n && !code; i++) {
        const struct tokenizer_str *p = &s->pieces[merges[i].id];
        json_begin_array(j);
        json_strn(j, p->data, merges[i].left_len);
        json_strn(j, p->data + merges[i].left_len, p->len - merges[i].left_len);
        json_end_array(j);
    }
    mem_free(MEM_CAT_TOKENIZER, merges);
    return code;
}

static enum err_code write_model(struct json_writer *j, const struct tokenizer_spec *s,
                                 const struct map *ids, struct err *err)
{
    const struct pretok_info *info = pretok_info(s->pre);
    bool is_bytes = s->kind == TOKENIZER_KIND_BPE;
    struct tokenizer_str unk = tokenizer_write_piece(s, is_bytes ? -1 : s->unk);
    tokenizer_write_typed(j, "model", "BPE");
    json_field_null(j, "dropout");
    if (unk.data)
        json_field_strn(j, "unk_token", unk.data, unk.len);
    else
        json_field_null(j, "unk_token");
    json_field_null(j, "continuing_subword_prefix");
    json_field_null(j, "end_of_word_suffix");
    json_field_bool(j, "fuse_unk", !is_bytes);
    json_field_bool(j, "byte_fallback", !is_bytes);
    json_field_bool(j, "ignore_merges", is_bytes && info && info->ignores_merges);
    enum err_code code = write_vocab(j, s, ids, err);
    json_field_array(j, "merges");
    if (!code && s->kind == TOKENIZER_KIND_SPM)
        code = write_scored_merges(j, s, ids, err);
    for (int32_t i = 0; i < s->n_merges && s->kind != TOKENIZER_KIND_SPM; i++)
        json_strn(j, s->merges[i].data, s->merges[i].len);
    json_end_array(j);
    json_end_object(j);
    return code;
}

/* --- the steps around the model --- */

static void write_byte_level(struct json_writer *j)
{
    json_field_str(j, "type", "ByteLevel");
    json_field_bool(j, "add_prefix_space", false);
    json_field_bool(j, "trim_offsets", true);
    json_field_bool(j, "use_regex", false);
}

/* Two rewritings of the table (pretok_table.c) are in PCRE2's words or ours, not in the library's. */
static enum err_code write_patterns(struct json_writer *j, const struct tokenizer_spec *s,
                                    struct err *err)
{
    const struct pretok_entry *e = pretok_entry_of(s->pre);
    if (!e)
        e = pretok_entry_of("default");
    tokenizer_write_typed(j, "pre_tokenizer", "Sequence");
    json_field_array(j, "pretokenizers");
    for (int i = 0; e->stages[i].pattern; i++) {
        if (e->stages[i].cut)
            return err_set(
                err, ERR_UNSUPPORTED,
                "tokenizer.ggml.pre: '%.40s' cuts digits from the right, which cannot be "
                "written to tokenizer.json yet",
                s->pre);
        json_begin_object(j);
        json_field_str(j, "type", "Split");
        json_field_object(j, "pattern");
        json_field_str(j, "Regex", e->stages[i].pattern);
        json_end_object(j);
        json_field_str(j, "behavior", "Isolated");
        json_field_bool(j, "invert", false);
        json_end_object(j);
    }
    json_begin_object(j);
    write_byte_level(j);
    json_end_object(j);
    json_end_array(j);
    json_end_object(j);
    return ERR_OK;
}

void tokenizer_write_replace(struct json_writer *j, const char *from, bool is_regex, const char *to)
{
    json_begin_object(j);
    json_field_str(j, "type", "Replace");
    json_field_object(j, "pattern");
    json_field_str(j, is_regex ? "Regex" : "String", from);
    json_end_object(j);
    json_field_str(j, "content", to);
    json_end_object(j);
}

/* SentencePiece: spaces are U+2581, one goes in front where the model wants it. */
void tokenizer_write_space_marks(struct json_writer *j, const struct tokenizer_spec *s)
{
    if (s->add_space_prefix) {
        json_begin_object(j);
        json_field_str(j, "type", "Prepend");
        json_field_str(j, "prepend", SPACE_MARK);
        json_end_object(j);
    }
    tokenizer_write_replace(j, " ", false, SPACE_MARK);
}

static void write_spm_normalizer(struct json_writer *j, const struct tokenizer_spec *s)
{
    tokenizer_write_typed(j, "normalizer", "Sequence");
    json_field_array(j, "normalizers");
    tokenizer_write_space_marks(j, s);
    json_end_array(j);
    json_end_object(j);
}

static void write_spm_decoder(struct json_writer *j, const struct tokenizer_spec *s)
{
    static const char *const plain[] = { "ByteFallback", "Fuse" };
    tokenizer_write_typed(j, "decoder", "Sequence");
    json_field_array(j, "decoders");
    tokenizer_write_replace(j, SPACE_MARK, false, " ");
    for (size_t i = 0; i < ARRAY_LEN(plain); i++) {
        json_begin_object(j);
        json_field_str(j, "type", plain[i]);
        json_end_object(j);
    }
    if (s->add_space_prefix) {
        json_begin_object(j);
        json_field_str(j, "type", "Strip");
        json_field_str(j, "content", " ");
        json_field_int(j, "start", 1);
        json_field_int(j, "stop", 0);
        json_end_object(j);
    }
    json_end_array(j);
    json_end_object(j);
}

static void write_template_token(struct json_writer *j, const struct tokenizer_str *p, int type_id)
{
    json_begin_object(j);
    json_field_object(j, "SpecialToken");
    json_field_strn(j, "id", p->data, p->len);
    json_field_int(j, "type_id", type_id);
    json_end_object(j);
    json_end_object(j);
}

/* "single": bos, A, eos; "pair": twice that, of an encoder with one bos. */
static void write_template(struct json_writer *j, const char *key, int n, bool is_encoder,
                           const struct tokenizer_str *bos, const struct tokenizer_str *eos)
{
    json_field_array(j, key);
    for (int i = 0; i < n; i++) {
        if (bos->data && !(i && is_encoder))
            write_template_token(j, bos, 0);
        json_begin_object(j);
        json_field_object(j, "Sequence");
        json_field_str(j, "id", i ? "B" : "A");
        json_field_int(j, "type_id", i);
        json_end_object(j);
        json_end_object(j);
        if (eos->data)
            write_template_token(j, eos, is_encoder ? i : 0);
    }
    json_end_array(j);
}

static void write_post_processor(struct json_writer *j, const struct tokenizer_spec *s)
{
    bool is_encoder = s->kind == TOKENIZER_KIND_WPM;
    int32_t bos = is_encoder && s->cls >= 0 ? s->cls : s->bos;
    int32_t eos = is_encoder && s->sep >= 0 ? s->sep : s->eos;
    int32_t ids[2] = { s->add_bos ? bos : -1, s->add_eos ? eos : -1 };
    struct tokenizer_str ends[2];
    for (int i = 0; i < 2; i++)
        ends[i] = tokenizer_write_piece(s, ids[i]);
    if (!ends[0].data && !ends[1].data) {
        json_field_null(j, "post_processor");
        return;
    }
    tokenizer_write_typed(j, "post_processor", "TemplateProcessing");
    write_template(j, "single", 1, is_encoder, &ends[0], &ends[1]);
    write_template(j, "pair", 2, is_encoder, &ends[0], &ends[1]);
    json_field_object(j, "special_tokens");
    for (int i = 0; i < 2; i++) {
        if (!ends[i].data || (i && ids[0] == ids[1]))
            continue;
        char *key = mem_strndup(MEM_CAT_TOKENIZER, ends[i].data, ends[i].len);
        json_field_object(j, key);
        json_field_str(j, "id", key);
        json_field_array(j, "ids");
        json_int(j, ids[i]);
        json_end_array(j);
        json_field_array(j, "tokens");
        json_str(j, key);
        json_end_array(j);
        json_end_object(j);
        mem_free(MEM_CAT_TOKENIZER, key);
    }
    json_end_object(j);
    json_end_object(j);
}

static enum err_code write_all(struct json_writer *j, const struct tokenizer_spec *s,
                               const struct map *ids, struct err *err)
{
    bool is_bytes = s->kind == TOKENIZER_KIND_BPE;
    bool is_words = s->kind == TOKENIZER_KIND_WPM || s->kind == TOKENIZER_KIND_UGM;
    enum err_code code = ERR_OK;
    json_begin_object(j);
    json_field_str(j, "version", "1.0");
    json_field_null(j, "truncation");
    json_field_null(j, "padding");
    write_added(j, s);
    if (is_words) {
        tokenizer_write_words_normalizer(j, s);
        tokenizer_write_words_pre_tokenizer(j, s);
    } else if (is_bytes) {
        json_field_null(j, "normalizer");
        code = write_patterns(j, s, err);
    } else {
        write_spm_normalizer(j, s);
        json_field_null(j, "pre_tokenizer");
    }
    if (code)
        return code;
    write_post_processor(j, s);
    if (is_words) {
        tokenizer_write_words_decoder(j, s);
    } else if (is_bytes) {
        json_field_object(j, "decoder");
        write_byte_level(j);
        json_end_object(j);
    } else {
        write_spm_decoder(j, s);
    }
    code = is_words ? tokenizer_write_words_model(j, s, err) : write_model(j, s, ids, err);
    json_end_object(j);
    buf_add_char(j->out, '\n');
    return code;
}

enum err_code tokenizer_write_json(const struct tokenizer_spec *spec, struct buf *out,
                                   struct err *err)
{
    struct json_writer j;
    struct map ids;
    map_init(&ids, MEM_CAT_TOKENIZER);
    map_reserve(&ids, (size_t)spec->n_tokens);
    for (int32_t id = 0; id < spec->n_tokens; id++)
        map_add(&ids, spec->pieces[id].data, spec->pieces[id].len, id);
    json_writer_init(&j, out);
    enum err_code code = write_all(&j, spec, &ids, err);
    map_release(&ids);
    return code ? code : buf_check(out, "tokenizer.json", err);
}
