/* serve_tokens.c - a tokenizer behind stdin and stdout, so that a test can ask about many texts without starting a program each.
 *
 * serve_tokens MODEL. Numbers are little-endian u32. Request: flags, number of spans, each span's p0 and p1, length, bytes.
 * Reply: number of ids, ids, then two texts (length, bytes): the ids decoded at once, and through a stream, both with special
 * tokens shown. Ends at the end of stdin. */
#include "cli/load_tokenizer.h"

#include <limits.h>
#include <stdio.h>

#define SERVE_TEXT_MAX ((uint32_t)64 << 20)

static bool get_u32(uint32_t *v)
{
    return fread(v, sizeof(*v), 1, stdin) == 1;
}

static void put_text(const void *data, size_t n)
{
    uint32_t len = (uint32_t)n;
    fwrite(&len, sizeof(len), 1, stdout);
    fwrite(data, 1, n, stdout);
}

static enum err_code reply(const struct tokenizer *t, const char *text, size_t len,
                           const struct span_list *spans, unsigned flags, struct err *err)
{
    struct token_list ids;
    struct buf whole;
    struct buf streamed;
    struct detok_stream stream;
    token_list_init(&ids, INT32_MAX);
    buf_init(&whole, MEM_CAT_BASE, SIZE_MAX);
    buf_init(&streamed, MEM_CAT_BASE, SIZE_MAX);
    enum err_code code = tokenizer_encode(t, text, len, spans, flags, &ids, err);
    if (!code)
        code = tokenizer_decode(t, ids.ids, ids.n, true, &whole, err);
    if (!code) {
        uint32_t n = (uint32_t)ids.n;
        detok_stream_init(&stream, t, true, true);
        for (int32_t i = 0; i < ids.n; i++)
            detok_stream_push(&stream, ids.ids[i], &streamed);
        (void)detok_stream_finish(&stream);
        fwrite(&n, sizeof(n), 1, stdout);
        if (n > 0) /* no list is NULL */
            fwrite(ids.ids, sizeof(*ids.ids), n, stdout);
        put_text(whole.data, whole.len);
        put_text(streamed.data, streamed.len);
        fflush(stdout);
    }
    token_list_release(&ids);
    buf_release(&whole);
    buf_release(&streamed);
    return code;
}

/* One request; false at the end of stdin. */
static bool serve_one(const struct tokenizer *t, enum err_code *code, struct err *err)
{
    uint32_t flags, n_spans, len;
    struct span_list spans = { 0 };
    if (!get_u32(&flags) || !get_u32(&n_spans) || n_spans > SERVE_TEXT_MAX)
        return false;
    spans.spans = mem_alloc(MEM_CAT_BASE, n_spans * sizeof(*spans.spans));
    for (; spans.n < n_spans; spans.n++) {
        uint32_t p0, p1;
        if (!get_u32(&p0) || !get_u32(&p1))
            break;
        spans.spans[spans.n] = (struct span){ p0, p1 };
    }
    bool ok = spans.n == n_spans && get_u32(&len) && len <= SERVE_TEXT_MAX;
    char *text = ok ? mem_alloc(MEM_CAT_BASE, len) : NULL;
    ok = ok && fread(text, 1, len, stdin) == len;
    if (ok)
        *code = reply(t, text, len, n_spans ? &spans : NULL, flags, err);
    mem_free(MEM_CAT_BASE, text);
    mem_free(MEM_CAT_BASE, spans.spans);
    return ok && !*code;
}

int main(int argc, char **argv)
{
    struct tokenizer *t = NULL;
    struct err err;
    if (argc != 2) {
        fprintf(stderr, "usage: serve_tokens MODEL\n");
        return 2;
    }
    enum err_code code = load_tokenizer_of(argv[1], &t, &err);
    while (!code && serve_one(t, &code, &err)) {
    }
    tokenizer_free(t);
    if (code)
        fprintf(stderr, "serve_tokens: %s\n", err.text);
    return code ? 1 : 0;
}
