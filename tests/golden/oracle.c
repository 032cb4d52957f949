/* oracle.c - our choices against those of unrounded activations. */
#include "oracle.h"
#include "lab.h"

#include "base/file.h"
#include "engine/sample.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Where our choice is not the oracle's though its two best are NEAR or more apart: 8 bits for an activation cost us these. The
 * arithmetic is the same on every machine, so the list is exact: a new miss fails, and so does a listed one that is no more. */
static const struct oracle_miss {
    const char *model;
    int text, pos;
    int32_t oracle, ours;
    double gap; /* the oracle's */
} misses[] = {
    { "smollm2", 4, 9, 446, 43, 0.130 },           { "smollm2", 8, 14, 3690, 5437, 0.115 },
    { "smollm2", 8, 31, 1513, 15715, 0.113 },      { "smollm2", 16, 0, 2068, 10345, 0.148 },
    { "gemma3-270m", 8, 12, 2034, 121186, 0.122 }, { "gemma3-270m", 10, 7, 236770, 236771, 0.122 },
    { "gemma3-270m", 17, 15, 5452, 30473, 0.267 },
};

/* The most that the mean divergence of the bins below may be: a tenth over what was measured. */
static const struct {
    const char *model;
    double kl;
} bounds[] = {
    { "smollm2", 0.0022 },
    { "gemma3-270m", 0.0013 },
    { "qwen2.5-coder-0.5b", 0.00033 },
};

enum err_code oracle_init(struct oracle *o, const char *name, struct err *err)
{
    char path[256];
    struct buf text;
    *o = (struct oracle){ .name = name };
    snprintf(path, sizeof(path), "tests/golden/oracle/%s.json", name);
    buf_init(&text, MEM_CAT_BASE, (size_t)1 << 20);
    enum err_code code = file_read(path, &text, err);
    if (!code)
        code = json_parse(&o->doc, text.data, text.len, (size_t)1 << 24, err);
    buf_release(&text);
    return code;
}

void oracle_release(struct oracle *o)
{
    json_doc_release(&o->doc);
}

static double log_sum_exp(const float *logits, int32_t n)
{
    double max = logits[sample_argmax(logits, n)], sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += exp(logits[i] - max);
    return max + log(sum);
}

/* KL(oracle || ours) of the oracle's best ids and, as one bin, all others: never more than that of the whole vocabulary. */
static double binned_kl(const struct json *ids, const struct json *oracle_logits, double oracle_lse,
                        const float *logits, int32_t n_vocab)
{
    double lse = log_sum_exp(logits, n_vocab), kl = 0, rest = 1, our_rest = 1;
    for (size_t i = 0; i < ids->n; i++) {
        double logp = golden_number(&oracle_logits->items[i]) - oracle_lse;
        double logq = logits[(int32_t)golden_number(&ids->items[i])] - lse;
        kl += exp(logp) * (logp - logq);
        rest -= exp(logp);
        our_rest -= exp(logq);
    }
    /* the stored logits have four decimals: a rest below that is nothing */
    if (rest > 1e-4 && our_rest > 0)
        kl += rest * log(rest / our_rest);
    return kl;
}

static const struct oracle_miss *find_miss(const char *model, int text, int pos)
{
    for (size_t i = 0; i < ARRAY_LEN(misses); i++)
        if (strcmp(misses[i].model, model) == 0 && misses[i].text == text && misses[i].pos == pos)
            return &misses[i];
    return NULL;
}

void oracle_position(struct oracle *o, int text, int pos, const float *logits, int32_t n_vocab)
{
    const struct json *row =
        text >= 0 && (size_t)text < o->doc.root.n ? &o->doc.root.items[text] : NULL;
    const struct json *all = json_get(row, "ids");
    if (!all || pos < 0 || (size_t)pos >= all->n) {
        printf("%s: text %d has no position %d: run make_oracle.py again\n", o->name, text, pos);
        o->n_wrong++;
        return;
    }
    const struct json *ids = &all->items[pos], *best = &json_get(row, "logits")->items[pos];
    double gap = golden_number(&best->items[0]) - golden_number(&best->items[1]);
    int32_t theirs = (int32_t)golden_number(&ids->items[0]), ours = sample_argmax(logits, n_vocab);
    const struct oracle_miss *known = find_miss(o->name, text, pos);
    o->kl +=
        binned_kl(ids, best, golden_number(&json_get(row, "lse")->items[pos]), logits, n_vocab);
    o->n++;
    o->n_near += gap < NEAR;
    o->n_equal += ours == theirs;
    if (known && known->ours == ours && known->oracle == theirs && fabs(known->gap - gap) < 0.001) {
        o->n_known++;
        return;
    }
    if ((ours == theirs || gap < NEAR) && !known)
        return;
    o->n_wrong++;
    printf("%s{ \"%s\", %d, %d, %d, %d, %.3f },\n",
           known ? "a known miss is now " : "new miss: ", o->name, text, pos, theirs, ours, gap);
}

bool oracle_finish(const struct oracle *o)
{
    double kl = o->kl / o->n, bound = 0;
    int n_listed = 0;
    for (size_t i = 0; i < ARRAY_LEN(misses); i++)
        n_listed += strcmp(misses[i].model, o->name) == 0;
    for (size_t i = 0; i < ARRAY_LEN(bounds); i++)
        if (strcmp(bounds[i].model, o->name) == 0)
            bound = bounds[i].kl;
    bool has_held = o->n_wrong == 0 && o->n_known == n_listed && kl <= bound; /* a NaN fails too */
    if (!has_held)
        printf("FAIL: %s: farther from the oracle than before\n", o->name);
    printf("%s, unrounded activations: %d of %d choices equal, %d near ties, %d of %d known "
           "misses, %d "
           "others, divergence %.6f (at most %.6f)\n",
           o->name, o->n_equal, o->n, o->n_near, o->n_known, n_listed, o->n_wrong, kl, bound);
    return has_held;
}
