#include "server/fim.h"
#include "base/span.h"

#include <string.h>

/* Published with the models: Qwen2.5-Coder and CodeGemma; StarCoder and Granite; DeepSeek-Coder. */
static const struct fim_tokens fim_families[] = {
    { "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>" },
    { "<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>" },
    { "<fim-prefix>", "<fim-suffix>", "<fim-middle>", NULL },
    { "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", NULL },
};

static bool fim_has(const struct tokenizer *t, const char *piece)
{
    return tokenizer_find(t, piece, strlen(piece)) >= 0;
}

const struct fim_tokens *fim_find(const struct tokenizer *t)
{
    for (size_t i = 0; i < ARRAY_LEN(fim_families); i++) {
        const struct fim_tokens *f = &fim_families[i];
        if (fim_has(t, f->prefix) && fim_has(t, f->suffix) && fim_has(t, f->middle))
            return f;
    }
    return NULL;
}

int32_t fim_ends(const struct tokenizer *t, int32_t *ids, int32_t max)
{
    static const char *const names[] = {
        "<|endoftext|>",   "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>",
        "<|repo_name|>",   "<|file_sep|>",   "<|cursor|>", /* Qwen2.5-Coder; CodeGemma has some */
        "<fim_prefix>",    "<fim_suffix>",   "<fim_middle>",   "<fim_pad>",      "<reponame>",
        "<filename>",      "<file_sep>",     "<repo_name>",                 /* StarCoder */
        "<fim-prefix>",    "<fim-suffix>",   "<fim-middle>",   "<fim-pad>", /* Granite */
        "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>",  "<|EOT|>",   /* DeepSeek-Coder */
    };
    int32_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(names) && n < max; i++) {
        int32_t id = tokenizer_find(t, names[i], strlen(names[i]));
        if (id >= 0 && tokenizer_bytes(t, id, false).len == 0)
            ids[n++] = id;
    }
    return n;
}

void fim_init(struct fim_prompt *p, size_t max_bytes)
{
    buf_init(&p->text, MEM_CAT_REQUEST, max_bytes);
    buf_init(&p->spans, MEM_CAT_REQUEST, max_bytes);
}

void fim_release(struct fim_prompt *p)
{
    buf_release(&p->text);
    buf_release(&p->spans);
}

void fim_add_token(struct fim_prompt *p, const char *spelling)
{
    buf_add_str(&p->text, spelling);
}

void fim_add_text(struct fim_prompt *p, const char *text, size_t n)
{
    struct span *last = (struct span *)(void *)p->spans.data;
    struct span span = { p->text.len, p->text.len + n };
    size_t n_spans = p->spans.len / sizeof(span);
    if (n == 0)
        return;
    buf_add(&p->text, text, n);
    if (n_spans > 0 && last[n_spans - 1].p1 == span.p0)
        last[n_spans - 1].p1 = span.p1;
    else
        buf_add(&p->spans, &span, sizeof(span));
}

enum err_code fim_encode(const struct fim_prompt *p, const struct tokenizer *t,
                         struct token_list *out, struct err *err)
{
    const struct span_list caller = { (struct span *)(void *)p->spans.data,
                                      p->spans.len / sizeof(struct span) };
    enum err_code code = buf_check(&p->text, "the prompt", err);
    if (code == ERR_OK)
        code = buf_check(&p->spans, "the prompt", err);
    if (code == ERR_OK)
        code = tokenizer_encode(t, p->text.data, p->text.len, &caller,
                                TOKENIZER_FLAG_SPECIAL | TOKENIZER_FLAG_BOS, out, err);
    return code;
}
