#include "support/byte_vocab.h"

#include <string.h>

const char byte_vocab_template_text[] =
    "{% for m in messages %}{% if m.role == 'system' and m.content == 'raise' %}"
    "{{ raise_exception('No system role: Z9') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

static const char *const control_pieces[] = {
    "<|im_start|>", "<|im_end|>",  "<|end|>",        "[TOOL_CALLS]",  "[ARGS]",
    "<|channel|>",  "<|message|>", "<|start|>",      "<|constrain|>", "<|tool_call>",
    "<tool_call|>", "<|\"|>",      "<|python_tag|>", "<|unused|>",
};

int32_t byte_vocab_control(const char *s, size_t n, size_t *len)
{
    for (size_t i = 0; i < ARRAY_LEN(control_pieces); i++) {
        *len = strlen(control_pieces[i]);
        if (*len <= n && memcmp(s, control_pieces[i], *len) == 0)
            return 256 + (int32_t)i;
    }
    return -1;
}

/* The spelling of byte b in byte-level vocabularies (GPT-2): printable Latin-1 as itself, the rest from U+0100 on. */
static size_t spell_byte(int b, char *out)
{
    int next = 256;
    for (int i = 0; i < 256; i++) {
        bool is_plain = (i >= '!' && i <= '~') || (i >= 0xA1 && i <= 0xAC) || i >= 0xAE;
        int cp = is_plain ? i : next++;
        if (i != b)
            continue;
        if (cp < 0x80) {
            out[0] = (char)cp;
            return 1;
        }
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    return 0;
}

enum err_code byte_vocab_new(struct tokenizer **out, struct err *err)
{
    static char spelled[256][2];
    struct tokenizer_str pieces[BYTE_VOCAB_SIZE];
    uint8_t types[BYTE_VOCAB_SIZE];
    for (int i = 0; i < BYTE_VOCAB_SIZE; i++) {
        types[i] = i < 256 ? TOKEN_TYPE_NORMAL : TOKEN_TYPE_CONTROL;
        if (i < 256)
            pieces[i] = (struct tokenizer_str){ spelled[i], spell_byte(i, spelled[i]) };
        else
            pieces[i] =
                (struct tokenizer_str){ control_pieces[i - 256], strlen(control_pieces[i - 256]) };
    }
    struct tokenizer_spec spec = {
        .kind = TOKENIZER_KIND_BPE,
        .n_tokens = BYTE_VOCAB_SIZE,
        .pieces = pieces,
        .types = types,
        .pre = "gpt-2",
        .bos = -1,
        .eos = BYTE_VOCAB_STOP,
        .eot = -1,
        .unk = -1,
        .sep = -1,
        .pad = -1,
        .cls = -1,
        .mask = -1,
    };
    return tokenizer_new(&spec, out, err);
}

enum err_code byte_vocab_template(struct template **out, struct err *err)
{
    return template_parse("bytes", byte_vocab_template_text, strlen(byte_vocab_template_text), out,
                          err);
}
