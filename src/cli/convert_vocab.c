/* convert_vocab.c - what GGUF can say of vocabularies without merges: whether the steps of a tokenizer.json are those that its keys mean. */
#include "cli/convert_vocab.h"
#include "tokenizer/pretok_match.h"

#include <string.h>

#define SPACE_MARK "\xE2\x96\x81" /* U+2581 */

static enum err_code vocab_refuse(const char *part, const char *what, struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED,
                   "tokenizer.json: %s: GGUF cannot say %s of a vocabulary without merges", part,
                   what);
}

/* BERT's steps: clean, Han apart, then accents and case, where the file has them. */
static enum err_code vocab_check_words(const struct pipeline_spec *p, struct convert_vocab *out,
                                       struct err *err)
{
    static const enum norm_kind order[] = { NORM_KIND_BERT_CLEAN, NORM_KIND_BERT_HAN, NORM_KIND_NFD,
                                            NORM_KIND_STRIP_ACCENTS, NORM_KIND_LOWERCASE };
    bool has[ARRAY_LEN(order)] = { false };
    size_t at = 0;
    for (int i = 0; i < p->n_norms; i++) {
        while (at < ARRAY_LEN(order) && order[at] != p->norms[i].kind)
            at++;
        if (at == ARRAY_LEN(order))
            return vocab_refuse("normalizer", "another one than BertNormalizer", err);
        has[at++] = true;
    }
    if (!has[0] || !has[1] || has[2] != has[3])
        return vocab_refuse("normalizer", "another one than BertNormalizer", err);
    out->strip_accents = has[2];
    out->lowercase = has[4];
    if ((p->head < 0) != (p->tail < 0))
        return vocab_refuse("post_processor", "a token on one side alone", err);
    return ERR_OK;
}

/* SentencePiece's: the map, spaces that count once, one in front. */
static enum err_code vocab_check_unigram(const struct pipeline_spec *p, struct convert_vocab *out,
                                         struct err *err)
{
    for (int i = 0; i < p->n_norms; i++) {
        const struct norm_step *n = &p->norms[i];
        bool is_mark = n->content && strcmp(n->content, SPACE_MARK) == 0;
        if (n->kind == NORM_KIND_PREPEND && is_mark)
            out->has_prefix = true;
        else if (n->kind == NORM_KIND_STRIP || n->kind == NORM_KIND_REPLACE)
            out->squeezes |= n->kind == NORM_KIND_STRIP || strcmp(n->pattern, " ") != 0;
        else if (n->kind != NORM_KIND_CHARSMAP)
            return vocab_refuse("normalizer",
                                "other steps than Precompiled, Replace, Strip and "
                                "Prepend",
                                err);
    }
    for (int i = 0; i < p->n_splits; i++) {
        const struct split_step *s = &p->splits[i];
        if (s->kind == SPLIT_KIND_METASPACE)
            out->has_prefix = s->prepend != SPLIT_PREPEND_NEVER;
        else if (s->kind == SPLIT_KIND_PATTERN && s->behavior == SPLIT_REMOVED)
            out->squeezes = true;
        else if (s->kind != SPLIT_KIND_PATTERN || s->behavior != SPLIT_MERGED_WITH_NEXT)
            return vocab_refuse("pre_tokenizer", "other steps than WhitespaceSplit and Metaspace",
                                err);
    }
    return ERR_OK;
}

enum err_code convert_vocab_check(const struct tokenizer_spec *s, struct convert_vocab *out,
                                  struct err *err)
{
    *out = (struct convert_vocab){ .has_prefix = s->add_space_prefix,
                                   .squeezes = s->remove_extra_spaces,
                                   .lowercase = s->lowercase,
                                   .strip_accents = s->strip_accents };
    if (!s->pipeline)
        return ERR_OK;
    out->has_prefix = out->squeezes = false;
    return s->kind == TOKENIZER_KIND_WPM ? vocab_check_words(s->pipeline, out, err)
                                         : vocab_check_unigram(s->pipeline, out, err);
}

enum err_code convert_vocab_same(const struct weights *from, const struct weights *to,
                                 struct err *err)
{
    struct tokenizer *a = NULL, *b = NULL;
    enum err_code code = load_tokenizer(from, &a, err);
    bool is_words = !code && (tokenizer_kind(a) == TOKENIZER_KIND_WPM ||
                              tokenizer_kind(a) == TOKENIZER_KIND_UGM);
    bool is_model = weights_is_dir(from) && !weights_text(from, "tokenizer.json").data;
    if (!code && (is_words || is_model)) {
        code = load_tokenizer(to, &b, err);
        if (!code)
            code = pretok_match_ids(a, b, err);
    }
    tokenizer_free(a);
    tokenizer_free(b);
    return code ? err_prefix(err, code, "the vocabulary") : ERR_OK;
}
