/* fuzz_journal.c - any bytes as a generation's record: refused, or a record whose parts fit together and that is the same when it is read
 * again up to its last whole frame.
 *
 * An input is a file; or, after a first byte 'F', frames (a type, two bytes of length, a payload) that are sealed here, since no
 * fuzzer finds a SHA-256. */
#include "server/journal_record.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char name[] = "0123456789012345678901234567890123456789";

static void seal(const uint8_t *data, size_t size, struct buf *out)
{
    unsigned char check[JOURNAL_CHECK_BYTES];
    journal_begin(name, out, check);
    for (size_t at = 0; at + 3 <= size;) {
        size_t n = data[at + 1] | (size_t)data[at + 2] << 8;
        n = n < size - at - 3 ? n : size - at - 3;
        journal_seal(data[at], data + at + 3, n, check, out);
        at += 3 + n;
    }
}

static void use(const struct journal_record *r, size_t size)
{
    const struct journal_head *h = &r->head;
    BUG_ON(r->n_valid > size || h->n_choices < 1 || h->n_choices > LIMIT_CHOICES);
    BUG_ON(memchr(h->id, '\0', sizeof(h->id)) == NULL ||
           memchr(h->identity, '\0', sizeof(h->identity)) == NULL);
    for (int32_t c = 0; c < h->n_choices; c++) {
        const struct journal_choice *x = &r->choices[c];
        for (int32_t i = 0; i < x->tokens.n; i++) {
            struct engine_token t;
            journal_tokens_get(&x->tokens, i, &t);
            BUG_ON(t.id < 0 || t.n_top < 0 || t.n_top > ENGINE_LOGPROBS_MAX);
        }
        BUG_ON(x->is_over && x->end.n_tokens != x->tokens.n);
    }
}

static void read_file(const void *data, size_t size)
{
    struct journal_record r, again;
    struct err err = { 0 };
    if (journal_record_read(name, data, size, &r, &err) == ERR_OK) {
        use(&r, size);
        BUG_ON(journal_record_read(name, data, r.n_valid, &again, &err) != ERR_OK);
        BUG_ON(again.n_valid != r.n_valid || memcmp(again.check, r.check, sizeof(r.check)) != 0);
        for (int32_t c = 0; c < r.head.n_choices; c++)
            BUG_ON(again.choices[c].tokens.n != r.choices[c].tokens.n);
        journal_record_release(&again);
    } else {
        BUG_ON(err.text[0] == '\0');
    }
    journal_record_release(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf file;
    if (size == 0 || data[0] != 'F') {
        read_file(data, size);
        return 0;
    }
    buf_init(&file, MEM_CAT_BASE, (size_t)16 << 20);
    seal(data + 1, size - 1, &file);
    read_file(file.data, file.len);
    buf_release(&file);
    return 0;
}
