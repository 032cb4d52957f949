/* detok.c - ids back to bytes: what each token stands for, whole lists, and streams that never show half a code point. */
#include "tokenizer/tokenizer_int.h"

/* GPT-2's byte alphabet: printable Latin-1 stands for itself, the other 68 bytes, in ascending order, are U+0100.. . */
int detok_byte_of_char(uint32_t cp)
{
    if ((cp >= '!' && cp <= '~') || (cp >= 0xA1 && cp <= 0xAC) || (cp >= 0xAE && cp <= 0xFF))
        return (int)cp;
    if (cp < 0x100 || cp >= 0x100 + 68)
        return -1;
    uint32_t i = cp - 0x100;
    if (i <= 0x20)
        return (int)i; /* 00..20 */
    i -= 0x21;
    return i <= 0xA0 - 0x7F ? (int)(0x7F + i) : 0xAD; /* 7F..A0, AD */
}

static void detok_byte_level(const char *piece, size_t len, struct buf *out)
{
    size_t start = out->len;
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        size_t k = utf8_decode(piece + i, len - i, &cp);
        int byte = k ? detok_byte_of_char(cp) : -1;
        if (byte < 0) { /* not spelled in the alphabet: it stands for itself */
            out->len = start;
            buf_add(out, piece, len);
            return;
        }
        buf_add_char(out, (char)byte);
        i += k;
    }
}

static int detok_hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

static void detok_spm(enum token_type type, const char *piece, size_t len, struct buf *out)
{
    if (type == TOKEN_TYPE_BYTE && len == 6 && memcmp(piece, "<0x", 3) == 0 && piece[5] == '>' &&
        detok_hex(piece[3]) >= 0 && detok_hex(piece[4]) >= 0) {
        buf_add_char(out, (char)(detok_hex(piece[3]) << 4 | detok_hex(piece[4])));
        return;
    }
    for (size_t i = 0; i < len;) {
        if (len - i >= SPACE_MARK_LEN && memcmp(piece + i, SPACE_MARK, SPACE_MARK_LEN) == 0) {
            buf_add_char(out, ' ');
            i += SPACE_MARK_LEN;
        } else {
            buf_add_char(out, piece[i++]);
        }
    }
}

void detok_token_bytes(enum tokenizer_kind kind, enum token_type type, const char *piece,
                       size_t len, struct buf *out)
{
    /* Added tokens are spelled as they stand in a text, in every kind. */
    bool is_plain = type == TOKEN_TYPE_NORMAL || type == TOKEN_TYPE_UNUSED;
    if (kind == TOKENIZER_KIND_BPE) {
        if (is_plain)
            detok_byte_level(piece, len, out);
        else
            buf_add(out, piece, len);
        return;
    }
    if (is_plain || type == TOKEN_TYPE_BYTE || type == TOKEN_TYPE_USER) {
        detok_spm(type, piece, len, out);
        return;
    }
    if (kind == TOKENIZER_KIND_WPM)
        buf_add_char(out, ' '); /* each is a word of its own */
    buf_add(out, piece, len);
}

struct tokenizer_str tokenizer_bytes(const struct tokenizer *t, int32_t id, bool with_special)
{
    if (id < 0 || id >= t->n_tokens)
        return (struct tokenizer_str){ .data = "" };
    uint8_t type = t->types[id];
    if (!with_special && (type == TOKEN_TYPE_CONTROL || type == TOKEN_TYPE_UNKNOWN))
        return (struct tokenizer_str){ .data = "" };
    const struct token_text *x = &t->texts[id];
    return (struct tokenizer_str){ .data = t->blob + x->bytes, .len = x->bytes_len };
}

/* Whether the first space of a decoded text is the tokenizer's own. */
static bool detok_has_prefix_space(const struct tokenizer *t)
{
    return t->kind == TOKENIZER_KIND_WPM || t->add_space_prefix;
}

enum err_code tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int32_t n,
                               bool with_special, struct buf *out, struct err *err)
{
    bool strip = detok_has_prefix_space(t);
    for (int32_t i = 0; i < n; i++) {
        struct tokenizer_str s = tokenizer_bytes(t, ids[i], with_special);
        if (strip && s.len > 0) {
            size_t skip = s.data[0] == ' ';
            s.data += skip;
            s.len -= skip;
            strip = false;
        }
        buf_add(out, s.data, s.len);
    }
    return buf_check(out, "decoded text", err);
}

void detok_stream_init(struct detok_stream *s, const struct tokenizer *t, bool at_start,
                       bool with_special)
{
    *s = (struct detok_stream){
        .t = t,
        .with_special = with_special,
        .strip_space = at_start && detok_has_prefix_space(t),
    };
}

/* Give out bytes[0..n), of which no code point is cut. */
static void detok_show(const char *bytes, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t k = utf8_decode(bytes + i, n - i, &cp);
        if (k > 0) {
            buf_add(out, bytes + i, k);
        } else {
            k = utf8_bad_length(bytes + i, n - i);
            buf_add_code_point(out, UTF8_REPLACEMENT);
        }
        i += k;
    }
}

void detok_stream_push_bytes(struct detok_stream *s, const char *bytes, size_t n, struct buf *out)
{
    if (s->strip_space && n > 0) {
        size_t skip = bytes[0] == ' ';
        bytes += skip;
        n -= skip;
        s->strip_space = false;
    }
    while (s->n_held > 0 &&
           n > 0) { /* at most three turns: one byte at a time until it is whole or broken */
        char join[5];
        memcpy(join, s->held, s->n_held);
        join[s->n_held] = *bytes++;
        n--;
        size_t len = s->n_held + 1u;
        size_t whole = utf8_complete_prefix(join, len);
        detok_show(join, whole, out);
        s->n_held = (uint8_t)(len - whole);
        memcpy(s->held, join + whole, s->n_held);
    }
    size_t whole = utf8_complete_prefix(bytes, n);
    detok_show(bytes, whole, out);
    if (n > whole) {
        s->n_held = (uint8_t)(n - whole);
        memcpy(s->held, bytes + whole, s->n_held);
    }
}

void detok_stream_push(struct detok_stream *s, int32_t id, struct buf *out)
{
    struct tokenizer_str b = tokenizer_bytes(s->t, id, s->with_special);
    detok_stream_push_bytes(s, b.data, b.len, out);
}

size_t detok_stream_finish(struct detok_stream *s)
{
    size_t n = s->n_held;
    s->n_held = 0;
    return n;
}
