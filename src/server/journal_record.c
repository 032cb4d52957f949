#define ERR_STATE OPENSSL_ERR_STATE /* a type of theirs has the name of a code of ours */
#include <openssl/evp.h>
#undef ERR_STATE

#include "server/journal_record.h"

#include <stdio.h>
#include <string.h>

#define JOURNAL_MAGIC       "plumbgn1"
#define JOURNAL_MAGIC_BYTES 8
#define JOURNAL_FRAME_BYTES 16

/* --- hashes --- */

struct journal_piece {
    const void *data;
    size_t n;
};

static void journal_hash(const struct journal_piece *pieces, size_t n, unsigned char out[32])
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    BUG_ON(!ctx || EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1);
    for (size_t i = 0; i < n; i++)
        BUG_ON(EVP_DigestUpdate(ctx, pieces[i].data, pieces[i].n) != 1);
    BUG_ON(EVP_DigestFinal_ex(ctx, out, NULL) != 1);
    EVP_MD_CTX_free(ctx);
}

void journal_name(const unsigned char *who, const char *id, char name[JOURNAL_NAME_BYTES])
{
    const struct journal_piece pieces[] = { { who, JOURNAL_DIGEST_BYTES }, { id, strlen(id) } };
    unsigned char hash[32];
    journal_hash(pieces, ARRAY_LEN(pieces), hash);
    for (int i = 0; i < 20; i++)
        snprintf(name + 2 * i, 3, "%02x", hash[i]);
}

void journal_digest(const char *dialect, const void *body, size_t n, unsigned char *out)
{
    const struct journal_piece pieces[] = { { dialect, strlen(dialect) + 1 }, { body, n } };
    journal_hash(pieces, ARRAY_LEN(pieces), out);
}

static void journal_check(const unsigned char *before, size_t n_before, const void *head,
                          const void *payload, size_t n, unsigned char *check)
{
    const struct journal_piece pieces[] = { { before, n_before }, { head, 8 }, { payload, n } };
    unsigned char hash[32];
    journal_hash(pieces, ARRAY_LEN(pieces), hash);
    memcpy(check, hash, JOURNAL_CHECK_BYTES);
}

/* --- tokens --- */

static size_t journal_token_bytes(int32_t n_logprobs)
{
    return n_logprobs < 0 ? 4 : 12 + 8 * (size_t)n_logprobs;
}

void journal_tokens_init(struct journal_tokens *t, int32_t n_logprobs)
{
    *t = (struct journal_tokens){ .n_logprobs = n_logprobs };
    buf_init(&t->bytes, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES * 2u);
}

void journal_tokens_release(struct journal_tokens *t)
{
    buf_release(&t->bytes);
}

void journal_tokens_add(struct journal_tokens *t, const struct engine_token *token)
{
    char bytes[12 + 8 * ENGINE_LOGPROBS_MAX] = { 0 };
    BUG_ON(t->n_logprobs > ENGINE_LOGPROBS_MAX);
    memcpy(bytes, &token->id, 4);
    if (t->n_logprobs >= 0) {
        int32_t n_top = token->n_top < t->n_logprobs ? token->n_top : t->n_logprobs;
        memcpy(bytes + 4, &token->logprob, 4);
        memcpy(bytes + 8, &n_top, 4);
        for (int32_t i = 0; i < n_top; i++) {
            memcpy(bytes + 12 + 8 * i, &token->top[i].id, 4);
            memcpy(bytes + 16 + 8 * i, &token->top[i].logprob, 4);
        }
    }
    buf_add(&t->bytes, bytes, journal_token_bytes(t->n_logprobs));
    t->n += !t->bytes.failed;
}

void journal_tokens_get(const struct journal_tokens *t, int32_t i, struct engine_token *out)
{
    BUG_ON(i < 0 || i >= t->n);
    const char *bytes = t->bytes.data + (size_t)i * journal_token_bytes(t->n_logprobs);
    *out = (struct engine_token){ 0 };
    memcpy(&out->id, bytes, 4);
    if (t->n_logprobs < 0)
        return;
    memcpy(&out->logprob, bytes + 4, 4);
    memcpy(&out->n_top, bytes + 8, 4);
    for (int32_t k = 0; k < out->n_top; k++) {
        memcpy(&out->top[k].id, bytes + 12 + 8 * k, 4);
        memcpy(&out->top[k].logprob, bytes + 16 + 8 * k, 4);
    }
}

/* --- writing --- */

static void put_u32(struct buf *out, uint32_t v)
{
    const unsigned char b[4] = { v & 255, v >> 8 & 255, v >> 16 & 255, v >> 24 };
    buf_add(out, b, sizeof(b));
}

static void put_u64(struct buf *out, uint64_t v)
{
    put_u32(out, (uint32_t)v);
    put_u32(out, (uint32_t)(v >> 32));
}

static void put_text(struct buf *out, const char *text, size_t n)
{
    put_u32(out, (uint32_t)n);
    buf_add(out, text, n);
}

void journal_begin(const char *name, struct buf *out, unsigned char *check)
{
    const char head[8] = { 0 };
    buf_add(out, JOURNAL_MAGIC, JOURNAL_MAGIC_BYTES);
    journal_check((const unsigned char *)name, strlen(name), head, "", 0, check);
}

void journal_seal(uint32_t type, const void *payload, size_t n, unsigned char *check,
                  struct buf *out)
{
    size_t at = out->len;
    put_u32(out, (uint32_t)n);
    put_u32(out, type);
    if (out->failed)
        return;
    journal_check(check, JOURNAL_CHECK_BYTES, out->data + at, payload, n, check);
    buf_add(out, check, JOURNAL_CHECK_BYTES);
    buf_add(out, payload, n);
}

void journal_write_head(const struct journal_head *h, const struct buf *body, struct buf *out)
{
    const char *texts[] = { h->id, h->dialect, h->answer_id, h->fingerprint, h->identity };
    buf_add(out, h->who, sizeof(h->who));
    buf_add(out, h->digest, sizeof(h->digest));
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        put_text(out, texts[i], strlen(texts[i]));
    put_u64(out, (uint64_t)h->created_s);
    put_u64(out, (uint64_t)h->now_s);
    put_u64(out, h->seed);
    for (int i = 0; i < JOURNAL_SETTINGS; i++)
        put_u64(out, h->settings[i]);
    put_u32(out, (uint32_t)h->n_choices);
    put_u32(out, (uint32_t)h->n_logprobs);
    put_text(out, body->data, body->len);
}

void journal_write_tokens(int32_t choice, const struct journal_tokens *t, int32_t first, int32_t n,
                          struct buf *out)
{
    size_t size = journal_token_bytes(t->n_logprobs);
    BUG_ON(first < 0 || n < 0 || first + n > t->n);
    put_u32(out, (uint32_t)choice);
    put_u32(out, (uint32_t)first);
    buf_add(out, t->bytes.data + (size_t)first * size, (size_t)n * size);
}

void journal_write_end(int32_t choice, const struct sched_finished *end, struct buf *out)
{
    put_u32(out, (uint32_t)choice);
    put_u32(out, (uint32_t)end->n_tokens);
    put_u32(out, (uint32_t)end->finish);
    put_u32(out, (uint32_t)end->stop_index);
    put_u64(out, (uint64_t)end->text_safe);
    put_u32(out, (uint32_t)end->n_reasoning);
    put_u32(out, (uint32_t)end->n_prompt);
    put_u32(out, (uint32_t)end->n_cached);
}

/* --- reading --- */

struct journal_reader { /* sticky: after `failed` all is zero */
    const unsigned char *data;
    size_t n, at;
    bool failed;
};

static const unsigned char *get(struct journal_reader *r, size_t n)
{
    static const unsigned char zeros[64];
    r->failed = r->failed || n > r->n - r->at;
    if (r->failed)
        return zeros;
    r->at += n;
    return r->data + r->at - n;
}

static uint32_t get_u32(struct journal_reader *r)
{
    const unsigned char *b = get(r, 4);
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static uint64_t get_u64(struct journal_reader *r)
{
    uint64_t low = get_u32(r);
    return low | (uint64_t)get_u32(r) << 32;
}

/* A text without NUL into to[size]. */
static void get_text(struct journal_reader *r, char *to, size_t size)
{
    size_t n = get_u32(r);
    r->failed = r->failed || n >= size;
    const unsigned char *text = get(r, r->failed ? 0 : n);
    if (r->failed || memchr(text, '\0', n)) {
        r->failed = true;
        return;
    }
    memcpy(to, text, n);
    to[n] = '\0';
}

static enum err_code journal_read_head(struct journal_reader *r, struct journal_record *out,
                                       struct err *err)
{
    struct journal_head *h = &out->head;
    memcpy(h->who, get(r, sizeof(h->who)), sizeof(h->who));
    memcpy(h->digest, get(r, sizeof(h->digest)), sizeof(h->digest));
    get_text(r, h->id, sizeof(h->id));
    get_text(r, h->dialect, sizeof(h->dialect));
    get_text(r, h->answer_id, sizeof(h->answer_id));
    get_text(r, h->fingerprint, sizeof(h->fingerprint));
    get_text(r, h->identity, sizeof(h->identity));
    h->created_s = (int64_t)get_u64(r);
    h->now_s = (int64_t)get_u64(r);
    h->seed = get_u64(r);
    for (int i = 0; i < JOURNAL_SETTINGS; i++)
        h->settings[i] = get_u64(r);
    uint32_t n_choices = get_u32(r);
    h->n_logprobs = (int32_t)get_u32(r);
    size_t n_body = get_u32(r);
    const unsigned char *body = get(r, n_body);
    if (r->failed || r->at != r->n || n_choices < 1 || n_choices > LIMIT_CHOICES ||
        h->n_logprobs < -1 || h->n_logprobs > ENGINE_LOGPROBS_MAX)
        return err_set(err, ERR_INVALID, "its head is malformed");
    buf_add(&out->body, body, n_body);
    h->n_choices = (int32_t)n_choices;
    out->choices = mem_alloc(MEM_CAT_REQUEST, sizeof(*out->choices) * n_choices);
    for (uint32_t i = 0; i < n_choices; i++)
        journal_tokens_init(&out->choices[i].tokens, h->n_logprobs);
    return ERR_OK;
}

/* The choice that a frame is about, or NULL. */
static struct journal_choice *journal_get_choice(struct journal_reader *r,
                                                 struct journal_record *out)
{
    uint32_t i = get_u32(r);
    r->failed = r->failed || i >= (uint32_t)out->head.n_choices || out->choices[i].is_over;
    return r->failed ? NULL : &out->choices[i];
}

static enum err_code journal_read_tokens(struct journal_reader *r, struct journal_record *out,
                                         struct err *err)
{
    struct journal_choice *c = journal_get_choice(r, out);
    uint32_t first = get_u32(r);
    size_t size = journal_token_bytes(out->head.n_logprobs), left = r->n - r->at;
    if (!c || r->failed || first != (uint32_t)c->tokens.n || left % size != 0 || left == 0 ||
        left / size > (size_t)(INT32_MAX - c->tokens.n))
        return err_set(err, ERR_INVALID, "its tokens do not follow one another");
    int32_t n = (int32_t)(left / size);
    buf_add(&c->tokens.bytes, get(r, left), left);
    if (c->tokens.bytes.failed)
        return err_set(err, ERR_INVALID, "its answer is too long");
    for (int32_t i = 0; i < n; i++) {
        const char *bytes = c->tokens.bytes.data + (size_t)(c->tokens.n + i) * size;
        int32_t id, n_top = 0;
        memcpy(&id, bytes, 4);
        if (out->head.n_logprobs >= 0)
            memcpy(&n_top, bytes + 8, 4);
        if (id < 0 || n_top < 0 || n_top > out->head.n_logprobs + (out->head.n_logprobs < 0))
            return err_set(err, ERR_INVALID, "one of its tokens is none");
    }
    c->tokens.n += n;
    return ERR_OK;
}

static enum err_code journal_read_end(struct journal_reader *r, struct journal_record *out,
                                      struct err *err)
{
    struct journal_choice *c = journal_get_choice(r, out);
    struct sched_finished e = { 0 };
    e.n_tokens = (int32_t)get_u32(r);
    uint32_t finish = get_u32(r);
    e.stop_index = (int32_t)get_u32(r);
    e.text_safe = (int64_t)get_u64(r);
    e.n_reasoning = (int32_t)get_u32(r);
    e.n_prompt = (int32_t)get_u32(r);
    e.n_cached = (int32_t)get_u32(r);
    if (!c || r->failed || r->at != r->n || e.n_tokens != c->tokens.n || finish < FINISH_END ||
        finish > FINISH_LENGTH || e.stop_index < 0 || e.stop_index >= ENGINE_STOPS_MAX ||
        e.text_safe < 0 || e.n_reasoning < 0 || e.n_reasoning > e.n_tokens || e.n_prompt < 0 ||
        e.n_cached < 0 || e.n_cached > e.n_prompt)
        return err_set(err, ERR_INVALID, "the end of one of its answers is malformed");
    e.finish = (enum finish)finish;
    c->is_over = true;
    c->end = e;
    return ERR_OK;
}

/* The frame at *at, if it is whole and checks out: *at moves on. */
static bool journal_next(const unsigned char *data, size_t n, size_t *at, unsigned char *check,
                         uint32_t *type, struct journal_reader *payload)
{
    struct journal_reader r = { data, n, *at, false };
    unsigned char want[JOURNAL_CHECK_BYTES];
    size_t len = get_u32(&r);
    *type = get_u32(&r);
    const unsigned char *found = get(&r, JOURNAL_CHECK_BYTES), *start = get(&r, len);
    if (r.failed)
        return false;
    journal_check(check, JOURNAL_CHECK_BYTES, data + *at, start, len, want);
    if (memcmp(found, want, sizeof(want)) != 0)
        return false;
    memcpy(check, want, sizeof(want));
    *payload = (struct journal_reader){ start, len, 0, false };
    *at = r.at;
    return true;
}

enum err_code journal_record_read(const char *name, const void *data, size_t n,
                                  struct journal_record *out, struct err *err)
{
    struct journal_reader payload;
    const char head[8] = { 0 };
    uint32_t type;
    *out = (struct journal_record){ .n_valid = JOURNAL_MAGIC_BYTES };
    buf_init(&out->body, MEM_CAT_REQUEST, JOURNAL_RECORD_BYTES);
    if (n < JOURNAL_MAGIC_BYTES || memcmp(data, JOURNAL_MAGIC, JOURNAL_MAGIC_BYTES - 1) != 0)
        return err_set(err, ERR_INVALID, "it is no record of a generation");
    if (memcmp(data, JOURNAL_MAGIC, JOURNAL_MAGIC_BYTES) != 0)
        return err_set(err, ERR_UNSUPPORTED, "it is of another version");
    journal_check((const unsigned char *)name, strlen(name), head, "", 0, out->check);
    while (journal_next(data, n, &out->n_valid, out->check, &type, &payload)) {
        enum err_code code;
        if (!out->choices)
            code = type == 'H' ? journal_read_head(&payload, out, err)
                               : err_set(err, ERR_INVALID, "it begins with no head");
        else if (type == 'T')
            code = journal_read_tokens(&payload, out, err);
        else if (type == 'E')
            code = journal_read_end(&payload, out, err);
        else
            code = err_set(err, ERR_INVALID, "it has a frame of no known type");
        if (code != ERR_OK)
            return code;
    }
    return out->choices ? ERR_OK : err_set(err, ERR_INVALID, "its head is damaged or not whole");
}

void journal_record_release(struct journal_record *r)
{
    for (int32_t i = 0; r->choices && i < r->head.n_choices; i++)
        journal_tokens_release(&r->choices[i].tokens);
    mem_free(MEM_CAT_REQUEST, r->choices);
    buf_release(&r->body);
    *r = (struct journal_record){ 0 };
}
