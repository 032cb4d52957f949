/* fuzz_tier.c - any bytes as files of kept histories: a header is refused or makes sense; a directory of them is read, used and left without a
 * fault, whatever its files say of themselves.
 *
 * An input is a header block (cut short or filled with zeros); or, after a first byte 'D', 'E' or 'F' (full layers, windows, states), commands
 * of COMMAND bytes, one for each file of a directory: see struct command. Both get the sums here that no fuzzer finds. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/runner_int.h"
#include "engine/runner_tier_int.h"
#include "engine/tier_int.h"
#include "support/tiny_engine.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define COMMAND   16
#define FILES_MAX 12
#define PROMPT    200
#define FILE_MAX  (1 << 20)

/* The header as tier_file.c has it. */
struct header {
    char magic[8];
    uint32_t version, kind;
    struct tier_space space;
    struct tier_key key, parent;
    uint8_t salt[ENGINE_SALT_BYTES];
    uint32_t offset, n_ids, window_first, n_window;
    double seconds;
    int64_t created_s;
    uint64_t payload_bytes, payload_sum;
    int32_t ids[KV_PAGE_TOKENS];
    uint64_t sum;
};
_Static_assert(sizeof(struct header) == 560, "as in tier_file.c");

static uint64_t sum_of(const void *data, size_t n)
{
    return XXH3_64bits_withSeed(data, n, 0x706c756d62ull);
}

static void seal(uint8_t *file)
{
    struct header h;
    memcpy(&h, file, sizeof(h));
    memcpy(h.magic, "plumbKV", sizeof(h.magic));
    h.version = TIER_VERSION;
    h.sum = sum_of(&h, offsetof(struct header, sum));
    memcpy(file, &h, sizeof(h));
}

/* --- one header --- */

static void read_header(const uint8_t *file, size_t n, const struct tier_space *space)
{
    struct tier_record r, again;
    struct err err = { 0 };
    static uint8_t copy[FILE_MAX];
    enum err_code code = tier_header_read(file, n, space, &r, &err);
    BUG_ON(code && err.text[0] == '\0');
    if (code)
        return;
    size_t bytes = tier_file_bytes(space, &r);
    BUG_ON(r.offset < 0 || r.offset % KV_PAGE_TOKENS || r.n_ids < 0 || r.n_ids > KV_PAGE_TOKENS);
    BUG_ON(r.window_first < 0 || r.n_window < 0 || !(r.seconds >= 0) || bytes < n);
    if (bytes > sizeof(copy))
        return;
    memset(copy, 1, sizeof(copy));
    tier_header_write(copy, space, &r);
    BUG_ON(tier_header_read(copy, bytes, space, &again, &err) != ERR_OK);
    BUG_ON(memcmp(&again.ids, &r.ids, sizeof(r.ids)) != 0 || again.offset != r.offset);
}

static void fuzz_header(const uint8_t *data, size_t size)
{
    static const struct tier_space space = { .page_bytes = { 4096, 100, 0 } };
    uint8_t block[TIER_HEADER_BYTES] = { 0 };
    read_header(data, size, &space);
    memcpy(block, data, size < sizeof(block) ? size : sizeof(block));
    memcpy(block + offsetof(struct header, space), &space, sizeof(space));
    struct header h;
    memcpy(&h, block, sizeof(h));
    if (size % 2 == 0 && h.n_ids <= KV_PAGE_TOKENS)
        h.key = tier_key_child(h.parent, (enum tier_kind)h.kind, h.ids, (int32_t)h.n_ids);
    memcpy(block, &h, sizeof(h));
    seal(block);
    read_header(block, sizeof(block), &space);
}

/* --- a directory --- */

struct command {
    uint8_t flags; /* below */
    uint8_t n_ids, first_wrong;
    uint8_t offset[2];                    /* pages; 0: where the chain stands */
    uint8_t window_first[2], n_window[2]; /* 0: the model's own at that place; else so many + 1 */
    uint8_t seconds, more[2];             /* bytes more than the header says, signed */
    uint8_t fill[4];
};
_Static_assert(sizeof(struct command) == COMMAND, "bytes of an input");

enum {
    IS_END = 1,
    IS_AT_ROOT = 2, /* its parent; else the file before it */
    HAS_WRONG_KEY = 4,
    HAS_WRONG_ID = 8,
    HAS_WRONG_SUM = 16,
    HAS_WRONG_CONTENT = 32,
    HAS_WRONG_SPACE = 64,
    HAS_RAW_COUNT = 128, /* n_ids as it is */
};

static struct world {
    struct tiny_engine lab;
    struct runner *r;
} worlds[3];
static char dir[64];
static int32_t prompt[PROMPT];
static const uint8_t secret[16] = "a known secret.", salt[ENGINE_SALT_BYTES];

static int two(const uint8_t b[2])
{
    return b[0] | b[1] << 8;
}

static void world_open(struct world *w, int i)
{
    static const char *const files[] = { TINY "llama.gguf", TINY "gemma3.gguf",
                                         "tests/golden/families/qwen35.gguf" };
    struct err err;
    tiny_engine_open(&w->lab,
                     &(struct tiny_config){ .file = files[i], .n_ctx = 64, .max_rows = 1 });
    struct runner_options o = { .model = w->lab.model,
                                .n_ctx = 2 * PROMPT,
                                .kv_bytes = 4 << 20,
                                .max_seqs = 2,
                                .max_rows = 64,
                                .max_out = 1,
                                .cache_type = DTYPE_F16,
                                .keep_bytes = RUNNER_KEEP_ALL };
    BUG_ON(runner_new(&o, &w->r, &err) != ERR_OK);
}

static void write_lock(void)
{
    struct {
        char magic[16];
        uint8_t secret[16];
        uint64_t sum;
    } lock = { .magic = "plumb ssd cache" };
    char path[96];
    memcpy(lock.secret, secret, sizeof(secret));
    lock.sum = XXH3_64bits(&lock, offsetof(__typeof__(lock), sum));
    snprintf(path, sizeof(path), "%s/" TIER_LOCK_NAME, dir);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    BUG_ON(write(fd, &lock, sizeof(lock)) != sizeof(lock));
    close(fd);
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    return remove(path);
}

static double seconds_of(uint8_t b)
{
    static const double odd[] = { NAN, INFINITY, -1, 1e308, -0.0 };
    return b < ARRAY_LEN(odd) ? odd[b] : b * 0.01;
}

/* Make a file as the command says. *at: the chain's key and offset, which the file moves on. */
static void put_file(const struct runner *r, const struct tier_space *space, const char *space_dir,
                     const struct command *c, struct tier_record *at)
{
    static uint8_t file[FILE_MAX];
    char path[TIER_PATH_BYTES];
    bool is_end = c->flags & IS_END;
    struct tier_record rec = { .kind = is_end ? TIER_KIND_END : TIER_KIND_NODE,
                               .offset = two(c->offset) > 0 ? two(c->offset) * 64 : at->offset,
                               .parent = at->key,
                               .n_ids = is_end ? c->n_ids % KV_PAGE_TOKENS : KV_PAGE_TOKENS };
    if (c->flags & IS_AT_ROOT)
        rec.parent = tier_key_root(secret, salt);
    for (int32_t i = 0; i < rec.n_ids; i++)
        rec.ids[i] = prompt[(at->offset + i) % PROMPT];
    if (c->flags & HAS_WRONG_ID && rec.n_ids > 0)
        rec.ids[c->first_wrong % rec.n_ids] ^= c->first_wrong;
    rec.key = tier_key_child(rec.parent, rec.kind, rec.ids, rec.n_ids);
    rec.key.lo ^= c->flags & HAS_WRONG_KEY;
    int32_t len = rec.offset + rec.n_ids, window = (int32_t)r->model->window;
    if (is_end && r->has_group[MODEL_GROUP_WINDOW]) {
        int32_t first = len + 1 > window ? (len + 1 - window) / KV_PAGE_TOKENS : 0;
        rec.window_first = two(c->window_first) ? two(c->window_first) - 1 : first;
        rec.n_window =
            two(c->n_window) ? two(c->n_window) - 1 : kv_pages_for(len) - rec.window_first;
        rec.n_window = rec.n_window < 0 ? 0 : rec.n_window;
    }
    size_t n = tier_file_bytes(space, &rec);
    if (n > sizeof(file) - 65536)
        return;
    for (size_t i = 0; i < n; i++)
        file[i] = c->fill[i % 4];
    tier_header_write(file, space, &rec);
    struct header h;
    memcpy(&h, file, sizeof(h));
    h.seconds = seconds_of(c->seconds);
    h.payload_sum ^= c->flags & HAS_WRONG_CONTENT;
    h.n_ids = c->flags & HAS_RAW_COUNT ? c->n_ids : h.n_ids;
    h.space.cache_type ^= c->flags & HAS_WRONG_SPACE;
    memcpy(file, &h, sizeof(h));
    if (!(c->flags & HAS_WRONG_SUM))
        seal(file);
    int64_t size = (int64_t)n + (int16_t)two(c->more);
    tier_file_path(path, space_dir, rec.kind, rec.key);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    BUG_ON(fd < 0 || write(fd, file, size < 0 ? 0 : (size_t)size) < 0);
    close(fd);
    if (!is_end && !(c->flags & IS_AT_ROOT)) {
        at->key = rec.key;
        at->offset += KV_PAGE_TOKENS;
    }
}

static void tier_open_world(struct world *w)
{
    struct err err;
    struct runner_tier_options o = {
        .dir = dir, .max_bytes = 8 << 20, .weights_digest = "d", .numerics = "cpu-1"
    };
    BUG_ON(runner_tier_open(w->r, &o, &err) != ERR_OK);
}

/* Look for the prompt, begin with what was found, and go on a few ids. */
static void use_directory(struct world *w)
{
    struct runner *r = w->r;
    struct err err;
    int32_t seq;
    BUG_ON(runner_open(r, &seq, &err) != ERR_OK);
    (void)runner_fetch(r, seq, salt, prompt, PROMPT - 4);
    int64_t until = clock_us() + 3000000;
    while (runner_is_fetching(r, seq)) {
        clock_sleep_us(20);
        runner_tier_tend(r);
        BUG_ON(clock_us() > until); /* nothing is missing: there is nothing to wait for */
    }
    int32_t n = runner_reuse(r, seq, salt, prompt, PROMPT - 4);
    BUG_ON(n < 0 || n > PROMPT - 4 || runner_check(r, &err) != ERR_OK);
    struct runner_item item = { .seq = seq, .ids = prompt + n, .n = 4, .n_out = 1 };
    BUG_ON(runner_reserve(r, seq, n + 4, &err) != ERR_OK ||
           runner_step(r, &item, 1, &err) != ERR_OK);
    runner_close(r, seq);
    BUG_ON(runner_check(r, &err) != ERR_OK);
}

static void fuzz_directory(struct world *w, const uint8_t *data, size_t size)
{
    char space_dir[TIER_PATH_BYTES];
    struct tier_record at = { .key = tier_key_root(secret, salt) };
    int n_files = 0;
    if (!w->r)
        world_open(w, (int)(w - worlds));
    mkdir(dir, 0700);
    write_lock();
    tier_open_world(w); /* it names the folder */
    snprintf(space_dir, sizeof(space_dir), "%s", w->r->tier->tier->space_dir);
    struct tier_space space = w->r->tier->tier->space;
    runner_tier_close(w->r);
    for (; size >= COMMAND && n_files < FILES_MAX; data += COMMAND, size -= COMMAND, n_files++) {
        struct command c;
        memcpy(&c, data, sizeof(c));
        put_file(w->r, &space, space_dir, &c, &at);
    }
    tier_open_world(w);
    use_directory(w);
    prefix_evict(&w->r->prefix, w->r->pools[MODEL_GROUP_FULL].n_pages); /* and the ends on it */
    runner_tier_close(w->r);
    BUG_ON(nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS) != 0);
}

static void close_worlds(void)
{
    for (size_t i = 0; i < ARRAY_LEN(worlds); i++)
        if (worlds[i].r) {
            runner_free(worlds[i].r);
            tiny_engine_close(&worlds[i].lab);
        }
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    atexit(close_worlds);
    log_set_level(LOG_LEVEL_ERROR);
    snprintf(dir, sizeof(dir), "/tmp/fuzz_tier.%d", (int)getpid());
    for (int32_t i = 0; i < PROMPT; i++)
        prompt[i] = (i * 37 + i * i * 11) % 280;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && data[0] >= 'D' && data[0] <= 'F')
        fuzz_directory(&worlds[data[0] - 'D'], data + 1, size - 1);
    else
        fuzz_header(data, size);
    return 0;
}
