/* cmd_convert.c - plumb convert: a model from one kind of file to another, quantised on the way where that is asked for. */
#include "base/clock.h"
#include "base/sink.h"
#include "cli/convert.h"
#include "cli/model_path.h"
#include "model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONVERT_SHARD   5e9 /* bytes of a file, as the hub has them */
#define CONVERT_THREADS 64

static volatile sig_atomic_t convert_stopped;

static void convert_on_signal(int signal)
{
    convert_stopped = signal;
}

/* What was begun is removed on the way out. A file size limit gives an error like a full disk, not a signal. */
static void convert_watch_signals(void)
{
    struct sigaction stop = { .sa_handler = convert_on_signal }, ignore = { .sa_handler = SIG_IGN };
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGHUP, &stop, NULL);
    sigaction(SIGXFSZ, &ignore, NULL);
}

enum err_code convert_sink(void *sink, const void *data, size_t n, struct err *err)
{
    return sink_write(sink, data, n, err);
}

void convert_progress(const struct convert *c, int32_t i)
{
    const struct recode *r = &c->x.tensors[i];
    int32_t n = c->x.n_tensors, step = n / 10 + 1;
    bool is_terminal = isatty(STDERR_FILENO);
    if (c->o->is_quiet || (!is_terminal && i % step != 0))
        return;
    fprintf(stderr, "%s[%d/%d] %s: %s to %s%s", is_terminal ? "\r\033[K" : "", i + 1, n, r->name,
            dtype_info(r->parts[0]->type)->name, dtype_info(r->type)->name,
            is_terminal ? "" : "\n");
}

/* --- the plan --- */

/* Tensors of a directory under their own names: to another directory nothing else changes. */
static enum err_code convert_plan_same(struct convert *c, struct err *err)
{
    int32_t n = weights_n_tensors(c->w);
    struct export *x = &c->x;
    x->w = c->w;
    arena_init(&x->arena, MEM_CAT_WEIGHTS, (size_t)1 << 30);
    x->tensors = mem_try_array(MEM_CAT_WEIGHTS, (size_t)n + 1, sizeof(*x->tensors));
    const struct weights_tensor **parts = arena_alloc(&x->arena, ((size_t)n + 1) * sizeof(*parts));
    if (!x->tensors || !parts)
        return err_set(err, ERR_NOMEM, "no memory for %d tensors", n);
    for (int32_t i = 0; i < n; i++) {
        const struct weights_tensor *t = weights_tensor_at(c->w, i);
        parts[i] = t;
        x->tensors[i] = (struct recode){
            .name = t->name, .parts = &parts[i], .n_parts = 1, .type = t->type, .n_dims = t->n_dims
        };
        memcpy(x->tensors[i].shape, t->shape, sizeof(t->shape));
    }
    x->n_tensors = n;
    return ERR_OK;
}

/* Whether mlx-lm has the tensors of this directory otherwise: experts as stacks, delta nets' convolutions turned. Of codes it has them so. */
static bool convert_is_rearranged(const struct weights *w)
{
    bool is = false;
    for (int32_t i = 0; i < weights_n_tensors(w); i++) {
        const struct weights_tensor *t = weights_tensor_at(w, i);
        if (dtype_mlx_bits(t->type))
            return false;
        is |= strstr(t->name, "experts.") || strstr(t->name, ".linear_attn.");
    }
    return is;
}

static enum err_code convert_plan(struct convert *c, struct err *err)
{
    bool is_dir = weights_is_dir(c->w);
    unsigned flags = c->kind == CONVERT_MLX ? EXPORT_FLAG_MLX : 0;
    if (c->type.type == DTYPE_COUNT)
        flags |= EXPORT_FLAG_MXFP4;
    if (c->kind == CONVERT_GGUF && is_dir) {
        enum err_code code = model_adapt(c->w, err);
        return code ? code : export_gguf(&c->x, c->w, err);
    }
    if (is_dir && c->kind == CONVERT_MLX && convert_is_rearranged(c->w)) {
        enum err_code code = model_adapt(c->w, err);
        return code ? code : export_hf(&c->x, c->w, flags, err);
    }
    return is_dir || c->kind == CONVERT_GGUF ? convert_plan_same(c, err)
                                             : export_hf(&c->x, c->w, flags, err);
}

/* --- flags --- */

static bool convert_has_tail(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n > k && strcmp(s + n - k, tail) == 0;
}

/* --to, else the name: .gguf is a file, a directory is MLX's if --type is. */
static enum err_code convert_kind_of(struct convert *c, struct err *err)
{
    static const char *const names[] = {
        [CONVERT_GGUF] = "gguf", [CONVERT_HF] = "hf", [CONVERT_MLX] = "mlx"
    };
    const struct convert_options *o = c->o;
    if (!o->to) {
        bool is_mlx = o->group_size || (o->type && strncmp(o->type, "mlx", 3) == 0);
        c->kind = convert_has_tail(o->dst, ".gguf") ? CONVERT_GGUF
                  : is_mlx                          ? CONVERT_MLX
                                                    : CONVERT_HF;
        return ERR_OK;
    }
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(names[i], o->to) == 0) {
            c->kind = (enum convert_kind)i;
            return ERR_OK;
        }
    return err_set(err, ERR_INVALID, "--to: '%.32s' is not gguf, hf or mlx", o->to);
}

/* What stands under the destination's name stays, unless --force says otherwise; and of directories only a model goes. */
static enum err_code convert_check_dst(const struct convert *c, const char *src, struct err *err)
{
    char config[4096];
    struct stat st, from;
    const char *dst = c->o->dst;
    if (lstat(dst, &st) != 0)
        return ERR_OK;
    if (!c->o->force)
        return err_set(err, ERR_INVALID, "%s: is there already; --force replaces it", dst);
    if (stat(src, &from) == 0 && from.st_ino == st.st_ino && from.st_dev == st.st_dev)
        return err_set(err, ERR_INVALID, "%s: is the source itself", dst);
    if (S_ISDIR(st.st_mode) == (c->kind == CONVERT_GGUF))
        return err_set(err, ERR_INVALID, "%s: is %s directory, and a %s was asked for", dst,
                       S_ISDIR(st.st_mode) ? "a" : "no",
                       c->kind == CONVERT_GGUF ? "file" : "directory");
    snprintf(config, sizeof(config), "%.4000s/config.json", dst);
    if (S_ISDIR(st.st_mode) && access(config, F_OK) != 0)
        return err_set(err, ERR_INVALID,
                       "%s: a directory without config.json: it is no model and is not replaced",
                       dst);
    return ERR_OK;
}

static uint64_t convert_source_bytes(const struct weights *w)
{
    uint64_t n = 0;
    for (int i = 0; i < weights_n_files(w); i++)
        n += weights_file_bytes(w, i);
    return n;
}

static void convert_say_done(const struct convert *c)
{
    if (c->o->is_quiet)
        return;
    fprintf(stderr, "%s%s: %d tensors, %.1f MB from %.1f MB, %.1f s\n",
            isatty(STDERR_FILENO) ? "\r\033[K" : "", c->o->dst, c->x.n_tensors,
            (double)c->bytes / 1e6, (double)convert_source_bytes(c->w) / 1e6,
            (double)(clock_us() - c->started_us) / 1e6);
    if (c->is_source_quantised && c->type.type < DTYPE_COUNT &&
        dtype_info(c->type.type)->block_elems > 1)
        fprintf(stderr, "plumb convert: the source is quantised: what it lost stays lost, and "
                        "quantising again adds to it\n");
}

static enum err_code convert_model(struct convert *c, struct err *err)
{
    struct buf path;
    buf_init(&path, MEM_CAT_BASE, 4096);
    enum err_code code = convert_kind_of(c, err);
    if (!code)
        code = model_path(c->o->src, &path, err);
    if (!code)
        code = convert_check_dst(c, path.data, err);
    if (!code)
        code = weights_open(path.data, &c->w, err);
    if (!code)
        code = convert_types_init(c, err);
    if (!code)
        code = convert_plan(c, err);
    if (!code)
        code = convert_types_set(c, err);
    if (!code)
        code = c->kind == CONVERT_GGUF ? convert_write_gguf(c, err) : convert_write_dir(c, err);
    if (!code)
        convert_say_done(c);
    export_release(&c->x);
    weights_close(c->w);
    buf_release(&path);
    return code;
}

static int convert_run(void *options)
{
    struct convert_options *o = options;
    struct err err;
    struct convert c = { .o = o, .stop = &convert_stopped, .started_us = clock_us() };
    if (!o->src || !o->dst)
        return cli_usage("convert", "want a source and a destination");
    if (o->threads == 0) {
        long n = sysconf(_SC_NPROCESSORS_ONLN);
        o->threads = n < 1 ? 1 : n > CONVERT_THREADS ? CONVERT_THREADS : n;
    }
    convert_watch_signals();
    enum err_code code = convert_model(&c, &err);
    if (code && convert_stopped) {
        fprintf(stderr, "\nplumb convert: stopped; nothing was left under %s\n", o->dst);
        return 128 + (int)convert_stopped;
    }
    return code ? cli_fail("convert", &err) : 0;
}

static void convert_defaults(void *options)
{
    ((struct convert_options *)options)->shard_bytes = (int64_t)CONVERT_SHARD;
}

#define CONVERT_TEXT(flag, field, placeholder, text)                               \
    {                                                                              \
        .name = flag, .value = placeholder, .help = text, .kind = CLI_FLAG_STRING, \
        .offset = offsetof(struct convert_options, field)                          \
    }

static const struct cli_flag convert_flags[] = {
    CONVERT_TEXT("to", to, "KIND",
                 "gguf, hf or mlx; default by the name: .gguf a file, else a directory"),
    CONVERT_TEXT("type", type, "T",
                 "of the matrices: keep f32 f16 bf16, in GGUF q8_0 q4_0 q4_1 q5_0 q5_1 q4_k q5_k "
                 "q6_k q4_k_m q5_k_m, in MLX mlx2 to mlx8; default keep, of MLX mlx4"),
    CONVERT_TEXT("embedding-type", embedding_type, "T", "of the embedding; default as --type says"),
    CONVERT_TEXT("head-type", head_type, "T",
                 "of the vocabulary's head; default q6_k where --type has fewer than 6 bits"),
    CONVERT_TEXT(
        "plain-type", plain_type, "T",
        "f32, f16 or bf16: of a directory's vectors and MLX's scales; default the source's"),
    { .name = "group-size",
      .value = "N",
      .help = "elements that share a scale in MLX: 32, 64 or 128; default 64",
      .kind = CLI_FLAG_INT,
      .offset = offsetof(struct convert_options, group_size),
      .min = 32,
      .max = 128 },
    CONVERT_TEXT("pre", pre, "NAME",
                 "tokenizer.ggml.pre, where no published pre-tokenizer fits tokenizer.json"),
    CONVERT_TEXT("name", name, "TEXT", "general.name; default the source's"),
    { .name = "shard-size",
      .value = "SIZE",
      .help = "bytes of a directory's tensor file at most; default 5e9",
      .kind = CLI_FLAG_SIZE,
      .offset = offsetof(struct convert_options, shard_bytes),
      .min = 1 << 10,
      .max = 1e15 },
    { .name = "threads",
      .value = "N",
      .help = "threads that quantise; the result is the same for every number",
      .kind = CLI_FLAG_INT,
      .offset = offsetof(struct convert_options, threads),
      .min = 1,
      .max = CONVERT_THREADS },
    { .name = "force",
      .help = "replace the destination, if it is a model",
      .kind = CLI_FLAG_BOOL,
      .offset = offsetof(struct convert_options, force) },
    { .name = "quiet",
      .help = "say nothing but errors",
      .kind = CLI_FLAG_BOOL,
      .offset = offsetof(struct convert_options, is_quiet) },
    { 0 },
};

const struct cli_verb cmd_convert = {
    .name = "convert",
    .summary = "write a model as another kind of file, quantised if asked",
    .usage = "SRC DST [--type T] [--to KIND] [flags]",
    .positional = "SRC",
    .positional_offset = offsetof(struct convert_options, src),
    .second = "DST",
    .second_offset = offsetof(struct convert_options, dst),
    .flags = convert_flags,
    .options_bytes = sizeof(struct convert_options),
    .defaults = convert_defaults,
    .run = convert_run,
};
