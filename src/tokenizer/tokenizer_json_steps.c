/* tokenizer_json_steps.c - the parts of a tokenizer.json around its model. */
#include "base/map.h"
#include "tokenizer/tokenizer_int.h"
#include "tokenizer/tokenizer_json_int.h"

#include <stdio.h>
#include <string.h>

#define STEPS_DEPTH 8

/* The library's pattern for ByteLevel, and its classes of characters as patterns. */
#define STEPS_GPT2 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define STEPS_IN_WORD                                                                   \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200C}\\x{200D}\\x{24B6}-\\x{24E9}\\x{1F130}-" \
    "\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"
#define STEPS_MARKS "[!-/:-@\\[-`{-~\\p{P}]"

static enum err_code steps_unknown(const char *part, const char *type, struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: %s '%.64s' is not known", part, type);
}

static enum err_code steps_full(const char *part, struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: %s: over %d steps", part,
                   PIPELINE_STEPS_MAX);
}

/* Characters of a plain text that mean something in a pattern, escaped. */
static enum err_code steps_literal(struct tokenizer_reading *r, const char *text, const char **out,
                                   struct err *err)
{
    size_t n = strlen(text), k = 0;
    char *p = arena_alloc(&r->arena, n * 2 + 1);
    if (!p)
        return err_set(err, ERR_NOMEM, "tokenizer.json: no memory for a pattern");
    for (size_t i = 0; i < n; i++) {
        if (strchr("\\^$.[]|()?*+{}-#&~/", text[i]))
            p[k++] = '\\';
        p[k++] = text[i];
    }
    *out = p;
    return ERR_OK;
}

/* {"String": "x"} or {"Regex": "x"}. */
static enum err_code steps_pattern(struct tokenizer_reading *r, const struct json *v,
                                   const char **out, struct err *err)
{
    const char *text, *regex;
    enum err_code code = tokenizer_json_str(v, "String", NULL, &text, err);
    if (!code)
        code = tokenizer_json_str(v, "Regex", NULL, &regex, err);
    if (code)
        return code;
    if (!text && !regex)
        return err_set(err, ERR_INVALID, "tokenizer.json: pattern: want String or Regex");
    *out = regex;
    return text ? steps_literal(r, text, out, err) : ERR_OK;
}

/* --- normalizer --- */

static enum err_code norm_add(struct tokenizer_reading *r, const struct norm_step *s,
                              struct err *err)
{
    struct pipeline_spec *p = &r->pipeline;
    if (p->n_norms == PIPELINE_STEPS_MAX)
        return steps_full("normalizer", err);
    p->norms[p->n_norms++] = *s;
    return ERR_OK;
}

static enum err_code norm_add_if(struct tokenizer_reading *r, bool has, enum norm_kind kind,
                                 struct err *err)
{
    return has ? norm_add(r, &(struct norm_step){ .kind = kind }, err) : ERR_OK;
}

static enum err_code norm_bert(struct tokenizer_reading *r, const struct json *v, struct err *err)
{
    bool clean, han, lower, accents;
    enum err_code code = tokenizer_json_bool(v, "clean_text", true, &clean, err);
    if (!code)
        code = tokenizer_json_bool(v, "handle_chinese_chars", true, &han, err);
    if (!code)
        code = tokenizer_json_bool(v, "lowercase", true, &lower, err);
    if (!code)
        code = tokenizer_json_bool(v, "strip_accents", lower, &accents, err);
    if (!code)
        code = norm_add_if(r, clean, NORM_KIND_BERT_CLEAN, err);
    if (!code)
        code = norm_add_if(r, han, NORM_KIND_BERT_HAN, err);
    if (!code)
        code = norm_add_if(r, accents, NORM_KIND_NFD, err);
    if (!code)
        code = norm_add_if(r, accents, NORM_KIND_STRIP_ACCENTS, err);
    return code ? code : norm_add_if(r, lower, NORM_KIND_LOWERCASE, err);
}

static enum err_code norm_charsmap(struct tokenizer_reading *r, const struct json *v,
                                   struct err *err)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const struct json *s = json_get_set(v, "precompiled_charsmap");
    if (!json_is(s, JSON_TYPE_STRING))
        return err_set(err, ERR_INVALID, "tokenizer.json: precompiled_charsmap: want a string");
    uint8_t *out = arena_alloc(&r->arena, s->len);
    uint32_t bits = 0;
    int n_bits = 0;
    size_t n = 0;
    if (!out)
        return err_set(err, ERR_NOMEM, "tokenizer.json: no memory for precompiled_charsmap");
    for (size_t i = 0; i < s->len && s->text[i] != '='; i++) {
        const char *d = s->text[i] ? strchr(digits, s->text[i]) : NULL;
        if (!d)
            return err_set(err, ERR_INVALID, "tokenizer.json: precompiled_charsmap: not base64");
        bits = bits << 6 | (uint32_t)(d - digits);
        n_bits += 6;
        if (n_bits >= 8)
            out[n++] = (uint8_t)(bits >> (n_bits -= 8));
    }
    r->spec.charsmap = out;
    r->spec.charsmap_bytes = n;
    return norm_add(r, &(struct norm_step){ .kind = NORM_KIND_CHARSMAP }, err);
}

static enum err_code norm_one(struct tokenizer_reading *r, const char *type, const struct json *v,
                              struct err *err)
{
    static const struct {
        const char *name;
        enum norm_kind kind;
    } plain[] = { { "NFC", NORM_KIND_NFC },
                  { "NFD", NORM_KIND_NFD },
                  { "NFKC", NORM_KIND_NFKC },
                  { "NFKD", NORM_KIND_NFKD },
                  { "Lowercase", NORM_KIND_LOWERCASE },
                  { "StripAccents", NORM_KIND_STRIP_ACCENTS } };
    struct norm_step s = { 0 };
    enum err_code code = ERR_OK;
    for (size_t i = 0; i < ARRAY_LEN(plain); i++)
        if (strcmp(type, plain[i].name) == 0)
            return norm_add_if(r, true, plain[i].kind, err);
    if (strcmp(type, "BertNormalizer") == 0)
        return norm_bert(r, v, err);
    if (strcmp(type, "Precompiled") == 0)
        return norm_charsmap(r, v, err);
    if (strcmp(type, "Replace") == 0) {
        s.kind = NORM_KIND_REPLACE;
        code = steps_pattern(r, json_get(v, "pattern"), &s.pattern, err);
        if (!code)
            code = tokenizer_json_str(v, "content", "", &s.content, err);
    } else if (strcmp(type, "Prepend") == 0) {
        s.kind = NORM_KIND_PREPEND;
        code = tokenizer_json_str(v, "prepend", "", &s.content, err);
    } else if (strcmp(type, "Strip") == 0) {
        s.kind = NORM_KIND_STRIP;
        code = tokenizer_json_bool(v, "strip_left", true, &s.left, err);
        if (!code)
            code = tokenizer_json_bool(v, "strip_right", true, &s.right, err);
    } else {
        return steps_unknown("normalizer", type, err);
    }
    return code ? code : norm_add(r, &s, err);
}

/* What a list of steps does with each. */
typedef enum err_code (*steps_fn)(struct tokenizer_reading *r, const char *type,
                                  const struct json *v, struct err *err);

/* A step, or a Sequence of steps under `list`; null is none. */
static enum err_code steps_walk(struct tokenizer_reading *r, const char *part, const char *list,
                                const struct json *v, int depth, steps_fn one, struct err *err)
{
    const char *type;
    if (!v || v->type == JSON_TYPE_NULL)
        return ERR_OK;
    if (v->type != JSON_TYPE_OBJECT || depth == STEPS_DEPTH)
        return err_set(err, ERR_INVALID, "tokenizer.json: %s: want an object, nested at most %d",
                       part, STEPS_DEPTH);
    enum err_code code = tokenizer_json_str(v, "type", "", &type, err);
    if (code || strcmp(type, "Sequence") != 0)
        return code ? code : one(r, type, v, err);
    const struct json *items = json_get(v, list);
    if (!json_is(items, JSON_TYPE_ARRAY))
        return err_set(err, ERR_INVALID, "tokenizer.json: %s: a Sequence without %s", part, list);
    for (size_t i = 0; i < items->n && !code; i++)
        code = steps_walk(r, part, list, &items->items[i], depth + 1, one, err);
    return code;
}

enum err_code tokenizer_json_normalizer(struct tokenizer_reading *r, const struct json *v,
                                        struct err *err)
{
    return steps_walk(r, "normalizer", "normalizers", v, 0, norm_one, err);
}

/* --- pre_tokenizer --- */

static enum err_code split_add(struct tokenizer_reading *r, const struct split_step *s,
                               struct err *err)
{
    struct pipeline_spec *p = &r->pipeline;
    if (p->n_splits == PIPELINE_STEPS_MAX)
        return steps_full("pre_tokenizer", err);
    p->splits[p->n_splits++] = *s;
    return ERR_OK;
}

static enum err_code split_add_pattern(struct tokenizer_reading *r, const char *pattern,
                                       enum split_behavior behavior, bool is_inverted,
                                       struct err *err)
{
    return split_add(r,
                     &(struct split_step){ .kind = SPLIT_KIND_PATTERN,
                                           .pattern = pattern,
                                           .behavior = behavior,
                                           .is_inverted = is_inverted },
                     err);
}

static enum err_code split_behavior_of(const struct json *v, enum split_behavior *out,
                                       struct err *err)
{
    static const char *const names[] = { [SPLIT_ISOLATED] = "Isolated",
                                         [SPLIT_REMOVED] = "Removed",
                                         [SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
                                         [SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
                                         [SPLIT_CONTIGUOUS] = "Contiguous" };
    const char *name;
    enum err_code code = tokenizer_json_str(v, "behavior", "Isolated", &name, err);
    for (size_t i = 0; i < ARRAY_LEN(names) && !code; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum split_behavior)i;
            return ERR_OK;
        }
    return code ? code : steps_unknown("behavior", name, err);
}

static enum err_code split_byte_level(struct tokenizer_reading *r, const struct json *v,
                                      struct err *err)
{
    bool has_prefix, has_regex;
    enum err_code code = tokenizer_json_bool(v, "add_prefix_space", false, &has_prefix, err);
    if (!code)
        code = tokenizer_json_bool(v, "use_regex", true, &has_regex, err);
    r->is_byte_level = true;
    if (!code && has_prefix)
        code = split_add(r, &(struct split_step){ .kind = SPLIT_KIND_PREFIX }, err);
    return code || !has_regex ? code : split_add_pattern(r, STEPS_GPT2, SPLIT_ISOLATED, false, err);
}

static enum err_code prepend_of(const struct json *v, enum split_prepend *out, struct err *err)
{
    bool has_prefix;
    const char *scheme;
    enum err_code code = tokenizer_json_bool(v, "add_prefix_space", true, &has_prefix, err);
    if (!code)
        code =
            tokenizer_json_str(v, "prepend_scheme", has_prefix ? "always" : "never", &scheme, err);
    if (code)
        return code;
    *out = strcmp(scheme, "always") == 0  ? SPLIT_PREPEND_ALWAYS
           : strcmp(scheme, "first") == 0 ? SPLIT_PREPEND_FIRST
                                          : SPLIT_PREPEND_NEVER;
    return *out || strcmp(scheme, "never") == 0 ? ERR_OK
                                                : steps_unknown("prepend_scheme", scheme, err);
}

static enum err_code split_metaspace(struct tokenizer_reading *r, const struct json *v,
                                     struct err *err)
{
    bool is_cut;
    const char *mark;
    struct split_step s = { .kind = SPLIT_KIND_METASPACE };
    enum err_code code = tokenizer_json_str(v, "replacement", SPACE_MARK, &mark, err);
    if (!code && strcmp(mark, SPACE_MARK) != 0)
        code = steps_unknown("replacement of a Metaspace", mark, err);
    if (!code)
        code = prepend_of(v, &s.prepend, err);
    if (!code)
        code = tokenizer_json_bool(v, "split", true, &is_cut, err);
    if (!code)
        code = split_add(r, &s, err);
    return code || !is_cut ? code
                           : split_add_pattern(r, SPACE_MARK, SPLIT_MERGED_WITH_NEXT, false, err);
}

static enum err_code split_own(struct tokenizer_reading *r, const struct json *v, struct err *err)
{
    const char *pattern;
    enum split_behavior behavior = SPLIT_ISOLATED;
    bool is_inverted;
    enum err_code code = steps_pattern(r, json_get(v, "pattern"), &pattern, err);
    if (!code)
        code = split_behavior_of(v, &behavior, err);
    if (!code)
        code = tokenizer_json_bool(v, "invert", false, &is_inverted, err);
    return code ? code : split_add_pattern(r, pattern, behavior, is_inverted, err);
}

static enum err_code split_digits(struct tokenizer_reading *r, const struct json *v,
                                  struct err *err)
{
    bool is_each;
    enum err_code code = tokenizer_json_bool(v, "individual_digits", false, &is_each, err);
    return code ? code
                : split_add_pattern(r, "\\p{N}", is_each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, false,
                                    err);
}

static enum err_code split_one(struct tokenizer_reading *r, const char *type, const struct json *v,
                               struct err *err)
{
    enum err_code code;
    enum split_behavior behavior = SPLIT_ISOLATED;
    const char *text;
    if (strcmp(type, "ByteLevel") == 0)
        return split_byte_level(r, v, err);
    if (strcmp(type, "Metaspace") == 0)
        return split_metaspace(r, v, err);
    if (strcmp(type, "Split") == 0)
        return split_own(r, v, err);
    if (strcmp(type, "Digits") == 0)
        return split_digits(r, v, err);
    if (strcmp(type, "WhitespaceSplit") == 0)
        return split_add_pattern(r, "\\s", SPLIT_REMOVED, false, err);
    if (strcmp(type, "Whitespace") == 0)
        return split_add_pattern(r, "[" STEPS_IN_WORD "]+|[^" STEPS_IN_WORD "\\s]+", SPLIT_REMOVED,
                                 true, err);
    if (strcmp(type, "Punctuation") == 0) {
        code = split_behavior_of(v, &behavior, err);
        return code ? code : split_add_pattern(r, STEPS_MARKS, behavior, false, err);
    }
    if (strcmp(type, "BertPreTokenizer") == 0) {
        code = split_add_pattern(r, "\\s", SPLIT_REMOVED, false, err);
        return code ? code : split_add_pattern(r, STEPS_MARKS, SPLIT_ISOLATED, false, err);
    }
    if (strcmp(type, "CharDelimiterSplit") == 0) {
        code = tokenizer_json_str(v, "delimiter", "", &text, err);
        if (!code)
            code = steps_literal(r, text, &text, err);
        return code ? code : split_add_pattern(r, text, SPLIT_REMOVED, false, err);
    }
    return steps_unknown("pre_tokenizer", type, err);
}

enum err_code tokenizer_json_pre_tokenizer(struct tokenizer_reading *r, const struct json *v,
                                           struct err *err)
{
    return steps_walk(r, "pre_tokenizer", "pretokenizers", v, 0, split_one, err);
}

/* --- post_processor --- */

/* The id of a template's token: what its table says, else the vocabulary. */
static enum err_code post_token(struct tokenizer_reading *r, const struct json *v, const char *name,
                                int32_t *out, struct err *err)
{
    int64_t id;
    const struct json *ids = json_get(json_get(json_get(v, "special_tokens"), name), "ids");
    if (json_is(ids, JSON_TYPE_ARRAY) && ids->n == 1) {
        enum err_code code = json_to_int(&ids->items[0], "tokenizer.json: post_processor: id", 0,
                                         r->spec.n_tokens - 1, &id, err);
        *out = (int32_t)id;
        return code;
    }
    *out = map_get(&r->ids, name, strlen(name));
    return *out >= 0 ? ERR_OK
                     : err_set(err, ERR_INVALID,
                               "tokenizer.json: post_processor: token '%.64s' is none of the "
                               "vocabulary's",
                               name);
}

/* How often the tail stands between the two texts of a pair. */
static int32_t post_between(const struct json *pair)
{
    int32_t n = 0, n_texts = 0;
    for (size_t i = 0; json_is(pair, JSON_TYPE_ARRAY) && i < pair->n; i++) {
        bool is_token = json_get(&pair->items[i], "SpecialToken") != NULL;
        n += is_token && n_texts == 1;
        n_texts += !is_token;
    }
    return n;
}

/* {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, ...]} */
static enum err_code post_template(struct tokenizer_reading *r, const struct json *v,
                                   struct err *err)
{
    bool has_text = false;
    enum err_code code = ERR_OK;
    const struct json *single = json_get(v, "single");
    r->pipeline.n_between = post_between(json_get(v, "pair"));
    if (!json_is(single, JSON_TYPE_ARRAY))
        return err_set(err, ERR_INVALID, "tokenizer.json: post_processor: no array 'single'");
    for (size_t i = 0; i < single->n && !code; i++) {
        const struct json *token = json_get(&single->items[i], "SpecialToken");
        const char *name;
        if (!token) {
            has_text = true;
            continue;
        }
        int32_t *out = has_text ? &r->pipeline.tail : &r->pipeline.head;
        if (*out >= 0)
            return err_set(err, ERR_UNSUPPORTED,
                           "tokenizer.json: post_processor: two tokens on one side of a text");
        code = tokenizer_json_str(token, "id", "", &name, err);
        if (!code)
            code = post_token(r, v, name, out, err);
    }
    return code;
}

/* {"cls": ["[CLS]", 101], "sep": ["[SEP]", 102]} */
static enum err_code post_pair(struct tokenizer_reading *r, const struct json *v, const char *name,
                               int32_t *out, struct err *err)
{
    int64_t id;
    const struct json *pair = json_get(v, name);
    if (!json_is(pair, JSON_TYPE_ARRAY) || pair->n != 2)
        return err_set(err, ERR_INVALID, "tokenizer.json: post_processor: %s: want [text, id]",
                       name);
    enum err_code code = json_to_int(&pair->items[1], "tokenizer.json: post_processor: id", 0,
                                     r->spec.n_tokens - 1, &id, err);
    *out = (int32_t)id;
    return code;
}

static enum err_code post_one(struct tokenizer_reading *r, const char *type, const struct json *v,
                              struct err *err)
{
    if (strcmp(type, "ByteLevel") == 0) /* moves offsets only */
        return ERR_OK;
    if (strcmp(type, "TemplateProcessing") == 0)
        return post_template(r, v, err);
    if (strcmp(type, "BertProcessing") != 0 && strcmp(type, "RobertaProcessing") != 0)
        return steps_unknown("post_processor", type, err);
    r->pipeline.n_between = strcmp(type, "RobertaProcessing") == 0 ? 2 : 1;
    enum err_code code = post_pair(r, v, "cls", &r->pipeline.head, err);
    return code ? code : post_pair(r, v, "sep", &r->pipeline.tail, err);
}

enum err_code tokenizer_json_post_processor(struct tokenizer_reading *r, const struct json *v,
                                            struct err *err)
{
    r->pipeline.head = r->pipeline.tail = -1;
    return steps_walk(r, "post_processor", "processors", v, 0, post_one, err);
}

/* --- decoder: the kind decodes; what is left to read is whether a text has a space in front that is not its own --- */

static enum err_code decode_one(struct tokenizer_reading *r, const char *type, const struct json *v,
                                struct err *err)
{
    static const char *const plain[] = { "ByteLevel", "Replace", "ByteFallback", "Fuse",
                                         "WordPiece" };
    enum split_prepend prepend = SPLIT_PREPEND_NEVER;
    enum err_code code = ERR_OK;
    for (size_t i = 0; i < ARRAY_LEN(plain); i++)
        if (strcmp(type, plain[i]) == 0)
            return ERR_OK;
    if (strcmp(type, "Metaspace") == 0)
        code = prepend_of(v, &prepend, err);
    else if (strcmp(type, "Strip") != 0)
        return steps_unknown("decoder", type, err);
    r->spec.add_space_prefix |= strcmp(type, "Strip") == 0 || prepend != SPLIT_PREPEND_NEVER;
    return code;
}

enum err_code tokenizer_json_decoder(struct tokenizer_reading *r, const struct json *v,
                                     struct err *err)
{
    return steps_walk(r, "decoder", "decoders", v, 0, decode_one, err);
}
