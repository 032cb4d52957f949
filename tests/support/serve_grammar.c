/* serve_grammar.c - grammars for tests in other languages: one JSON object a line in, one out.
 *
 *   {"kind": "schema", "source": "...", "compact": false, "texts": [...], "walks": 10, "seed": 1, "length": 200}
 *   -> {"states": 12, "ms": 0.4, "notes": "", "accepts": [...], "walks": [...]}, or {"error": "...", "code": "invalid"}
 *
 * A walk chooses bytes at random as long as the text is short, then whatever closes it; one that does not end is null. */
#include "base/clock.h"
#include "grammar/grammar.h"
#include "json/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WALK_MAX 20000

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static enum grammar_kind kind_of(const struct json *v)
{
    static const char *const names[] = { "schema", "object", "regex", "gbnf", "choice", "tags" };
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

/* The byte that a walk goes on with: ASCII more often than not; in a long text one that closes. */
static int choose(const uint32_t allowed[8], bool is_long, uint64_t *seed)
{
    static const char closing[] = "\"}]),.:;>/";
    int list[256], n = 0, n_ascii = 0;
    for (int c = 0; c < 256; c++) {
        if (!(allowed[c / 32] >> c % 32 & 1))
            continue;
        list[n++] = c;
        n_ascii += c < 128;
    }
    if (n == 0)
        return -1;
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
        uint32_t allowed[8];
        bool is_long = out->len > length;
        if (grammar_is_complete(s) && (is_long || grammar_is_over(s) || next_random(seed) % 3 == 0))
            return true;
        grammar_next_bytes(s, allowed);
        int c = choose(allowed, is_long, seed);
        char byte = (char)c;
        if (c < 0 || !grammar_step(s, &byte, 1))
            return false;
        buf_add_char(out, byte);
    }
    return false;
}

static void answer(const struct json *q, struct json_writer *w)
{
    const struct json *source = json_get(q, "source"), *texts = json_get(q, "texts");
    const struct json *compact = json_get(q, "compact");
    int64_t walks = 0, seed = 1, length = 200;
    struct grammar *g;
    struct grammar_state *s;
    struct buf notes, text;
    struct err err;
    (void)!json_to_int(json_get(q, "walks"), "walks", 0, 1000000, &walks, NULL);
    (void)!json_to_int(json_get(q, "seed"), "seed", 0, 1000000, &seed, NULL);
    (void)!json_to_int(json_get(q, "length"), "length", 0, WALK_MAX, &length, NULL);
    buf_init(&notes, MEM_CAT_GRAMMAR, 4096);
    buf_init(&text, MEM_CAT_GRAMMAR, WALK_MAX + 8);
    struct grammar_source src = { .kind = kind_of(json_get(q, "kind")),
                                  .text = source ? source->text : "",
                                  .n = source ? source->len : 0,
                                  .is_compact = compact && compact->boolean };
    int64_t start = clock_us();
    enum err_code code = grammar_compile(&src, NULL, &g, &notes, &err);
    if (!code && grammar_state_new(g, &s, &err) == ERR_OK) {
        uint64_t random = (uint64_t)seed * 0x9E3779B97F4A7C15u;
        json_field_double(w, "ms", (double)(clock_us() - start) / 1000);
        json_field_int(w, "states", grammar_n_states(g));
        json_field_str(w, "notes", notes.data);
        json_field_array(w, "accepts");
        for (size_t i = 0; texts && i < texts->n; i++)
            json_bool(w, accepts(s, &texts->items[i]));
        json_end_array(w);
        json_field_array(w, "walks");
        for (int64_t i = 0; i < walks; i++) {
            if (walk(s, (size_t)length, &random, &text))
                json_strn(w, text.data, text.len);
            else
                json_null(w);
        }
        json_end_array(w);
        grammar_state_free(s);
        grammar_unref(g);
    } else {
        json_field_double(w, "ms", (double)(clock_us() - start) / 1000);
        json_field_str(w, "error", err.text);
        json_field_str(w, "code", err_name(code));
    }
    buf_release(&notes);
    buf_release(&text);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    struct buf out;
    buf_init(&out, MEM_CAT_GRAMMAR, (size_t)1 << 30);
    while ((n = getline(&line, &cap, stdin)) > 0) {
        struct json_doc doc;
        struct json_writer w;
        struct err err;
        buf_reset(&out);
        json_writer_init(&w, &out);
        json_begin_object(&w);
        if (json_parse(&doc, line, (size_t)n, (size_t)1 << 28, &err) == ERR_OK) {
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
    free(line);
    return 0;
}
