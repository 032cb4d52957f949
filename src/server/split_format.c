/* split_format.c - the ways in which models write calls and reasoning, and how one is recognised: the published templates of
 * the families named beside each row. */
#include "server/split_int.h"

#include <stdio.h>
#include <string.h>

static const struct split_elements elements_function = {
    /* Qwen3-Coder, Nemotron 3, Step 3.5 */
    .call_open = "<function=", .call_name_end = ">", .call_close = "</function>",
    .key_open = "<parameter=", .key_end = ">",       .value_close = "</parameter>",
    .drops_newline = true,
};

static const struct split_elements elements_seed = {
    /* Seed-OSS */
    .call_open = "<function=", .call_name_end = ">", .call_close = "</function>",
    .key_open = "<parameter=", .key_end = ">",       .value_close = "</parameter>",
    .drops_newline = true,     .is_tight = true,
};

static const struct split_elements elements_glm = {
    /* GLM 4.5 on, Ling 3, Spark 2.5, Laguna */
    .call_open = "",
    .call_name_end = "",
    .call_close = "</tool_call>",
    .key_open = "<arg_key>",
    .key_end = "</arg_key>",
    .value_open = "<arg_value>",
    .value_close = "</arg_value>",
};

static const struct split_elements elements_minicpm = {
    .call_open = "<function name=\"",
    .call_name_end = "\">",
    .call_close = "</function>",
    .key_open = "<param name=\"",
    .key_end = "\">",
    .value_close = "</param>",
    .is_tight = true,
};

static const struct split_elements elements_dsml = {
    /* DeepSeek V3.2, V4 */
    .call_open = "<｜DSML｜invoke name=\"",
    .call_name_end = "\">",
    .call_close = "</｜DSML｜invoke>",
    .key_open = "<｜DSML｜parameter name=\"",
    .key_end = ">",
    .value_close = "</｜DSML｜parameter>",
    .has_type = true,
};

static const struct split_elements elements_atem = {
    .call_open = "<atem:invoke name=\"",
    .call_name_end = "\">",
    .call_close = "</atem:invoke>",
    .key_open = "<atem:parameter name=\"",
    .key_end = "\">",
    .value_close = "</atem:parameter>",
};

static const struct split_elements elements_invoke = {
    /* MiniMax M2 */
    .call_open = "<invoke name=\"",   .call_name_end = "\">", .call_close = "</invoke>",
    .key_open = "<parameter name=\"", .key_end = "\">",       .value_close = "</parameter>",
};

static const struct split_messages messages_harmony = {
    .starts = { "<|channel|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|message|>",
                "to=" },
    .text = "<|message|>",
    .ends = { "<|end|>", "<|call|>", "<|return|>", "<|start|>" },
    .reasoning = "<|channel|>analysis",
};

static const struct split_messages messages_muse = {
    .starts = { "to=", "<|start|>", "<|eom|>", "<|eot|>", "<|message|>" },
    .text = "<|message|>",
    .ends = { "<|eom|>", "<|eot|>", "<|start|>" },
    .reasoning = "to=self",
};

#define JSON_NAME "{\"name\": \""
#define JSON_ARGS "\", \"arguments\": {" /* with the bracket: so that an object it is */
#define JSON_PARS "\", \"parameters\": {"

/* clang-format off */
/* The first row whose needles the template has is the model's; the last one has none. */
static const struct split_format split_formats[] = {
    { "muse", { "<atem:function_calls>", "<|message|>" }, .messages = &messages_muse,
      .open = "<atem:function_calls>", .close = "</atem:function_calls>", .elements = &elements_atem,
      .before_name = " to=", .after_name = "<|message|><atem:function_calls>\n<atem:invoke name=\"\1\">\n",
      .after_call = "</atem:invoke>\n</atem:function_calls>",
      .between = "</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=" },
    { "functionary", { ">>>all" }, .names_recipient = true, .before_name = "", .after_name = "\n{", .after_call = "", .between = ">>>",
      .before_text = { "all\n" } },
    { "dsml", { "｜DSML｜", "function_calls>" }, .open = "<｜DSML｜function_calls>", .close = "</｜DSML｜function_calls>",
      .elements = &elements_dsml,
      .before_name = "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"", .after_name = "\">\n",
      .after_call = "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
      .between = "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"" },
    { "dsml", { "｜DSML｜" }, .open = "<｜DSML｜tool_calls>", .close = "</｜DSML｜tool_calls>", .elements = &elements_dsml,
      .before_name = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"", .after_name = "\">\n",
      .after_call = "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
      .between = "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"" },
    { "harmony", { "<|channel|>", "<|message|>" }, .messages = &messages_harmony,
      .before_name = "<|channel|>commentary to=functions.", .after_name = " <|constrain|>json<|message|>{",
      .after_call = "",
      .before_text = { "<|channel|>final<|message|>", "<|start|>assistant<|channel|>final<|message|>" } },
    { "gemma", { "<|tool_call>" }, .open = "<|tool_call>", .close = "<tool_call|>", .name_end = "{",
      .before_name = "<|tool_call>call:", .after_name = "{", .after_call = "<tool_call|>",
      .between = "<tool_call|><|tool_call>call:", .values = "gemma", .quote = "<|\"|>" },
    { "deepseek", { "<｜tool▁calls▁begin｜>", "```json" }, .open = "<｜tool▁calls▁begin｜>", .close = "<｜tool▁calls▁end｜>",
      .alt_open = "<｜tool▁call▁begin｜>",
      .item_open = "<｜tool▁call▁begin｜>", .item_close = "<｜tool▁call▁end｜>", .name_end = "<｜tool▁sep｜>",
      .before_name = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>", .after_name = "\n```json\n{",
      .after_call = "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
      .between = "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>" },
    { "deepseek", { "<｜tool▁calls▁begin｜>" }, .open = "<｜tool▁calls▁begin｜>", .close = "<｜tool▁calls▁end｜>",
      .alt_open = "<｜tool▁call▁begin｜>",
      .item_open = "<｜tool▁call▁begin｜>", .item_close = "<｜tool▁call▁end｜>", .name_end = "<｜tool▁sep｜>",
      .before_name = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", .after_name = "<｜tool▁sep｜>{",
      .after_call = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
      .between = "<｜tool▁call▁end｜><｜tool▁call▁begin｜>" },
    { "kimi", { "<|tool_calls_section_begin|>" }, .open = "<|tool_calls_section_begin|>", .close = "<|tool_calls_section_end|>",
      .alt_open = "<|tool_call_begin|>",
      .item_open = "<|tool_call_begin|>", .item_close = "<|tool_call_end|>", .name_end = "<|tool_call_argument_begin|>",
      .before_name = "<|tool_calls_section_begin|><|tool_call_begin|>functions.", .after_name = ":" SPLIT_PART_NUMBER "<|tool_call_argument_begin|>{",
      .after_call = "<|tool_call_end|><|tool_calls_section_end|>",
      .between = "<|tool_call_end|><|tool_call_begin|>functions." },
    { "mistral", { "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]" }, .open = "[TOOL_CALLS]", .item_open = "[TOOL_CALLS]", .name_end = "[ARGS]",
      .before_name = "[TOOL_CALLS]", .after_name = "[CALL_ID]" SPLIT_PART_NINE "[ARGS]{", .after_call = "",
      .between = "[TOOL_CALLS]" },
    { "mistral", { "[TOOL_CALLS]", "[ARGS]" }, .open = "[TOOL_CALLS]", .item_open = "[TOOL_CALLS]", .name_end = "[ARGS]",
      .before_name = "[TOOL_CALLS]", .after_name = "[ARGS]{", .after_call = "", .between = "[TOOL_CALLS]" },
    { "mistral-list", { "[TOOL_CALLS]" }, .open = "[TOOL_CALLS]", .item_open = "[TOOL_CALLS]", .name_end = "[ARGS]",
      .before_name = "[TOOL_CALLS][" JSON_NAME, .after_name = JSON_ARGS, .after_call = SPLIT_PART_ID "}]",
      .between = SPLIT_PART_ID "}, " JSON_NAME },
    { "minimax", { "<minimax:tool_call>" }, .open = "<minimax:tool_call>", .close = "</minimax:tool_call>",
      .elements = &elements_invoke,
      .before_name = "<minimax:tool_call>\n<invoke name=\"", .after_name = "\">\n",
      .after_call = "</invoke>\n</minimax:tool_call>",
      .between = "</invoke>\n<invoke name=\"" },
    { "seed", { "<seed:tool_call>" }, .open = "<seed:tool_call>", .close = "</seed:tool_call>", .elements = &elements_seed,
      .before_name = "<seed:tool_call>\n<function=", .after_name = ">\n",
      .after_call = "</function>\n</seed:tool_call>",
      .between = "</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=" },
    { "glm", { "<arg_key>" }, .open = "<tool_call>", .close = "</tool_call>", .elements = &elements_glm,
      .before_name = "<tool_call>", .after_name = SPLIT_PART_LINE, .after_call = "</tool_call>",
      .between = "</tool_call>" SPLIT_PART_LINE "<tool_call>" },
    { "minicpm", { "<function name=", "<param name=" }, .elements = &elements_minicpm,
      .before_name = "<function name=\"", .after_name = "\">", .after_call = "</function>",
      .between = "</function>" SPLIT_PART_LINE "<function name=\"" },
    { "qwen-coder", { "<function=", "<parameter=" }, .open = "<tool_call>", .close = "</tool_call>", .elements = &elements_function,
      .before_name = "<tool_call>\n<function=", .after_name = ">\n", .after_call = "</function>\n</tool_call>",
      .between = "</function>\n</tool_call>" SPLIT_PART_LINE "<tool_call>\n<function=" },
    { "command-r", { "<|START_ACTION|>" }, .open = "<|START_ACTION|>", .close = "<|END_ACTION|>",
      .before_name = "<|START_ACTION|>[\n    {\"tool_call_id\": \"" SPLIT_PART_NUMBER "\", \"tool_name\": \"", .after_name = JSON_PARS,
      .after_call = "}\n]<|END_ACTION|>",
      .between = "},\n    {\"tool_call_id\": \"" SPLIT_PART_NUMBER "\", \"tool_name\": \"" },
    { "action", { "Action:", "\"tool_name\"" }, .open = "Action:",
      .before_name = "Action:\n```json\n[\n    {\n        \"tool_name\": \"", .after_name = "\",\n        \"parameters\": {",
      .after_call = "\n    }\n]\n```",
      .between = "\n    },\n    {\n        \"tool_name\": \"" },
    { "keyed", { "<|tools_prefix|>" }, .open = "<|tools_prefix|>", .close = "<|tools_suffix|>", .is_keyed = true,
      .before_name = "<|tools_prefix|>[{\"", .after_name = "\": {", .after_call = "}]<|tools_suffix|>", .between = "}, {\"" },
    { "functools", { "functools[" }, .open = "functools[", .before_name = " functools[" JSON_NAME, .after_name = JSON_ARGS,
      .after_call = "}]", .between = "}, " JSON_NAME },
    { "gigachat", { "function call", "<|role_sep|>" }, .open = "<|message_sep|>\n\nfunction call<|role_sep|>\n",
      .alt_open = "function call<|role_sep|>\n", .close = "<|message_sep|>",
      .before_name = "<|message_sep|>\n\nfunction call<|role_sep|>\n" JSON_NAME, .after_name = JSON_ARGS, .after_call = "}" },
    { "python", { "<|tool_call_start|>" }, .open = "<|tool_call_start|>", .close = "<|tool_call_end|>", .is_python = true,
      .before_name = "<|tool_call_start|>[", .after_name = "(",
      .after_call = "]<|tool_call_end|>", .between = ", ", .values = "python" },
    { "python", { "<|tool_list_start|>" }, .open = "<|tool_call_start|>", .close = "<|tool_call_end|>", .is_python = true,
      .before_name = "<|tool_call_start|>[", .after_name = "(",
      .after_call = "]<|tool_call_end|>", .between = ", ", .values = "python" },
    { "nemotron", { "<TOOLCALL>" }, .open = "<TOOLCALL>", .close = "</TOOLCALL>",
      .before_name = "<TOOLCALL>[" JSON_NAME, .after_name = JSON_ARGS, .after_call = "}]</TOOLCALL>", .between = "}, " JSON_NAME },
    { "list", { "<tool_calls>[" }, .open = "<tool_calls>", .close = "</tool_calls>",
      .before_name = "<tool_calls>[" JSON_NAME, .after_name = JSON_ARGS, .after_call = "}]</tool_calls>", .between = "}, " JSON_NAME },
    { "lines", { "<tool_calls>" }, .open = "<tool_calls>", .close = "</tool_calls>",
      .before_name = "<tool_calls>\n" JSON_NAME, .after_name = JSON_ARGS, .after_call = "}\n</tool_calls>", .between = "}\n" JSON_NAME },
    { "granite", { "<|tool_call|>" }, .open = "<|tool_call|>",
      .before_name = "<|tool_call|>[" JSON_NAME, .after_name = JSON_ARGS, .after_call = "}]", .between = "}, " JSON_NAME },
    { "hermes", { "<tool_call>" }, .open = "<tool_call>", .alt_open = "<tools>", .close = "</tool_call>", .alt_close = "</tools>",
      .before_name = "<tool_call>\n" JSON_NAME, .after_name = JSON_ARGS, .after_call = "}\n</tool_call>", .between = "}\n</tool_call>\n<tool_call>\n" JSON_NAME },
    { "function", { "<function=" }, .elements = &elements_function,
      .before_name = "<function=", .after_name = ">{", .after_call = "</function>" },
    { "llama4", { "<|python_start|>" }, .open = "<|python_start|>", .close = "<|python_end|>", .is_bare = true,
      .is_python = true, .before_name = JSON_NAME, .after_name = JSON_PARS, .after_call = "}" },
    { "llama", { "{\"name\": function name, \"parameters\":" }, .open = "<|python_tag|>", .is_bare = true, .is_python = true,
      .before_name = JSON_NAME, .after_name = JSON_PARS, .after_call = "}" },
    { "json", { NULL }, .open = "<tool_call>", .close = "</tool_call>", .is_bare = true,
      .before_name = JSON_NAME, .after_name = JSON_ARGS, .after_call = "}" },
};

static const struct split_thought split_message_thoughts[] = {
    { "<|channel|>analysis<|message|>", "<|end|>" }, /* Harmony */
    { "to=self<|message|>", "<|eom|>" }, /* Muse */
};

static const struct split_thought split_thoughts[] = {
    { "<|channel>thought", "<channel|>" }, /* Gemma 4 */
    { "<seed:think>", "</seed:think>" },
    { "[THINK]", "[/THINK]" }, /* Magistral */
    { "<|START_THINKING|>", "<|END_THINKING|>" },
    { "<|inner_prefix|>", "<|inner_suffix|>" }, /* Apertus */
    { "<think>", "</think>" },
};
/* clang-format on */

static bool style_fits(const struct split_format *f, const char *text)
{
    for (size_t i = 0; i < ARRAY_LEN(f->needles) && f->needles[i]; i++)
        if (!text || !strstr(text, f->needles[i]))
            return false;
    return true;
}

/* Control tokens that occur in marker m: their bytes are hidden from the text otherwise. */
static void style_add_marks(struct split_style *s, const char *m, const struct tokenizer *t)
{
    for (const char *p = m; p && *p; p++) {
        size_t left = strlen(p);
        for (size_t n = left < 48 ? left : 48; n >= 3; n--) {
            bool may_be =
                *p == '<' || *p == '[' || (unsigned char)*p == 0xEF; /* U+FF5C is one too */
            int32_t id = may_be ? tokenizer_find(t, p, n) : -1;
            if (id < 0 || tokenizer_bytes(t, id, false).len > 0 || split_style_is_mark(s, id) ||
                s->n_marks == SPLIT_MARKS_MAX)
                continue;
            s->marks[s->n_marks++] = id;
            break;
        }
    }
}

static bool style_has_thought(const struct split_thought *x, const char *text,
                              const struct tokenizer *t)
{
    if (text && (strstr(text, x->open) || strstr(text, x->close)))
        return true;
    return tokenizer_find(t, x->open, strlen(x->open)) >= 0 &&
           tokenizer_find(t, x->close, strlen(x->close)) >= 0;
}

void split_style_init(struct split_style *s, const char *template_text, const struct tokenizer *t)
{
    const struct split_format *f = split_formats;
    while (!style_fits(f, template_text))
        f++;
    *s = (struct split_style){ .format = f };
    for (size_t i = 0; i < ARRAY_LEN(split_thoughts) && !f->messages && !s->thought; i++)
        if (style_has_thought(&split_thoughts[i], template_text, t))
            s->thought = &split_thoughts[i];
    if (f->messages)
        s->thought = &split_message_thoughts[f->messages == &messages_muse];
    const char *const markers[] = {
        f->open,
        f->alt_open,
        f->close,
        f->alt_close,
        f->item_open,
        f->name_end,
        f->before_name,
        f->after_name,
        f->item_close,
        s->thought ? s->thought->open : NULL,
        s->thought ? s->thought->close : NULL,
        f->quote,
        f->name_end && strcmp(f->name_end, "[ARGS]") == 0 ? "[CALL_ID]" : NULL,
    };
    for (size_t i = 0; i < ARRAY_LEN(markers); i++)
        style_add_marks(s, markers[i], t);
    for (size_t i = 0; f->messages && i < ARRAY_LEN(f->messages->starts); i++)
        style_add_marks(s, f->messages->starts[i], t);
    int32_t quote = f->quote ? tokenizer_find(t, f->quote, strlen(f->quote)) : -1;
    s->has_quote = quote >= 0 && split_style_is_mark(s, quote);
}

const char *split_style_name(const struct split_style *s)
{
    return s->format->name;
}

bool split_style_has_channels(const struct split_style *s)
{
    return s->format->messages == &messages_harmony;
}

bool split_style_is_mark(const struct split_style *s, int32_t id)
{
    for (int32_t i = 0; i < s->n_marks; i++)
        if (s->marks[i] == id)
            return true;
    return false;
}

bool split_style_is_framed(const struct split_style *s)
{
    return s->format->messages || s->format->names_recipient;
}

/* The last place of needle in text[0, n), or NULL. */
static const char *style_last(const char *text, size_t n, const char *needle)
{
    size_t len = strlen(needle);
    for (size_t i = n; i >= len && len > 0; i--)
        if (memcmp(text + i - len, needle, len) == 0)
            return text + i - len;
    return NULL;
}

bool split_style_starts_open(const struct split_style *s, const char *prompt, size_t n)
{
    const struct split_thought *x = s->thought;
    const char *end = prompt + n, *open = x ? style_last(prompt, n, x->open) : NULL;
    if (!open || s->format->messages)
        return false;
    for (open += strlen(x->open); open < end && strchr(" \t\r\n", *open); open++)
        ;
    return open == end;
}

static void style_call(const struct split_style *s, const char *name, struct buf *out)
{
    buf_add_str(out, s->format->before_name);
    if (!name)
        return;
    buf_add_str(out, name);
    for (const char *p = s->format->after_name; *p; p++)
        if (*p == '\1')
            buf_add_str(out, name);
        else
            buf_add_char(out, *p);
}

/* With what is left open as a model that has called nothing yet writes it. */
void split_style_opening(const struct split_style *s, const char *name, struct buf *out)
{
    static const char *const parts[] = { "0", "000000000", "", "\n" };
    struct buf call;
    buf_init(&call, MEM_CAT_REQUEST, 1 << 12);
    style_call(s, name, &call);
    for (size_t i = 0, n = strlen(SPLIT_PART_LEAD); i < call.len; i++) {
        if (strncmp(call.data + i, SPLIT_PART_LEAD, n) != 0) {
            buf_add_char(out, call.data[i]);
            continue;
        }
        buf_add_str(out, parts[(unsigned char)call.data[i + n] - 0x92]);
        i += n;
    }
    buf_release(&call);
}

/* --- calls whose arguments are constrained --- */

const char *split_style_values(const struct split_style *s)
{
    return s->format->values;
}

const char *split_style_quote(const struct split_style *s)
{
    return s->format->quote;
}

bool split_style_has_words(const struct split_style *s)
{
    const char *values = s->format->values;
    return s->format->names_recipient || (values && strcmp(values, "python") == 0);
}

/* Calls begin with '{' where the arguments are JSON all the same ("function"). */
bool split_style_elements(const struct split_style *s, struct split_element *out)
{
    const struct split_elements *x = s->format->elements;
    size_t n = strlen(s->format->after_name);
    if (!x || s->format->after_name[n - 1] == '{')
        return false;
    const char *line = x->is_tight && !x->drops_newline ? ""
                       : x->value_open                  ? SPLIT_PART_LINE
                                                        : "\n";
    bool has_lines = x->drops_newline && !x->is_tight;
    *out = (struct split_element){ .open = x->key_open, .stop = x->value_close };
    out->trims = x->drops_newline && x->is_tight;
    out->over[0] = s->format->close ? x->call_close : NULL;
    if (out->over[0] && strcmp(x->call_close, s->format->close) != 0)
        out->over[1] = s->format->close;
    snprintf(out->raw, sizeof(out->raw), "%s%s%s%s", x->has_type ? "\" string=\"true\"" : "",
             x->key_end, x->value_open ? line : "",
             x->value_open ? x->value_open
             : has_lines   ? "\n"
                           : "");
    snprintf(out->json, sizeof(out->json), "%s%s", x->has_type ? "\" string=\"false\"" : "",
             x->has_type ? x->key_end : out->raw);
    snprintf(out->close, sizeof(out->close), "%s%s%s", has_lines ? "\n" : "", x->value_close, line);
    return true;
}

bool split_style_has_frames(const struct split_style *s)
{
    return s->format->before_text[0] != NULL;
}

/* The longest control token of a marker that the text begins with: its bytes, or 0. */
static size_t style_mark_at(const struct split_style *s, const struct tokenizer *t,
                            const char *text)
{
    size_t best = 0;
    for (int32_t i = 0; i < s->n_marks; i++) {
        struct tokenizer_str piece = tokenizer_piece(t, s->marks[i]);
        if (piece.len > best && strncmp(text, piece.data, piece.len) == 0)
            best = piece.len;
    }
    return best;
}

void split_style_spell(const struct split_style *s, const struct tokenizer *t, const char *text,
                       const char *open, const char *close, struct buf *out)
{
    while (*text) {
        size_t n = style_mark_at(s, t, text);
        if (n > 0)
            buf_add_str(out, open);
        buf_add(out, text, n > 0 ? n : 1);
        if (n > 0)
            buf_add_str(out, close);
        text += n > 0 ? n : 1;
    }
}

void split_style_call(const struct split_style *s, const char *name, struct buf *before)
{
    style_call(s, name, before);
    if (before->len > 0 && strchr("{(", before->data[before->len - 1])) /* the arguments' own */
        buf_cut(before, before->len - 1);
}

const char *split_style_call_end(const struct split_style *s)
{
    return s->format->after_call;
}

const char *split_style_between(const struct split_style *s)
{
    return s->format->between;
}

bool split_style_framing(const struct split_style *s, struct split_framing *out)
{
    const struct split_format *f = s->format;
    const struct split_messages *m = f->messages;
    const char *to = strstr(f->before_name, "to=");
    *out = (struct split_framing){ .word = "" };
    if (f->names_recipient) {
        out->recipient = ">>>";
        out->all = f->before_text[0];
    } else if (m) {
        out->word = to ? to + strlen("to=") : "";
        out->text = m->text;
        out->starts = m->starts;
        out->ends = m->ends;
        while (out->n_starts < ARRAY_LEN(m->starts) && m->starts[out->n_starts])
            out->n_starts++;
        while (out->n_ends < ARRAY_LEN(m->ends) && m->ends[out->n_ends])
            out->n_ends++;
    }
    return m || f->names_recipient;
}

const char *split_style_frame(const struct split_style *s, int i)
{
    return i < (int)ARRAY_LEN(s->format->before_text) ? s->format->before_text[i] : NULL;
}

size_t split_style_trigger(const struct split_style *s)
{
    const struct split_format *f = s->format;
    size_t from = strspn(f->before_name, " \n"), n = f->open ? strlen(f->open) : 0;
    bool is_marked = n > 0 && strncmp(f->before_name + from, f->open, n) == 0;
    return is_marked ? n : strlen(f->before_name + from);
}

bool split_style_is_marked(const struct split_style *s)
{
    return strcmp(s->format->before_name, JSON_NAME) != 0;
}

bool split_style_spelling(const struct split_style *s, int i, const char *name, struct buf *before,
                          const char **end)
{
    static const char *const blanks[] = { "", "\n  ", "\n    " };
    bool has_parameters = strstr(s->format->after_name, "\"parameters\"") != NULL;
    if (i >= (int)ARRAY_LEN(blanks))
        return false;
    buf_printf(before, "{%s\"name\": \"%s\",%s\"%s\": ", blanks[i], name, i > 0 ? blanks[i] : " ",
               has_parameters ? "parameters" : "arguments");
    *end = i > 0 ? "\n}" : "}";
    return true;
}
