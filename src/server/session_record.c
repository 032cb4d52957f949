#define ERR_STATE OPENSSL_ERR_STATE /* a type of theirs has the name of a code of ours */
#include <openssl/evp.h>
#undef ERR_STATE

#include "server/session_record.h"

#include <stdio.h>
#include <string.h>

#define SESSION_MAGIC       "plumbse1"
#define SESSION_MAGIC_BYTES 8
#define SESSION_CHECK_BYTES 16

static void session_hash(const void *data, size_t n, unsigned char out[32])
{
    unsigned int n_out = 32;
    BUG_ON(EVP_Digest(data, n, out, &n_out, EVP_sha256(), NULL) != 1 || n_out != 32);
}

static void session_hex(const unsigned char *hash, int n, char *out)
{
    for (int i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", hash[i]);
}

/* --- names --- */

bool session_name_is_fine(const char *name, size_t n)
{
    static const char fine[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:";
    bool is_fine = n > 0 && n <= LIMIT_SESSION_BYTES;
    for (size_t i = 0; i < n && is_fine; i++)
        is_fine = name[i] != '\0' && strchr(fine, name[i]);
    return is_fine;
}

void session_name_of(const char *text, size_t n, char *out)
{
    unsigned char hash[32];
    if (session_name_is_fine(text, n)) {
        snprintf(out, LIMIT_SESSION_BYTES + 1, "%.*s", (int)n, text);
        return;
    }
    session_hash(text, n, hash);
    snprintf(out, LIMIT_SESSION_BYTES + 1, "sha256:");
    session_hex(hash, 16, out + strlen(out));
}

void session_salt_of(const char *text, size_t n, uint8_t out[ENGINE_SALT_BYTES])
{
    session_hash(text, n, out);
}

void session_file_name(const struct session_record *r, char out[SESSION_FILE_BYTES])
{
    struct buf b;
    unsigned char hash[32];
    buf_init(&b, MEM_CAT_SERVER, 4096);
    buf_add(&b, r->who, sizeof(r->who));
    buf_add(&b, r->salt, sizeof(r->salt));
    buf_add(&b, r->model, strlen(r->model) + 1);
    buf_add(&b, r->name, strlen(r->name) + 1);
    session_hash(b.data, b.len, hash);
    buf_release(&b);
    session_hex(hash, (SESSION_FILE_BYTES - 1) / 2, out);
}

/* --- writing --- */

static void put_u32(struct buf *out, uint32_t v)
{
    const unsigned char b[4] = { v & 255, v >> 8 & 255, v >> 16 & 255, v >> 24 };
    buf_add(out, b, sizeof(b));
}

static void put_i64(struct buf *out, int64_t v)
{
    put_u32(out, (uint32_t)v);
    put_u32(out, (uint32_t)((uint64_t)v >> 32));
}

static void put_text(struct buf *out, const char *text)
{
    put_u32(out, (uint32_t)strlen(text));
    buf_add(out, text, strlen(text));
}

static void put_check(struct buf *out)
{
    unsigned char hash[32];
    session_hash(out->data, out->len, hash);
    buf_add(out, hash, SESSION_CHECK_BYTES);
}

void session_record_write(const struct session_record *r, struct buf *out)
{
    buf_add(out, SESSION_MAGIC, SESSION_MAGIC_BYTES);
    buf_add(out, r->who, sizeof(r->who));
    buf_add(out, r->salt, sizeof(r->salt));
    put_text(out, r->model);
    put_text(out, r->name);
    put_i64(out, r->created_s);
    put_i64(out, r->saved_s);
    put_u32(out, (uint32_t)r->n_histories);
    for (int32_t i = 0; i < r->n_histories; i++) {
        put_u32(out, (uint32_t)r->histories[i].n);
        put_u32(out, (uint32_t)r->histories[i].cut);
    }
    put_check(out);
    for (int32_t i = 0; i < r->n_histories; i++)
        for (int32_t k = 0; k < r->histories[i].n; k++)
            put_u32(out, (uint32_t)r->histories[i].ids[k]);
    put_check(out);
}

/* --- reading --- */

struct reader {
    const unsigned char *data;
    size_t n, at;
    bool has_failed;
};

static const unsigned char *take(struct reader *r, size_t n)
{
    static const unsigned char zeros[64];
    if (r->has_failed || n > r->n - r->at) {
        r->has_failed = true;
        return zeros;
    }
    r->at += n;
    return r->data + r->at - n;
}

static uint32_t take_u32(struct reader *r)
{
    const unsigned char *b = take(r, 4);
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static int64_t take_i64(struct reader *r)
{
    uint64_t low = take_u32(r);
    return (int64_t)(low | (uint64_t)take_u32(r) << 32);
}

/* out[room], without a NUL in it. */
static void take_text(struct reader *r, char *out, size_t room)
{
    size_t n = take_u32(r);
    out[0] = '\0';
    r->has_failed = r->has_failed || n >= room;
    if (r->has_failed)
        return;
    const unsigned char *text = take(r, n);
    r->has_failed = r->has_failed || memchr(text, '\0', n) != NULL;
    if (r->has_failed)
        return;
    memcpy(out, text, n);
    out[n] = '\0';
}

static void take_check(struct reader *r)
{
    unsigned char hash[32];
    size_t n = r->at;
    const unsigned char *check = take(r, SESSION_CHECK_BYTES);
    if (r->has_failed)
        return;
    session_hash(r->data, n, hash);
    r->has_failed = memcmp(check, hash, SESSION_CHECK_BYTES) != 0;
}

static enum err_code read_head(struct reader *r, struct session_record *out, struct err *err)
{
    *out = (struct session_record){ 0 };
    const unsigned char *magic = take(r, SESSION_MAGIC_BYTES);
    if (r->has_failed || memcmp(magic, SESSION_MAGIC, SESSION_MAGIC_BYTES - 1) != 0)
        return err_set(err, ERR_INVALID, "it is no record of a session");
    if (magic[SESSION_MAGIC_BYTES - 1] != SESSION_MAGIC[SESSION_MAGIC_BYTES - 1])
        return err_set(err, ERR_UNSUPPORTED, "it has version '%c', this program knows '%c'",
                       magic[SESSION_MAGIC_BYTES - 1] >= ' ' &&
                               magic[SESSION_MAGIC_BYTES - 1] <= '~'
                           ? magic[SESSION_MAGIC_BYTES - 1]
                           : '?',
                       SESSION_MAGIC[SESSION_MAGIC_BYTES - 1]);
    memcpy(out->who, take(r, sizeof(out->who)), sizeof(out->who));
    memcpy(out->salt, take(r, sizeof(out->salt)), sizeof(out->salt));
    take_text(r, out->model, sizeof(out->model));
    take_text(r, out->name, sizeof(out->name));
    out->created_s = take_i64(r);
    out->saved_s = take_i64(r);
    uint32_t n = take_u32(r);
    for (uint32_t i = 0; i < n && i < SESSION_BRANCHES; i++) {
        struct session_history *h = &out->histories[i];
        h->n = (int32_t)take_u32(r);
        h->cut = (int32_t)take_u32(r);
        r->has_failed = r->has_failed || h->n < 1 || h->n > LIMIT_SESSION_RECORD / 4 ||
                        h->cut < 0 || h->cut > h->n;
    }
    take_check(r);
    if (r->has_failed || n > SESSION_BRANCHES ||
        !session_name_is_fine(out->name, strlen(out->name)))
        return err_set(err, ERR_INVALID, "its head is damaged");
    out->n_histories = (int32_t)n;
    return ERR_OK;
}

enum err_code session_record_read_head(const void *data, size_t n, struct session_record *out,
                                       struct err *err)
{
    struct reader r = { .data = data, .n = n };
    return read_head(&r, out, err);
}

enum err_code session_record_read(const void *data, size_t n, struct session_record *out,
                                  struct err *err)
{
    struct reader r = { .data = data, .n = n };
    enum err_code code = read_head(&r, out, err);
    for (int32_t i = 0; i < out->n_histories && !code && !r.has_failed; i++) {
        struct session_history *h = &out->histories[i];
        r.has_failed = (size_t)h->n > (r.n - r.at) / 4; /* before memory is taken for it */
        if (r.has_failed)
            break;
        h->ids = mem_try_array(MEM_CAT_SERVER, (size_t)h->n, sizeof(*h->ids));
        if (!h->ids)
            return err_set(err, ERR_NOMEM, "no memory for %d token ids", h->n);
        for (int32_t k = 0; k < h->n; k++)
            h->ids[k] = (int32_t)take_u32(&r);
    }
    if (!code)
        take_check(&r);
    if (!code && (r.has_failed || r.at != r.n))
        code = err_set(err, ERR_INVALID, "its histories are damaged");
    return code;
}

void session_record_release(struct session_record *r)
{
    for (int32_t i = 0; i < r->n_histories; i++)
        mem_free(MEM_CAT_SERVER, r->histories[i].ids);
    r->n_histories = 0;
}

bool session_record_copy(const struct session_record *from, struct session_record *to)
{
    *to = *from;
    to->n_histories = 0;
    for (int32_t i = 0; i < from->n_histories; i++) {
        struct session_history *h = &to->histories[i];
        h->ids = mem_try_array(MEM_CAT_SERVER, (size_t)h->n, sizeof(*h->ids));
        if (!h->ids) {
            session_record_release(to);
            return false;
        }
        memcpy(h->ids, from->histories[i].ids, (size_t)h->n * sizeof(*h->ids));
        to->n_histories++;
    }
    return true;
}
