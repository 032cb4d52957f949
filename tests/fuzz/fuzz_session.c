/* fuzz_session.c - any bytes as a session's record: refused, or a record that is the same when it is written and read again.
 *
 * An input is a file; or, after a first byte 'S', the head's fields and histories behind it, checked here, since no fuzzer finds a
 * SHA-256: the length of the head, two bytes, then that, then ids. */
#define ERR_STATE OPENSSL_ERR_STATE /* a type of theirs has the name of a code of ours */
#include <openssl/evp.h>
#undef ERR_STATE

#include "server/session_record.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void add_check(struct buf *out)
{
    unsigned char hash[32];
    unsigned int n = sizeof(hash);
    BUG_ON(EVP_Digest(out->data, out->len, hash, &n, EVP_sha256(), NULL) != 1);
    buf_add(out, hash, 16);
}

static void seal(const uint8_t *data, size_t size, struct buf *out)
{
    size_t n = size < 2 ? 0 : data[0] | (size_t)data[1] << 8;
    if (size < 2)
        return;
    n = n < size - 2 ? n : size - 2;
    buf_add(out, data + 2, n);
    add_check(out);
    buf_add(out, data + 2 + n, size - 2 - n);
    add_check(out);
}

static void read_file(const void *data, size_t size)
{
    struct session_record r = { 0 }, head = { 0 };
    struct buf again;
    struct err err = { 0 };
    bool has_head = session_record_read_head(data, size, &head, &err) == ERR_OK;
    if (session_record_read(data, size, &r, &err) == ERR_OK) {
        BUG_ON(!has_head || strcmp(head.name, r.name) != 0 || head.n_histories != r.n_histories);
        BUG_ON(!session_name_is_fine(r.name, strlen(r.name)) || strlen(r.model) >= sizeof(r.model));
        buf_init(&again, MEM_CAT_SERVER, 1 << 24);
        session_record_write(&r, &again);
        BUG_ON(again.len != size || memcmp(again.data, data, size) != 0);
        buf_release(&again);
    } else {
        BUG_ON(err.text[0] == '\0');
    }
    session_record_release(&r);
    session_record_release(&head);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf file;
    char name[LIMIT_SESSION_BYTES + 1];
    session_name_of((const char *)data, size, name);
    BUG_ON(!session_name_is_fine(name, strlen(name)));
    buf_init(&file, MEM_CAT_SERVER, 1 << 24);
    if (size > 0 && data[0] == 'S')
        seal(data + 1, size - 1, &file);
    else
        buf_add(&file, data, size);
    read_file(file.data, file.len);
    buf_release(&file);
    return 0;
}
