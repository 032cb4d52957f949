/* bench_steps.c - how long a device waits for the engine thread between two steps.
 *
 *   bench_steps [--device-us N] [--reader-us N] [--threads N] [--steps N] [--logits 1] [ROWS ...]      from the repository's root
 *
 * The real scheduler and engine on a tiny model, greedy answers, beside a CPU backend that acts as a device: a step is over N
 * microseconds (2000) after it began, whatever it computes, so that the host's threads have gone to sleep meanwhile as they do beside a
 * GPU. What is measured is from there to when the next step begins. A reader takes the events as the server's I/O thread does and
 * spends N microseconds (10) on each token. --logits 1: the device tells no likeliest id, so that rows are sampled on threads. For each count
 * of rows (1 8 64): median, 90th and 99th percentile in microseconds.
 *
 * On a loaded machine: chrt -f 1 bench_steps ..., and two builds in turns. */
#include "sched/sched.h"
#include "support/tiny_engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define ROWS_MAX  64
#define STEPS_MAX 100000
#define N_PROMPT  16
#define SETTLING \
    16 /* steps at the beginning that are not looked at: prompts, and rows that come one by one */

static struct {
    int64_t device_us, reader_us, steps, logits;
    int threads;
    int32_t rows;
} config = { .device_us = 2000, .reader_us = 10, .steps = 2000 };

/* --- the device --- */

static struct {
    struct backend *inner;
    struct backend_ops ops;
    int64_t began_ns, done_ns; /* done_ns 0: a step runs */
    int64_t *gaps;             /* [n_gaps] ns */
    int64_t n_gaps;
} device;

static int64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void device_begin(struct backend *be, int n_rows)
{
    if (device.done_ns != 0) {
        device.began_ns = now_ns();
        if (n_rows == config.rows && device.n_gaps < STEPS_MAX)
            device.gaps[device.n_gaps++] = device.began_ns - device.done_ns;
        device.done_ns = 0;
    }
    device.inner->ops->begin(device.inner, n_rows);
}

/* What the host does from here on is not waited for. */
static void device_start(struct backend *be)
{
}

static enum err_code device_wait(struct backend *be, struct err *err)
{
    while (now_ns() < device.began_ns + config.device_us * 1000)
        ;
    device.done_ns = now_ns();
    return ERR_OK;
}

static void device_best(struct backend *be, struct tensor x, int32_t *best)
{
    bool is_finite;
    for (int64_t i = 0; i < x.rows; i++)
        best[i] = (int32_t)device.inner->ops->argmax(device.inner, x.data + i * x.stride, x.cols,
                                                     &is_finite);
}

/* What is computed does not matter, and on the CPU it would take longer than the device. */
static void device_attention(struct backend *be, struct tensor out, struct tensor q,
                             const struct kv_layer *kv, const struct seq_view *seqs, int n_seqs,
                             const struct attn_params *p)
{
    device.inner->ops->copy(device.inner, out, q);
}

static void device_close(struct backend *be)
{
    device.inner->ops->close(device.inner);
    free(be);
}

static struct backend *device_wrap(struct backend *be)
{
    struct backend *out = calloc(1, sizeof(*out));
    BUG_ON(!out);
    device.inner = be;
    device.ops = *be->ops;
    device.ops.is_host = false;
    device.ops.begin = device_begin;
    device.ops.start = device_start;
    device.ops.wait = device_wait;
    if (!config.logits)
        device.ops.best = device_best;
    device.ops.attention = device_attention;
    device.ops.close = device_close;
    device.done_ns = now_ns();
    *out = (struct backend){ &device.ops, be->state };
    return out;
}

/* --- rows and their reader --- */

static struct tiny_engine tiny;
static int wake_fd;

static enum err_code load(void *arg, struct engine **out, struct err *err)
{
    *out = tiny.engine;
    return ERR_OK;
}

static void wake(void *arg)
{
    uint64_t one = 1;
    (void)!write(wake_fd, &one, sizeof(one));
}

static void submit(struct sched *s, int32_t row, int32_t n_tokens)
{
    int32_t prompt[N_PROMPT];
    struct err err;
    for (int32_t i = 0; i < N_PROMPT; i++)
        prompt[i] = (row * 31 + i * 7) % 250;
    const struct engine_request r = { .prompt = prompt,
                                      .n_prompt = N_PROMPT,
                                      .max_tokens = n_tokens,
                                      .ignore_end = true,
                                      .no_drafts = true,
                                      .sample = tiny_greedy };
    struct sched_request *q = sched_request_new((req_id)row + 1, &r);
    BUG_ON(!q);
    enum err_code code = sched_submit(s, &q, 1, &err);
    BUG_ON(code != ERR_OK);
}

static void spin_us(int64_t us)
{
    int64_t end = now_ns() + us * 1000;
    while (now_ns() < end)
        ;
}

/* Until n answers have ended. */
static void read_events(struct sched *s, int32_t n, int64_t *n_tokens)
{
    struct sched_event ev;
    uint64_t count;
    *n_tokens = 0;
    while (n > 0) {
        (void)!read(wake_fd, &count, sizeof(count));
        while (sched_next_event(s, &ev, 0) == ERR_OK) {
            BUG_ON(ev.kind == SCHED_EVENT_FAILED);
            if (ev.kind == SCHED_EVENT_TOKEN) {
                ++*n_tokens;
                spin_us(config.reader_us);
            } else if (ev.kind == SCHED_EVENT_FINISHED) {
                BUG_ON(ev.finished.finish != FINISH_LENGTH);
                n--;
            } else if (ev.kind == SCHED_EVENT_READY) {
                for (int32_t i = 0; i < config.rows; i++)
                    submit(s, i, (int32_t)config.steps);
            }
        }
    }
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void measure(int32_t rows)
{
    struct err err;
    struct sched *s;
    int64_t n_tokens;
    config.rows = rows;
    device.n_gaps = 0;
    const struct tiny_config tc = { .file = TINY "llama.gguf",
                                    .n_ctx = (int32_t)config.steps + 128,
                                    .max_rows = ROWS_MAX,
                                    .max_step_rows = 512,
                                    .threads = config.threads,
                                    .wrap = device_wrap };
    tiny_engine_open(&tiny, &tc);
    const struct sched_config sc = { .max_waiting = ROWS_MAX,
                                     .max_stall_us = 250000,
                                     .n_events = 1024,
                                     .load = load,
                                     .wake = wake };
    enum err_code code = sched_start(&sc, &s, &err);
    BUG_ON(code != ERR_OK);
    read_events(s, rows, &n_tokens);
    BUG_ON(n_tokens != rows * config.steps);
    sched_stop(s); /* frees the engine */
    model_free(tiny.model);
    weights_close(tiny.weights);
    tiny.be->ops->close(tiny.be);
    int64_t n = device.n_gaps - SETTLING;
    BUG_ON(n < 1);
    qsort(device.gaps + SETTLING, (size_t)n, sizeof(*device.gaps), by_size);
    const int64_t *v = device.gaps + SETTLING;
    printf("%3d rows: %7.1f us  (90 %%: %7.1f, 99 %%: %7.1f, of %lld steps)\n", rows,
           (double)v[n / 2] / 1e3, (double)v[n * 9 / 10] / 1e3, (double)v[n * 99 / 100] / 1e3,
           (long long)n);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const int32_t usual[] = { 1, 8, 64 };
    int i = 1;
    config.threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
        int64_t n = strtoll(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--device-us") == 0)
            config.device_us = n;
        else if (strcmp(argv[i], "--reader-us") == 0)
            config.reader_us = n;
        else if (strcmp(argv[i], "--logits") == 0)
            config.logits = n;
        else if (strcmp(argv[i], "--threads") == 0)
            config.threads = (int)n;
        else if (strcmp(argv[i], "--steps") == 0)
            config.steps = n;
        else
            return fprintf(stderr, "%s: not known\n", argv[i]), 2;
    }
    device.gaps = calloc(STEPS_MAX, sizeof(*device.gaps));
    wake_fd = eventfd(0, EFD_CLOEXEC);
    BUG_ON(!device.gaps || wake_fd < 0 || config.steps <= SETTLING || config.steps > STEPS_MAX);
    for (int k = i; k < argc; k++)
        measure((int32_t)strtol(argv[k], NULL, 10));
    for (size_t k = 0; k < ARRAY_LEN(usual) && i == argc; k++)
        measure(usual[k]);
    free(device.gaps);
    close(wake_fd);
    return 0;
}
