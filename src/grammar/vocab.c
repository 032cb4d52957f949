/* vocab.c - the tokens of a model as two tries over bytes, in depth-first order: a walk goes forwards, and skips what does not fit. */
#include "base/utf8.h"
#include "grammar/grammar_int.h"

#include <stdlib.h>
#include <string.h>

struct vocab_token {
    const char *bytes;
    int32_t len, id, chars; /* chars: of plain tokens, else 0 */
};

/* Characters of a JSON string that stand in it as they are? Their number; 0: no. */
static int32_t vocab_plain_chars(const char *s, size_t n)
{
    int32_t chars = 0;
    for (size_t i = 0; i < n; chars++) {
        uint32_t cp;
        size_t len = utf8_decode(s + i, n - i, &cp);
        if (len == 0 || cp < 0x20 || cp == '"' || cp == '\\')
            return 0;
        i += len;
    }
    return chars;
}

static int vocab_compare(const void *x, const void *y)
{
    const struct vocab_token *a = x, *b = y;
    if ((a->chars > 0) != (b->chars > 0))
        return a->chars > 0 ? -1 : 1;
    int c = memcmp(a->bytes, b->bytes, (size_t)(a->len < b->len ? a->len : b->len));
    return c ? c : a->len != b->len ? a->len - b->len : a->id - b->id;
}

static int32_t vocab_common(const struct vocab_token *x, const struct vocab_token *y)
{
    int32_t n = 0;
    while (n < x->len && n < y->len && x->bytes[n] == y->bytes[n])
        n++;
    return n;
}

/* The trie of tokens [from, to) of one kind, behind what is there. */
static void vocab_add_trie(struct grammar_vocab *v, const struct vocab_token *t, int32_t from,
                           int32_t to)
{
    int32_t path[GRAMMAR_TOKEN_BYTES + 1], depth = 0;
    path[0] = v->n_nodes;
    v->nodes[v->n_nodes++] = (struct vocab_node){ .token = -1 };
    for (int32_t i = from; i < to; i++) {
        int32_t common = i > from ? vocab_common(&t[i - 1], &t[i]) : 0;
        for (; depth > common; depth--)
            v->nodes[path[depth]].skip = v->n_nodes;
        for (; depth < t[i].len; depth++) {
            path[depth + 1] = v->n_nodes;
            v->nodes[v->n_nodes++] = (struct vocab_node){ .token = -1,
                                                          .byte = (uint8_t)t[i].bytes[depth],
                                                          .depth = (uint8_t)(depth + 1) };
        }
        struct vocab_node *end = &v->nodes[path[depth]];
        v->same[t[i].id] = end->token;
        end->token = t[i].id;
    }
    for (; depth >= 0; depth--)
        v->nodes[path[depth]].skip = v->n_nodes;
}

static bool vocab_add_plain(struct grammar_vocab *v, const struct vocab_token *t, int32_t n_plain)
{
    size_t words = ((size_t)v->n_tokens + 31) / 32;
    bool is_there[VOCAB_PLAIN_MAX + 1] = { true };
    for (int32_t i = 0; i < n_plain; i++)
        is_there[t[i].chars] = true;
    for (int32_t k = 0; k <= VOCAB_PLAIN_MAX; k++) {
        v->plain[k] = k > 0 ? v->plain[k - 1] : NULL;
        if (!is_there[k])
            continue;
        v->plain[k] = mem_try_array(MEM_CAT_GRAMMAR, words, sizeof(uint32_t));
        if (!v->plain[k])
            return false;
        if (k > 0)
            memcpy(v->plain[k], v->plain[k - 1], words * sizeof(uint32_t));
        for (int32_t i = 0; i < n_plain; i++)
            if (t[i].chars == k)
                v->plain[k][t[i].id / 32] |= 1u << t[i].id % 32;
    }
    return true;
}

/* The bytes of all tokens; the long ones, too. */
static bool vocab_add_text(struct grammar_vocab *v, const struct grammar_bytes *bytes)
{
    size_t total = 0;
    for (int32_t i = 0; i < v->n_tokens; i++)
        total += bytes[i].len;
    v->at = mem_try_array(MEM_CAT_GRAMMAR, (size_t)v->n_tokens + 1, sizeof(*v->at));
    v->text = mem_try(MEM_CAT_GRAMMAR, total + 1);
    for (int32_t i = 0; v->at && v->text && i < v->n_tokens; i++) {
        if (bytes[i].len > 0)
            memcpy(v->text + v->at[i], bytes[i].data, bytes[i].len);
        v->at[i + 1] = v->at[i] + bytes[i].len;
    }
    return v->at && v->text;
}

bool vocab_scratch_init(struct vocab_scratch *s, const struct grammar_vocab *v)
{
    s->ids = mem_try_array(MEM_CAT_GRAMMAR, (size_t)v->n_tokens + 1, sizeof(*s->ids));
    s->pops = mem_try_array(MEM_CAT_GRAMMAR, (size_t)v->n_nodes, sizeof(*s->pops));
    s->has_id = mem_try_array(MEM_CAT_GRAMMAR, (size_t)v->n_tokens / 32 + 1, sizeof(uint32_t));
    s->has_pop = mem_try_array(MEM_CAT_GRAMMAR, (size_t)v->n_nodes / 32 + 1, sizeof(uint32_t));
    return s->ids && s->pops && s->has_id && s->has_pop;
}

void vocab_scratch_release(struct vocab_scratch *s)
{
    mem_free(MEM_CAT_GRAMMAR, s->ids);
    mem_free(MEM_CAT_GRAMMAR, s->pops);
    mem_free(MEM_CAT_GRAMMAR, s->has_id);
    mem_free(MEM_CAT_GRAMMAR, s->has_pop);
}

enum err_code grammar_vocab_new(const struct grammar_bytes *bytes, int32_t n,
                                struct grammar_vocab **out, struct err *err)
{
    size_t total = 4;
    int32_t k = 0, n_plain = 0;
    struct grammar_vocab *v = mem_alloc(MEM_CAT_GRAMMAR, sizeof(*v));
    pthread_mutex_init(&v->lock, NULL);
    struct vocab_token *t = mem_try_array(MEM_CAT_GRAMMAR, (size_t)n + 1, sizeof(*t));
    for (int32_t i = 0; t && i < n; i++) {
        if (bytes[i].len == 0 || bytes[i].len > GRAMMAR_TOKEN_BYTES)
            continue;
        t[k] = (struct vocab_token){ bytes[i].data, (int32_t)bytes[i].len, i, 0 };
        t[k].chars = vocab_plain_chars(bytes[i].data, bytes[i].len);
        n_plain += t[k].chars > 0;
        total += bytes[i].len;
        k++;
    }
    v->n_tokens = n;
    v->nodes = mem_try_array(MEM_CAT_GRAMMAR, total, sizeof(*v->nodes));
    v->same = mem_try_array(MEM_CAT_GRAMMAR, (size_t)n + 1, sizeof(*v->same));
    bool is_fine = t && v->nodes && v->same;
    if (is_fine) {
        qsort(t, (size_t)k, sizeof(*t), vocab_compare);
        v->n_nodes = 1;
        v->roots[0] = v->n_nodes;
        vocab_add_trie(v, t, 0, n_plain);
        v->roots[1] = v->n_nodes;
        vocab_add_trie(v, t, n_plain, k);
        v->roots[2] = v->n_nodes;
        v->nodes = mem_realloc(MEM_CAT_GRAMMAR, v->nodes, (size_t)v->n_nodes * sizeof(*v->nodes));
        is_fine = vocab_scratch_init(&v->scratch, v) && vocab_add_plain(v, t, n_plain) &&
                  vocab_add_text(v, bytes);
    }
    mem_free(MEM_CAT_GRAMMAR, t);
    if (!is_fine) {
        grammar_vocab_free(v);
        return err_set(err, ERR_NOMEM, "no memory for the trie of %d tokens", n);
    }
    *out = v;
    return ERR_OK;
}

void grammar_vocab_free(struct grammar_vocab *v)
{
    if (!v)
        return;
    for (int32_t k = VOCAB_PLAIN_MAX; k >= 0; k--)
        if (k == 0 || v->plain[k] != v->plain[k - 1])
            mem_free(MEM_CAT_GRAMMAR, v->plain[k]);
    mem_free(MEM_CAT_GRAMMAR, v->nodes);
    mem_free(MEM_CAT_GRAMMAR, v->same);
    mem_free(MEM_CAT_GRAMMAR, v->text);
    mem_free(MEM_CAT_GRAMMAR, v->at);
    vocab_scratch_release(&v->scratch);
    pthread_mutex_destroy(&v->lock);
    mem_free(MEM_CAT_GRAMMAR, v);
}

int32_t grammar_vocab_n(const struct grammar_vocab *v)
{
    return v->n_tokens;
}

struct grammar_bytes grammar_vocab_bytes(const struct grammar_vocab *v, int32_t id)
{
    return (struct grammar_bytes){ v->text + v->at[id], v->at[id + 1] - v->at[id] };
}

int32_t grammar_vocab_longest(const struct grammar_vocab *v, const char *bytes, size_t n,
                              size_t *len)
{
    int32_t found = -1;
    *len = 0;
    for (int trie = 0; trie < 2; trie++) {
        int32_t at = v->roots[trie] + 1, end = v->nodes[v->roots[trie]].skip;
        for (size_t depth = 0; depth < n && at < end;) {
            const struct vocab_node *x = &v->nodes[at];
            if (x->byte != (uint8_t)bytes[depth]) {
                at = x->skip;
                continue;
            }
            depth++;
            if (x->token >= 0 && depth > *len) {
                found = x->token;
                *len = depth;
            }
            end = x->skip;
            at++;
        }
    }
    return found;
}
