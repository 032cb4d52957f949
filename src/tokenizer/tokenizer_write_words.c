/* tokenizer_write_words.c - WordPiece and Unigram vocabularies of GGUF as parts of a tokenizer.json. GGUF has U+2581 in front of what
 * begins a word and nothing in front of what goes on, WordPiece's own file nothing and "##". */
#include "tokenizer/tokenizer_int.h"
#include "tokenizer/tokenizer_write_int.h"

#include <string.h>

#define WORDS_PREFIX "##"

/* --- normalizer, pre_tokenizer, decoder --- */

static void write_bert_normalizer(struct json_writer *j, const struct tokenizer_spec *s)
{
    tokenizer_write_typed(j, "normalizer", "BertNormalizer");
    json_field_bool(j, "clean_text", true);
    json_field_bool(j, "handle_chinese_chars", true);
    json_field_bool(j, "strip_accents", s->strip_accents);
    json_field_bool(j, "lowercase", s->lowercase);
    json_end_object(j);
}

static void write_base64(struct json_writer *j, const char *key, const uint8_t *data, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct buf out;
    buf_init(&out, MEM_CAT_TOKENIZER, SIZE_MAX);
    for (size_t i = 0; i < n; i += 3) {
        uint32_t bits = (uint32_t)data[i] << 16;
        bits |= i + 1 < n ? (uint32_t)data[i + 1] << 8 : 0;
        bits |= i + 2 < n ? data[i + 2] : 0;
        for (size_t k = 0; k < 4; k++)
            buf_add_char(&out, i + k > n ? '=' : digits[bits >> (18 - 6 * k) & 63]);
    }
    json_field_strn(j, key, out.data, out.len);
    buf_release(&out);
}

/* SentencePiece's own: its map, then runs of spaces count once and none stands at the ends, one in front, U+2581 for each. The library's
 * Metaspace would put none in front of a text that begins with one. */
static void write_unigram_normalizer(struct json_writer *j, const struct tokenizer_spec *s)
{
    tokenizer_write_typed(j, "normalizer", "Sequence");
    json_field_array(j, "normalizers");
    if (s->charsmap_bytes) {
        json_begin_object(j);
        json_field_str(j, "type", "Precompiled");
        write_base64(j, "precompiled_charsmap", s->charsmap, s->charsmap_bytes);
        json_end_object(j);
    }
    if (s->remove_extra_spaces) {
        tokenizer_write_replace(j, "\\A +| +\\z", true, "");
        tokenizer_write_replace(j, " {2,}", true, " ");
    }
    tokenizer_write_space_marks(j, s);
    json_end_array(j);
    json_end_object(j);
}

void tokenizer_write_words_normalizer(struct json_writer *j, const struct tokenizer_spec *s)
{
    if (s->kind == TOKENIZER_KIND_WPM)
        write_bert_normalizer(j, s);
    else
        write_unigram_normalizer(j, s);
}

void tokenizer_write_words_pre_tokenizer(struct json_writer *j, const struct tokenizer_spec *s)
{
    if (s->kind ==
        TOKENIZER_KIND_UGM) { /* the search goes over the whole text, as SentencePiece's */
        json_field_null(j, "pre_tokenizer");
        return;
    }
    tokenizer_write_typed(j, "pre_tokenizer", "BertPreTokenizer");
    json_end_object(j);
}

void tokenizer_write_words_decoder(struct json_writer *j, const struct tokenizer_spec *s)
{
    if (s->kind == TOKENIZER_KIND_UGM) {
        tokenizer_write_typed(j, "decoder", "Metaspace");
        json_field_str(j, "replacement", SPACE_MARK);
        json_field_str(j, "prepend_scheme", s->add_space_prefix ? "always" : "never");
        json_field_bool(j, "split", false);
    } else {
        tokenizer_write_typed(j, "decoder", "WordPiece");
        json_field_str(j, "prefix", WORDS_PREFIX);
        json_field_bool(j, "cleanup", true);
    }
    json_end_object(j);
}

/* --- model --- */

/* "[unused7]" and the like stand in the file as they are met, which they never are inside a word. */
static bool write_is_bracketed(const struct tokenizer_str *p)
{
    return p->len > 2 && p->data[0] == '[' && p->data[p->len - 1] == ']';
}

/* The piece as WordPiece's file spells it. */
static void write_word_piece(const struct tokenizer_spec *s, int32_t id, struct buf *out)
{
    const struct tokenizer_str *p = &s->pieces[id];
    bool begins = p->len >= SPACE_MARK_LEN && memcmp(p->data, SPACE_MARK, SPACE_MARK_LEN) == 0;
    enum token_type type = s->types ? (enum token_type)s->types[id] : TOKEN_TYPE_NORMAL;
    buf_reset(out);
    if (begins) {
        buf_add(out, p->data + SPACE_MARK_LEN, p->len - SPACE_MARK_LEN);
        return;
    }
    if (type == TOKEN_TYPE_NORMAL && !write_is_bracketed(p))
        buf_add_str(out, WORDS_PREFIX);
    buf_add(out, p->data, p->len);
}

static enum err_code write_word_vocab(struct json_writer *j, const struct tokenizer_spec *s,
                                      struct err *err)
{
    struct buf key;
    struct map seen;
    struct arena arena; /* the keys that seen borrows */
    enum err_code code = ERR_OK;
    buf_init(&key, MEM_CAT_TOKENIZER, (size_t)1 << 20);
    arena_init(&arena, MEM_CAT_TOKENIZER, (size_t)1 << 30);
    map_init(&seen, MEM_CAT_TOKENIZER);
    map_reserve(&seen, (size_t)s->n_tokens);
    json_field_object(j, "vocab");
    for (int32_t id = 0; id < s->n_tokens && !code; id++) {
        write_word_piece(s, id, &key);
        bool is_clean = !key.failed && !memchr(key.data, '\0', key.len);
        char *text = arena_strndup(&arena, key.data, key.len);
        if (!text)
            code = err_set(err, ERR_NOMEM, "tokenizer.json: no memory for token %d", id);
        else if (!is_clean || !map_add(&seen, text, key.len, id))
            code = err_set(err, ERR_UNSUPPORTED,
                           "the vocabulary's token %d cannot be written to tokenizer.json: its "
                           "text %s",
                           id, is_clean ? "is another token's too" : "holds a NUL");
        else
            json_field_int(j, text, id);
    }
    json_end_object(j);
    map_release(&seen);
    arena_release(&arena);
    buf_release(&key);
    return code;
}

/* What is never on a path in GGUF has the worst score here, where every entry may be. */
static void write_unigram_vocab(struct json_writer *j, const struct tokenizer_spec *s)
{
    float least = 0;
    for (int32_t id = 0; id < s->n_tokens; id++) {
        bool is_used = !s->types || s->types[id] == TOKEN_TYPE_NORMAL;
        least = is_used && s->scores && s->scores[id] < least ? s->scores[id] : least;
    }
    json_field_array(j, "vocab");
    for (int32_t id = 0; id < s->n_tokens; id++) {
        bool is_used = !s->types || s->types[id] == TOKEN_TYPE_NORMAL;
        json_begin_array(j);
        json_strn(j, s->pieces[id].data, s->pieces[id].len);
        json_double(j, (double)(is_used && s->scores ? s->scores[id] : least));
        json_end_array(j);
    }
    json_end_array(j);
}

enum err_code tokenizer_write_words_model(struct json_writer *j, const struct tokenizer_spec *s,
                                          struct err *err)
{
    enum err_code code = ERR_OK;
    struct tokenizer_str unk = tokenizer_write_piece(s, s->unk);
    tokenizer_write_typed(j, "model", s->kind == TOKENIZER_KIND_WPM ? "WordPiece" : "Unigram");
    if (s->kind == TOKENIZER_KIND_UGM) {
        if (unk.data)
            json_field_int(j, "unk_id", s->unk);
        else
            json_field_null(j, "unk_id");
        write_unigram_vocab(j, s);
        json_field_bool(j, "byte_fallback", false);
    } else {
        json_field_strn(j, "unk_token", unk.data ? unk.data : "[UNK]", unk.data ? unk.len : 5);
        json_field_str(j, "continuing_subword_prefix", WORDS_PREFIX);
        json_field_int(j, "max_input_chars_per_word", 100);
        code = write_word_vocab(j, s, err);
    }
    json_end_object(j);
    return code;
}
