/* serve_grammar.c - grammars for tests in other languages: one JSON object a line in, one out.
 *
 *   {"kind": "schema", "source": "...", "compact": false, "any_order": false, "texts": [...], "walks": 10, "seed": 1, "length": 200}
 *   -> {"states": 12, "ms": 0.4, "notes": "", "accepts": [...], "walks": [...], "moves": 90, "taken": 88}, or
 *      {"error": "...", "code": "invalid"}
 *
 * A walk chooses bytes at random as long as the text is short, the least taken move of the automaton more often than not; then
 * whatever closes it. One that does not end is null. moves: of the automaton (by state and class of bytes); taken: by the walks.
 *
 * serve_grammar MODEL has the model's vocabulary (told in the first line: {"vocab": n, "ms": ..., "bytes": ...}; {"vocab": true} asks for
 * the tokens). Then "masks": [texts] makes the masks along the texts' tokens, and the answer has
 *   "masks": [{"ids": [...], "fits": tokens that were allowed, "ns": [of the thread's own time, each mask]}, ...]
 * and "brute": n compares the masks of n random states with what stepping every token says: "brute": "" or what differs. */
#include "base/clock.h"
#include "cli/load_tokenizer.h"
#include "grammar/grammar_int.h"
#include "json/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WALK_MAX 20000

static struct tokenizer *tokenizer; /* NULL: no vocabulary */
static struct grammar_bytes *tokens;
static struct grammar_vocab *vocab;
static int32_t n_vocab;
static uint32_t *mask; /* of n_vocab */

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static enum grammar_kind kind_of(const struct json *v)
{
    static const char *const names[] = { "schema", "object", "regex", "gbnf",    "lark",
                                         "choice", "tags",   "calls", "messages" };
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (json_str_eq(v, names[i]))
            return (enum grammar_kind)i;
    return GRAMMAR_KIND_SCHEMA;
}

static bool accepts(struct grammar_state *s, const struct json *text)
{
    grammar_state_reset(s);
    for (size_t i = 0; i < text->len; i++)
        if (!grammar_step(s, text->text + i, 1))
            return false;
    return grammar_is_complete(s);
}

/* --- walks --- */

static uint32_t *moves; /* [n_states][n_classes] how often each was taken */

/* The least taken of the moves that the heads have on the byte. */
static uint32_t taken_by(const struct grammar_state *s, int c)
{
    const struct grammar *g = s->g;
    uint32_t least = UINT32_MAX;
    for (int32_t i = 0; i < s->heads.n; i++) {
        int64_t at = (int64_t)s->heads.at[i].state * g->n_classes + g->class_of[c];
        if (g->next[at] >= 0 && moves[at] < least)
            least = moves[at];
    }
    return least;
}

static void mark_moves(const struct grammar_state *s, int c)
{
    const struct grammar *g = s->g;
    for (int32_t i = 0; i < s->heads.n; i++)
        moves[(int64_t)s->heads.at[i].state * g->n_classes + g->class_of[c]]++;
}

static void count_moves(const struct grammar *g, int64_t *all, int64_t *taken)
{
    *all = *taken = 0;
    for (int64_t i = 0; i < (int64_t)g->n_states * g->n_classes; i++) {
        *all += g->next[i] >= 0;
        *taken += g->next[i] >= 0 && moves[i];
    }
}

/* The byte that a walk goes on with: the least taken; ASCII more often than not; in a long text one that closes. */
static int choose(const struct grammar_state *s, bool is_long, uint64_t *seed)
{
    static const char closing[] = "\"}]),.:;>/";
    uint32_t allowed[8];
    int list[256], rare[256], n = 0, n_ascii = 0, n_rare = 0;
    uint32_t least = UINT32_MAX;
    grammar_next_bytes(s, allowed);
    for (int c = 0; c < 256; c++) {
        if (!(allowed[c / 32] >> c % 32 & 1))
            continue;
        list[n++] = c;
        n_ascii += c < 128;
        uint32_t taken = taken_by(s, c);
        n_rare = taken < least ? 0 : n_rare;
        least = taken < least ? taken : least;
        if (taken == least)
            rare[n_rare++] = c;
    }
    if (n == 0)
        return -1;
    if (!is_long && next_random(seed) % 8)
        return rare[next_random(seed) % (uint64_t)n_rare];
    bool wants_quote = allowed['"' / 32] >> '"' % 32 & 1 && next_random(seed) % 12 == 0;
    for (const char *p = closing; *p && (is_long || wants_quote); p++)
        if (allowed[*p / 32] >> *p % 32 & 1)
            return *p;
    return list[next_random(seed) % (uint64_t)(n_ascii > 0 && next_random(seed) % 8 ? n_ascii : n)];
}

static bool walk(struct grammar_state *s, size_t length, uint64_t *seed, struct buf *out)
{
    grammar_state_reset(s);
    buf_reset(out);
    while (out->len < WALK_MAX) {
        bool is_long = out->len > length;
        if (grammar_is_complete(s) && (is_long || grammar_is_over(s) || next_random(seed) % 3 == 0))
            return true;
        int c = choose(s, is_long, seed);
        char byte = (char)c;
        if (c >= 0)
            mark_moves(s, c);
        if (c < 0 || !grammar_step(s, &byte, 1))
            return false;
        buf_add_char(out, byte);
    }
    return false;
}

/* --- with a vocabulary --- */

static int64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void masks_of(struct grammar_state *s, const struct json *text, struct json_writer *w)
{
    struct token_list ids;
    int32_t fits = 0;
    token_list_init(&ids, INT32_MAX);
    (void)!tokenizer_encode(tokenizer, text->text, text->len, NULL, 0, &ids, NULL);
    grammar_state_reset(s);
    json_begin_object(w);
    json_field_array(w, "ids");
    for (int32_t i = 0; i < ids.n; i++)
        json_int(w, ids.ids[i]);
    json_end_array(w);
    json_field_array(w, "ns");
    for (; fits < ids.n; fits++) {
        int64_t start = thread_ns();
        int32_t id = ids.ids[fits], n = grammar_mask(s, mask, NULL);
        json_int(w, thread_ns() - start);
        if (n < 1 || !(mask[id / 32] >> id % 32 & 1) ||
            !grammar_step(s, tokens[id].data, tokens[id].len))
            break;
    }
    json_end_array(w);
    json_field_int(w, "fits", fits);
    json_end_object(w);
    token_list_release(&ids);
}

/* Masks along a random walk of tokens against every token by itself. */
static void brute(struct grammar_state *s, int64_t n, uint64_t *seed, struct buf *out)
{
    grammar_state_reset(s);
    for (int64_t i = 0; i < n; i++) {
        int32_t only, count = 0, last = -1, most = grammar_mask(s, mask, &only);
        for (int32_t id = 0; id < n_vocab && out->len == 0; id++) {
            bool is_fine = tokens[id].len > 0 && grammar_step(s, tokens[id].data, tokens[id].len);
            if (is_fine && !grammar_back(s, 1))
                buf_printf(out, "token %d: no step back", id);
            if (is_fine != (mask[id / 32] >> id % 32 & 1))
                buf_printf(out, "state %lld, token %d: mask %d", (long long)i, id, !is_fine);
            count += is_fine;
            last = is_fine ? id : last;
        }
        if (out->len == 0 && (most != (count < 2 ? count : 2) || only != (count == 1 ? last : -1)))
            buf_printf(out, "state %lld: %d tokens, said to be %d", (long long)i, count, most);
        if (out->len > 0)
            return;
        int32_t id = (int32_t)(next_random(seed) % (uint64_t)n_vocab);
        for (int32_t k = 0; k < n_vocab && !(mask[id / 32] >> id % 32 & 1); k++)
            id = (id + 1) % n_vocab;
        if (count == 0 || !grammar_step(s, tokens[id].data, tokens[id].len))
            grammar_state_reset(s);
    }
}

static void answer_masks(struct grammar_state *s, const struct json *q, struct json_writer *w)
{
    const struct json *texts = json_get(q, "masks");
    int64_t n = 0, seed = 1;
    struct buf said;
    (void)!json_to_int(json_get(q, "brute"), "brute", 0, 1000000, &n, NULL);
    (void)!json_to_int(json_get(q, "seed"), "seed", 0, 1000000, &seed, NULL);
    uint64_t random = (uint64_t)seed * 0x9E3779B97F4A7C15u;
    buf_init(&said, MEM_CAT_GRAMMAR, 4096);
    json_field_array(w, "masks");
    for (size_t i = 0; texts && i < texts->n; i++)
        masks_of(s, &texts->items[i], w);
    json_end_array(w);
    brute(s, n, &random, &said);
    json_field_str(w, "brute", said.data);
    buf_release(&said);
}

static void answer_vocab(struct json_writer *w)
{
    static const char hex[] = "0123456789abcdef";
    json_field_array(w, "tokens"); /* their bytes, in hexadecimal */
    for (int32_t i = 0; i < n_vocab; i++) {
        char text[2 * GRAMMAR_TOKEN_BYTES + 1];
        size_t n = tokens[i].len > GRAMMAR_TOKEN_BYTES ? 0 : tokens[i].len;
        for (size_t k = 0; k < n; k++) {
            text[2 * k] = hex[(uint8_t)tokens[i].data[k] >> 4];
            text[2 * k + 1] = hex[tokens[i].data[k] & 15];
        }
        json_strn(w, text, 2 * n);
    }
    json_end_array(w);
}

static void open_vocab(const char *model)
{
    struct err err;
    if (load_tokenizer_of(model, &tokenizer, &err) != ERR_OK) {
        fprintf(stderr, "serve_grammar: %s\n", err.text);
        exit(1);
    }
    n_vocab = tokenizer_n_tokens(tokenizer);
    tokens = mem_alloc(MEM_CAT_BASE, (size_t)n_vocab * sizeof(*tokens));
    mask = mem_alloc(MEM_CAT_BASE, ((size_t)n_vocab / 32 + 1) * sizeof(*mask));
    for (int32_t i = 0; i < n_vocab; i++) {
        struct tokenizer_str s = tokenizer_bytes(tokenizer, i, false);
        tokens[i] = (struct grammar_bytes){ s.data, s.len };
    }
    int64_t start = clock_thread_us();
    if (grammar_vocab_new(tokens, n_vocab, &vocab, &err) != ERR_OK) {
        fprintf(stderr, "serve_grammar: %s\n", err.text);
        exit(1);
    }
    printf("{\"vocab\":%d,\"ms\":%.1f,\"bytes\":%lld}\n", n_vocab,
           (double)(clock_thread_us() - start) / 1000, (long long)mem_bytes(MEM_CAT_GRAMMAR));
    fflush(stdout);
}

static void answer_walks(struct grammar_state *s, const struct json *q, struct json_writer *w)
{
    int64_t walks = 0, seed = 1, length = 200, all, taken;
    const struct grammar *g = s->g;
    struct buf text;
    (void)!json_to_int(json_get(q, "walks"), "walks", 0, 1000000, &walks, NULL);
    (void)!json_to_int(json_get(q, "seed"), "seed", 0, 1000000, &seed, NULL);
    (void)!json_to_int(json_get(q, "length"), "length", 0, WALK_MAX, &length, NULL);
    uint64_t random = (uint64_t)seed * 0x9E3779B97F4A7C15u;
    moves = mem_alloc(MEM_CAT_BASE, (size_t)g->n_states * (size_t)g->n_classes * sizeof(*moves));
    buf_init(&text, MEM_CAT_GRAMMAR, WALK_MAX + 8);
    json_field_array(w, "walks");
    for (int64_t i = 0; i < walks; i++) {
        if (walk(s, (size_t)length, &random, &text))
            json_strn(w, text.data, text.len);
        else
            json_null(w);
    }
    json_end_array(w);
    count_moves(g, &all, &taken);
    json_field_int(w, "moves", all);
    json_field_int(w, "taken", taken);
    buf_release(&text);
    mem_free(MEM_CAT_BASE, moves);
}

static void answer(const struct json *q, struct json_writer *w)
{
    const struct json *source = json_get(q, "source"), *texts = json_get(q, "texts");
    const struct json *compact = json_get(q, "compact"), *any = json_get(q, "any_order");
    struct grammar *g;
    struct grammar_state *s;
    struct buf notes;
    struct err err;
    buf_init(&notes, MEM_CAT_GRAMMAR, 4096);
    struct grammar_source src = { .kind = kind_of(json_get(q, "kind")),
                                  .text = source ? source->text : "",
                                  .n = source ? source->len : 0,
                                  .is_compact = compact && compact->boolean,
                                  .is_any_order = any && any->boolean };
    int64_t start = clock_thread_us();
    enum err_code code = grammar_compile(&src, vocab, &g, &notes, &err);
    if (!code && grammar_state_new(g, &s, &err) == ERR_OK) {
        json_field_double(w, "ms", (double)(clock_thread_us() - start) / 1000);
        json_field_int(w, "states", grammar_n_states(g));
        json_field_str(w, "notes", notes.data);
        json_field_array(w, "accepts");
        for (size_t i = 0; texts && i < texts->n; i++)
            json_bool(w, accepts(s, &texts->items[i]));
        json_end_array(w);
        answer_walks(s, q, w);
        if (vocab)
            answer_masks(s, q, w);
        grammar_state_free(s);
        grammar_unref(g);
    } else {
        json_field_double(w, "ms", (double)(clock_thread_us() - start) / 1000);
        json_field_str(w, "error", err.text);
        json_field_str(w, "code", err_name(code));
    }
    buf_release(&notes);
}

int main(int argc, char **argv)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    struct buf out;
    if (argc > 1)
        open_vocab(argv[1]);
    buf_init(&out, MEM_CAT_BASE, (size_t)1 << 30);
    while ((n = getline(&line, &cap, stdin)) > 0) {
        struct json_doc doc;
        struct json_writer w;
        struct err err;
        buf_reset(&out);
        json_writer_init(&w, &out);
        json_begin_object(&w);
        if (json_parse(&doc, line, (size_t)n, (size_t)1 << 28, &err) == ERR_OK) {
            if (json_get(&doc.root, "vocab"))
                answer_vocab(&w);
            else
                answer(&doc.root, &w);
            json_doc_release(&doc);
        } else {
            json_field_str(&w, "error", err.text);
        }
        json_end_object(&w);
        printf("%s\n", out.data);
        fflush(stdout);
    }
    buf_release(&out);
    grammar_vocab_free(vocab);
    mem_free(MEM_CAT_BASE, tokens);
    mem_free(MEM_CAT_BASE, mask);
    tokenizer_free(tokenizer);
    free(line);
    return 0;
}
