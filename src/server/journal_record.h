/* journal_record.h - the record of a generation that outlives its process: request, seed, and the tokens emitted so far.
 *
 * One file for each request, only ever appended to. What is torn off its end is computed again and comes out the same, so a record
 * is of use as soon as its first frame is whole. Why not SQLite, as the store has: a row of a growing answer would be written whole each
 * time, and one damaged file would take all answers with it; here a write is an append, completion is an unlink, and damage
 * costs the tokens behind it.
 *
 *   file   "plumbgn" and the format's version, a digit; then frames
 *   frame  u32 bytes of payload | u32 type | 8 bytes check | payload                     (all numbers little-endian)
 *   check  the first 8 bytes of SHA-256 over the check before it (of the first frame: of the file's name), length, type, payload:
 *          frames that were moved, dropped or belong to another file do not check out
 *   'H'    first: struct journal_head, its fields in order; texts as u32 length and bytes
 *   'T'    u32 choice, u32 index of its first token, then tokens: i32 id, and where log-probabilities are asked for f32 of the token,
 *          i32 how many alternatives, and n_logprobs of i32 id and f32
 *   'E'    u32 choice, u32 tokens, u32 finish, i32 stop_index, i64 text_safe, i32 reasoning, prompt and cached tokens
 *
 * Pure: no files, no threads. */
#ifndef PLUMB_SERVER_JOURNAL_RECORD_H
#define PLUMB_SERVER_JOURNAL_RECORD_H

#include "base/buf.h"
#include "sched/sched.h"
#include "server/limits.h"

#define JOURNAL_NAME_BYTES   41 /* of a record's name, its NUL included: 40 hex digits */
#define JOURNAL_DIGEST_BYTES 32
#define JOURNAL_CHECK_BYTES  8
#define JOURNAL_RECORD_BYTES ((size_t)128 << 20) /* of a file that is read */

/* --- tokens --- */

/* Tokens of one answer, packed: id, and where log-probabilities are asked for the token's, and [n_logprobs] alternatives. */
struct journal_tokens {
    int32_t n_logprobs; /* -1 = none */
    int32_t n;
    struct buf bytes; /* [n] as in a frame */
};
void journal_tokens_init(struct journal_tokens *t, int32_t n_logprobs);
void journal_tokens_release(struct journal_tokens *t);
void journal_tokens_add(struct journal_tokens *t, const struct engine_token *token);
void journal_tokens_get(const struct journal_tokens *t, int32_t i, struct engine_token *out);

/* --- the record --- */

/* What a request is run with again. Strings are bounded by their arrays. */
struct journal_head {
    unsigned char who[JOURNAL_DIGEST_BYTES],
        digest[JOURNAL_DIGEST_BYTES]; /* digest: of dialect and body */
    char id[LIMIT_REQUEST_ID_BYTES + 1];
    char dialect[16]; /* "chat", "completions", ... */
    char answer_id[40];
    char fingerprint[24], identity[192]; /* engine_info's */
    int64_t created_s, now_s;            /* now_s: the time that the template was given */
    uint64_t seed;                       /* drawn, for requests that name none */
    uint64_t settings[3];                /* hashes of prompts, of sampling, of ends and limits */
    int32_t n_choices, n_logprobs;
};
#define JOURNAL_SETTINGS 3

struct journal_choice {
    struct journal_tokens tokens;
    bool is_over;
    struct sched_finished end; /* is_over: how the answer ended */
};

struct journal_record {
    struct journal_head head;
    struct buf body;
    struct journal_choice *choices;           /* [head.n_choices] */
    size_t n_valid;                           /* bytes of the file up to the last whole frame */
    unsigned char check[JOURNAL_CHECK_BYTES]; /* of that frame */
};

/* The name of a client's request: a hash, so that no id can lead anywhere. */
void journal_name(const unsigned char *who, const char *id, char name[JOURNAL_NAME_BYTES]);
void journal_digest(const char *dialect, const void *body, size_t n, unsigned char *out);

/* A new file's beginning and its first check. */
void journal_begin(const char *name, struct buf *out, unsigned char *check);
/* Append a frame; check becomes its own. */
void journal_seal(uint32_t type, const void *payload, size_t n, unsigned char *check,
                  struct buf *out);

/* Payloads. */
void journal_write_head(const struct journal_head *h, const struct buf *body, struct buf *out);
/* Tokens [first, first + n) of a choice. */
void journal_write_tokens(int32_t choice, const struct journal_tokens *t, int32_t first, int32_t n,
                          struct buf *out);
void journal_write_end(int32_t choice, const struct sched_finished *end, struct buf *out);

/* Read a file. A bad frame ends the record there. Errors: ERR_INVALID - it has no whole head, or a frame that checks out says what
 * cannot be; ERR_UNSUPPORTED - of another version. Release in any case. */
enum err_code journal_record_read(const char *name, const void *data, size_t n,
                                  struct journal_record *out, struct err *err) MUST_CHECK;
void journal_record_release(struct journal_record *r);

#endif
