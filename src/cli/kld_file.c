#include "cli/kld_file.h"
#include "cli/score.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define KLD_MAGIC      "_logits_"
#define KLD_WINDOW_MAX (1 << 20)
#define KLD_VOCAB_MAX  (1 << 22)
#define KLD_IDS_MAX    ((int64_t)1 << 28)
#define KLD_CODES      65535

/* u16 words of a row: two floats, then the codes. */
static size_t kld_row_words(int32_t n_vocab)
{
    return 4 + ((size_t)n_vocab + 1) / 2 * 2;
}

bool kld_file_is(const char *path)
{
    char magic[8];
    FILE *f = fopen(path, "rb");
    bool is =
        f && fread(magic, sizeof(magic), 1, f) == 1 && memcmp(magic, KLD_MAGIC, sizeof(magic)) == 0;
    if (f)
        fclose(f);
    return is;
}

static enum err_code kld_io(const struct kld_file *k, struct err *err)
{
    return err_set(err, ERR_IO, "%s: %s", k->path, strerror(errno));
}

static enum err_code kld_rows_alloc(struct kld_file *k, struct err *err)
{
    k->row = mem_try_array(MEM_CAT_SCRATCH, kld_row_words(k->n_vocab), sizeof(*k->row));
    return k->row ? ERR_OK
                  : err_set(err, ERR_NOMEM, "%s: no memory for a row of %d", k->path, k->n_vocab);
}

static enum err_code kld_read(struct kld_file *k, void *out, size_t bytes, struct err *err)
{
    if (fread(out, bytes, 1, k->f) == 1 || bytes == 0)
        return ERR_OK;
    return ferror(k->f) ? kld_io(k, err)
                        : err_set(err, ERR_INVALID, "%s: the file ends too early", k->path);
}

static enum err_code kld_read_head(struct kld_file *k, struct err *err)
{
    char magic[8];
    int32_t head[3];
    enum err_code code = kld_read(k, magic, sizeof(magic), err);
    if (!code && memcmp(magic, KLD_MAGIC, sizeof(magic)) != 0)
        code = err_set(err, ERR_INVALID, "%s: no file of log probabilities", k->path);
    if (!code)
        code = kld_read(k, head, sizeof(head), err);
    if (code)
        return code;
    k->window = head[0], k->n_vocab = head[1], k->n_windows = head[2];
    if (k->window < 4 || k->window > KLD_WINDOW_MAX || k->n_vocab < 1 ||
        k->n_vocab > KLD_VOCAB_MAX || k->n_windows < 1 ||
        (int64_t)k->n_windows * k->window > KLD_IDS_MAX)
        return err_set(err, ERR_INVALID, "%s: %d windows of %d tokens of %d are no sizes", k->path,
                       k->n_windows, k->window, k->n_vocab);
    size_t n = (size_t)k->n_windows * (size_t)k->window;
    k->ids = mem_try_array(MEM_CAT_SCRATCH, n, sizeof(*k->ids));
    if (!k->ids)
        return err_set(err, ERR_NOMEM, "%s: no memory for %zu ids", k->path, n);
    code = kld_read(k, k->ids, n * sizeof(*k->ids), err);
    for (size_t i = 0; i < n && !code; i++)
        if (k->ids[i] < 0 || k->ids[i] >= k->n_vocab)
            code = err_set(err, ERR_INVALID, "%s: id %d at %zu is not in [0, %d)", k->path,
                           k->ids[i], i, k->n_vocab);
    return code ? code : kld_rows_alloc(k, err);
}

enum err_code kld_file_open(struct kld_file *k, const char *path, struct err *err)
{
    *k = (struct kld_file){ .f = fopen(path, "rb"), .path = path };
    if (!k->f)
        return err_set(err, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: %s", path,
                       strerror(errno));
    enum err_code code = kld_read_head(k, err);
    if (code && kld_file_close(k, NULL))
        return code; /* closed all the same; the first error is the one to tell */
    return code;
}

enum err_code kld_file_read(struct kld_file *k, float *logprobs, struct err *err)
{
    float line[2];
    enum err_code code = kld_read(k, k->row, kld_row_words(k->n_vocab) * sizeof(*k->row), err);
    if (code)
        return code;
    memcpy(line, k->row, sizeof(line));
    if (!isfinite(line[0]) || !isfinite(line[1]) || line[0] < 0)
        return err_set(err, ERR_INVALID, "%s: scale %g and minimum %g of a row are no numbers",
                       k->path, (double)line[0], (double)line[1]);
    for (int32_t i = 0; i < k->n_vocab; i++)
        logprobs[i] = line[0] * (float)k->row[4 + i] + line[1];
    return ERR_OK;
}

static enum err_code kld_write(struct kld_file *k, const void *data, size_t bytes, struct err *err)
{
    return fwrite(data, bytes, 1, k->f) == 1 ? ERR_OK : kld_io(k, err);
}

enum err_code kld_file_create(struct kld_file *k, const char *path, int32_t n_vocab, int32_t window,
                              int32_t n_windows, const int32_t *ids, struct err *err)
{
    const int32_t head[] = { window, n_vocab, n_windows };
    *k = (struct kld_file){ .f = fopen(path, "wb"),
                            .path = path,
                            .window = window,
                            .n_vocab = n_vocab,
                            .n_windows = n_windows };
    if (!k->f)
        return kld_io(k, err);
    enum err_code code = kld_rows_alloc(k, err);
    if (!code)
        code = kld_write(k, KLD_MAGIC, 8, err);
    if (!code)
        code = kld_write(k, head, sizeof(head), err);
    if (!code)
        code = kld_write(k, ids, (size_t)n_windows * (size_t)window * sizeof(*ids), err);
    if (code && kld_file_close(k, NULL))
        return code; /* as above */
    return code;
}

enum err_code kld_file_write(struct kld_file *k, const float *logprobs, struct err *err)
{
    float lo = INFINITY, hi = -INFINITY;
    for (int32_t i = 0; i < k->n_vocab; i++) {
        lo = logprobs[i] < lo ? logprobs[i] : lo;
        hi = logprobs[i] > hi ? logprobs[i] : hi;
    }
    lo = lo > hi + (float)KLD_FILE_FLOOR ? lo : hi + (float)KLD_FILE_FLOOR;
    const float line[] = { (hi - lo) / KLD_CODES, lo };
    float inverse = line[0] > 0 ? 1 / line[0] : 0;
    memcpy(k->row, line, sizeof(line));
    for (int32_t i = 0; i < k->n_vocab; i++) {
        float at = logprobs[i] > lo ? inverse * (logprobs[i] - lo) : 0;
        k->row[4 + i] = (uint16_t)(at < KLD_CODES ? at + 0.5f : KLD_CODES);
    }
    return kld_write(k, k->row, kld_row_words(k->n_vocab) * sizeof(*k->row), err);
}

enum err_code kld_file_close(struct kld_file *k, struct err *err)
{
    enum err_code code = ERR_OK;
    if (k->f && fclose(k->f) != 0)
        code = kld_io(k, err);
    mem_free(MEM_CAT_SCRATCH, k->ids);
    mem_free(MEM_CAT_SCRATCH, k->row);
    *k = (struct kld_file){ 0 };
    return code;
}
