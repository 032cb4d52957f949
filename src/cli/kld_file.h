/* kld_file.h - the log probabilities that a reference model gave a text, in the file that llama.cpp's
 * llama-perplexity --kl-divergence-base writes and --kl-divergence reads.
 *
 * All little-endian, no gaps; V tokens of vocabulary, n of a window, of which score_rows(n) rows each are kept (score.h):
 *
 *     8 bytes   "_logits_"
 *     3 x i32   n, V, number of windows
 *     i32       ids of all windows, as the text has them
 *     rows      f32 scale, f32 minimum, u16 codes [V rounded up to even]: logprob = minimum + scale * code
 *
 * A code is rounded to the nearest of 65,536 steps between the row's largest and its smallest log probability, or what is 16 below the
 * largest: all under that are code 0, and count for nothing where the reference's distribution is summed over. */
#ifndef PLUMB_CLI_KLD_FILE_H
#define PLUMB_CLI_KLD_FILE_H

#include "base/mem.h"

#include <stdio.h>

/* What is under it has no weight in a divergence: its code may be 0. */
#define KLD_FILE_FLOOR (-16.0)

struct kld_file {
    FILE *f;
    const char *path; /* borrowed */
    int32_t window, n_vocab, n_windows;
    int32_t *ids; /* [n_windows * window] */
    uint16_t *row;
};

/* Whether the file begins as one. */
bool kld_file_is(const char *path);

/* Errors: ERR_NOT_FOUND, ERR_IO, ERR_INVALID (what is wrong with it), ERR_NOMEM. */
enum err_code kld_file_open(struct kld_file *k, const char *path, struct err *err) MUST_CHECK;
/* The next row's log probabilities [V]. Errors: ERR_IO; ERR_INVALID - the file ends, or a number is not finite. */
enum err_code kld_file_read(struct kld_file *k, float *logprobs, struct err *err) MUST_CHECK;

/* Begin a file; ids [n_windows * window] are written. Errors: ERR_IO, ERR_NOMEM. */
enum err_code kld_file_create(struct kld_file *k, const char *path, int32_t n_vocab, int32_t window,
                              int32_t n_windows, const int32_t *ids, struct err *err) MUST_CHECK;
/* logprobs [V] of the next row. Errors: ERR_IO. */
enum err_code kld_file_write(struct kld_file *k, const float *logprobs, struct err *err) MUST_CHECK;
/* Errors: ERR_IO - what was written did not reach the disk. A zeroed one is fine. */
enum err_code kld_file_close(struct kld_file *k, struct err *err) MUST_CHECK;

#endif
