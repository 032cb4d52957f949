/* cmd_inspect.c - plumb inspect: what is in a model file. Reads the header only; no tensor is touched but for the digest. */
#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/inspect_groups.h"
#include "cli/load_tokenizer.h"
#include "cli/model_path.h"
#include "model/model.h"
#include "weights/weights.h"
#include "json/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INSPECT_PATH_MAX 4096
#define INSPECT_TEXT_MAX 72 /* bytes of a string that the listing shows */
#define INSPECT_ITEMS    6  /* elements of an array that the listing shows */
#define INSPECT_JSON_MAX \
    ((size_t)1 << 30) /* over the longest string of any file; written out as it grows */
#define INSPECT_FLUSH ((size_t)1 << 16)

struct inspect_options {
    const char *model;
    bool json;
};

struct inspect_total {
    int32_t n_tensors;
    uint64_t elems, bytes;
};

/* Totals by type; returns the total of all. */
static struct inspect_total inspect_totals(const struct weights *w,
                                           struct inspect_total by_type[DTYPE_COUNT])
{
    struct inspect_total all = { 0 };
    memset(by_type, 0, DTYPE_COUNT * sizeof(*by_type));
    for (int32_t i = 0; i < weights_n_tensors(w); i++) {
        const struct weights_tensor *t = weights_tensor_at(w, i);
        struct inspect_total *sums[] = { &by_type[t->type], &all };
        for (size_t s = 0; s < ARRAY_LEN(sums); s++) {
            sums[s]->n_tensors++;
            sums[s]->elems += inspect_tensor_elems(t);
            sums[s]->bytes += inspect_tensor_bytes(t);
        }
    }
    return all;
}

/* The file's numbers of its family, "llama.block_count" and so on. */
static const struct {
    const char *key, *label;
} inspect_facts[] = {
    { "block_count", "layers" },
    { "embedding_length", "width" },
    { "feed_forward_length", "feed-forward" },
    { "attention.head_count", "heads" },
    { "attention.head_count_kv", "kv heads" },
    { "attention.key_length", "head size" },
    { "attention.sliding_window", "window" },
    { "expert_count", "experts" },
    { "context_length", "context" },
};

/* The integer at ARCH.key; false where it is absent or no integer. */
static bool inspect_fact(const struct weights *w, const char *arch, const char *key, int64_t *out)
{
    char full[256];
    snprintf(full, sizeof(full), "%.100s.%s", arch, key);
    return weights_int(w, full, INT64_MIN, INT64_MAX, out, NULL) == ERR_OK;
}

static const char *inspect_string(const struct weights *w, const char *key)
{
    const char *s;
    return weights_str(w, key, &s, NULL) ? NULL : s;
}

/* --- text --- */

/* Strings of a file reach the terminal without control characters. Returns how many bytes of s, at most about max, were printed. */
static size_t print_clean(const char *s, size_t n, size_t max)
{
    size_t i = 0;
    while (i < n && i < max) {
        uint32_t cp;
        size_t len = utf8_decode(s + i, n - i, &cp);
        if (cp == '\n' || cp == '"' || cp == '\\')
            printf("\\%c", cp == '\n' ? 'n' : (int)cp);
        else if (len == 0 || cp < 0x20 || (cp >= 0x7F && cp < 0xA0))
            printf("\\x%02X", (unsigned char)s[i]);
        else
            fwrite(s + i, 1, len, stdout);
        i += len && !(cp >= 0x80 && cp < 0xA0) ? len : 1;
    }
    return i;
}

static void print_text(const char *s, size_t n)
{
    putchar('"');
    fputs(print_clean(s, n, INSPECT_TEXT_MAX) < n ? "\"..." : "\"", stdout);
}

/* "LABEL text of the error", which may quote the file. */
static void print_reason(const char *label, const struct err *err)
{
    fputs(label, stdout);
    print_clean(err->text, strlen(err->text), sizeof(err->text));
    putchar('\n');
}

/* The shortest form that reads back as the same f32. */
static void print_f32(float v)
{
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v)
            break;
    }
    fputs(text, stdout);
}

static void print_value(const struct meta_value *v)
{
    struct meta_value item;
    char number[32];
    switch (v->type) {
    case META_TYPE_STRING:
        print_text(v->s.data, v->s.len);
        break;
    case META_TYPE_ARRAY:
        putchar('[');
        for (uint64_t i = 0; i < v->array.n && i < INSPECT_ITEMS; i++) {
            fputs(i ? ", " : "", stdout);
            meta_array_at(v, i, &item);
            print_value(&item);
        }
        fputs(v->array.n > INSPECT_ITEMS ? ", ...]" : "]", stdout);
        break;
    case META_TYPE_BOOL:
        fputs(v->u ? "true" : "false", stdout);
        break;
    case META_TYPE_F32:
        print_f32((float)v->f);
        break;
    case META_TYPE_F64:
        json_format_double(v->f, number);
        fputs(number, stdout);
        break;
    case META_TYPE_I8:
    case META_TYPE_I16:
    case META_TYPE_I32:
    case META_TYPE_I64:
        printf("%" PRId64, v->i);
        break;
    default:
        printf("%" PRIu64, v->u);
    }
}

/* "string[49152]" */
static void format_type(const struct meta_value *v, char *out, size_t cap)
{
    if (v->type == META_TYPE_ARRAY)
        snprintf(out, cap, "%s[%" PRIu64 "]", meta_type_name(v->array.type), v->array.n);
    else
        snprintf(out, cap, "%s", meta_type_name(v->type));
}

/* What a second opening of the model tells, in GGUF's words: whether it would load, its family's numbers, its vocabulary. */
struct inspect_look {
    struct weights *w; /* adapted; NULL: it did not open */
    struct model *model;
    struct tokenizer *tokenizer;
    struct err model_err, tokenizer_err;
};

static void inspect_look_open(struct inspect_look *l, const char *path)
{
    *l = (struct inspect_look){ .w = NULL };
    if (weights_open(path, &l->w, &l->model_err))
        return;
    const struct model_load_options o = { .weights = l->w };
    if (model_load(&o, &l->model, &l->model_err))
        l->model = NULL;
    if (load_tokenizer(l->w, &l->tokenizer, &l->tokenizer_err))
        l->tokenizer = NULL;
}

static void inspect_look_close(struct inspect_look *l)
{
    model_free(l->model);
    tokenizer_free(l->tokenizer);
    weights_close(l->w);
}

/* The least and most bits and the groups of MLX's codes; false: there are none. */
static bool inspect_mlx(const struct weights *w, int bits[2], int64_t groups[2])
{
    bits[0] = bits[1] = 0;
    for (int32_t i = 0; i < weights_n_tensors(w); i++) {
        const struct weights_tensor *t = weights_tensor_at(w, i);
        int b = dtype_mlx_bits(t->type);
        if (!b)
            continue;
        bool is_first = bits[1] == 0;
        bits[0] = is_first || b < bits[0] ? b : bits[0];
        bits[1] = b > bits[1] ? b : bits[1];
        groups[0] = is_first || t->scales.cols < groups[0] ? t->scales.cols : groups[0];
        groups[1] = is_first || t->scales.cols > groups[1] ? t->scales.cols : groups[1];
    }
    return bits[1] != 0;
}

static void print_format(const struct weights *w)
{
    uint64_t file_bytes = 0;
    int bits[2], n = weights_n_files(w);
    int64_t groups[2];
    for (int i = 0; i < n; i++)
        file_bytes += weights_file_bytes(w, i);
    if (!weights_is_dir(w)) {
        printf("format        GGUF v%d, %d file%s, %.1f MB, alignment %zu\n",
               weights_gguf_version(w), n, n == 1 ? "" : "s", (double)file_bytes / 1e6,
               weights_alignment(w));
        return;
    }
    printf("format        safetensors directory, %d file%s, %.1f MB\n", n, n == 1 ? "" : "s",
           (double)file_bytes / 1e6);
    if (!inspect_mlx(w, bits, groups))
        return;
    printf("codes         MLX affine, %d", bits[0]);
    if (bits[1] != bits[0])
        printf(" to %d", bits[1]);
    printf(" bits in groups of %" PRId64, groups[0]);
    if (groups[1] != groups[0])
        printf(" to %" PRId64, groups[1]);
    putchar('\n');
}

static void print_look(const struct inspect_look *l, bool has_template)
{
    static const char *const kinds[] = { [TOKENIZER_KIND_BPE] = "byte-level BPE",
                                         [TOKENIZER_KIND_BPE_SPM] = "BPE over characters",
                                         [TOKENIZER_KIND_SPM] = "SentencePiece BPE",
                                         [TOKENIZER_KIND_WPM] = "WordPiece",
                                         [TOKENIZER_KIND_UGM] = "SentencePiece unigram" };
    if (l->tokenizer)
        printf("vocabulary    %d tokens, %s, %s\n", tokenizer_n_tokens(l->tokenizer),
               kinds[tokenizer_kind(l->tokenizer)],
               has_template ? "chat template" : "no chat template");
    else
        print_reason("vocabulary    none that loads: ", &l->tokenizer_err);
    if (l->model)
        printf("loads         yes, as %s\n", l->model->arch);
    else
        print_reason("loads         no: ", &l->model_err);
}

static void print_summary(const struct weights *w, const struct inspect_total *all,
                          const struct inspect_look *look)
{
    char digest[65];
    const struct weights *facts = look->w ? look->w : w;
    const char *arch = inspect_string(facts, "general.architecture");
    const char *name = inspect_string(w, "general.name");
    weights_digest(w, digest);
    printf("file          %s\n", weights_file_path(w, 0));
    print_format(w);
    printf("digest        %s\n", digest);
    if (name) {
        printf("name          ");
        print_text(name, strlen(name));
        putchar('\n');
    }
    if (all->elems)
        printf("parameters    %.2f M in %d tensors, %.2f bits each\n", (double)all->elems / 1e6,
               all->n_tensors, 8.0 * (double)all->bytes / (double)all->elems);
    else
        printf("parameters    none\n");
    if (arch) {
        const char *comma = " ";
        int64_t v;
        printf("architecture  ");
        print_text(arch, strlen(arch));
        for (size_t i = 0; i < ARRAY_LEN(inspect_facts); i++)
            if (inspect_fact(facts, arch, inspect_facts[i].key, &v)) {
                printf("%s %s %" PRId64, comma, inspect_facts[i].label, v);
                comma = ",";
            }
        putchar('\n');
    }
    print_look(look, inspect_string(w, "tokenizer.chat_template") != NULL);
}

static void print_metadata(const struct weights *w)
{
    printf("\nmetadata (%d)\n", weights_n_meta(w));
    for (int32_t i = 0; i < weights_n_meta(w); i++) {
        const char *key;
        char type[48];
        const struct meta_value *v = weights_meta_at(w, i, &key);
        format_type(v, type, sizeof(type));
        printf("  %-44s %-14s ", key, type);
        print_value(v);
        putchar('\n');
    }
}

static void print_total(const char *name, const struct inspect_total *t)
{
    printf("  %-8s %5d tensors %14" PRIu64 " elements %14" PRIu64 " bytes\n", name, t->n_tensors,
           t->elems, t->bytes);
}

static void print_tensors(const struct weights *w)
{
    printf("\ntensors (%d)\n", weights_n_tensors(w));
    for (int32_t i = 0; i < weights_n_tensors(w); i++) {
        const struct weights_tensor *t = weights_tensor_at(w, i);
        printf("  %-32s %-7s %12zu bytes  [", t->name, dtype_info(t->type)->name, t->bytes);
        for (int d = 0; d < t->n_dims; d++)
            printf("%s%" PRId64, d ? ", " : "", t->shape[d]);
        printf("]\n");
    }
}

static void print_model(const struct weights *w, const struct inspect_look *look)
{
    struct inspect_total by_type[DTYPE_COUNT];
    struct inspect_total all = inspect_totals(w, by_type);
    print_summary(w, &all, look);
    print_metadata(w);
    if (!all.n_tensors)
        return;
    printf("\ntypes\n");
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (by_type[t].n_tensors)
            print_total(dtype_info((enum dtype)t)->name, &by_type[t]);
    print_total("all", &all);
    inspect_groups_print(w);
    print_tensors(w);
}

/* --- JSON --- */

/* What is written so far leaves; the writer's state is elsewhere. */
static void flush_json(struct json_writer *j, bool is_all)
{
    if (j->out->failed || (!is_all && j->out->len < INSPECT_FLUSH))
        return;
    fwrite(j->out->data, 1, j->out->len, stdout);
    buf_reset(j->out);
}

static void json_meta(struct json_writer *j, const struct meta_value *v)
{
    struct meta_value item;
    flush_json(j, false);
    switch (v->type) {
    case META_TYPE_STRING:
        json_strn(j, v->s.data, v->s.len);
        break;
    case META_TYPE_ARRAY:
        json_begin_array(j);
        for (uint64_t i = 0; i < v->array.n; i++) {
            meta_array_at(v, i, &item);
            json_meta(j, &item);
        }
        json_end_array(j);
        break;
    case META_TYPE_BOOL:
        json_bool(j, v->u != 0);
        break;
    case META_TYPE_F32:
    case META_TYPE_F64:
        json_double(j, v->f);
        break;
    case META_TYPE_I8:
    case META_TYPE_I16:
    case META_TYPE_I32:
    case META_TYPE_I64:
        json_int(j, v->i);
        break;
    default:
        json_uint(j, v->u);
    }
}

static void json_metadata(struct json_writer *j, const struct weights *w)
{
    const char *key;
    json_field_object(j, "metadata");
    for (int32_t i = 0; i < weights_n_meta(w); i++) {
        const struct meta_value *v = weights_meta_at(w, i, &key);
        json_key(j, key);
        json_meta(j, v);
    }
    json_end_object(j);
    json_field_object(j, "metadata_types");
    for (int32_t i = 0; i < weights_n_meta(w); i++) {
        char type[48];
        format_type(weights_meta_at(w, i, &key), type, sizeof(type));
        json_field_str(j, key, type);
    }
    json_end_object(j);
}

static void json_total(struct json_writer *j, const char *name, const struct inspect_total *t)
{
    json_field_object(j, name);
    json_field_int(j, "tensors", t->n_tensors);
    json_field_uint(j, "elements", t->elems);
    json_field_uint(j, "bytes", t->bytes);
    json_end_object(j);
}

static void json_tensor(struct json_writer *j, const struct weights_tensor *t)
{
    flush_json(j, false);
    json_begin_object(j);
    json_field_str(j, "name", t->name);
    json_field_str(j, "type", dtype_info(t->type)->name);
    json_field_array(j, "shape");
    for (int d = 0; d < t->n_dims; d++)
        json_int(j, t->shape[d]);
    json_end_array(j);
    json_field_uint(j, "bytes", t->bytes);
    json_field_int(j, "file", t->file_i);
    json_field_uint(j, "offset", t->offset);
    json_end_object(j);
}

static void json_files(struct json_writer *j, const struct weights *w)
{
    json_field_array(j, "files");
    for (int i = 0; i < weights_n_files(w); i++) {
        json_begin_object(j);
        json_field_str(j, "path", weights_file_path(w, i));
        json_field_uint(j, "bytes", weights_file_bytes(w, i));
        json_end_object(j);
    }
    json_end_array(j);
}

static void json_look(struct json_writer *j, const struct weights *w, const struct inspect_look *l)
{
    int bits[2];
    int64_t groups[2];
    json_field_bool(j, "loads", l->model != NULL);
    if (!l->model)
        json_field_str(j, "loads_not", l->model_err.text);
    else
        json_field_str(j, "family", l->model->arch);
    if (!inspect_mlx(w, bits, groups))
        return;
    json_field_object(j, "codes");
    json_field_array(j, "bits");
    json_int(j, bits[0]);
    json_int(j, bits[1]);
    json_end_array(j);
    json_field_array(j, "group_size");
    json_int(j, groups[0]);
    json_int(j, groups[1]);
    json_end_array(j);
    json_end_object(j);
}

static void json_model(struct json_writer *j, const struct weights *w,
                       const struct inspect_look *look)
{
    char digest[65];
    struct inspect_total by_type[DTYPE_COUNT];
    struct inspect_total all = inspect_totals(w, by_type);
    weights_digest(w, digest);
    json_begin_object(j);
    json_field_str(j, "format", weights_is_dir(w) ? "safetensors" : "gguf");
    if (!weights_is_dir(w)) {
        json_field_int(j, "version", weights_gguf_version(w));
        json_field_uint(j, "alignment", weights_alignment(w));
    }
    json_files(j, w);
    json_field_str(j, "digest", digest);
    json_look(j, w, look);
    json_metadata(j, w);
    json_field_object(j, "types");
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (by_type[t].n_tensors)
            json_total(j, dtype_info((enum dtype)t)->name, &by_type[t]);
    json_end_object(j);
    json_total(j, "total", &all);
    inspect_groups_json(j, w);
    json_field_array(j, "tensors");
    for (int32_t i = 0; i < weights_n_tensors(w); i++)
        json_tensor(j, weights_tensor_at(w, i));
    json_end_array(j);
    json_end_object(j);
}

static enum err_code print_json(const struct weights *w, const struct inspect_look *look,
                                struct err *err)
{
    struct buf out;
    struct json_writer j;
    buf_init(&out, MEM_CAT_BASE, INSPECT_JSON_MAX);
    json_writer_init(&j, &out);
    json_model(&j, w, look);
    buf_add_char(&out, '\n');
    flush_json(&j, true);
    enum err_code code = buf_check(&out, "JSON of a key", err);
    buf_release(&out);
    return code;
}

static int inspect_run(void *options)
{
    const struct inspect_options *o = options;
    struct err err;
    struct buf path;
    struct weights *w = NULL;
    struct inspect_look look = { .w = NULL };
    buf_init(&path, MEM_CAT_BASE, INSPECT_PATH_MAX);
    enum err_code code = model_path(o->model, &path, &err);
    if (!code)
        code = weights_open(path.data, &w, &err);
    if (!code)
        inspect_look_open(&look, path.data);
    if (!code && o->json)
        code = print_json(w, &look, &err);
    else if (!code)
        print_model(w, &look);
    if (!code && (fflush(stdout) != 0 || ferror(stdout)))
        code = err_set(&err, ERR_IO, "the output cannot be written");
    inspect_look_close(&look);
    weights_close(w);
    buf_release(&path);
    return code ? cli_fail("inspect", &err) : 0;
}

static const struct cli_flag inspect_flags[] = {
    { .name = "model",
      .value = "M",
      .help = "path or name of a fetched model, as the argument (default " MODEL_PATH_DEFAULT ")",
      .kind = CLI_FLAG_STRING,
      .offset = offsetof(struct inspect_options, model) },
    { .name = "json",
      .help = "print everything, arrays whole, as one JSON object",
      .kind = CLI_FLAG_BOOL,
      .offset = offsetof(struct inspect_options, json) },
    { 0 },
};

const struct cli_verb cmd_inspect = {
    .name = "inspect",
    .summary = "list a model file's metadata, tensors and totals",
    .usage = "[M] [--json]",
    .positional = "M",
    .positional_offset = offsetof(struct inspect_options, model),
    .flags = inspect_flags,
    .options_bytes = sizeof(struct inspect_options),
    .run = inspect_run,
};
