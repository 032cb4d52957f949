/* tier_file.h - one kept piece of a history as a durable file: what its header says, how it is written and read.
 *
 * A file is a header block of TIER_HEADER_BYTES and the payload, zeros up to a whole block behind it. Little-endian, version TIER_VERSION; a
 * sum (XXH3) over the header and one over the rest. Two kinds:
 *   NODE: the page of full layers of KV_PAGE_TOKENS ids, layer by layer.
 *   END:  what stands at one number of tokens, 0 to KV_PAGE_TOKENS - 1 ids behind a node: the partly used page of full layers (if there
 *         are ids), the window's pages in order, the slot of the recurrent layers (matrix, then convolution, layer by layer).
 * A key names ids and all that stand before them: hash of (parent's key, kind, ids), of the salt at the root, seeded by a secret of the
 * directory, so that nobody can look for ids that collide. Whoever reads compares the ids, too.
 * Thread: any; nothing here is shared. Allocation: none. */
#ifndef PLUMB_ENGINE_TIER_FILE_H
#define PLUMB_ENGINE_TIER_FILE_H

#include "base/fio.h"
#include "engine/engine.h"
#include "tensor/backend.h"

#define TIER_HEADER_BYTES 4096
#define TIER_VERSION      3
#define TIER_GROUPS       3 /* kinds of cache memory: full, window, state */
#define TIER_PATH_BYTES   4096

struct tier_key {
    uint64_t lo, hi;
};

/* Everything beside the salt that changes what layers keep of the same ids. Compared as bytes: no padding, all of it set. */
struct tier_space {
    uint8_t weights[32];  /* SHA-256 over names, shapes, metadata */
    uint8_t content[16];  /* XXH3 over every byte of the tensors */
    uint8_t adapters[16]; /* of what is put on top of the weights, with its scale; zero: nothing */
    uint8_t rope[16];     /* XXH3 over the tables of angles */
    uint8_t geometry[16]; /* XXH3 over each layer's group, heads and sizes */
    char numerics[32];    /* version of the arithmetic; rest zero */
    uint32_t cache_type, page_tokens, n_layers, window;
    uint64_t page_bytes[TIER_GROUPS];
};

enum tier_kind { TIER_KIND_NODE = 1, TIER_KIND_END = 2 };

struct tier_record {
    enum tier_kind kind;
    struct tier_key key, parent;
    uint8_t salt[ENGINE_SALT_BYTES];
    int32_t offset; /* tokens before its ids, a multiple of the page */
    int32_t n_ids;
    int32_t ids[KV_PAGE_TOKENS];    /* [n_ids], rest 0 */
    int32_t window_first, n_window; /* END: entries of the window's table that the payload has */
    double seconds;                 /* that computing its ids again would take */
    int64_t created_s;
};

/* "weights", "cache type", ...: the first part in which two differ; NULL = they are the same. */
const char *tier_space_differs(const struct tier_space *a, const struct tier_space *b);

struct tier_key tier_key_root(const uint8_t secret[16], const uint8_t salt[ENGINE_SALT_BYTES]);
struct tier_key tier_key_child(struct tier_key parent, enum tier_kind kind, const int32_t *ids,
                               int32_t n);
static inline bool tier_key_equal(struct tier_key a, struct tier_key b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

/* Of a record's file: a multiple of TIER_HEADER_BYTES. */
size_t tier_file_bytes(const struct tier_space *space, const struct tier_record *r);

/* Write the header block of a file whose payload stands behind it in memory, and the zeros behind that: file [tier_file_bytes]. */
void tier_header_write(uint8_t *file, const struct tier_space *space, const struct tier_record *r);
/* Read n >= TIER_HEADER_BYTES bytes of a file's beginning. Errors: ERR_INVALID - damaged or no such file; ERR_UNSUPPORTED - of another
 * version; ERR_STATE - whole, but of another namespace (names the part). r is filled in that last case, too. */
enum err_code tier_header_read(const uint8_t *file, size_t n, const struct tier_space *space,
                               struct tier_record *r, struct err *err) MUST_CHECK;
/* DIR/NAME of a record's file. */
void tier_file_path(char out[TIER_PATH_BYTES], const char *dir, enum tier_kind kind,
                    struct tier_key key);
/* The kind and key that a file's name says. False: none of ours. */
bool tier_file_parse_name(const char *name, enum tier_kind *kind, struct tier_key *key);

/* Publish a file of n bytes: written beside its place, synced, renamed. The name is durable once the directory is synced. Both: file is
 * aligned to a block, n a multiple of it, or else the system's cache is used.
 * Errors: ERR_FULL, ERR_IO; nothing is left at its place then. */
enum err_code tier_file_put(const char *dir, const struct tier_record *r, const uint8_t *file,
                            size_t n, struct err *err) MUST_CHECK;
/* Read the file of `want` into file [n] and compare: header, record (but seconds and age), payload. Marks it as used.
 * Errors: ERR_NOT_FOUND; ERR_INVALID, ERR_UNSUPPORTED, ERR_STATE - as tier_header_read, or of other ids; ERR_IO. */
enum err_code tier_file_get(const char *dir, const struct tier_space *space,
                            const struct tier_record *want, uint8_t *file, size_t n,
                            struct err *err) MUST_CHECK;

#endif
