#include "server/grammars.h"
#include "base/clock.h"
#include "base/log.h"

#include <pthread.h>
#include <string.h>

#define GRAMMARS_MAX   256
#define GRAMMARS_NOTES 512 /* bytes of the keywords that are told */

struct grammars_entry {
    char *key; /* [n_key] */
    size_t n_key;
    struct grammar *grammar; /* NULL: it cannot be compiled, and nobody asks why (has_no_masks) */
    char *notes;
    int64_t used; /* turn of its last use */
};

struct grammars {
    const struct server_model *model;
    int64_t max_bytes;
    pthread_mutex_t lock; /* guards all below; nothing else is locked meanwhile */
    struct grammars_entry entries[GRAMMARS_MAX];
    int n;
    int64_t turn;
    int64_t compiled, found, refused, evicted, vocab_us;
    struct grammar_vocab *vocab;
    struct histogram compile;
};

struct grammars *grammars_new(const struct server_model *model, int64_t max_bytes)
{
    struct grammars *x = mem_alloc(MEM_CAT_SERVER, sizeof(*x));
    x->model = model;
    x->max_bytes = max_bytes;
    pthread_mutex_init(&x->lock, NULL);
    histogram_init(&x->compile, &histogram_seconds);
    return x;
}

static int64_t grammars_bytes_of(const struct grammars_entry *e)
{
    return (int64_t)((e->grammar ? grammar_size(e->grammar) : 0) + e->n_key);
}

/* Under the lock: now, since masks are added while grammars are in use. */
static int64_t grammars_bytes(const struct grammars *x)
{
    int64_t n = 0;
    for (int i = 0; i < x->n; i++)
        n += grammars_bytes_of(&x->entries[i]);
    return n;
}

static void grammars_drop(struct grammars *x, int i)
{
    struct grammars_entry *e = &x->entries[i];
    grammar_unref(e->grammar);
    mem_free(MEM_CAT_SERVER, e->key);
    mem_free(MEM_CAT_SERVER, e->notes);
    *e = x->entries[--x->n];
}

void grammars_free(struct grammars *x)
{
    if (!x)
        return;
    while (x->n > 0)
        grammars_drop(x, x->n - 1);
    grammar_vocab_free(x->vocab);
    pthread_mutex_destroy(&x->lock);
    mem_free(MEM_CAT_SERVER, x);
}

/* --- the vocabulary --- */

/* Control tokens that are parts of markers are spelled as the splitter is fed them: between bytes that are in no text. Other tokens with
 * such bytes, which would spell a marker piece by piece, are left out. */
static enum err_code grammars_make_vocab(struct grammars *x, struct err *err)
{
    const struct tokenizer *t = x->model->tokenizer;
    const struct split_style *style = &x->model->style;
    int32_t n = x->model->engine->info.n_vocab;
    int64_t start_us = clock_us();
    struct buf marks;
    struct grammar_bytes *bytes = mem_try_array(MEM_CAT_GRAMMAR, (size_t)n, sizeof(*bytes));
    if (!bytes)
        return err_set(err, ERR_NOMEM, "no memory for the bytes of %d tokens", n);
    buf_init(&marks, MEM_CAT_GRAMMAR, 1 << 16);
    for (int32_t i = 0; i < style->n_marks; i++) {
        struct tokenizer_str s = tokenizer_piece(t, style->marks[i]);
        buf_add_char(&marks, SPLIT_MARK);
        buf_add(&marks, s.data, s.len);
        buf_add_char(&marks, SPLIT_MARK_END);
    }
    for (int32_t i = 0; i < n; i++) {
        struct tokenizer_str s = tokenizer_bytes(t, i, false);
        bool is_text = s.len > 0 && !memchr(s.data, SPLIT_MARK, s.len) &&
                       !memchr(s.data, SPLIT_MARK_END, s.len);
        bytes[i] = (struct grammar_bytes){ s.data, is_text ? s.len : 0 };
    }
    size_t at = 0;
    for (int32_t i = 0; i < style->n_marks; i++) { /* in the same order */
        size_t len = tokenizer_piece(t, style->marks[i]).len + 2;
        bytes[style->marks[i]] = (struct grammar_bytes){ marks.data + at, len };
        at += len;
    }
    enum err_code code = grammar_vocab_new(bytes, n, &x->vocab, err);
    buf_release(&marks);
    mem_free(MEM_CAT_GRAMMAR, bytes);
    x->vocab_us = clock_us() - start_us;
    if (code == ERR_OK)
        log_info("server", "grammars: the vocabulary's %d tokens in %.0f ms", n,
                 (double)x->vocab_us / 1000);
    return code;
}

static enum err_code grammars_vocab(struct grammars *x, struct grammar_vocab **out, struct err *err)
{
    pthread_mutex_lock(&x->lock);
    enum err_code code = x->vocab ? ERR_OK : grammars_make_vocab(x, err);
    *out = x->vocab;
    pthread_mutex_unlock(&x->lock);
    return code;
}

/* --- grammars --- */

static void grammars_key(const struct grammar_source *sources, int32_t n, struct buf *key)
{
    for (int32_t i = 0; i < n; i++) {
        const struct grammar_source *s = &sources[i];
        size_t before = s->before ? strlen(s->before) : 0, after = s->after ? strlen(s->after) : 0;
        buf_printf(key, "%d %d %d %d %zu %zu %zu\n", (int)s->kind, (int)s->is_compact,
                   (int)s->is_any_order, (int)s->has_no_masks, s->n, before, after);
        buf_add(key, s->text, s->n);
        buf_add(key, s->before ? s->before : "", before);
        buf_add(key, s->after ? s->after : "", after);
    }
}

/* Under the lock. */
static struct grammars_entry *grammars_find(struct grammars *x, const struct buf *key)
{
    for (int i = 0; i < x->n; i++) {
        struct grammars_entry *e = &x->entries[i];
        if (e->n_key != key->len || memcmp(e->key, key->data, key->len) != 0)
            continue;
        e->used = ++x->turn;
        return e;
    }
    return NULL;
}

static void grammars_make_room(struct grammars *x, int64_t bytes)
{
    while (x->n > 0 && (x->n == GRAMMARS_MAX || grammars_bytes(x) + bytes > x->max_bytes)) {
        int oldest = 0;
        for (int i = 1; i < x->n; i++)
            if (x->entries[i].used < x->entries[oldest].used)
                oldest = i;
        grammars_drop(x, oldest);
        x->evicted++;
    }
}

/* Keep it, unless it is larger than all the room, or somebody else was faster. */
static void grammars_keep(struct grammars *x, const struct buf *key, struct grammar *g,
                          const struct buf *notes, int64_t us)
{
    struct grammars_entry e = { .n_key = key->len, .grammar = g };
    pthread_mutex_lock(&x->lock);
    x->compiled += g != NULL;
    x->refused += g == NULL;
    if (g)
        histogram_add(&x->compile, (double)us * 1e-6);
    if (!grammars_find(x, key) && grammars_bytes_of(&e) <= x->max_bytes) {
        grammars_make_room(x, grammars_bytes_of(&e));
        e.key = mem_alloc(MEM_CAT_SERVER, key->len + 1);
        memcpy(e.key, key->data, key->len);
        e.notes = mem_strdup(MEM_CAT_SERVER, notes->len > 0 ? notes->data : "");
        e.used = ++x->turn;
        grammar_ref(g);
        x->entries[x->n++] = e;
    }
    pthread_mutex_unlock(&x->lock);
}

/* False: it is not known. */
static bool grammars_take(struct grammars *x, const struct buf *key, struct grammar **out,
                          struct buf *notes)
{
    pthread_mutex_lock(&x->lock);
    struct grammars_entry *e = grammars_find(x, key);
    if (e) {
        *out = grammar_ref(e->grammar);
        buf_add_str(notes, e->notes);
        x->found++;
        if (grammars_bytes(x) > x->max_bytes) /* they have grown */
            grammars_make_room(x, 0);
    }
    pthread_mutex_unlock(&x->lock);
    return e != NULL;
}

enum err_code grammars_get(struct grammars *x, const struct grammar_source *sources, int32_t n,
                           struct grammar **out, struct buf *notes, struct err *err)
{
    struct buf key, told;
    struct grammar_vocab *vocab = NULL;
    int64_t start_us = clock_us();
    buf_init(&key, MEM_CAT_SERVER, 2 * (size_t)GRAMMAR_SOURCE_BYTES);
    buf_init(&told, MEM_CAT_SERVER, GRAMMARS_NOTES);
    grammars_key(sources, n, &key);
    *out = NULL;
    bool is_known = !key.failed && grammars_take(x, &key, out, notes);
    enum err_code code = is_known ? ERR_OK : grammars_vocab(x, &vocab, err);
    if (is_known && !*out)
        code = err_set(err, ERR_UNSUPPORTED, "it could not be compiled before");
    else if (!code && key.failed)
        code = err_set(err, ERR_FULL, "the grammar has more than %d bytes", GRAMMAR_SOURCE_BYTES);
    if (!code && !*out) {
        code = grammar_compile_any(sources, n, vocab, out, &told, err);
        if (!code || sources[0].has_no_masks) {
            grammars_keep(x, &key, code ? NULL : *out, &told, clock_us() - start_us);
        } else {
            pthread_mutex_lock(&x->lock);
            x->refused++;
            pthread_mutex_unlock(&x->lock);
        }
        if (!code)
            buf_add(notes, told.data, told.len);
    }
    buf_release(&key);
    buf_release(&told);
    return code;
}

void grammars_read_stats(struct grammars *x, struct grammars_stats *out)
{
    int64_t n = 0;
    pthread_mutex_lock(&x->lock);
    for (int i = 0; i < x->n; i++)
        n += x->entries[i].grammar != NULL;
    *out = (struct grammars_stats){ .n = n,
                                    .bytes = grammars_bytes(x),
                                    .compiled = x->compiled,
                                    .found = x->found,
                                    .refused = x->refused,
                                    .evicted = x->evicted,
                                    .vocab_us = x->vocab_us };
    pthread_mutex_unlock(&x->lock);
    histogram_read(&x->compile, &out->compile);
}
